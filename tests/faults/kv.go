package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// kvGroups is the number of pairs of keys of a round. A pair is what one check of linearizability is about.
const kvGroups = 12

// timeout is how long a client waits for one answer.
const timeout = 3 * time.Second

// soon is how clients reconnect: a node that is back is used at once.
var soon = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
	MinConnectTimeout: time.Second,
}

// dialKv connects to one node, or to several as users do.
func dialKv(nodes ...*node) (*clientv3.Client, error) {
	var endpoints []string
	for _, n := range nodes {
		endpoints = append(endpoints, n.client())
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{grpc.WithConnectParams(soon)},
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
	})
}

// kvWorker does one thing after the other with pairs of keys: puts, deletes, compare-and-swaps, both keys at once, reads.
func (r *round) kvWorker(client int, n *node, random *rand.Rand) {
	kv := r.harness.kv[n.number]
	seen := map[string]string{}
	for count := 0; r.loading(); count++ {
		group := random.IntN(kvGroups)
		key := r.pairKey(group, random.IntN(2))
		o := &operation{Client: client, Node: n.number, Face: "kv", Key: key, Value: fmt.Sprintf("%d.%d.%d", r.number, client, count)}
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		o.Start = now()
		var err error
		switch dice := random.IntN(10); {
		case dice < 3:
			o.Kind = "put"
			err = kvPut(ctx, kv, o)
		case dice < 4:
			o.Kind = "delete"
			err = kvDelete(ctx, kv, o)
		case dice < 6:
			o.Kind, o.Expect = "cas", seen[key]
			err = kvCas(ctx, kv, o)
		case dice < 7:
			o.Kind, o.Key = "pair", r.pairKey(group, 0)
			err = kvPair(ctx, kv, o, r.pairKey(group, 1))
		default:
			o.Kind, o.Key = "read", r.pairKey(group, 0)
			err = kvRead(ctx, kv, o, r.pairKey(group, 1))
			if err == nil {
				seen[r.pairKey(group, 0)], seen[r.pairKey(group, 1)] = o.Values[0], o.Values[1]
			}
		}
		cancel()
		r.finish(o, err)
		r.think(random)
	}
}

func (r *round) pairKey(group, key int) string {
	return fmt.Sprintf("%s%02d/%c", r.prefix("k"), group, 'a'+key)
}

func kvPut(ctx context.Context, kv *clientv3.Client, o *operation) error {
	answer, err := kv.Put(ctx, o.Key, o.Value)
	if err == nil {
		o.Rev = answer.Header.Revision
	}
	return err
}

func kvDelete(ctx context.Context, kv *clientv3.Client, o *operation) error {
	answer, err := kv.Delete(ctx, o.Key)
	if err == nil {
		o.Rev, o.Held = answer.Header.Revision, answer.Deleted == 1
	}
	return err
}

// kvCas writes if the key has the value that this client saw last, where "" stands for absent.
func kvCas(ctx context.Context, kv *clientv3.Client, o *operation) error {
	compare := clientv3.Compare(clientv3.Value(o.Key), "=", o.Expect)
	if o.Expect == "" {
		compare = clientv3.Compare(clientv3.CreateRevision(o.Key), "=", 0)
	}
	answer, err := kv.Txn(ctx).If(compare).Then(clientv3.OpPut(o.Key, o.Value)).Else(clientv3.OpGet(o.Key)).Commit()
	if err != nil {
		return err
	}
	o.Rev, o.Held = answer.Header.Revision, answer.Succeeded
	if !answer.Succeeded {
		o.take((*clientv3.GetResponse)(answer.Responses[0].GetResponseRange()))
	}
	return nil
}

func kvPair(ctx context.Context, kv *clientv3.Client, o *operation, other string) error {
	answer, err := kv.Txn(ctx).Then(clientv3.OpPut(o.Key, o.Value), clientv3.OpPut(other, o.Value)).Commit()
	if err == nil {
		o.Rev = answer.Header.Revision
	}
	return err
}

func kvRead(ctx context.Context, kv *clientv3.Client, o *operation, other string) error {
	answer, err := kv.Txn(ctx).Then(clientv3.OpGet(o.Key), clientv3.OpGet(other)).Commit()
	if err != nil {
		return err
	}
	o.Rev = answer.Header.Revision
	for _, part := range answer.Responses {
		o.take((*clientv3.GetResponse)(part.GetResponseRange()))
	}
	return nil
}

// take records what was found, "" if the key is absent.
func (o *operation) take(found *clientv3.GetResponse) {
	if len(found.Kvs) == 0 {
		o.Values, o.Revs = append(o.Values, ""), append(o.Revs, 0)
		return
	}
	o.Values, o.Revs = append(o.Values, string(found.Kvs[0].Value)), append(o.Revs, found.Kvs[0].ModRevision)
}

// probe puts through one node every ten milliseconds, whether or not the puts before are answered: its successes say when
// the node can write. Past 512 that wait it leaves one out. When there is no space it deletes in between, which must go on.
func (r *round) probe(n *node) {
	kv := r.harness.kv[n.number]
	waiting := make(chan struct{}, 512)
	var full atomic.Bool
	tick := time.NewTicker(r.harness.probeEvery)
	defer tick.Stop()
	for count := 0; r.loading(); count++ {
		<-tick.C
		select {
		case waiting <- struct{}{}:
		default:
			continue
		}
		o := &operation{Client: -n.number, Node: n.number, Face: "probe", Kind: "put", Start: now(),
			Key: fmt.Sprintf("%s%d", r.prefix("p"), n.number), Value: fmt.Sprintf("p%d.%d.%d", r.number, n.number, count)}
		if full.Load() {
			o.Kind, o.Value = "delete", ""
		}
		r.workers.Add(1)
		go func() {
			defer r.workers.Done()
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			var err error
			if o.Kind == "delete" {
				err = kvDelete(ctx, kv, o)
			} else {
				err = kvPut(ctx, kv, o)
			}
			full.Store(err != nil && strings.Contains(err.Error(), "space exceeded"))
			r.finish(o, err)
			<-waiting
		}()
	}
}

// readFinally reads every pair through every node, once all is well again: whatever was acknowledged must be there.
func (r *round) readFinally() error {
	for _, n := range r.harness.cluster.nodes {
		for group := range kvGroups {
			o := &operation{Client: -100, Node: n.number, Face: "kv", Kind: "read", Key: r.pairKey(group, 0)}
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			o.Start = now()
			err := kvRead(ctx, r.harness.kv[n.number], o, r.pairKey(group, 1))
			cancel()
			r.finish(o, err)
			if err != nil {
				return fmt.Errorf("reading %s through node %d once all is well: %w", o.Key, n.number, err)
			}
		}
	}
	return nil
}
