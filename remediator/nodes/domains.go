package nodes

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// domains remembers the domain of each node, by its name: the label vanishes when the fabric is faulty, often before the fault is
// reported. Without domains in the policy it holds nothing.
type domains map[string]lastDomain

type lastDomain struct {
	node   types.UID
	domain limits.Domain
}

// of is the domain that is remembered of the node; the zero value: none.
func (d domains) of(n *corev1.Node) limits.Domain {
	if last, ok := d[n.Name]; ok && last.node == n.UID {
		return last.domain
	}
	return limits.Domain{}
}

// note remembers the domain of the node, or drops what it remembers.
func (d domains) note(n *corev1.Node, domain limits.Domain) {
	if domain == (limits.Domain{}) {
		delete(d, n.Name)
		return
	}
	d[n.Name] = lastDomain{n.UID, domain}
}
