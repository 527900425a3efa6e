// Package coverage reports to people what the nodes of a cluster lack for the checks that a policy asks for: new nodes for their first
// check, and all nodes for the proof of a check under load.
package coverage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// FirstChecks returns the nodes that wait for their first check, and a sentence for each reason why some have waited for long.
func FirstChecks(p *policy.Policy, nodes []corev1.Node, now time.Time) (waiting, late []string) {
	reasons := map[string][]string{}
	var longest time.Duration
	for i := range nodes {
		n := &nodes[i]
		if !firstcheck.Waits(p, n) {
			continue
		}
		waiting = append(waiting, n.Name)
		q, badQuarantine := causes.RecordOf(n)
		r, badRecord := visit.RecordOf(n)
		if badQuarantine != nil || badRecord != nil {
			continue // doctor names these
		}
		waited, gaps := firstcheck.WaitsLong(p, n, q, r != nil && r.Current != nil, now)
		if waited == 0 {
			continue
		}
		why := firstcheck.Text(p, n, gaps)
		if why == "" {
			why = "the check does not begin; kubectl pitcrew describe NODE shows the last one"
		}
		reasons[why] = append(reasons[why], n.Name)
		longest = max(longest, waited)
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		waited := duration.HumanDuration(longest)
		late = append(late, fmt.Sprintf("waiting for a first check for up to %s: %s: %s", waited, some(reasons[why]), why))
	}
	return waiting, late
}

// unproven returns a sentence for each check of a policy that some of its nodes cannot pass, because they do not report the condition that
// proves it.
func unproven(p *policy.Policy, nodes []corev1.Node, verdicts map[string][]string) (all []string) {
	look := func(what, template string, selector labels.Selector) {
		for _, verdict := range verdicts[template] {
			if conditions.IsVerdict(verdict) {
				continue // the remediator writes it
			}
			var lack []string
			count := 0
			for i := range nodes {
				n := &nodes[i]
				if node.Excluded(n) || len(node.Accelerators(n.Status.Allocatable)) == 0 || !selector.Matches(labels.Set(n.Labels)) {
					continue
				}
				count++
				if _, reports := node.ConditionOf(n, corev1.NodeConditionType(verdict)); !reports {
					lack = append(lack, n.Name)
				}
			}
			switch {
			case len(lack) == 0:
			case len(lack) == count:
				all = append(all, fmt.Sprintf("no node of %s reports %s, which proves template %s: no check passes", what, verdict, template))
			default:
				all = append(all, fmt.Sprintf("%d of %d nodes of %s do not report %s, which proves template %s: %s",
					len(lack), count, what, verdict, template, some(lack)))
			}
		}
	}
	for i := range p.Sweeps {
		look("sweep "+p.Sweeps[i].Name, p.Sweeps[i].Template, p.Sweeps[i].Nodes)
	}
	if p.Repair != nil && p.Repair.Validate != nil {
		look("a validation", p.Repair.Validate.Template, labels.Everything())
	}
	if f := p.FirstCheck; f != nil && f.Template != "" {
		look("the first check", f.Template, f.Nodes)
	}
	return all
}

// Templates returns the templates that a policy names, and which of its fields name each. p may be nil.
func Templates(p *policy.Policy) map[string][]string {
	fields := map[string][]string{}
	if p == nil {
		return fields
	}
	add := func(field string, checks ...policy.Check) {
		for _, c := range checks {
			if c.Template != "" && !slices.Contains(fields[c.Template], field) {
				fields[c.Template] = append(fields[c.Template], field)
			}
		}
	}
	if r := p.Repair; r != nil {
		add("repair.actions.ResetGPU", r.Actions.ResetGPU...)
		add("repair.actions.Reboot", r.Actions.Reboot...)
		if r.Validate != nil {
			add("repair.validate", *r.Validate)
		}
		if r.Collect != nil {
			add("repair.collect", r.Collect.Check)
		}
	}
	for _, s := range p.Sweeps {
		add("sweep "+s.Name, s.Check)
	}
	if f := p.FirstCheck; f != nil {
		add("firstCheck", f.Check)
	}
	return fields
}

// Gap is something that nodes lack, and what to do about it.
type Gap struct{ Text, Do string }

// Gaps returns what nodes lack for the checks of a policy. p may be nil; verdicts are the conditions that prove each template.
func Gaps(p *policy.Policy, nodes []corev1.Node, verdicts map[string][]string, now time.Time) (all []Gap) {
	if p == nil {
		return nil
	}
	for _, text := range unproven(p, nodes, verdicts) {
		all = append(all, Gap{text, "add the condition to the checks of the pool, or choose other nodes; see docs/templates.md"})
	}
	_, late := FirstChecks(p, nodes, now)
	for _, text := range late {
		all = append(all, Gap{text, "see docs/runbooks/PitcrewFirstCheckWaits.md"})
	}
	return all
}

// some names the first of many nodes.
func some(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
