package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// harness is one run: a cluster, clients, and what has been seen.
type harness struct {
	cluster    *cluster
	kv         map[int]*clientv3.Client // by node
	anyKv      *clientv3.Client         // through all nodes
	route      *routeFace
	seed       uint64
	probeEvery time.Duration
	keepFolder string
	rounds     int
	bulkMb     int64
}

// round is one fault under load, from a healthy cluster to a healthy cluster, with keys of its own.
type round struct {
	harness  *harness
	number   int
	random   *rand.Rand
	stopped  atomic.Bool
	workers  sync.WaitGroup
	history  history
	firstRev int64
	watchers []*watcher
	lost     atomic.Int64
	counted  map[int]int64 // by node

	mutex     sync.Mutex
	wrong     []string // what clients and faults found themselves
	movements []*movement
	successes map[int][]span // of writes, by node
}

// span is when an operation began and was answered.
type span struct{ start, end int64 }

// result is what a round showed.
type result struct {
	Fault      string   `json:"fault"`
	Round      int      `json:"round"`
	Target     int      `json:"target"`
	Operations int      `json:"operations"`
	Unknown    int      `json:"unknown"`
	NotDone    int      `json:"not_done"`
	GapMs      float64  `json:"gap_ms"`  // longest time without a write that succeeded through any node
	BackMs     float64  `json:"back_ms"` // from the end of the fault until each node had served a write since
	Lost       int64    `json:"lost"`
	Wrong      []string `json:"wrong"`
	IdlePct    float64  `json:"idle_pct"`
	StealPct   float64  `json:"steal_pct"`
	At         string   `json:"at"`
	BegunMs    float64  `json:"begun_ms"`  // since At
	EndedMs    float64  `json:"ended_ms"`  // since At
	SentMb     float64  `json:"sent_mb"`   // between nodes, from the end of the fault until all are back
	JudgedMs   float64  `json:"judged_ms"` // what the judges took
}

func (r *round) prefix(part string) string { return fmt.Sprintf("r%d/%s", r.number, part) }
func (r *round) lastKey() string           { return r.prefix("zz") }
func (r *round) loading() bool             { return !r.stopped.Load() }

// judged says whether a key's values are unique, so that each change has one writer.
func (r *round) judged(key string) bool {
	return strings.HasPrefix(key, r.prefix("k")) || strings.HasPrefix(key, r.prefix("p"))
}

// think is the pause between two requests of one client.
func (r *round) think(random *rand.Rand) {
	time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
}

// finish records an operation with its outcome.
func (r *round) finish(o *operation, err error) {
	o.End = now()
	o.Outcome = classify(err)
	if err != nil {
		o.Error = err.Error()
	}
	r.record(o)
}

func (r *round) record(o *operation) {
	r.history.add(o)
	if o.Outcome == done && o.Kind != "read" && (o.Kind != "take" || o.Held) {
		r.mutex.Lock()
		r.successes[o.Node] = append(r.successes[o.Node], span{o.Start, o.End})
		r.mutex.Unlock()
	}
}

// servedSince says when a node first answered a write that began after a moment.
func (r *round) servedSince(n int, moment int64) (int64, bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	first, found := int64(0), false
	for _, s := range r.successes[n] {
		if s.start >= moment && (!found || s.end < first) {
			first, found = s.end, true
		}
	}
	return first, found
}

// waitServed waits until every node has answered a write that began after a moment, and gives the last node's time.
func (r *round) waitServed(moment int64, limit time.Duration) (int64, error) {
	var last int64
	for _, n := range r.harness.cluster.nodes {
		for {
			if at, ok := r.servedSince(n.number, moment); ok {
				last = max(last, at)
				break
			}
			if time.Duration(now()-moment) > limit {
				return last, fmt.Errorf("node %d serves no writes %v after the fault ended; it logged last: %s", n.number, limit, n.lastLine())
			}
			time.Sleep(time.Millisecond)
		}
	}
	return last, nil
}

// start begins the load: for each node a prober, workers of each face and a watcher, and a watcher through all nodes.
func (r *round) start() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := r.harness.anyKv.Get(ctx, "first")
	if err != nil {
		return fmt.Errorf("before the round: %w", err)
	}
	r.firstRev = answer.Header.Revision + 1
	if err := r.openAccounts(); err != nil {
		return err
	}
	client := 0
	work := func(n *node, job func(int, *node, *rand.Rand)) {
		client++
		number, random := client, rand.New(rand.NewPCG(r.harness.seed, uint64(r.number*1000+client)))
		r.workers.Add(1)
		go func() { defer r.workers.Done(); job(number, n, random) }()
	}
	for _, n := range r.harness.cluster.nodes {
		work(n, func(_ int, n *node, _ *rand.Rand) { r.probe(n) })
		for _, job := range []func(int, *node, *rand.Rand){r.kvWorker, r.kvWorker, r.lockWorker, r.leaseWorker, r.ledgerWorker, r.routeWorker} {
			work(n, job)
		}
		r.watchers = append(r.watchers, r.watch(n.name, r.harness.kv[n.number]))
	}
	r.watchers = append(r.watchers, r.watch("any", r.harness.anyKv))
	return nil
}

// run does the round. An error ends the whole run; what is wrong is in the result.
func (h *harness) run(f *fault) result {
	h.rounds++
	r := &round{harness: h, number: h.rounds, successes: map[int][]span{},
		random: rand.New(rand.NewPCG(h.seed, uint64(h.rounds)))}
	out := result{Fault: f.name, Round: r.number, At: time.Now().UTC().Format(time.RFC3339)}
	fail := func(err error) { out.Wrong = append(out.Wrong, err.Error()) }
	processor, began := readProcessor(), now()
	if err := r.start(); err != nil {
		fail(err)
		return out
	}
	if _, err := r.waitServed(now(), 30*time.Second); err != nil {
		fail(err)
	}
	time.Sleep(time.Second)
	begun := now()
	heal, target, err := f.begin(r)
	if err != nil {
		fail(fmt.Errorf("beginning: %w", err))
	}
	if target != nil {
		out.Target = target.number
	}
	time.Sleep(f.hold(r.random))
	ended := now()
	if heal != nil {
		if ended, err = heal(); err != nil {
			fail(fmt.Errorf("ending: %w", err))
		}
	}
	sent := h.cluster.network.sentBetween()
	served, err := r.waitServed(ended, f.back())
	if err != nil {
		fail(err)
		served = now()
	}
	out.BackMs = float64(served-ended) / 1e6
	out.SentMb = float64(h.cluster.network.sentBetween()-sent) / 1e6
	out.BegunMs, out.EndedMs = float64(begun-began)/1e6, float64(ended-began)/1e6
	time.Sleep(500 * time.Millisecond)
	loaded := now()
	r.stopped.Store(true)
	r.workers.Wait()
	out.GapMs = r.gap(begun, loaded)
	out.IdlePct, out.StealPct = processor.since()
	for _, err := range r.finishUp() {
		fail(err)
	}
	judging := now()
	// Where a node does not serve, what it lacks says nothing.
	if len(out.Wrong) == 0 {
		for _, judge := range []func() []string{r.judgeKv, r.judgeWatches, r.judgeLocks, r.judgeCounter, r.judgeLeases, r.judgeLedger, r.judgeRoutes} {
			out.Wrong = append(out.Wrong, judge()...)
		}
	}
	out.JudgedMs = float64(now()-judging) / 1e6
	out.Wrong = append(out.Wrong, r.wrong...)
	out.Lost = r.lost.Load()
	for _, o := range r.history.operations {
		out.Operations++
		switch o.Outcome {
		case unknown:
			out.Unknown++
		case notDone:
			out.NotDone++
		}
	}
	if len(out.Wrong) > 0 {
		_ = r.history.save(h.keep(fmt.Sprintf("round%d.history.jsonl", r.number)))
	}
	return out
}

// gap is the longest time between two writes that succeeded, through whichever node, in milliseconds.
func (r *round) gap(from, to int64) float64 {
	var ends []int64
	for _, spans := range r.successes {
		for _, s := range spans {
			if s.end >= from && s.end <= to {
				ends = append(ends, s.end)
			}
		}
	}
	ends = append(ends, from, to)
	return float64(longest(ends)) / 1e6
}

// finishUp checks that all is well again, reads what is there, and lets the watchers see the end.
func (r *round) finishUp() []error {
	var wrong []error
	for _, n := range r.harness.cluster.nodes {
		if err := n.ready(60 * time.Second); err != nil {
			wrong = append(wrong, err)
		}
	}
	if len(wrong) > 0 {
		return wrong
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for _, read := range []func() error{r.readFinally, r.readCounter, func() error { return r.waitExpired(ctx) }} {
		if err := read(); err != nil {
			wrong = append(wrong, err)
		}
	}
	r.readRoutesFinally()
	last, err := r.harness.anyKv.Put(ctx, r.lastKey(), "end")
	if err != nil {
		return append(wrong, fmt.Errorf("writing the last key: %w", err))
	}
	limit := time.After(30 * time.Second)
	for _, w := range r.watchers {
		select {
		case <-w.done:
		case <-limit:
			wrong = append(wrong, fmt.Errorf("watcher %s did not see the last key, at revision %d, within 30 s", w.name, last.Header.Revision))
		}
		w.cancel()
		<-w.done
	}
	return append(wrong, r.compareReplicas(ctx, last.Header.Revision)...)
}

// compareReplicas has every node hash what it holds at a revision.
func (r *round) compareReplicas(ctx context.Context, rev int64) []error {
	var wrong []error
	hashes := map[uint32][]string{}
	for _, n := range r.harness.cluster.nodes {
		answer, err := r.harness.kv[n.number].HashKV(ctx, n.client(), rev)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("hashing node %d at revision %d: %w", n.number, rev, err))
			continue
		}
		hashes[answer.Hash] = append(hashes[answer.Hash], n.name)
	}
	if len(hashes) > 1 {
		wrong = append(wrong, fmt.Errorf("replicas differ at revision %d: %v", rev, hashes))
	}
	return wrong
}

// keep gives the path of a file that stays after a failed run.
func (h *harness) keep(name string) string {
	_ = os.MkdirAll(h.keepFolder, 0o755)
	return filepath.Join(h.keepFolder, name)
}

func newHarness(cluster *cluster, protos string, seed uint64, keepFolder string) (*harness, error) {
	h := &harness{cluster: cluster, seed: seed, keepFolder: keepFolder, probeEvery: 10 * time.Millisecond,
		kv: map[int]*clientv3.Client{}}
	for _, n := range cluster.nodes {
		kv, err := dialKv(n)
		if err != nil {
			return nil, err
		}
		h.kv[n.number] = kv
	}
	var err error
	if h.route, err = dialRoute(protos, cluster.nodes); err != nil {
		return nil, err
	}
	h.anyKv, err = dialKv(cluster.nodes...)
	return h, err
}
