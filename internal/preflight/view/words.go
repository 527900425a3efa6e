package view

import (
	"fmt"
	"slices"
	"strings"
)

// named is the number of nodes that a sentence names.
const named = 3

// factWidth is the width of the longest name of a fact, in characters.
const factWidth = len("median of healthy pairs")

// Finding is a part of the verdict in words.
type Finding struct {
	// Level is bad, warn or ok.
	Level string
	// Text is one sentence without its full stop, Advice what to do about it; empty if there is nothing to do.
	Text, Advice string
}

// Fact is a property of the run.
type Fact struct{ Name, Value string }

// size is the number of nodes of the run, those that have not reported included.
func (r Run) size() int {
	reported := r.Graph.Nodes[:r.Graph.Known]
	n := len(reported)
	for _, name := range r.Verdict.Missing {
		if !slices.Contains(reported, name) {
			n++
		}
	}
	return n
}

// ofNodes is the subject and the verb of a sentence, e.g. "1 of 8 nodes is".
func (r Run) ofNodes(n int, one, more string) string {
	if n == 1 {
		return fmt.Sprintf("1 of %d nodes %s", r.size(), one)
	}
	return fmt.Sprintf("%d of %d nodes %s", n, r.size(), more)
}

// list joins names, at most [named] of them.
func list(names []string) string {
	switch n := len(names); {
	case n == 1:
		return names[0]
	case n > named:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), n-named)
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// plural chooses by number.
func plural(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// Findings is the verdict in words, the worst first. There is always one.
func (r Run) Findings() []Finding {
	all := slices.Concat(r.slow(), r.fabric())
	add := func(level, text, advice string) { all = append(all, Finding{level, text, advice}) }
	v := r.Verdict
	if n := len(v.Failed); n > 0 {
		add("bad", r.ofNodes(n, "has failed its local check", "have failed their local checks")+": "+list(v.Failed),
			"Read the output of the check: the log of init container preflight (runbook PreflightFailed).")
	}
	if below := r.below(); len(below) > 0 {
		add("warn", r.ofNodes(len(below), "is a suspect", "are suspects")+": "+list(below),
			"Only the node itself has measured this: confirm it with a run of your own before you ask for an inspection.")
	}
	for i, node := range r.undecided() {
		if i == named {
			add("warn", fmt.Sprintf("%d more nodes are undecided", len(r.undecided())-named), "")
			break
		}
		var partners []string
		for _, pair := range v.Retest {
			if pair[0] == node {
				partners = append(partners, pair[1])
			}
		}
		add("warn", "Undecided: "+node, "A test with "+list(partners)+" would decide.")
	}
	if n := len(v.Missing); n > 0 {
		add("warn", r.ofNodes(n, "has not reported", "have not reported")+": "+list(v.Missing),
			"A node that hangs sends no report. Look at its pod.")
	} else if !v.Complete {
		add("warn", "Not every rank has reported", "")
	}
	if len(all) > 0 {
		return all
	}
	if n := len(v.Healthy); n < r.size() {
		return []Finding{{"warn", fmt.Sprintf(
			"No fault was found, but only %d of %d nodes %s measured with two partners or more", n, r.size(), plural(n, "was", "were")),
			"Test the others with more partners."}}
	}
	return []Finding{{"ok", fmt.Sprintf("All %d nodes are healthy: none is slow, none has failed", r.size()), ""}}
}

// slow returns the finding about the slow nodes, if there are any.
func (r Run) slow() []Finding {
	n := len(r.Verdict.Slow)
	if n == 0 {
		return nil
	}
	var names []string
	for _, s := range r.Verdict.Slow {
		switch {
		case s.Drop <= 0:
			names = append(names, s.Node)
		case n == 1:
			names = append(names, fmt.Sprintf("%s, %.0f %% below the median", s.Node, 100*s.Drop))
		default:
			names = append(names, fmt.Sprintf("%s (%.0f %% below the median)", s.Node, 100*s.Drop))
		}
	}
	it := plural(n, "it", "them")
	return []Finding{{"bad", r.ofNodes(n, "is", "are") + " slow: " + list(names), "Ask for an inspection of " + it +
		": network port and cable, PCIe width, clocks. Until then run jobs without " + it + " (runbook SlowNode)."}}
}

// fabric returns the findings about what several nodes share.
func (r Run) fabric() (all []Finding) {
	for _, why := range r.Verdict.Fabric {
		if name, count, ok := strings.Cut(strings.TrimPrefix(why, "switch "), ": "); ok && slices.Contains(r.Verdict.Switches, name) {
			all = append(all, Finding{"bad", "Switch " + name + " is a suspect: " + count,
				"Check the switch and its links before you suspect one of its nodes (runbook SlowNode)."})
			continue
		}
		all = append(all, Finding{"bad", "Not one node: " + why,
			"Check the fabric and the job's configuration: interface, GID index, threshold and its unit (runbook SlowNode)."})
	}
	return all
}

// below are the nodes with a figure far below the median, with that figure.
func (r Run) below() []string {
	var names []string
	for _, f := range r.Verdict.Figures {
		for _, b := range f.Below {
			names = append(names, fmt.Sprintf("%s (%s %.0f %% below the median)", b.Node, f.Name, 100*b.Drop))
		}
	}
	return names
}

// undecided are the nodes of which a retest would tell more.
func (r Run) undecided() []string {
	var names []string
	for _, pair := range r.Verdict.Retest {
		if !slices.Contains(names, pair[0]) {
			names = append(names, pair[0])
		}
	}
	return names
}

// Facts are what the run was, for its head.
func (r Run) Facts() []Fact {
	var facts []Fact
	add := func(name, format string, args ...any) {
		facts = append(facts, Fact{name, fmt.Sprintf(format, args...)})
	}
	if r.Job != "" {
		add("job", "%s", r.Job)
	}
	if !r.Date.IsZero() {
		add("date", "%s", r.Date.UTC().Format("2 January 2006, 15:04 UTC"))
	}
	add("nodes", "%d", r.size())
	rounds := map[int]bool{}
	for _, t := range r.Graph.Tests {
		rounds[t.Batch] = true
	}
	add("rounds", "%d", len(rounds))
	add("pair tests", "%d", len(r.Graph.Tests))
	if median, of := r.median(); median > 0 {
		add("median of "+of, "%.*f GiB/s", precision(median), median)
	}
	if r.Graph.Threshold > 0 {
		add("threshold", "%.4g GiB/s", r.Graph.Threshold)
	}
	return facts
}

// Reasons are the parts of the verdict and the reason for each, one per line.
func (r Run) Reasons() []string {
	v := r.Verdict
	var lines []string
	for _, s := range v.Slow {
		lines = append(lines, fmt.Sprintf(
			"slow: %s (p %.3f, %.0f %% below the others, seen by %d healthy partners)", s.Node, s.P, 100*s.Drop, s.Partners))
	}
	for _, name := range v.Failed {
		lines = append(lines, fmt.Sprintf("failed: %s (a local check; its pairs do not count)", name))
	}
	for _, name := range v.Missing {
		lines = append(lines, fmt.Sprintf("missing: %s (no report: a suspect)", name))
	}
	for _, why := range v.Fabric {
		lines = append(lines, "fabric: "+why)
	}
	below := 0
	for _, f := range v.Figures {
		lines = append(lines, fmt.Sprintf("figure: %s, median %.4g of %d nodes", f.Name, f.Median, f.Nodes))
		for _, b := range f.Below {
			lines = append(lines, fmt.Sprintf("suspect: %s (%s %.4g, %.0f %% below the median)", b.Node, f.Name, b.Value, 100*b.Drop))
		}
		below += len(f.Below)
	}
	for _, pair := range v.Retest {
		lines = append(lines, fmt.Sprintf("retest: %s with %s would decide", pair[0], pair[1]))
	}
	if r.Graph.Disagree > 0 {
		lines = append(lines, fmt.Sprintf("dropped: %d tests whose ends disagree by more than 20 %%", r.Graph.Disagree))
	}
	if r.Graph.Skips > 0 {
		lines = append(lines, fmt.Sprintf("skipped: %d times a rank skipped a test", r.Graph.Skips))
	}
	if !v.Complete {
		lines = append(lines, "incomplete: not every rank has reported")
	}
	if len(v.Slow)+len(v.Failed)+len(v.Fabric)+len(v.Retest)+below == 0 {
		lines = append(lines, "no node that has reported is slow or failed")
	}
	return lines
}

// head is [Run.Findings] and [Run.Facts] as lines.
func (r Run) head() string {
	var b strings.Builder
	for _, f := range r.Findings() {
		fmt.Fprintln(&b, f.Text)
		if f.Advice != "" {
			fmt.Fprintln(&b, "  "+f.Advice)
		}
	}
	fmt.Fprintf(&b, "\n%-*s  %s\n", factWidth, "run", r.Verdict.Run)
	for _, f := range r.Facts() {
		fmt.Fprintf(&b, "%-*s  %s\n", factWidth, f.Name, f.Value)
	}
	return b.String()
}
