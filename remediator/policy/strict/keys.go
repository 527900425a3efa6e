package strict

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Taint is a taint of a node.
//
//	spec:
//	  rules:
//	    slow-node:
//	      match: {condition: SlowNode, repair: [Inspect]}
//	      taint: {key: example.com/slow, value: network, effect: PreferNoSchedule}
//
// It is the form of a [corev1.Taint] in the file. That type itself has no yaml tags, and has a time that a policy cannot set.
type Taint struct {
	// key is the key of the taint. It must not be pitcrew.dev/maintenance. Under handOff it is required, and must not be in the
	// domain pitcrew.dev.
	Key string `yaml:"key"`
	// value is the value of the taint.
	Value string `yaml:"value"`
	// effect is the effect of the taint.
	Effect corev1.TaintEffect `yaml:"effect" values:"NoSchedule PreferNoSchedule NoExecute"`
}

// KubernetesOwn are the keys of labels and taints that Kubernetes itself gives a meaning: roles and isolation of nodes, their
// place, and taints that evict pods or detach their volumes. The admission policy pitcrew-remediator-nodes refuses to let the
// remediator write them.
var KubernetesOwn = regexp.MustCompile(`^([^/]+[.])?(kubernetes|k8s)[.]io/`)

// CheckLabel checks the key of a label, unless it is empty.
func CheckLabel(d *Decoder, at *field.Path, key string) {
	if key != "" {
		d.InvalidFor(at, key, validation.IsQualifiedName(key))
	}
}

func checkLabels(d *Decoder, at *field.Path, want map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		d.InvalidFor(at.Key(key), key, validation.IsQualifiedName(key))
		d.InvalidFor(at.Key(key), want[key], validation.IsValidLabelValue(want[key]))
	}
}

// CheckTaint checks a taint of Pitcrew.
func CheckTaint(d *Decoder, at *field.Path, t corev1.Taint) {
	CheckTaintKey(d, at.Child("key"), t.Key)
	d.InvalidFor(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))
}

// CheckTaintKey checks the key of a taint of Pitcrew.
func CheckTaintKey(d *Decoder, at *field.Path, key string) {
	d.InvalidFor(at, key, validation.IsQualifiedName(key))
	if key == conditions.TaintMaintenance {
		d.Invalid(at, key, "is the maintenance taint: it says that another owner works on the node")
	}
	CheckNotKubernetes(d, at, key)
}

// CheckForeignKey checks a key that is for other controllers.
func CheckForeignKey(d *Decoder, at *field.Path, key string) {
	d.InvalidFor(at, key, validation.IsQualifiedName(key))
	if strings.HasPrefix(key, conditions.Domain+"/") {
		d.Invalid(at, key, "must not be in the domain "+conditions.Domain+", which is Pitcrew's own")
	}
}

// CheckNotKubernetes checks the key of a label or a taint.
func CheckNotKubernetes(d *Decoder, at *field.Path, key string) {
	if KubernetesOwn.MatchString(key) {
		d.Invalid(at, key, "must not be in the domains kubernetes.io and k8s.io, to whose labels and taints Kubernetes itself gives a meaning")
	}
}
