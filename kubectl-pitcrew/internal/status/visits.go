package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/coverage"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// addVisit adds what the node's record says about repairs and checks. One that cannot be read says nothing: doctor names those.
func (r *Row) addVisit(n *corev1.Node) {
	record, err := visit.RecordOf(n)
	if err != nil || record == nil {
		return
	}
	r.Visit, r.Request, r.Checked = record.Current, record.Request, record.Checked
	r.Advice = AdviceOf(n, record)
}

// addApproval adds the command that the repair of a quarantined node waits for.
func (r *Row) addApproval(p *policy.Policy, n *corev1.Node, now time.Time) {
	if p == nil || p.Repair == nil || r.Status != Quarantined {
		return
	}
	visits, err := visit.RecordOf(n)
	q, badQuarantine := causes.RecordOf(n)
	if err == nil && badQuarantine == nil && repair.AwaitsApproval(p, n, visits, q, now) {
		r.Approve = "kubectl pitcrew repair " + n.Name + " --approve"
	}
}

// AdviceOf is the advice for the node's present quarantine; nil: there is none.
func AdviceOf(n *corev1.Node, record *visit.Record) *visit.Advice {
	q, err := causes.RecordOf(n)
	if err != nil || q == nil || q.Phase != causes.Quarantined || record.Advice == nil || record.Advice.Quarantine != q.ID {
		return nil
	}
	return record.Advice
}

// visitText returns where a visit stands, as the end of a line.
func visitText(v *visit.Visit, now time.Time) string {
	words := []string{string(v.Kind)}
	if v.Sweep != "" {
		words[0] += " " + v.Sweep
	}
	if v.Template != "" && v.Phase != visit.Emptying {
		words = append(words, v.Template)
	}
	if v.Kind == visit.Repair && v.Attempt > 0 && v.Phase != visit.Emptying {
		words = append(words, fmt.Sprintf("attempt %d", v.Attempt))
	}
	text := fmt.Sprintf("%s, %s, %s", strings.Join(words, ", "), duration.HumanDuration(now.Sub(v.StartedAt)), v.Phase)
	if v.Outcome != "" {
		text += ": " + v.Outcome
	}
	return text
}

// checkedText returns when a node was checked, and how hard.
func checkedText(c *visit.Checked, now time.Time) string {
	if c == nil {
		return ""
	}
	text := duration.HumanDuration(now.Sub(c.At))
	if i := slices.Index(c.Args, "-level"); i >= 0 && i+1 < len(c.Args) {
		return text + ", level " + c.Args[i+1]
	}
	for _, arg := range c.Args {
		if level, ok := strings.CutPrefix(arg, "-level="); ok {
			return text + ", level " + level
		}
	}
	if c.Template != "" {
		text += ", " + c.Template
	}
	return text
}

// sweepTotal counts the nodes of a sweep.
type sweepTotal struct {
	Name string `json:"name"`
	// Every is the sweep's.
	Every string `json:"every"`
	// Nodes is how many it is for, Checked how many of them it, or another check by the same means, was at within Every, and Never at how
	// many it never was.
	Nodes   int `json:"nodes"`
	Checked int `json:"checked"`
	Never   int `json:"never"`
	// UnderWay are the nodes that it checks now.
	UnderWay []string `json:"underWay,omitempty"`
}

// sweepTotals counts the nodes of each sweep of a policy.
func sweepTotals(p *policy.Policy, nodes []corev1.Node, rows map[string]Row, now time.Time) []sweepTotal {
	var all []sweepTotal
	for _, of := range p.Sweeps {
		t := sweepTotal{Name: of.Name, Every: duration.HumanDuration(of.Every)}
		for i := range nodes {
			n := &nodes[i]
			if node.Excluded(n) || !of.Nodes.Matches(labels.Set(n.Labels)) || len(node.Accelerators(n.Status.Allocatable)) == 0 {
				continue
			}
			t.Nodes++
			r := rows[n.Name]
			visits, _ := visit.RecordOf(n)
			switch last := sweep.LastSwept(&of, visits, now); {
			case last.IsZero():
				t.Never++
			case now.Sub(last) <= of.Every:
				t.Checked++
			}
			if r.Visit != nil && r.Visit.Kind == visit.Sweep && r.Visit.Sweep == of.Name {
				t.UnderWay = append(t.UnderWay, n.Name)
			}
		}
		all = append(all, t)
	}
	return all
}

// linesOfVisits is how many nodes the lines about visits name at most; json and yaml name all.
const linesOfVisits = 20

// addVisits adds what is done to nodes, what waits for a person, and how the sweeps stand. p is nil where the policy is not known.
func (f *Fleet) addVisits(p *policy.Policy, nodes []corev1.Node, now time.Time) {
	var under, waits []cli.Finding
	rows := map[string]Row{}
	for _, r := range f.Nodes {
		rows[r.Node] = r
		if r.Visit != nil {
			under = append(under, cli.Good("visits", "%s: %s", r.Node, visitText(r.Visit, now)))
		}
		if r.Approve != "" {
			waits = append(waits, cli.Warning("approval", "", "%s waits for approval (%s): %s", r.Node, r.Repair, r.Approve))
		}
	}
	for _, list := range [][]cli.Finding{under, waits} {
		if more := len(list) - linesOfVisits; more > 0 {
			list = append(list[:linesOfVisits], cli.Good(list[0].Name, "and %d more", more))
		}
		f.addFacts(list...)
	}
	if p == nil {
		return
	}
	f.Sweeps = sweepTotals(p, nodes, rows, now)
	for _, t := range f.Sweeps {
		text := fmt.Sprintf("%s: %d of %d nodes checked within %s, %d never", t.Name, t.Checked, t.Nodes, t.Every, t.Never)
		if len(t.UnderWay) > 0 {
			text += "; now: " + cli.Some(t.UnderWay)
		}
		f.addFacts(cli.Good("sweeps", "%s", text))
	}
	if p.FirstCheck != nil {
		waiting, late := coverage.FirstChecks(p, nodes, now)
		if len(waiting) > 0 {
			f.addFacts(cli.Good("new nodes", "%d wait for their first check: %s", len(waiting), cli.Some(waiting)))
		}
		for _, text := range late {
			f.addFacts(cli.Warning("new nodes", "", "%s", text))
		}
	}
}
