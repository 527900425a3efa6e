package policy

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
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
	// cordon also sets spec.unschedulable, for controllers that look at neither taints nor conditions, such as slurm-operator.
	// The release takes it back, unless others have cordoned the node or have undone our cordon. A quarantine with a taint of
	// effect PreferNoSchedule does not cordon.
	Cordon *bool `yaml:"cordon"`
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

// CordonReason is the annotation that slurm-operator shows as the reason of a Slurm node that it drains because of a cordon
// (slurm-operator 1.0.0, api/v1beta1/well_known.go). A hand-off with a cordon has it, and it comes and goes with the cordon.
const CordonReason = "nodeset.slinky.slurm.net/node-cordon-reason"

// Cordons reports whether the hand-off cordons the node.
func (h HandOff) Cordons() bool { return h.Cordon != nil && *h.Cordon }

// WithoutCordon is the rest of a hand-off.
func (h HandOff) WithoutCordon() HandOff {
	if h.Cordons() {
		h.Cordon, h.Annotations = nil, maps.Clone(h.Annotations)
		delete(h.Annotations, CordonReason)
	}
	return h
}

// MaxAnnotation is the most bytes of an annotation's value that a hand-off may set: the remediator's cache of Nodes drops
// longer values of other owners.
const MaxAnnotation = 256

func (h *HandOff) check(d *strict.Decoder, at *field.Path) {
	for _, key := range slices.Sorted(maps.Keys(h.Labels)) {
		strict.CheckForeignKey(d, at.Child("labels").Key(key), key)
		strict.CheckNotKubernetes(d, at.Child("labels").Key(key), key)
		d.InvalidFor(at.Child("labels").Key(key), h.Labels[key], validation.IsValidLabelValue(h.Labels[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(h.Annotations)) {
		strict.CheckForeignKey(d, at.Child("annotations").Key(key), key)
		if size := len(h.Annotations[key]); size > MaxAnnotation {
			d.Invalid(at.Child("annotations").Key(key), fmt.Sprintf("%d bytes", size), fmt.Sprintf("must be at most %d bytes", MaxAnnotation))
		}
	}
	for i := range h.Taints {
		t := &h.Taints[i]
		if t.Effect == "" {
			t.Effect = corev1.TaintEffectNoSchedule
		}
		strict.CheckForeignKey(d, at.Child("taints").Index(i).Child("key"), t.Key)
		strict.CheckNotKubernetes(d, at.Child("taints").Index(i).Child("key"), t.Key)
		d.InvalidFor(at.Child("taints").Index(i).Child("value"), t.Value, validation.IsValidLabelValue(t.Value))
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
	if out.Cordon = common.Cordon; h.Cordon != nil {
		out.Cordon = h.Cordon
	}
	out.Annotations = joined(out.Annotations, h.Annotations)
	for _, t := range h.Taints {
		out.Taints = append(slices.DeleteFunc(out.Taints, func(old corev1.Taint) bool { return old.MatchTaint(&t) }), t)
	}
	return out
}

// completeCordon gives the hand-off of a rule its reason of a cordon. A quarantine that only asks the scheduler to avoid the node
// must not cordon it: its limits are those of nodes that stay in service.
func (r *Rule) completeCordon(d *strict.Decoder, at *field.Path) {
	if !r.HandOff.Cordons() {
		r.HandOff.Cordon = nil
		return
	}
	if r.Taint.Effect == corev1.TaintEffectPreferNoSchedule {
		if d.IsSet(at) {
			d.Invalid(at, true, "takes the node out of service, which a taint of effect PreferNoSchedule does not")
		}
		r.HandOff = r.HandOff.WithoutCordon()
		return
	}
	if _, set := r.HandOff.Annotations[CordonReason]; !set {
		reason := fmt.Sprintf("Pitcrew: %s (rule %s)", r.Condition, r.Name)
		r.HandOff.Annotations = joined(r.HandOff.Annotations, map[string]string{CordonReason: reason[:min(len(reason), MaxAnnotation)]})
	}
}

func joined(parts ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range parts {
		maps.Copy(all, m)
	}
	return all
}
