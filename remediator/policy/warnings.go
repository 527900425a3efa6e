package policy

import (
	_ "embed"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/suggest"
)

//go:embed third-party.txt
var thirdPartyText string

// thirdParty are the conditions of other components that the shipped policies have a rule for.
var thirdParty = strings.Fields(thirdPartyText)

// warn looks for what is valid and yet is most likely a mistake.
func (p *Policy) warn(d *decoder, at *field.Path) {
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
			d.warnAt(at.Child("domains").Index(i).Child("incidents"), "no rule acts on HCAPortDown, and without it no node takes part in an incident")
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
			d.warnAt(at.Child("firstCheck"), "waits for every condition that a rule names: spec.pools does not say which the nodes report")
		}
		for i, name := range f.Conditions {
			warnCondition(d, at.Child("firstCheck", "conditions").Index(i), name)
		}
	}
}

// admittedArg is what the chart's admission policy pitcrew-repair-templates admits after the arguments of a template.
var admittedArg = regexp.MustCompile(`^(--?[A-Za-z][A-Za-z-]*(=[0-9][0-9A-Za-z.:,]*)?|[0-9][0-9A-Za-z.:,]*)$`)

// warnArgs warns of arguments with which the API server refuses the Job. Clusters may have other admission policies.
func (c *Check) warnArgs(d *decoder, at *field.Path) {
	for i, arg := range c.Args {
		if !admittedArg.MatchString(arg) {
			d.warnAt(at.Child("args").Index(i), fmt.Sprintf("%q is neither a flag nor a number, as -level=3 or 30m; the chart's admission policies refuse a Job with it: write it into the PodTemplate %s",
				arg, c.Template))
		}
	}
}

// warnCondition warns of a condition that is nearly one that is known. Any other name is that of a component of the user.
func warnCondition(d *decoder, at *field.Path, name string) {
	if meant := meantCondition(name); meant != "" {
		d.warnAt(at, fmt.Sprintf("%q is a condition of no check of Pitcrew and of no other component that it knows%s", name, meant))
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
func warnCompeting(d *decoder, at *field.Path, first, second Rule) {
	same := first.Condition == second.Condition && first.Priority == second.Priority && overlap(first.Status, second.Status) && overlap(first.Repair, second.Repair) &&
		text(first.Reason) == text(second.Reason) && text(first.Message) == text(second.Message) && first.Nodes.String() == second.Nodes.String()
	if !same {
		return
	}
	d.warnAt(at.Key(second.Name), fmt.Sprintf("matches the same as rule %s in line %d, which acts instead, because its name comes first; give one of them a higher priority or another match",
		first.Name, d.lines[at.Key(first.Name).String()]))
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

// warnAt adds a warning about a field.
func (d *decoder) warnAt(at *field.Path, why string) {
	line := 0
	for path := at.String(); line == 0 && path != ""; path = parent(path) {
		line = d.lines[path]
	}
	d.warnings = append(d.warnings, lineError{line, fmt.Errorf("%s: %s", at, why)})
}

// hint says what an unknown field was probably meant to be: another field of the same part, or one of a part in it, which is not
// indented far enough.
func hint(part reflect.Type, name string) string {
	var names []string
	for f := range fieldsOf(part) {
		names = append(names, f.Tag.Get("yaml"))
		if below := f.Type; below.Kind() == reflect.Struct {
			if _, found := fieldOf(below, name); found {
				return fmt.Sprintf("; it is a field of %s: indent it", f.Tag.Get("yaml"))
			}
		}
	}
	if meant := suggest.Closest(name, names); meant != "" {
		return fmt.Sprintf("; did you mean %s?", meant)
	}
	return ""
}
