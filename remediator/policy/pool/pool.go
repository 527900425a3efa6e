// Package pool knows which conditions the nodes of a policy's pools report.
package pool

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
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
	// operator is how the value is compared with values.
	Operator string `yaml:"operator" values:"In NotIn Exists DoesNotExist Gt Lt" required:""`
	// values are what it is compared with.
	Values []string `yaml:"values"`
}

var operators = map[string]selection.Operator{
	"In": selection.In, "NotIn": selection.NotIn, "Exists": selection.Exists, "DoesNotExist": selection.DoesNotExist,
	"Gt": selection.GreaterThan, "Lt": selection.LessThan,
}

// SetName sets the key of the pool.
func (p *Pool) SetName(name string) { p.Name = name }

// SetDefaults selects all nodes.
func (p *Pool) SetDefaults() { p.Nodes = labels.Everything() }

// Complete checks a pool, and adds the requirements to the selector.
func (p *Pool) Complete(d *strict.Decoder, at *field.Path) {
	d.InvalidFor(at, p.Name, validation.IsDNS1123Label(p.Name))
	for i, r := range p.MatchExpressions {
		here := at.Child("matchExpressions").Index(i)
		if operators[r.Operator] == "" || d.HasFailed(here) {
			continue // that is said already
		}
		requirement, err := labels.NewRequirement(r.Key, operators[r.Operator], r.Values)
		if err != nil {
			d.Invalid(here, r.Key, err.Error())
			continue
		}
		p.Nodes = p.Nodes.Add(*requirement)
	}
	for i, name := range p.Conditions {
		d.InvalidFor(at.Child("conditions").Index(i), name, validation.IsQualifiedName(name))
	}
}

// Reported returns the conditions that nodes with these labels report, in order. It is false when no pool has such a node: then it
// is not known.
func Reported(pools []Pool, nodeLabels map[string]string) (names []string, known bool) {
	for i := range pools {
		if pool := &pools[i]; pool.Nodes.Matches(labels.Set(nodeLabels)) {
			names, known = append(names, pool.Conditions...), true
		}
	}
	slices.Sort(names)
	return slices.Compact(names), known
}

// MayReport reports whether a pool that may have some of the nodes reports the condition.
func MayReport(pools []Pool, condition string, nodes labels.Selector) bool {
	return slices.ContainsFunc(pools, func(pool Pool) bool {
		return slices.Contains(pool.Conditions, condition) && mayOverlap(pool.Nodes, nodes)
	})
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
