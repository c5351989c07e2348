package main

import (
	"encoding/json"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type outcome string

const (
	done    outcome = "done"    // the answer says so
	notDone outcome = "notdone" // the error says that it was not, and never will be
	unknown outcome = "unknown" // it may have been done, may be done later, or neither
)

// operation is one line of a history: what a client asked for, and what it was told. Times are in nanoseconds of one
// monotonic clock.
type operation struct {
	Client  int      `json:"client"`
	Node    int      `json:"node"`
	Face    string   `json:"face"`
	Kind    string   `json:"kind"`
	Key     string   `json:"key,omitempty"`
	Value   string   `json:"value,omitempty"`  // written
	Expect  string   `json:"expect,omitempty"` // compared with
	Start   int64    `json:"start"`
	End     int64    `json:"end"`
	Outcome outcome  `json:"outcome"`
	Held    bool     `json:"held,omitempty"` // the comparison held, the key was there
	Rev     int64    `json:"rev,omitempty"`  // of the answer
	Values  []string `json:"values,omitempty"`
	Revs    []int64  `json:"revs,omitempty"` // of Values
	Error   string   `json:"error,omitempty"`
}

// history is what all clients of a round did.
type history struct {
	mutex      sync.Mutex
	operations []*operation
}

var epoch = time.Now()

func now() int64 { return int64(time.Since(epoch)) }

func (h *history) add(o *operation) {
	h.mutex.Lock()
	h.operations = append(h.operations, o)
	h.mutex.Unlock()
}

func (h *history) of(face string) []*operation {
	var found []*operation
	for _, o := range h.operations {
		if o.Face == face {
			found = append(found, o)
		}
	}
	return found
}

func (h *history) save(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := json.NewEncoder(file)
	for _, o := range h.operations {
		if err := lines.Encode(o); err != nil {
			return err
		}
	}
	return nil
}

// classify says what an error of a write over gRPC means: by the server's words, or because the client never sent it.
func classify(err error) outcome {
	if err == nil {
		return done
	}
	text := err.Error()
	for _, told := range []string{"etcdserver: no leader", "etcdserver: leader changed", "etcdserver: too many requests",
		"etcdserver: mvcc: database space exceeded", "requested lease not found"} {
		if strings.Contains(text, told) {
			return notDone
		}
	}
	if s, ok := status.FromError(err); ok && s.Code() == codes.Unavailable && strings.Contains(text, "Error while dialing") {
		return notDone
	}
	return unknown
}
