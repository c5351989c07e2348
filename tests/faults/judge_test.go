package main

import (
	"strings"
	"testing"
)

// A judge that finds nothing may be blind: each of these histories has one thing wrong, and the first has none.
func TestWhatIsWrongWithAHistoryIsFound(t *testing.T) {
	put := func(value string, start, end, rev int64, o outcome) *operation {
		return &operation{Face: "kv", Kind: "put", Key: "r1/k00/a", Value: value, Start: start, End: end, Rev: rev, Outcome: o, Error: "no leader"}
	}
	read := func(value string, rev, start, at int64) *operation {
		return &operation{Face: "kv", Kind: "read", Key: "r1/k00/a", Start: start, End: start + 1, Rev: at, Outcome: done,
			Values: []string{value, ""}, Revs: []int64{rev, 0}}
	}
	told := func(events ...event) *watcher { return &watcher{name: "w", events: events} }
	at := func(rev int64, value string) event { return event{Rev: rev, Key: "r1/k00/a", Value: value} }
	late := func(e event) event { e.At = 9; return e }
	a, b := at(5, "a"), at(6, "b")
	for _, test := range []struct {
		story      string
		wrong      string
		operations []*operation
		watchers   []*watcher
	}{
		{"all is well", "", []*operation{put("a", 1, 2, 5, done), put("b", 3, 4, 6, done), read("b", 6, 5, 6)}, []*watcher{told(a, b), told(a, b)}},
		{"an unknown write was done late", "", []*operation{put("b", 1, 2, 0, unknown), put("a", 3, 4, 5, done), read("a", 5, 5, 5), read("b", 6, 7, 6)}, []*watcher{told(a, late(b))}},
		{"an unknown write that a reader saw before watchers did comes later", "is not linearizable", []*operation{put("b", 1, 2, 0, unknown), put("a", 3, 4, 7, done), read("b", 6, 9, 9)}, []*watcher{told(b, at(7, "a"))}},
		{"an acknowledged write is gone", "is not linearizable", []*operation{put("a", 1, 2, 5, done), read("", 0, 5, 5)}, nil},
		{"a read is stale", "is not linearizable", []*operation{put("a", 1, 2, 5, done), put("b", 3, 4, 6, done), read("a", 5, 5, 5)}, nil},
		{"a write that was not done is seen", "is not linearizable", []*operation{put("a", 1, 2, 0, notDone), read("a", 5, 5, 5)}, nil},
		{"a value comes back", "is not linearizable", []*operation{put("b", 1, 2, 6, done), put("a", 3, 4, 7, done), read("b", 6, 5, 7)}, nil},
		{"a later write has a lower revision", "began 1ns after", []*operation{put("a", 1, 2, 5, done), put("b", 3, 4, 4, done)}, nil},
		{"two writes have one revision", "began 1ns after", []*operation{put("a", 1, 2, 5, done), put("b", 3, 4, 5, done)}, nil},
		{"a watcher misses a change", "watchers saw", []*operation{put("a", 1, 2, 5, done), put("b", 3, 4, 6, done)}, []*watcher{told(a)}},
		{"one watcher of two misses a change", "differ at change 1", []*operation{put("a", 1, 2, 5, done), put("b", 3, 4, 6, done)}, []*watcher{told(a, b), told(a)}},
		{"a change comes twice", "after revision 5", []*operation{put("a", 1, 2, 5, done)}, []*watcher{told(a, a)}},
		{"changes come in the wrong order", "after revision 6", []*operation{put("a", 1, 2, 5, done), put("b", 1, 4, 6, done)}, []*watcher{told(b, a)}},
		{"a change comes after progress past it", "and progress 6", []*operation{put("a", 1, 2, 5, done)}, []*watcher{told(event{Rev: 6}, a)}},
		{"progress runs backwards", "progress 5 after progress 6", nil, []*watcher{told(event{Rev: 6}, event{Rev: 5})}},
		{"a change that nobody wrote", "nobody wrote", nil, []*watcher{told(a)}},
		{"a change that was not done", "was said not to be done", []*operation{put("a", 1, 2, 0, notDone)}, []*watcher{told(a)}},
		{"a change at another revision", "watchers saw", []*operation{put("a", 1, 2, 7, done)}, []*watcher{told(a)}},
	} {
		r := &round{number: 1, harness: &harness{keepFolder: t.TempDir()}, history: history{operations: test.operations}, watchers: test.watchers}
		found := r.judgeKv()
		if test.watchers != nil {
			found = append(found, r.judgeWatches()...)
		}
		if all := strings.Join(found, "\n"); (test.wrong == "") != (all == "") || !strings.Contains(all, test.wrong) {
			t.Errorf("%s: found %q, expected %q", test.story, all, test.wrong)
		}
	}
}
