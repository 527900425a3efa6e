package policy

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/suggest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/pool"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

//go:embed third-party.txt
var thirdPartyText string

// thirdParty are the conditions of other components that the shipped policies have a rule for.
var thirdParty = strings.Fields(thirdPartyText)

// warn looks for what is valid and yet is most likely a mistake.
func (p *Policy) warn(d *strict.Decoder, at *field.Path) {
	rules := at.Child("rules")
	for i := range p.Rules {
		warnCondition(d, rules.Key(p.Rules[i].Name).Child("match", "condition"), string(p.Rules[i].Condition))
		for j := range i {
			// The one that comes first acts.
			warnCompeting(d, rules, p.Rules[j], p.Rules[i])
		}
	}
	for i, domain := range p.Domains {
		isPorts := func(r Rule) bool { return r.Condition == conditions.HCAPortDown && !r.AlertOnly }
		if domain.Incidents != nil && !slices.ContainsFunc(p.Rules, isPorts) {
			d.Warn(at.Child("domains").Index(i).Child("incidents"), "no rule acts on HCAPortDown, and without it no node takes part in an incident")
		}
	}
	if p.Repair != nil {
		p.Repair.warn(d, at.Child("repair"), p.Rules)
		if v := p.Repair.Validate; v != nil {
			p.warnProof(d, at.Child("repair", "validate"), "a validation", v, labels.Everything())
		}
	}
	for i := range p.Sweeps {
		s := &p.Sweeps[i]
		s.warnArgs(d, at.Child("sweeps").Key(s.Name))
		p.warnProof(d, at.Child("sweeps").Key(s.Name), "sweep "+s.Name, &s.Check, s.Nodes)
	}
	if f := p.FirstCheck; f != nil {
		f.warnArgs(d, at.Child("firstCheck"))
		p.warnProof(d, at.Child("firstCheck"), "the first check", &f.Check, f.Nodes)
		if slices.Contains(f.Conditions, AllConditions) && len(p.Pools) == 0 {
			d.Warn(at.Child("firstCheck"), "waits for every condition that a rule names: spec.pools does not say which the nodes report")
		}
		for i, name := range f.Conditions {
			here := at.Child("firstCheck", "conditions").Index(i)
			warnCondition(d, here, name)
			if ours := conditions.Ours(name) && !conditions.IsVerdict(name); ours && len(p.Pools) > 0 && !pool.MayReport(p.Pools, name, f.Nodes) {
				d.Warn(here, fmt.Sprintf("no pool reports %s: no node passes the first check", name))
			}
		}
	}
}

// admittedArg is what the chart's admission policy pitcrew-repair-templates admits after the arguments of a template.
var admittedArg = regexp.MustCompile(`^(--?[A-Za-z][A-Za-z-]*(=[0-9][0-9A-Za-z.:,]*)?|[0-9][0-9A-Za-z.:,]*)$`)

// warnArgs warns of arguments with which the API server refuses the Job. Clusters may have other admission policies.
func (c *Check) warnArgs(d *strict.Decoder, at *field.Path) {
	for i, arg := range c.Args {
		if !admittedArg.MatchString(arg) {
			d.Warn(at.Child("args").Index(i), fmt.Sprintf("%q is neither a flag nor a number, as -level=3 or 30m; "+
				"the chart's admission policies refuse a Job with it: write it into the PodTemplate %s", arg, c.Template))
		}
	}
}

// warnCondition warns of a condition that is nearly one that is known. Any other name is that of a component of the user.
func warnCondition(d *strict.Decoder, at *field.Path, name string) {
	if meant := meantCondition(name); meant != "" {
		d.Warn(at, fmt.Sprintf("%q is a condition of no check of Pitcrew and of no other component that it knows%s", name, meant))
	}
}

// meantCondition asks for the known condition that a name was probably meant to be; empty if it is known or like none.
func meantCondition(name string) string {
	var known []string
	for _, c := range slices.Concat(conditions.All, conditions.Verdicts) {
		known = append(known, c.Type)
	}
	known = append(known, thirdParty...)
	if meant := suggest.Closest(name, known); meant != "" && meant != name {
		return fmt.Sprintf("; did you mean %s?", meant)
	}
	return ""
}

// warnCompeting warns of two rules for the same conditions of the same nodes, of which the names decide: the first one acts.
func warnCompeting(d *strict.Decoder, at *field.Path, first, second Rule) {
	same := first.Condition == second.Condition && first.Priority == second.Priority &&
		overlap(first.Status, second.Status) && overlap(first.Repair, second.Repair) &&
		text(first.Reason) == text(second.Reason) && text(first.Message) == text(second.Message) && first.Nodes.String() == second.Nodes.String()
	if !same {
		return
	}
	d.Warn(at.Key(second.Name), fmt.Sprintf("matches the same as rule %s in line %d, which acts instead, because its name comes first; "+
		"give one of them a higher priority or another match", first.Name, d.Line(at.Key(first.Name))))
}

func overlap[T comparable](a, b []T) bool {
	return slices.ContainsFunc(a, func(v T) bool { return slices.Contains(b, v) })
}

func text(pattern *regexp.Regexp) string {
	if pattern == nil {
		return ""
	}
	return pattern.String()
}

// proofs are the conditions by which the detectors report what the Jobs of shipped templates find, as in the annotations of these.
var proofs = map[string]string{"check": conditions.DCGMDiagFailed}

// warnProof warns of a check under load whose result no node reports: none could ever pass it. Without pools this is not known.
func (p *Policy) warnProof(d *strict.Decoder, at *field.Path, what string, c *Check, nodes labels.Selector) {
	proof := proofs[c.Template]
	if proof == "" || len(p.Pools) == 0 || pool.MayReport(p.Pools, proof, nodes) {
		return
	}
	d.Warn(at.Child("template"), fmt.Sprintf("no node of %s reports %s, which proves template %s: no check passes; "+
		"add it to the checks of a pool", what, proof, c.Template))
}
