package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// small files, so that flushes, purges and snapshots happen within a run.
var small = []string{
	"--log-segment-bytes=4194304", "--log-keep-bytes=8388608", "--log-cache-bytes=1048576",
	"--store-memtable-bytes=1048576", "--store-reserve-bytes=67108864",
}

// Offsets in the file that shim.c reads.
const (
	controlSync   = 0
	controlSyncMs = 4
	controlClock  = 8
)

// What fsync does in a node.
const (
	syncWorks = iota
	syncFails
	syncHangs
	syncSlow
)

// node is one member's place: its host, its disk, and the process that runs there now, if any.
type node struct {
	cluster *cluster
	number  int // from 1; the host's number
	name    string
	joins   bool // started with --join instead of as a founder
	folder  string
	control []byte
	members int // how many members have lived here

	mutex   sync.Mutex
	process *process
}

type process struct {
	command *exec.Cmd
	ended   chan struct{}
	status  string // why it ended, once it has
	wanted  bool   // whether the harness ended it
}

type cluster struct {
	program, shim, folder string
	settings              []string
	diskMb                int64 // the size of a node's disk, a file with ext4 on it that takes only what is used
	network               *network
	nodes                 []*node
	pages                 *http.Client
}

func newCluster(program, shim, folder string, count int, settings []string, diskMb int64) (*cluster, error) {
	network, err := newNetwork(count)
	if err != nil {
		return nil, err
	}
	c := &cluster{program: program, shim: shim, folder: folder, settings: settings, diskMb: diskMb, network: network}
	c.pages = &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for number := 1; number <= count; number++ {
		n := &node{cluster: c, number: number, name: fmt.Sprintf("n%d", number), members: 1}
		n.folder = filepath.Join(folder, fmt.Sprintf("node%d", number))
		if err := n.makeDisk(); err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, n)
	}
	return c, nil
}

func (n *node) address(port int) string { return fmt.Sprintf("%s:%d", address(n.number), port) }
func (n *node) client() string          { return n.address(2379) }
func (n *node) peer() string            { return n.address(2380) }
func (n *node) http() string            { return n.address(2381) }
func (n *node) resp() string            { return n.address(6379) }
func (n *node) disk() string            { return filepath.Join(n.folder, "disk") }
func (n *node) data() string            { return filepath.Join(n.disk(), "data") }
func (n *node) logFile() string         { return filepath.Join(n.folder, "log") }

// makeDisk mounts a disk of the node's own, of bounded size, and its control file.
func (n *node) makeDisk() error {
	if err := os.MkdirAll(n.disk(), 0o755); err != nil {
		return err
	}
	image, control := filepath.Join(n.folder, "disk.img"), filepath.Join(n.folder, "control")
	if err := os.WriteFile(image, nil, 0o644); err != nil {
		return err
	}
	if err := os.Truncate(image, n.cluster.diskMb<<20); err != nil {
		return err
	}
	for _, words := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", image},
		{"mount", "-o", "loop", image, n.disk()},
	} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %s", words, out)
		}
	}
	if err := os.WriteFile(control, make([]byte, 16), 0o644); err != nil {
		return err
	}
	file, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	n.control, err = unix.Mmap(int(file.Fd()), 0, 16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

// sync sets what fsync does, at once.
func (n *node) sync(mode int, slower time.Duration) {
	binary.NativeEndian.PutUint32(n.control[controlSyncMs:], uint32(slower.Milliseconds()))
	binary.NativeEndian.PutUint32(n.control[controlSync:], uint32(mode))
}

// clock sets by how much the node's wall clock is ahead, at once.
func (n *node) clock(ahead time.Duration) {
	binary.NativeEndian.PutUint64(n.control[controlClock:], uint64(ahead.Milliseconds()))
}

func (c *cluster) founders() string {
	var all []string
	for _, n := range c.nodes {
		all = append(all, fmt.Sprintf("n%d=%s", n.number, n.peer()))
	}
	return strings.Join(all, ",")
}

// start runs the node, which must not run.
func (n *node) start() error {
	log, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	words := []string{"serve", "--name", n.name, "--data-dir", n.data(), "--listen-client", n.client(),
		"--listen-peer", n.peer(), "--listen-http", n.http(), "--listen-resp", n.resp(), "--insecure"}
	if n.joins {
		var others []string
		for _, other := range n.cluster.nodes {
			if other != n {
				others = append(others, other.peer())
			}
		}
		words = append(words, "--join", strings.Join(others, ","))
	} else {
		words = append(words, "--cluster", n.cluster.founders())
	}
	command := exec.Command(n.cluster.program, append(words, n.cluster.settings...)...)
	command.Env = append(os.Environ(), "LD_PRELOAD="+n.cluster.shim,
		"QUOIN_FAULTS="+filepath.Join(n.folder, "control"))
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.cluster.network.hosts[n.number].do(func() { err = command.Start() })
	if err != nil {
		return err
	}
	p := &process{command: command, ended: make(chan struct{})}
	n.mutex.Lock()
	n.process = p
	n.mutex.Unlock()
	go func() {
		_ = command.Wait()
		p.status = command.ProcessState.String()
		close(p.ended)
	}()
	return nil
}

func (n *node) running() *process {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.process
}

func (n *node) signal(signal syscall.Signal) {
	if p := n.running(); p != nil {
		_ = p.command.Process.Signal(signal)
	}
}

// kill ends the process, if there is one, and waits until it has.
func (n *node) kill() {
	if p := n.running(); p != nil {
		p.wanted = true
		_ = p.command.Process.Kill()
		n.wait(p)
	}
}

// wait waits until the process has ended by itself or otherwise.
func (n *node) wait(p *process) {
	<-p.ended
	n.mutex.Lock()
	n.process = nil
	n.mutex.Unlock()
}

// endedAlone says how a process ended that nobody ended.
func (n *node) endedAlone() (string, bool) {
	p := n.running()
	if p == nil {
		return "", false
	}
	select {
	case <-p.ended:
		return p.status, !p.wanted
	default:
		return "", false
	}
}

// page gets a page from the node's HTTP port.
func (n *node) page(path string) (int, string, error) {
	response, err := n.cluster.pages.Get("http://" + n.http() + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// metrics gets all metrics without labels.
func (n *node) metrics() (map[string]float64, error) {
	_, body, err := n.page("/metrics")
	if err != nil {
		return nil, err
	}
	found := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		if name, text, ok := strings.Cut(lines.Text(), " "); ok {
			if value, err := strconv.ParseFloat(text, 64); err == nil {
				found[name] = value
			}
		}
	}
	return found, nil
}

// ready waits until the node says that it can serve.
func (n *node) ready(limit time.Duration) error {
	said := "nothing"
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if status, ended := n.endedAlone(); ended {
			return fmt.Errorf("node %d ended by itself (%s): %s", n.number, status, n.lastLine())
		}
		status, body, err := n.page("/readyz")
		if err == nil && status == 200 {
			return nil
		}
		said = fmt.Sprint(status, " ", strings.TrimSpace(body), err)
	}
	return fmt.Errorf("node %d is not ready after %v: %s; it logged last: %s", n.number, limit, said, n.lastLine())
}

func (n *node) lastLine() string {
	text, _ := os.ReadFile(n.logFile())
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// leader waits for a leader: of those that say that they lead, the one in the newest term.
func (c *cluster) leader(limit time.Duration) (*node, error) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var leader *node
		term := 0.0
		for _, n := range c.nodes {
			if found, err := n.metrics(); err == nil && found["quoin_is_leader"] == 1 && found["quoin_term"] >= term {
				leader, term = n, found["quoin_term"]
			}
		}
		if leader != nil {
			return leader, nil
		}
	}
	return nil, fmt.Errorf("no node leads after %v", limit)
}

// others are all nodes but one.
func (c *cluster) others(than *node) []*node {
	var found []*node
	for _, n := range c.nodes {
		if n != than {
			found = append(found, n)
		}
	}
	return found
}

func (c *cluster) startAll() error {
	for _, n := range c.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if err := n.ready(60 * time.Second); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) stop() {
	for _, n := range c.nodes {
		n.signal(syscall.SIGCONT)
		n.sync(syncWorks, 0)
		n.kill()
	}
}

// unmount gives the disks back; what was on them goes with the folder, unless it is kept.
func (c *cluster) unmount(keep bool) {
	for _, n := range c.nodes {
		if keep {
			_ = exec.Command("cp", "-a", "--sparse=always", n.disk(), filepath.Join(n.folder, "kept")).Run()
		}
		_ = unix.Unmount(n.disk(), 0)
		_ = os.Remove(filepath.Join(n.folder, "disk.img"))
	}
}
