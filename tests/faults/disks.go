package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// Faults of disks, of clocks, and of who is a member.

func syncAs(mode int) func(*round, *node) (func() (int64, error), error) {
	return func(r *round, n *node) (func() (int64, error), error) {
		n.sync(mode, time.Duration(50+r.random.IntN(150))*time.Millisecond)
		return func() (int64, error) { n.sync(syncWorks, 0); return now(), nil }, nil
	}
}

// syncFailing fails every sync. The node must end by itself: it can vouch for nothing any more.
func syncFailing(_ *round, n *node) (func() (int64, error), error) {
	n.sync(syncFails, 0)
	return func() (int64, error) {
		err := n.endsItself(10 * time.Second)
		n.sync(syncWorks, 0)
		at := now()
		if err == nil {
			err = n.start()
		}
		return at, err
	}, nil
}

// endsItself waits until a node ends that has to.
func (n *node) endsItself(limit time.Duration) error {
	p := n.running()
	p.wanted = true
	select {
	case <-p.ended:
		n.wait(p)
		return nil
	case <-time.After(limit):
		return fmt.Errorf("node %d still runs %v after it had to end", n.number, limit)
	}
}

// freeze hangs the whole disk: who writes to it waits in the kernel.
func freeze(_ *round, n *node) (func() (int64, error), error) {
	if out, err := exec.Command("fsfreeze", "-f", n.disk()).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("fsfreeze: %s", out)
	}
	return func() (int64, error) {
		out, err := exec.Command("fsfreeze", "-u", n.disk()).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("fsfreeze: %s", out)
		}
		return now(), err
	}, nil
}

// fill takes all space that is left on a disk, and what the node gives back. At its end the space is free again and the alarm is
// disarmed.
func fill(r *round, n *node) (func() (int64, error), error) {
	stop, ended := make(chan struct{}), make(chan struct{})
	folder := filepath.Join(n.disk(), "others")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	go func() {
		defer close(ended)
		for file := 0; ; file++ {
			takeSpace(filepath.Join(folder, fmt.Sprint(file)))
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	return func() (int64, error) {
		close(stop)
		<-ended
		err := os.RemoveAll(folder)
		for end := time.Now().Add(20 * time.Second); err == nil; time.Sleep(20 * time.Millisecond) {
			if err = r.disarm(); err == nil {
				break
			}
			if time.Now().Before(end) {
				err = nil
			}
		}
		return now(), err
	}, nil
}

// takeSpace makes a file of all space that is free.
func takeSpace(path string) {
	file, err := os.Create(path)
	if err != nil {
		return
	}
	defer file.Close()
	var disk unix.Statfs_t
	if unix.Fstatfs(int(file.Fd()), &disk) != nil {
		return
	}
	for size, at := int64(disk.Bavail)*disk.Bsize, int64(0); size >= 4096; {
		if unix.Fallocate(int(file.Fd()), 0, at, size) == nil {
			at += size
		} else {
			size /= 2
		}
	}
}

// disarm disarms every alarm, and fails if one stands.
func (r *round) disarm() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	alarms, err := r.harness.anyKv.AlarmList(ctx)
	if err != nil {
		return err
	}
	for _, alarm := range alarms.Alarms {
		if _, err := r.harness.anyKv.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			return err
		}
	}
	if alarms, err = r.harness.anyKv.AlarmList(ctx); err == nil && len(alarms.Alarms) > 0 {
		err = fmt.Errorf("the alarm stands: %v", alarms.Alarms)
	}
	return err
}

// jump draws by how much a clock is wrong: up to an hour, ahead or behind.
func (r *round) jump() time.Duration {
	return time.Duration(r.random.Int64N(int64(2*time.Hour))) - time.Hour
}

func clockOf(r *round, n *node) (func() (int64, error), error) {
	n.clock(r.jump())
	return func() (int64, error) { n.clock(0); return now(), nil }, nil
}

func clockOfMajority(r *round) (func() (int64, error), *node, error) {
	nodes := r.harness.cluster.nodes
	ahead := r.jump()
	for _, place := range r.random.Perm(len(nodes))[:len(nodes)/2+1] {
		nodes[place].clock(ahead)
	}
	return func() (int64, error) {
		for _, n := range nodes {
			n.clock(0)
		}
		return now(), nil
	}, nil, nil
}

// wipe empties a node's disk and starts it again: it must end by itself, having served nobody. Then the member is replaced.
func wipe(r *round, n *node) (func() (int64, error), error) {
	id, err := r.memberId(n)
	if err != nil {
		return nil, err
	}
	n.kill()
	if err := os.RemoveAll(n.data()); err != nil {
		return nil, err
	}
	if err := n.start(); err != nil {
		return nil, err
	}
	return func() (int64, error) {
		if err := n.endsItself(20 * time.Second); err != nil {
			return now(), err
		}
		return now(), r.rejoin(n, id)
	}, nil
}

// replace removes a running member, which must end by itself, and adds it anew.
func replace(r *round, n *node) (func() (int64, error), error) {
	id, err := r.memberId(n)
	if err != nil {
		return nil, err
	}
	if err := r.change("removing", func(ctx context.Context) error { return r.removeMember(ctx, id) }); err != nil {
		return nil, err
	}
	return func() (int64, error) {
		if err := n.endsItself(20 * time.Second); err != nil {
			return now(), err
		}
		return now(), r.rejoin(n, id)
	}, nil
}

func (r *round) memberId(n *node) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	status, err := r.harness.kv[n.number].Status(ctx, n.client())
	if err != nil {
		return 0, err
	}
	return status.Header.MemberId, nil
}

// rejoin removes a member, adds one at the same address and starts it with an empty folder.
func (r *round) rejoin(n *node, id uint64) error {
	if err := r.change("removing", func(ctx context.Context) error { return r.removeMember(ctx, id) }); err != nil {
		return err
	}
	err := r.change("adding", func(ctx context.Context) error {
		_, err := r.harness.anyKv.MemberAdd(ctx, []string{"http://" + n.peer()})
		if err != nil && strings.Contains(err.Error(), "already exists") {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := os.RemoveAll(n.data()); err != nil {
		return err
	}
	n.members++
	n.joins, n.name = true, fmt.Sprintf("n%d.%d", n.number, n.members)
	return n.start()
}

func (r *round) removeMember(ctx context.Context, id uint64) error {
	_, err := r.harness.anyKv.MemberRemove(ctx, id)
	if err != nil && strings.Contains(err.Error(), "member not found") {
		return nil
	}
	return err
}

// change tries a change of the members until it is done.
func (r *round) change(what string, action func(context.Context) error) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := action(ctx)
		cancel()
		if err == nil || time.Now().After(end) {
			if err != nil {
				err = fmt.Errorf("%s the member: %w", what, err)
			}
			return err
		}
	}
}

// transferLeadership hands the leadership to a follower that the seed draws.
func transferLeadership(r *round) (func() (int64, error), *node, error) {
	leader, err := r.harness.cluster.leader(10 * time.Second)
	if err != nil {
		return nil, nil, err
	}
	others := r.harness.cluster.others(leader)
	to := others[r.random.IntN(len(others))]
	id, err := r.memberId(to)
	if err != nil {
		return nil, to, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = r.harness.kv[leader.number].MoveLeader(ctx, id)
	return nil, to, err
}

// behind stops a follower, writes more than the log keeps, and starts it again: it is sent the state.
func behind(r *round, n *node) (func() (int64, error), error) {
	n.kill()
	random := make([]byte, 256<<10) // nothing that compresses
	for place := range random {
		random[place] = byte(r.random.Uint32())
	}
	value := string(random)
	for place := range r.harness.bulkMb * 4 {
		err := r.change("writing beside", func(ctx context.Context) error {
			_, err := r.harness.anyKv.Put(ctx, fmt.Sprintf("bulk/%d", place), value)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return func() (int64, error) { return now(), n.start() }, nil
}

// storm does one thing after the other to random nodes, several at once, whether or not a majority is left.
func storm(r *round) (func() (int64, error), *node, error) {
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- r.storming(stop) }()
	return func() (int64, error) {
		close(stop)
		err := <-ended
		return now(), err
	}, nil, nil
}

func (r *round) storming(stop chan struct{}) error {
	actions := []func(*round, *node) (func() (int64, error), error){kill, pause, cut, deaf, mute, syncAs(syncHangs), syncAs(syncSlow), clockOf}
	heals := map[*node]func() (int64, error){}
	end := func(n *node) error {
		heal := heals[n]
		delete(heals, n)
		if heal == nil {
			return nil
		}
		_, err := heal()
		return err
	}
	for {
		n := r.harness.cluster.nodes[r.random.IntN(len(r.harness.cluster.nodes))]
		if err := end(n); err != nil {
			return err
		}
		heal, err := actions[r.random.IntN(len(actions))](r, n)
		if err != nil {
			return err
		}
		heals[n] = heal
		select {
		case <-stop:
			for n := range heals {
				if err := end(n); err != nil {
					return err
				}
			}
			return nil
		case <-time.After(time.Duration(100+r.random.IntN(1500)) * time.Millisecond):
		}
	}
}
