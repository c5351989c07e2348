package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func wrongIn(results []result) bool {
	return slices.ContainsFunc(results, func(r result) bool { return len(r.Wrong) > 0 })
}

// longest is the longest distance between neighbours.
func longest(moments []int64) int64 {
	slices.Sort(moments)
	var found int64
	for place := 1; place < len(moments); place++ {
		found = max(found, moments[place]-moments[place-1])
	}
	return found
}

// printTable prints a line per fault, as docs/reliability.md has them, and how busy the machine was.
func printTable(results []result) {
	byFault := map[string][]result{}
	var idle, steal []float64
	for _, r := range results {
		byFault[r.Fault] = append(byFault[r.Fault], r)
		idle, steal = append(idle, r.IdlePct), append(steal, r.StealPct)
	}
	fmt.Println("| fault | runs | operations | no write for, median | worst | all nodes back, median | worst | lost | wrong |")
	fmt.Println("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, f := range allFaults() {
		runs := byFault[f.name]
		if len(runs) == 0 {
			continue
		}
		var gaps, backs []float64
		operations, lost, wrong := 0, int64(0), 0
		for _, r := range runs {
			if len(r.Wrong) > 0 {
				wrong++
			}
			gaps, backs = append(gaps, r.GapMs), append(backs, r.BackMs)
			operations, lost = operations+r.Operations, lost+r.Lost
		}
		fmt.Printf("| %s | %d | %d | %.0f ms | %.0f ms | %.0f ms | %.0f ms | %d | %d |\n", f.name, len(runs), operations,
			median(gaps), slices.Max(gaps), median(backs), slices.Max(backs), lost, wrong)
	}
	if len(results) > 0 {
		fmt.Printf("\nProcessor, median of the rounds: %.0f%% idle, %.0f%% stolen.\n", median(idle), median(steal))
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

// readResults reads what --json printed.
func readResults(from io.Reader) ([]result, error) {
	var results []result
	for lines := bufio.NewScanner(from); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "{") {
			continue
		}
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, err
		}
		results = append(results, r)
	}
	return results, nil
}

// processor is the machine's time so far, in ticks: all of it, idle, and stolen by other machines.
type processor struct{ all, idle, steal float64 }

func readProcessor() processor {
	text, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(text), "\n")
	var user, nice, system, idle, wait, irq, soft, steal float64
	_, _ = fmt.Sscanf(first, "cpu %f %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &wait, &irq, &soft, &steal)
	return processor{user + nice + system + idle + wait + irq + soft + steal, idle + wait, steal}
}

// since gives the percentages that were idle and stolen.
func (p processor) since() (idle, steal float64) {
	next := readProcessor()
	all := max(next.all-p.all, 1)
	return (next.idle - p.idle) / all * 100, (next.steal - p.steal) / all * 100
}
