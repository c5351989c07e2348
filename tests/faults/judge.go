package main

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// pair is the state of two keys: values, "" if absent, and the revisions at which they were written. A write that nobody was told
// the revision of has -1, and after holds the highest revision that was known before it.
type pair struct {
	values      [2]string
	revs, after [2]int64
	highest     int64 // of all answers so far
}

// judgeLimit is how long porcupine may think about one pair. Past it the pair counts as unjudged, and the run fails.
const judgeLimit = 60 * time.Second

var pairModel = porcupine.Model{
	Init: func() any { return pair{} },
	Step: func(state, input, output any) (bool, any) {
		s, o := state.(pair), input.(*operation)
		next, ok := s.step(o, o.Outcome == unknown)
		return ok, next
	},
	Equal: func(a, b any) bool { return a.(pair) == b.(pair) },
	DescribeOperation: func(input, _ any) string {
		o := input.(*operation)
		return fmt.Sprintf("%s %s %s %v: %s rev %d %v %v %v", o.Kind, o.Key, o.Value, o.Expect, o.Outcome, o.Rev, o.Held, o.Values, o.Revs)
	},
}

// step says whether an operation can have this answer in this state, and what it leaves.
func (s pair) step(o *operation, blind bool) (pair, bool) {
	key := 0
	if strings.HasSuffix(o.Key, "b") {
		key = 1
	}
	newer, before := blind || o.Rev > s.highest, s
	if !blind && o.Rev < s.highest {
		return s, false
	}
	s.highest = max(s.highest, o.Rev)
	switch o.Kind {
	case "put":
		s.set(key, o.Value, o.Rev, before.highest)
		return s, newer
	case "pair":
		s.set(0, o.Value, o.Rev, before.highest)
		s.set(1, o.Value, o.Rev, before.highest)
		return s, newer
	case "delete":
		there := s.values[key] != ""
		s.values[key], s.revs[key], s.after[key] = "", 0, 0
		return s, blind || (there == o.Held && (newer || !there))
	case "cas":
		if s.values[key] == o.Expect {
			s.set(key, o.Value, o.Rev, before.highest)
			return s, blind || (o.Held && newer)
		}
		return s, blind || (!o.Held && s.sees(key, o.Values[0], o.Revs[0]))
	default:
		return s, s.sees(0, o.Values[0], o.Revs[0]) && s.sees(1, o.Values[1], o.Revs[1])
	}
}

// set writes a key. The revision is 0 if the client was not told.
func (s *pair) set(key int, value string, rev, highest int64) {
	s.values[key], s.revs[key], s.after[key] = value, rev, 0
	if rev == 0 {
		s.revs[key], s.after[key] = -1, highest
	}
}

// sees says whether a read of a key can have found this, and learns the revision of a write that nobody was told.
func (s *pair) sees(key int, value string, rev int64) bool {
	if s.values[key] != value {
		return false
	}
	if s.revs[key] == -1 && rev > s.after[key] {
		s.revs[key], s.after[key] = rev, 0
	}
	return s.revs[key] == rev
}

// judgeKv asks porcupine about each pair of keys, and checks that revisions are in the order of real time over all of them.
func (r *round) judgeKv() []string {
	groups := map[string][]porcupine.Operation{}
	told := r.toldByWatches()
	for _, o := range r.history.of("kv") {
		if o = told.settle(o); o == nil {
			continue // it left no trace: whoever read its value finds no writer
		}
		end := o.End
		if o.Outcome == unknown {
			end = math.MaxInt64
		}
		group := o.Key[:len(o.Key)-2]
		groups[group] = append(groups[group], porcupine.Operation{ClientId: (o.Client + 1000) % 1000, Input: o, Call: o.Start, Output: o, Return: end})
	}
	var wrong []string
	for group, operations := range groups {
		switch result, info := porcupine.CheckOperationsVerbose(pairModel, operations, judgeLimit); result {
		case porcupine.Illegal:
			path := r.harness.keep(strings.ReplaceAll(group, "/", "-") + ".html")
			_ = porcupine.VisualizePath(pairModel, info, path)
			wrong = append(wrong, fmt.Sprintf("%s is not linearizable: %s", group, path))
		case porcupine.Unknown:
			wrong = append(wrong, fmt.Sprintf("%s was not judged within %v (%d operations)", group, judgeLimit, len(operations)))
		}
	}
	return append(wrong, realTime(append(r.history.of("kv"), r.history.of("probe")...))...)
}

// told is what watches say about writes that nobody was told the outcome of. Without it porcupine would have to try all their orders.
type told struct {
	changes map[string]event // by value, the earliest sight of it
	// keys of deletions that no client was told of
	deleted map[string]bool
}

func (r *round) toldByWatches() told {
	found := told{map[string]event{}, map[string]bool{}}
	acknowledged := map[int64]bool{}
	for _, o := range r.history.of("kv") {
		if o.Kind == "delete" && o.Outcome == done && o.Held {
			acknowledged[o.Rev] = true
		}
	}
	for _, w := range r.watchers {
		for _, e := range w.events {
			if e.Delete {
				found.deleted[e.Key] = found.deleted[e.Key] || !acknowledged[e.Rev]
			} else if first, seen := found.changes[e.Value]; !seen || e.At < first.At {
				found.changes[e.Value] = e
			}
		}
	}
	return found
}

// settle gives what is to be judged of an operation: itself if its client was told, what watches saw of it if not, nil if nothing.
func (t told) settle(o *operation) *operation {
	switch {
	case o.Outcome == notDone || (o.Outcome == unknown && o.Kind == "read"):
		return nil
	case o.Outcome == done:
		return o
	case o.Kind == "delete":
		if !t.deleted[o.Key] {
			return nil
		}
		return o
	}
	e, seen := t.changes[o.Value]
	if !seen {
		return nil
	}
	settled := *o
	settled.Outcome, settled.Rev, settled.Held, settled.End = done, e.Rev, true, max(e.At, o.Start+1)
	return &settled
}

// realTime checks over all keys: who begins after a write was answered gets a higher revision, or as a reader one not lower.
func realTime(operations []*operation) []string {
	var answered []*operation
	for _, o := range operations {
		if o.Outcome == done {
			answered = append(answered, o)
		}
	}
	byEnd := append([]*operation(nil), answered...)
	sort.Slice(byEnd, func(a, b int) bool { return byEnd[a].End < byEnd[b].End })
	sort.Slice(answered, func(a, b int) bool { return answered[a].Start < answered[b].Start })
	var wrong []string
	var highest *operation
	for place, next := 0, 0; place < len(answered); place++ {
		o := answered[place]
		for ; next < len(byEnd) && byEnd[next].End < o.Start; next++ {
			if highest == nil || byEnd[next].Rev > highest.Rev {
				highest = byEnd[next]
			}
		}
		if highest != nil && (o.Rev < highest.Rev || (o.writes() && o.Rev == highest.Rev)) {
			wrong = append(wrong, fmt.Sprintf("%s of %s through node %d at revision %d began %v after %s of %s was answered at revision %d",
				o.Kind, o.Key, o.Node, o.Rev, time.Duration(o.Start-highest.End), highest.Kind, highest.Key, highest.Rev))
		}
	}
	return wrong
}

// writes says whether it made a revision of its own.
func (o *operation) writes() bool {
	switch o.Kind {
	case "put", "pair":
		return true
	case "delete", "cas":
		return o.Held
	}
	return false
}
