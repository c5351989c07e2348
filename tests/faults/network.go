package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The network is a switch in this process. Each node has a network namespace of its own with one TUN device, and
// the harness, which is a host like them, has another. Every packet passes through forward, where the link from its
// sender to its addressee may drop, delay or double it: in one direction, silently, on any kernel with TUN.

// mtu is large, so that the switch costs little.
const mtu = 9000

// link is what happens to packets in one direction between two hosts.
type link struct {
	drop          bool
	loss, double  float64 // of packets
	delay, jitter time.Duration
}

type network struct {
	hosts []*host
	links [][]atomic.Pointer[link] // from, to; nil passes everything
	sent  [][]atomic.Int64         // bytes that arrived, from, to
}

type host struct {
	number int
	jobs   chan func()
	tun    *os.File
}

func address(number int) string { return fmt.Sprintf("10.77.0.%d", number+1) }

// newNetwork makes hosts 1 to count, and host 0 for the harness.
func newNetwork(count int) (*network, error) {
	n := &network{}
	for number := 0; number <= count; number++ {
		h := &host{number: number, jobs: make(chan func())}
		go h.run(number != 0)
		var err error
		h.do(func() { h.tun, err = openTun(address(number)) })
		if err != nil {
			return nil, fmt.Errorf("host %d: %w", number, err)
		}
		n.hosts = append(n.hosts, h)
		n.links = append(n.links, make([]atomic.Pointer[link], count+1))
		n.sent = append(n.sent, make([]atomic.Int64, count+1))
	}
	for _, h := range n.hosts {
		go n.forward(h)
	}
	return n, nil
}

// run keeps a thread in the host's namespace for good: processes that it starts are in that namespace, and end with it.
func (h *host) run(isolated bool) {
	runtime.LockOSThread()
	if isolated {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			panic(fmt.Sprintf("unshare: %v", err))
		}
	}
	for job := range h.jobs {
		job()
	}
}

// do runs job in the host's namespace.
func (h *host) do(job func()) {
	done := make(chan struct{})
	h.jobs <- func() { defer close(done); job() }
	<-done
}

func openTun(address string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq("wire")
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, fmt.Errorf("making a TUN device: %w", err)
	}
	for _, arguments := range [][]string{
		{"link", "set", "lo", "up"},
		{"address", "add", address + "/24", "dev", "wire"},
		{"link", "set", "wire", "mtu", fmt.Sprint(mtu), "up"},
	} {
		if out, err := exec.Command("ip", arguments...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip %v: %s", arguments, out)
		}
	}
	return os.NewFile(uintptr(fd), "wire"), nil
}

// forward passes on what one host sends.
func (n *network) forward(from *host) {
	random := rand.New(rand.NewPCG(uint64(from.number), 1))
	buffer := make([]byte, mtu+64)
	for {
		length, err := from.tun.Read(buffer)
		if err != nil {
			return
		}
		packet := buffer[:length]
		if length < 20 || packet[0]>>4 != 4 {
			continue // IPv6 neighbour discovery
		}
		to := int(binary.BigEndian.Uint32(packet[16:20])&0xff) - 1
		if to < 0 || to >= len(n.hosts) {
			continue
		}
		link := n.links[from.number][to].Load()
		if link == nil {
			n.deliver(from, to, packet)
			continue
		}
		if link.drop || random.Float64() < link.loss {
			continue
		}
		copies := 1
		if random.Float64() < link.double {
			copies = 2
		}
		for range copies {
			delay := link.delay
			if link.jitter > 0 {
				delay += time.Duration(random.Int64N(int64(link.jitter)))
			}
			later := append([]byte(nil), packet...)
			time.AfterFunc(delay, func() { n.deliver(from, to, later) })
		}
	}
}

func (n *network) deliver(from *host, to int, packet []byte) {
	n.sent[from.number][to].Add(int64(len(packet)))
	_, _ = n.hosts[to].tun.Write(packet) // a full queue drops it, as a switch does
}

// between sets both directions between two hosts.
func (n *network) between(a, b int, l *link) {
	n.links[a][b].Store(l)
	n.links[b][a].Store(l)
}

// heal makes all links whole.
func (n *network) heal() {
	for from := range n.links {
		for to := range n.links[from] {
			n.links[from][to].Store(nil)
		}
	}
}

// sentBetween gives the bytes that nodes have sent to each other.
func (n *network) sentBetween() (bytes int64) {
	for from := 1; from < len(n.sent); from++ {
		for to := 1; to < len(n.sent); to++ {
			bytes += n.sent[from][to].Load()
		}
	}
	return bytes
}
