// Command faults runs a cluster of real nodes, each with a network and a disk of its own, makes things go wrong under load, and
// judges what clients were told. README.md says how to use it; run.sh starts it where it needs no care about what it leaves.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/grpclog"
)

// wrongShown is the number of violations of a round that are printed; --json has them all.
const wrongShown = 20

type options struct {
	program, shim, folder, faults, protos string
	minutes                               float64
	runs, count                           int
	seed                                  uint64
	json                                  bool
	settings                              string
	diskMb, bulkMb                        int64
}

func main() {
	var o options
	flag.StringVar(&o.program, "bin", os.Getenv("QUOIN_BIN"), "the binary to test")
	flag.StringVar(&o.shim, "shim", "", "shim.so")
	flag.StringVar(&o.folder, "folder", "", "where data, logs and histories are; kept if anything is wrong")
	flag.StringVar(&o.protos, "protos", "crates/proto", "where quoin/route/v1/route.proto is")
	flag.StringVar(&o.faults, "faults", "all", "faults, separated by commas; `kill` stands for kill-leader and kill-follower")
	flag.Float64Var(&o.minutes, "minutes", 2, "begin no round after this many minutes")
	flag.IntVar(&o.runs, "runs", 0, "end after this many rounds of each fault; 0: only minutes count")
	flag.IntVar(&o.count, "nodes", 3, "nodes, 3 or 5")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "draws the schedule of faults and of clients")
	flag.BoolVar(&o.json, "json", false, "print a line of JSON for each round on standard output, instead of the table")
	flag.StringVar(&o.settings, "settings", strings.Join(small, " "), "settings of the nodes")
	flag.Int64Var(&o.diskMb, "disk-mb", 1024, "size of a node's disk")
	flag.Int64Var(&o.bulkMb, "bulk-mb", 40, "what behind-follower writes while its follower is away")
	table := flag.Bool("table", false, "run nothing: print the table of what --json printed before, from standard input")
	flag.Parse()
	if *table {
		results, err := readResults(os.Stdin)
		if err != nil {
			fmt.Fprintln(os.Stderr, "faults:", err)
			os.Exit(1)
		}
		printTable(results)
		return
	}
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(discard{}, discard{}, discard{}))
	good, err := o.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
	}
	if err != nil || !good {
		os.Exit(1)
	}
}

type discard struct{}

func (discard) Write(text []byte) (int, error) { return len(text), nil }

// run says whether all was well.
func (o *options) run() (bool, error) {
	faults, err := chosen(o.faults)
	if err != nil {
		return false, err
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	cluster, err := newCluster(o.program, o.shim, o.folder, o.count, strings.Fields(o.settings), o.diskMb)
	if err != nil {
		return false, err
	}
	failed := true
	defer func() { cluster.stop(); cluster.unmount(failed) }()
	if err := cluster.startAll(); err != nil {
		return false, err
	}
	h, err := newHarness(cluster, o.protos, o.seed, filepath.Join(o.folder, "wrong"))
	if err != nil {
		return false, err
	}
	h.bulkMb = o.bulkMb
	results := h.schedule(stop, faults, o)
	failed = wrongIn(results)
	if o.json {
		lines := json.NewEncoder(os.Stdout)
		for _, r := range results {
			_ = lines.Encode(r)
		}
	} else {
		printTable(results)
	}
	fmt.Printf("faults: %d nodes, seed %d, %d rounds: %s\n", o.count, o.seed, len(results), verdict(failed, o.folder))
	return !failed, nil
}

func verdict(failed bool, folder string) string {
	if failed {
		return "WRONG; data, logs and histories are in " + folder
	}
	return "all good"
}

// schedule runs faults in an order drawn anew for each pass, until time or runs are over or something is wrong.
func (h *harness) schedule(stop context.Context, faults []*fault, o *options) []result {
	random := rand.New(rand.NewPCG(o.seed, 0))
	end := time.Now().Add(time.Duration(o.minutes * float64(time.Minute)))
	var results []result
	for pass := 0; o.runs == 0 || pass < o.runs; pass++ {
		for _, place := range random.Perm(len(faults)) {
			if stop.Err() != nil || time.Now().After(end) {
				return results
			}
			r := h.run(faults[place])
			results = append(results, r)
			fmt.Fprintf(os.Stderr, "%s %-16s node %d  %5d operations, %3d unknown, %4d not done  gap %6.0f ms  back %6.0f ms  idle %2.0f%% steal %2.0f%%\n",
				r.At[11:19], r.Fault, r.Target, r.Operations, r.Unknown, r.NotDone, r.GapMs, r.BackMs, r.IdlePct, r.StealPct)
			for _, wrong := range r.Wrong[:min(len(r.Wrong), wrongShown)] {
				fmt.Fprintln(os.Stderr, "  WRONG:", wrong)
			}
			if len(r.Wrong) > 0 {
				return results
			}
		}
	}
	return results
}
