package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// leaseSeconds is the time of a lease.
const leaseSeconds = 2

// leaseWorker holds keys by leases: grants one, puts a key under it, keeps it alive for a while, and revokes it or lets it run out.
func (r *round) leaseWorker(client int, n *node, random *rand.Rand) {
	kv := r.harness.kv[n.number]
	for count := 0; r.loading(); count++ {
		key := fmt.Sprintf("%s%d.%d", r.prefix("lease"), client, count)
		var lease clientv3.LeaseID
		step := func(kind string, action func(context.Context) error) bool {
			o := &operation{Client: client, Node: n.number, Face: "lease", Kind: kind, Key: key, Start: now()}
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			r.finish(o, action(ctx))
			return o.Outcome == done
		}
		granted := step("grant", func(ctx context.Context) error {
			answer, err := kv.Grant(ctx, leaseSeconds)
			if err == nil {
				lease = answer.ID
			}
			return err
		})
		granted = granted && step("put", func(ctx context.Context) error {
			_, err := kv.Put(ctx, key, "held", clientv3.WithLease(lease))
			return err
		})
		if !granted {
			r.think(random)
			continue
		}
		for range random.IntN(8) {
			time.Sleep(300 * time.Millisecond)
			if !r.loading() {
				return
			}
			step("keep", func(ctx context.Context) error { _, err := kv.KeepAliveOnce(ctx, lease); return err })
		}
		if random.IntN(2) == 0 {
			step("revoke", func(ctx context.Context) error { _, err := kv.Revoke(ctx, lease); return err })
		}
	}
}

// judgeLeases checks that no key went before its lease's promised time since the last successful request was over, unless somebody asked
// to revoke it, and that all keys of revoked leases are gone.
func (r *round) judgeLeases() []string {
	until, revoke, gone := map[string]int64{}, map[string]*operation{}, map[string]int64{}
	for _, o := range r.history.of("lease") {
		switch {
		case o.Kind == "revoke":
			revoke[o.Key] = o
		case o.Outcome == done && o.Kind != "put":
			until[o.Key] = max(until[o.Key], o.Start+int64(steady*leaseSeconds*float64(time.Second)))
		}
	}
	for _, w := range r.watchers {
		for _, e := range w.events {
			if at, seen := gone[e.Key]; e.Delete && strings.HasPrefix(e.Key, r.prefix("lease")) && (!seen || e.At < at) {
				gone[e.Key] = e.At
			}
		}
	}
	var wrong []string
	for key, end := range until {
		asked := revoke[key]
		at, seen := gone[key]
		if seen && at < end && (asked == nil || asked.Outcome == notDone || asked.Start > at) {
			wrong = append(wrong, fmt.Sprintf("%s went %v before its lease could be over", key, time.Duration(end-at)))
		}
		if !seen && asked != nil && asked.Outcome == done {
			wrong = append(wrong, fmt.Sprintf("%s is there, though its lease was revoked", key))
		}
	}
	return wrong
}

// waitExpired waits until no key of a lease is left: leases that nobody keeps alive end, whatever happened.
func (r *round) waitExpired(ctx context.Context) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left, err := r.harness.anyKv.Get(ctx, r.prefix("lease"), clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil && left.Count == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("keys of leases that nobody keeps alive are there after 20 s: %v %v", left, err)
		}
	}
}
