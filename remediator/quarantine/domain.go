package quarantine

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// DomainOf is the domain of a node, see [policy.Domain]; the zero value: it is in none. remembered is its domain before it lost the
// label, as far as that is known.
func DomainOf(p *policy.Policy, n *corev1.Node, remembered limits.Domain) limits.Domain {
	if len(p.Domains) == 0 {
		return limits.Domain{}
	}
	record, err := RecordOf(n)
	if err != nil {
		record = nil
	}
	return domainOf(p, n, record, remembered)
}

// domainOf is [DomainOf]. r is the record of the node, or nil. The domain in an open record comes before the labels: a label may change
// when the fabric is faulty, and then the node would leave the others of its wave.
func domainOf(p *policy.Policy, n *corev1.Node, r *Record, remembered limits.Domain) limits.Domain {
	for _, d := range p.Domains {
		inRecord := r != nil && r.NodeUID == n.UID && r.Domain.Label == d.Label
		switch value := n.Labels[d.Label]; {
		case inRecord && !r.closed():
			return r.Domain
		case value != "":
			return limits.Domain{Label: d.Label, Value: value}
		case remembered.Label == d.Label:
			return remembered
		case inRecord:
			return r.Domain
		}
	}
	return limits.Domain{}
}

// rememberDomain keeps the domain of the node in its record.
func (d *decider) rememberDomain() {
	if d.record != nil && d.domain != (limits.Domain{}) {
		d.record.Domain = d.domain
	}
}
