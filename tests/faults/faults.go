package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"
)

// fault is something that happens to a cluster under load, for a while.
type fault struct {
	name string
	// seconds that it lasts: drawn between these.
	from, to float64
	// begin makes it happen. What it gives ends it and says when it had ended.
	begin func(*round) (heal func() (int64, error), target *node, err error)
}

func (f *fault) hold(random *rand.Rand) time.Duration {
	return time.Duration((f.from + random.Float64()*(f.to-f.from)) * float64(time.Second))
}

// back is how long it may take until all nodes serve writes again.
func (f *fault) back() time.Duration {
	if f.name == "behind-follower" {
		return 10 * time.Minute // the state may be large
	}
	return time.Minute
}

// on makes a fault of one node: the leader, or a follower drawn by the seed.
func on(role string, action func(*round, *node) (func() (int64, error), error)) func(*round) (func() (int64, error), *node, error) {
	return func(r *round) (func() (int64, error), *node, error) {
		target, err := r.harness.cluster.leader(10 * time.Second)
		if err != nil {
			return nil, nil, err
		}
		if role == "follower" {
			followers := r.harness.cluster.others(target)
			target = followers[r.random.IntN(len(followers))]
		}
		heal, err := action(r, target)
		return heal, target, err
	}
}

// both makes a fault of a leader and one of a follower.
func both(name string, from, to float64, action func(*round, *node) (func() (int64, error), error)) []*fault {
	var made []*fault
	for _, role := range []string{"leader", "follower"} {
		made = append(made, &fault{name + "-" + role, from, to, on(role, action)})
	}
	return made
}

func allFaults() []*fault {
	var all []*fault
	all = append(all, &fault{"none", 3, 3, nothing})
	all = append(all, both("kill", 1, 4, kill)...)
	all = append(all, both("pause", 2, 6, pause)...)
	all = append(all, both("cut", 3, 6, cut)...)
	all = append(all, both("cut45", 45, 45, cut)...)
	all = append(all, both("vanish", 3, 6, vanish)...)
	all = append(all, both("deaf", 3, 6, deaf)...)
	all = append(all, both("mute", 3, 6, mute)...)
	all = append(all, both("fsync-fails", 1, 3, syncFailing)...)
	all = append(all, both("fsync-hangs", 3, 6, syncAs(syncHangs))...)
	all = append(all, both("fsync-slow", 3, 6, syncAs(syncSlow))...)
	all = append(all, both("freeze", 3, 6, freeze)...)
	all = append(all, both("full", 3, 6, fill)...)
	all = append(all, both("clock", 3, 6, clockOf)...)
	all = append(all, both("wipe", 1, 3, wipe)...)
	all = append(all, both("replace", 1, 3, replace)...)
	all = append(all,
		&fault{"transfer", 1, 1, transferLeadership},
		&fault{"clock-majority", 4, 6, clockOfMajority},
		&fault{"behind-follower", 0, 1, on("follower", behind)},
		&fault{"storm", 10, 15, storm},
		&fault{"kill-all", 0, 1, killAll},
		&fault{"delay", 4, 6, everyLink(link{delay: 20 * time.Millisecond, jitter: 30 * time.Millisecond})},
		&fault{"loss", 4, 6, everyLink(link{loss: 0.2, double: 0.05})},
		&fault{"ring", 4, 6, ring},
		&fault{"flap", 5, 8, flap},
	)
	return all
}

// chosen gives the faults with these names, separated by commas; one without a role stands for both, "all" for all but the long ones.
func chosen(names string) ([]*fault, error) {
	var found []*fault
	for _, name := range strings.Split(names, ",") {
		before := len(found)
		for _, f := range allFaults() {
			if f.name == name || f.name == name+"-leader" || f.name == name+"-follower" || (name == "all" && f.to < 30) {
				found = append(found, f)
			}
		}
		if len(found) == before {
			return nil, fmt.Errorf("there is no fault %q", name)
		}
	}
	return found, nil
}

func nothing(*round) (func() (int64, error), *node, error) { return nil, nil, nil }

func kill(_ *round, n *node) (func() (int64, error), error) {
	n.kill()
	return func() (int64, error) { return now(), n.start() }, nil
}

func killAll(r *round) (func() (int64, error), *node, error) {
	nodes := r.harness.cluster.nodes
	for _, n := range nodes {
		n.kill()
	}
	return func() (int64, error) {
		at := now()
		for _, n := range nodes {
			if err := n.start(); err != nil {
				return at, err
			}
		}
		return at, nil
	}, nil, nil
}

func pause(_ *round, n *node) (func() (int64, error), error) {
	n.signal(syscall.SIGSTOP)
	return func() (int64, error) { n.signal(syscall.SIGCONT); return now(), nil }, nil
}

// whole ends what was done to the network.
func (r *round) whole() (int64, error) {
	r.harness.cluster.network.heal()
	return now(), nil
}

var dropped = &link{drop: true}

// cut cuts a node off from the other nodes, silently; clients still reach it.
func cut(r *round, n *node) (func() (int64, error), error) {
	for _, other := range r.harness.cluster.others(n) {
		r.harness.cluster.network.between(n.number, other.number, dropped)
	}
	return r.whole, nil
}

// vanish cuts a node off from everybody.
func vanish(r *round, n *node) (func() (int64, error), error) {
	for other := range r.harness.cluster.network.hosts {
		r.harness.cluster.network.between(n.number, other, dropped)
	}
	return r.whole, nil
}

// deaf lets a node send to the others and hear nothing.
func deaf(r *round, n *node) (func() (int64, error), error) {
	for _, other := range r.harness.cluster.others(n) {
		r.harness.cluster.network.links[other.number][n.number].Store(dropped)
	}
	return r.whole, nil
}

// mute lets a node hear the others and drops what it sends.
func mute(r *round, n *node) (func() (int64, error), error) {
	for _, other := range r.harness.cluster.others(n) {
		r.harness.cluster.network.links[n.number][other.number].Store(dropped)
	}
	return r.whole, nil
}

func everyLink(l link) func(*round) (func() (int64, error), *node, error) {
	return func(r *round) (func() (int64, error), *node, error) {
		nodes := r.harness.cluster.nodes
		for _, a := range nodes {
			for _, b := range nodes {
				r.harness.cluster.network.links[a.number][b.number].Store(&l)
			}
		}
		return r.whole, nil, nil
	}
}

// ring leaves each node its two neighbours in the order of a ring, or with three nodes a chain: everybody reaches a majority,
// and nobody agrees on who is there.
func ring(r *round) (func() (int64, error), *node, error) {
	nodes := r.harness.cluster.nodes
	offset := r.random.IntN(len(nodes))
	for a := range nodes {
		for b := range a {
			apart := min(a-b, len(nodes)-a+b)
			if apart > 1 || (len(nodes) == 3 && a+b == offset+1) {
				r.harness.cluster.network.between(nodes[a].number, nodes[b].number, dropped)
			}
		}
	}
	return r.whole, nil, nil
}

// flap cuts off one node after the other, each for a moment.
func flap(r *round) (func() (int64, error), *node, error) {
	stop, ended := make(chan struct{}), make(chan struct{})
	random := rand.New(rand.NewPCG(r.harness.seed, uint64(r.number)))
	go func() {
		defer close(ended)
		for {
			nodes := r.harness.cluster.nodes
			_, _ = cut(r, nodes[random.IntN(len(nodes))])
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(200+random.IntN(1000)) * time.Millisecond):
			}
			r.harness.cluster.network.heal()
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(random.IntN(600)) * time.Millisecond):
			}
		}
	}()
	return func() (int64, error) { close(stop); <-ended; return r.whole() }, nil, nil
}
