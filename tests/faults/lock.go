package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

// locks is the number of locks of a round; lockTime how long one is held at most.
const (
	locks    = 3
	lockTime = 2 * time.Second
)

// steady is the part of a lock's or lease's time that is promised: the cluster's time may run a twentieth too fast.
const steady = 0.95

// lockWorker takes locks by SET NX PX over RESP, gives them back with a transaction, or lets them run out; and counts with INCR.
func (r *round) lockWorker(client int, n *node, random *rand.Rand) {
	var connection redis.Conn
	defer func() { closeRedis(connection) }()
	for count := 0; r.loading(); count++ {
		if connection == nil || connection.Err() != nil {
			closeRedis(connection)
			var err error
			connection, err = redis.Dial("tcp", n.resp(), redis.DialConnectTimeout(time.Second), redis.DialReadTimeout(timeout), redis.DialWriteTimeout(timeout))
			if err != nil {
				connection = nil
				time.Sleep(50 * time.Millisecond)
				continue
			}
		}
		if random.IntN(2) == 0 {
			r.count(connection, client, n)
			r.think(random)
			continue
		}
		key, token := fmt.Sprintf("%s%d", r.prefix("lock"), random.IntN(locks)), fmt.Sprintf("%d.%d", client, count)
		if !r.take(connection, client, n, key, token) {
			r.think(random)
			continue
		}
		time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
		if random.IntN(10) != 0 {
			r.giveBack(connection, client, n, key, token)
		}
	}
}

func closeRedis(connection redis.Conn) {
	if connection != nil {
		_ = connection.Close()
	}
}

// take asks for a lock. Held: it got it.
func (r *round) take(connection redis.Conn, client int, n *node, key, token string) bool {
	o := &operation{Client: client, Node: n.number, Face: "lock", Kind: "take", Key: key, Value: token, Start: now()}
	answer, err := redis.String(connection.Do("SET", key, token, "NX", "PX", lockTime.Milliseconds()))
	if errors.Is(err, redis.ErrNil) {
		err = nil
	}
	o.Held = answer == "OK"
	r.finishRedis(o, err)
	return o.Held
}

// giveBack deletes a lock if it is still this client's.
func (r *round) giveBack(connection redis.Conn, client int, n *node, key, token string) {
	o := &operation{Client: client, Node: n.number, Face: "lock", Kind: "give", Key: key, Value: token, Start: now()}
	_, err := connection.Do("WATCH", key)
	if err == nil {
		var have string
		if have, err = redis.String(connection.Do("GET", key)); errors.Is(err, redis.ErrNil) {
			have, err = "", nil
		}
		if err == nil && have == token {
			_ = connection.Send("MULTI")
			_ = connection.Send("DEL", key)
			_, err = connection.Do("EXEC")
			o.Held = err == nil
			if errors.Is(err, redis.ErrNil) {
				err = nil // somebody else has it by now
			}
		} else if err == nil {
			_, err = connection.Do("UNWATCH")
		}
	}
	r.finishRedis(o, err)
}

// count adds one to the round's counter.
func (r *round) count(connection redis.Conn, client int, n *node) {
	o := &operation{Client: client, Node: n.number, Face: "counter", Kind: "incr", Key: r.prefix("counter"), Start: now()}
	value, err := redis.Int64(connection.Do("INCR", o.Key))
	o.Rev = value
	r.finishRedis(o, err)
}

// finishRedis records an operation with its outcome, which the first word of an error tells.
func (r *round) finishRedis(o *operation, err error) {
	o.End, o.Outcome = now(), done
	if err != nil {
		o.Outcome, o.Error = unknown, err.Error()
		switch word, _, _ := strings.Cut(o.Error, " "); word {
		case "BUSY", "CLUSTERDOWN", "TRYAGAIN", "NOSPACE":
			o.Outcome = notDone
		case "ERR", "EXECABORT", "NOPROTO", "FAULT":
			r.complain("%s of %s through node %d: %s", o.Kind, o.Key, o.Node, o.Error)
		}
	}
	r.record(o)
}

// judgeLocks checks that nobody got a lock while another had it for sure: from the answer until the promised part of its time since
// the request is over, or its owner began to give it back.
func (r *round) judgeLocks() []string {
	given := map[string]int64{}
	takes := map[string][]*operation{}
	for _, o := range r.history.of("lock") {
		if o.Kind == "give" {
			given[o.Key+o.Value] = o.Start
		} else if o.Held && o.Outcome == done {
			takes[o.Key] = append(takes[o.Key], o)
		}
	}
	var wrong []string
	for key, owners := range takes {
		sort.Slice(owners, func(a, b int) bool { return owners[a].Start < owners[b].Start })
		for place, owner := range owners {
			until := owner.Start + int64(steady*float64(lockTime))
			if back, ok := given[key+owner.Value]; ok {
				until = min(until, back)
			}
			for _, other := range owners[place+1:] {
				if other.Start > until {
					break
				}
				if other.Start > owner.End && other.End < until {
					wrong = append(wrong, fmt.Sprintf("%s was given to %s, %v after %s got it for %v", key, other.Value, time.Duration(other.End-owner.End), owner.Value, lockTime))
				}
			}
		}
	}
	return wrong
}

// judgeCounter checks that each answered INCR has a number of its own, in the order of real time, and that the sum fits.
func (r *round) judgeCounter() []string {
	operations := r.history.of("counter")
	wrong := []string{}
	answered, open := 0, 0
	numbers := map[int64]bool{}
	for _, o := range operations {
		switch o.Outcome {
		case done:
			answered++
			if numbers[o.Rev] {
				wrong = append(wrong, fmt.Sprintf("two clients were told that they counted %d", o.Rev))
			}
			numbers[o.Rev] = true
		case unknown:
			open++
		}
	}
	writes := make([]*operation, 0, len(operations))
	for _, o := range operations {
		same := *o
		same.Kind = "put" // it made a number of its own
		writes = append(writes, &same)
	}
	wrong = append(wrong, realTime(writes)...)
	for node, counted := range r.counted {
		if counted < int64(answered) || counted > int64(answered+open) {
			wrong = append(wrong, fmt.Sprintf("node %d counted %d: %d were answered, %d more are open", node, counted, answered, open))
		}
	}
	return wrong
}

// readCounter reads the counter through every node, once all is well again.
func (r *round) readCounter() error {
	r.counted = map[int]int64{}
	for _, n := range r.harness.cluster.nodes {
		connection, err := redis.Dial("tcp", n.resp(), redis.DialReadTimeout(10*time.Second))
		if err != nil {
			return err
		}
		r.counted[n.number], err = redis.Int64(connection.Do("GET", r.prefix("counter")))
		_ = connection.Close()
		if err != nil && !errors.Is(err, redis.ErrNil) {
			return fmt.Errorf("reading the counter through node %d: %w", n.number, err)
		}
	}
	return nil
}
