package main

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// event is one change as a watcher was told of it.
type event struct {
	Rev    int64  `json:"rev"`
	Key    string `json:"key"`
	Value  string `json:"value"` // "" for a deletion
	At     int64  `json:"at"`
	Delete bool   `json:"delete,omitempty"`
}

// watcher watches everything of a round from its first revision on: through one node, or as users do through any.
type watcher struct {
	name   string
	events []event
	wrong  []string
	done   chan struct{}
	cancel context.CancelFunc
}

// watch starts a watcher. It ends when it has seen the round's last key, or is cancelled.
func (r *round) watch(name string, kv *clientv3.Client) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{name: name, done: make(chan struct{}), cancel: cancel}
	answers := kv.Watch(ctx, r.prefix(""), clientv3.WithPrefix(), clientv3.WithRev(r.firstRev))
	go r.askForProgress(ctx, kv)
	go func() {
		defer close(w.done)
		for answer := range answers {
			if w.take(&answer, r.lastKey()) {
				return
			}
		}
	}()
	return w
}

// askForProgress asks how far the watch has come every now and then: no event at or below the answer may follow.
func (r *round) askForProgress(ctx context.Context, kv *clientv3.Client) {
	for tick := time.NewTicker(200 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
			_ = kv.RequestProgress(ctx)
		}
	}
}

// take records an answer, and says whether the round's last key was in it.
func (w *watcher) take(answer *clientv3.WatchResponse, lastKey string) bool {
	at := now()
	if err := answer.Err(); err != nil {
		w.wrong = append(w.wrong, fmt.Sprintf("watcher %s: %v", w.name, err))
	}
	if answer.IsProgressNotify() {
		w.events = append(w.events, event{Rev: answer.Header.Revision, At: at})
		return false
	}
	last := false
	for _, e := range answer.Events {
		w.events = append(w.events, event{e.Kv.ModRevision, string(e.Kv.Key), string(e.Kv.Value), at, e.Type == clientv3.EventTypeDelete})
		last = last || string(e.Kv.Key) == lastKey
	}
	return last
}

// judgeWatches checks that every watcher was told of the same changes, in order and once, of all that was acknowledged, and
// of nothing that nobody wrote or that was said not to be done.
func (r *round) judgeWatches() []string {
	var wrong []string
	var first []event
	for place, w := range r.watchers {
		wrong = append(wrong, w.wrong...)
		changes, out := w.inOrder()
		wrong = append(wrong, out...)
		if place == 0 {
			first = changes
			wrong = append(wrong, r.compareWithWrites(changes)...)
			continue
		}
		for i := range max(len(changes), len(first)) {
			if i >= len(changes) || i >= len(first) || !changes[i].same(first[i]) {
				wrong = append(wrong, fmt.Sprintf("watchers %s and %s differ at change %d: %s, %s", r.watchers[0].name, w.name, i, show(first, i), show(changes, i)))
				break
			}
		}
	}
	return wrong
}

func (e event) same(other event) bool {
	return e.Rev == other.Rev && e.Key == other.Key && e.Value == other.Value && e.Delete == other.Delete
}

func show(events []event, place int) string {
	if place >= len(events) {
		return "none"
	}
	return fmt.Sprintf("%+v", events[place])
}

// inOrder gives the changes alone, and what is wrong with their order.
func (w *watcher) inOrder() (changes []event, wrong []string) {
	var rev, progress int64
	keys := map[string]bool{} // of the newest revision
	for _, e := range w.events {
		if e.Key == "" {
			if e.Rev < progress {
				wrong = append(wrong, fmt.Sprintf("watcher %s: progress %d after progress %d", w.name, e.Rev, progress))
			}
			progress = max(progress, e.Rev)
			continue
		}
		if e.Rev < rev || (e.Rev == rev && keys[e.Key]) || e.Rev <= progress {
			wrong = append(wrong, fmt.Sprintf("watcher %s: %+v after revision %d and progress %d", w.name, e, rev, progress))
		}
		if e.Rev > rev {
			clear(keys)
		}
		rev = max(rev, e.Rev)
		keys[e.Key] = true
		changes = append(changes, e)
	}
	return changes, wrong
}

// compareWithWrites compares changes with what clients asked for and were told.
func (r *round) compareWithWrites(changes []event) []string {
	type place struct {
		rev int64
		key string
	}
	told := map[place]event{}
	for _, e := range changes {
		told[place{e.Rev, e.Key}] = e
	}
	var wrong []string
	asked := map[string]*operation{} // by value
	for _, o := range append(r.history.of("kv"), r.history.of("probe")...) {
		if o.Kind != "read" && o.Kind != "delete" {
			asked[o.Value] = o
		}
		if o.Outcome != done || !o.writes() {
			continue
		}
		keys := []string{o.Key}
		if o.Kind == "pair" {
			keys = append(keys, o.Key[:len(o.Key)-1]+"b")
		}
		for _, key := range keys {
			e, found := told[place{o.Rev, key}]
			if !found || e.Delete != (o.Kind == "delete") || (!e.Delete && e.Value != o.Value) {
				r.lost.Add(1)
				wrong = append(wrong, fmt.Sprintf("acknowledged %s of %s to %q at revision %d through node %d: watchers saw %+v", o.Kind, key, o.Value, o.Rev, o.Node, e))
			}
		}
	}
	for _, e := range changes {
		if e.Delete || e.Key == r.lastKey() || !r.judged(e.Key) {
			continue
		}
		switch o := asked[e.Value]; {
		case o == nil:
			wrong = append(wrong, fmt.Sprintf("nobody wrote %+v", e))
		case o.Outcome == notDone:
			wrong = append(wrong, fmt.Sprintf("%+v was said not to be done: %s", e, o.Error))
		case o.Outcome == done && (o.Rev != e.Rev || !o.writes()):
			wrong = append(wrong, fmt.Sprintf("%+v, though its client was told revision %d, held %v", e, o.Rev, o.Held))
		}
	}
	return wrong
}
