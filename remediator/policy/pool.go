package policy

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Pool is what the detectors of some nodes report. The chart writes the pools of its values here. Where the Node Problem Detector is
// another's, name its conditions yourself.
//
//	spec:
//	  pools:
//	    h100: {nodeSelector: {pool: h100}, conditions: [GPUXidError, GPUMemoryError, KernelDeadlock]}
type Pool struct {
	// Name is the key of the pool in the file.
	Name string `yaml:"-"`
	// nodeSelector lists the labels that a node must have.
	Nodes labels.Selector `yaml:"nodeSelector"`
	// matchExpressions are further requirements for the labels of a node, as in a node affinity. All must hold.
	MatchExpressions []Requirement `yaml:"matchExpressions"`
	// conditions are the types of the conditions that every node of the pool reports.
	Conditions []string `yaml:"conditions" required:"the types of the conditions that the nodes report"`
}

// Requirement is one for the label of a node, as in a node affinity.
type Requirement struct {
	// key is the key of the label.
	Key string `yaml:"key" unit:"label key" required:""`
	// operator says how the value is compared with values.
	Operator string `yaml:"operator" values:"In NotIn Exists DoesNotExist Gt Lt" required:""`
	// values are what it is compared with.
	Values []string `yaml:"values"`
}

var operators = map[string]selection.Operator{
	"In": selection.In, "NotIn": selection.NotIn, "Exists": selection.Exists, "DoesNotExist": selection.DoesNotExist,
	"Gt": selection.GreaterThan, "Lt": selection.LessThan,
}

func (p *Pool) setName(name string) { p.Name = name }

func (p *Pool) setDefaults() { p.Nodes = labels.Everything() }

// complete adds the requirements to the selector.
func (p *Pool) complete(d *decoder, at *field.Path) {
	for i, r := range p.MatchExpressions {
		here := at.Child("matchExpressions").Index(i)
		if operators[r.Operator] == "" || d.failed[here.String()] {
			continue // that is said already
		}
		requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err != nil {
			d.invalid(here, r.Key, err.Error())
			continue
		}
		p.Nodes = p.Nodes.Add(*requirement)
	}
	for i, name := range p.Conditions {
		d.invalidFor(at.Child("conditions").Index(i), name, validation.IsQualifiedName(name))
	}
}

// Reported returns the conditions that nodes with these labels report, in order. It is false when no pool has such a node: then it
// is not known.
func (p *Policy) Reported(nodeLabels map[string]string) (names []string, known bool) {
	for i := range p.Pools {
		if pool := &p.Pools[i]; pool.Nodes.Matches(labels.Set(nodeLabels)) {
			names, known = append(names, pool.Conditions...), true
		}
	}
	slices.Sort(names)
	return slices.Compact(names), known
}

// proofs are the conditions by which the detectors report what the Jobs of shipped templates find, as in the annotations of these.
var proofs = map[string]string{"check": conditions.DCGMDiagFailed}

// warnProof warns of a check under load whose result no node reports: none could ever pass it. Without pools this is not known.
func (p *Policy) warnProof(d *decoder, at *field.Path, what string, c *Check, nodes labels.Selector) {
	proof := proofs[c.Template]
	if proof == "" || len(p.Pools) == 0 || slices.ContainsFunc(p.Pools, func(pool Pool) bool {
		return slices.Contains(pool.Conditions, proof) && mayOverlap(pool.Nodes, nodes)
	}) {
		return
	}
	d.warnAt(at.Child("template"), fmt.Sprintf("no node of %s reports %s, which proves template %s: no check passes; "+
		"add it to the checks of a pool", what, proof, c.Template))
}

// mayOverlap reports whether a node may match both selectors: no label has values in the one that the other excludes.
func mayOverlap(a, b labels.Selector) bool {
	ours, _ := a.Requirements()
	theirs, _ := b.Requirements()
	for _, r := range ours {
		for _, other := range theirs {
			if r.Key() == other.Key() && isList(r) && isList(other) && !r.Values().HasAny(other.Values().UnsortedList()...) {
				return false
			}
		}
	}
	return true
}

func isList(r labels.Requirement) bool {
	return r.Operator() == selection.In || r.Operator() == selection.Equals
}
