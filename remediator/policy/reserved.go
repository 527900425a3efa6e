package policy

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// kubernetesOwn are the keys of labels and taints that Kubernetes itself gives a meaning: roles and isolation of nodes, their
// place, and taints that evict pods or detach their volumes. The admission policy pitcrew-remediator-nodes refuses to let the
// remediator write them.
var kubernetesOwn = regexp.MustCompile(`^([^/]+[.])?(kubernetes|k8s)[.]io/`)

// notKubernetes checks the key of a label or a taint.
func (d *decoder) notKubernetes(at *field.Path, key string) {
	if kubernetesOwn.MatchString(key) {
		d.invalid(at, key, "must not be in the domains kubernetes.io and k8s.io, to whose labels and taints Kubernetes itself gives a meaning")
	}
}
