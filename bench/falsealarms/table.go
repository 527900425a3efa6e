package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
)

// print prints the tables of bench/results/false-alarms.md.
func (w *world) print(out io.Writer, once, drawn *result) {
	fmt.Fprintf(out, "%d machines; each noise once on each machine that it fits: %d runs of a check, %s\n\n", len(w.machines), once.looks, counts(once))
	machines := map[string]int{}
	for _, m := range w.machines {
		for _, c := range m.checks {
			machines[c.condition]++
		}
	}
	fmt.Fprintf(out, "%d node-days, %d runs of a check, %s\n\n", drawn.days, drawn.looks, counts(drawn))
	fmt.Fprintln(out, "| check | machines | node-days | alerts | Unknown | alerts in 1,000 node-days | below, with 95 % confidence |\n|---|--:|--:|--:|--:|--:|--:|")
	for _, condition := range slices.Sorted(maps.Keys(machines)) {
		days := drawn.days / len(w.machines) * machines[condition]
		alerts := number(drawn, "alert", condition)
		fmt.Fprintf(out, "| %s | %d | %d | %d | %d | %.2f | %.2f |\n", condition, machines[condition], days, alerts,
			number(drawn, "unknown", condition), 1000*float64(alerts)/float64(days), 1000*atMost(alerts)/float64(days))
	}
	fmt.Fprintln(out, "\n| noise | in 1,000 node-days | played | source |\n|---|--:|--:|---|")
	for _, n := range w.noise {
		fmt.Fprintf(out, "| %s | %g | %d | %s |\n", n.name, n.rate, drawn.played[n.name], n.source)
	}
	printAlarms(out, slices.Concat(once.alarms, drawn.alarms))
	fmt.Fprintln(out, "\n| machine | checks | form |\n|---|--:|---|")
	for _, m := range w.machines {
		fmt.Fprintf(out, "| %s | %d | %s |\n", m.about, len(m.checks), m.source)
	}
}

// printAlarms prints each kind of alarm once, with its number.
func printAlarms(out io.Writer, alarms []alarm) {
	type row struct{ kind, by, during, message string }
	times := map[row]int{}
	for _, a := range alarms {
		times[row{a.kind, a.by, a.during, a.message}]++
	}
	if len(times) == 0 {
		return
	}
	fmt.Fprintln(out, "\n| alarm | by | noise | times | message |\n|---|---|---|--:|---|")
	for _, r := range slices.SortedFunc(maps.Keys(times), func(a, b row) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.by, b.by), cmp.Compare(a.during, b.during), cmp.Compare(a.message, b.message))
	}) {
		fmt.Fprintf(out, "| %s | %s | %s | %d | %s |\n", r.kind, r.by, r.during, times[r], r.message)
	}
}

func counts(r *result) string {
	return fmt.Sprintf("%d alerts, %d Unknown, %d actions", number(r, "alert", ""), number(r, "unknown", ""), number(r, "action", ""))
}

// number counts the alarms of a kind, by one check or rule, or by all if by is empty.
func number(r *result, kind, by string) (n int) {
	for _, a := range r.alarms {
		if a.kind == kind && (by == "" || a.by == by) {
			n++
		}
	}
	return n
}

// atMost returns the mean that is exceeded with 5 % only if a number was counted: the upper limit of a Poisson distribution, by the
// approximation of Wilson and Hilferty, and 3 for none.
func atMost(n int) float64 {
	if n == 0 {
		return 3
	}
	k := float64(n + 1)
	return k * math.Pow(1-1/(9*k)+1.645/(3*math.Sqrt(k)), 3)
}
