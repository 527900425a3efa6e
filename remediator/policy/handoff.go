package policy

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// HandOff is what a quarantine puts on the node in addition to its taint, for other controllers to read. The release removes
// it. docs/handoff.md says which controller reads what.
//
//	spec:
//	  handOff:
//	    keepNode: true
//	    labels: {example.com/broken: "true"}
//	    taints: [{key: example.com/repair, effect: NoSchedule}]
type HandOff struct {
	// keepNode sets the annotations that keep the Cluster Autoscaler and Karpenter from removing the node. To them, a drained
	// node is an unused one.
	//
	// [Parse] turns it into Annotations and leaves nil.
	KeepNode *bool `yaml:"keepNode"`
	// labels are labels for the node. No key may be in the domains pitcrew.dev, kubernetes.io and k8s.io.
	Labels map[string]string `yaml:"labels"`
	// annotations are annotations for the node. No key may be in the domain pitcrew.dev. A value has at most 256 bytes.
	Annotations map[string]string `yaml:"annotations"`
	// taints are further taints for the node. Key and effect identify a taint. None may be that of the quarantine itself, or in the
	// domains pitcrew.dev, kubernetes.io and k8s.io.
	Taints []corev1.Taint `yaml:"taints"`
}

// KeepNode are the annotations that keep autoscalers from removing a node because it is empty. A quarantined node often is
// empty. Its removal would lose the evidence, and the cloud could hand the same machine out again as a healthy one.
// Sources: kubernetes/autoscaler cluster-autoscaler/FAQ.md; karpenter.sh, reference, annotations.
var KeepNode = map[string]string{
	"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
	"karpenter.sh/do-not-disrupt":                          "true",
}

// MaxAnnotation is the most bytes of an annotation's value that a hand-off may set: the remediator's cache of Nodes drops
// longer values of other owners.
const MaxAnnotation = 256

func (h *HandOff) check(d *decoder, at *field.Path) {
	for _, key := range slices.Sorted(maps.Keys(h.Labels)) {
		d.foreignKey(at.Child("labels").Key(key), key)
		d.notKubernetes(at.Child("labels").Key(key), key)
		d.invalidFor(at.Child("labels").Key(key), h.Labels[key], validation.IsValidLabelValue(h.Labels[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(h.Annotations)) {
		d.foreignKey(at.Child("annotations").Key(key), key)
		if size := len(h.Annotations[key]); size > MaxAnnotation {
			d.invalid(at.Child("annotations").Key(key), fmt.Sprintf("%d bytes", size), fmt.Sprintf("must be at most %d bytes", MaxAnnotation))
		}
	}
	for i := range h.Taints {
		t := &h.Taints[i]
		if t.Effect == "" {
			t.Effect = corev1.TaintEffectNoSchedule
		}
		d.foreignKey(at.Child("taints").Index(i).Child("key"), t.Key)
		d.notKubernetes(at.Child("taints").Index(i).Child("key"), t.Key)
		d.invalidFor(at.Child("taints").Index(i).Child("value"), t.Value, validation.IsValidLabelValue(t.Value))
	}
}

// addedTo is the hand-off in addition to a common one, which it overrides where both say something.
func (h HandOff) addedTo(common HandOff) HandOff {
	out := HandOff{Labels: joined(common.Labels, h.Labels), Annotations: maps.Clone(common.Annotations), Taints: slices.Clone(common.Taints)}
	if h.KeepNode != nil {
		for key := range KeepNode {
			delete(out.Annotations, key)
		}
		if *h.KeepNode {
			out.Annotations = joined(out.Annotations, KeepNode)
		}
	}
	out.Annotations = joined(out.Annotations, h.Annotations)
	for _, t := range h.Taints {
		out.Taints = append(slices.DeleteFunc(out.Taints, func(old corev1.Taint) bool { return old.MatchTaint(&t) }), t)
	}
	return out
}

func joined(parts ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range parts {
		maps.Copy(all, m)
	}
	return all
}
