package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// HandOff is what a quarantine puts on a node beside its taint, for other controllers to find. docs/handoff.md has what
// which of them understands.
type HandOff struct {
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
}

// KeepNode are the annotations that keep autoscalers from removing a node because it is empty: a quarantined one is, and it
// would take the evidence with it and come back as a healthy one's order.
// Sources: kubernetes/autoscaler cluster-autoscaler/FAQ.md; karpenter.sh, reference, annotations.
var KeepNode = map[string]string{
	"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
	"karpenter.sh/do-not-disrupt":                          "true",
}

// MaxAnnotation is the most bytes of an annotation's value that a hand-off may set: the remediator's cache of Nodes keeps no
// longer ones of others.
const MaxAnnotation = 256

type handOff struct {
	KeepNode    *bool             `yaml:"keepNode"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
	Taints      []taint           `yaml:"taints"`
}

// handOff adds to what is handed off anyway.
func (c *checker) handOff(at *field.Path, h *handOff, common HandOff) HandOff {
	out := HandOff{Labels: maps.Clone(common.Labels), Annotations: maps.Clone(common.Annotations), Taints: slices.Clone(common.Taints)}
	if h == nil {
		return out
	}
	if h.KeepNode != nil {
		for key := range KeepNode {
			delete(out.Annotations, key)
		}
		if *h.KeepNode {
			out.Annotations = merged(out.Annotations, KeepNode)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(h.Labels)) {
		c.foreign(at.Child("labels").Key(key), key)
		c.all(at.Child("labels").Key(key), h.Labels[key], validation.IsValidLabelValue(h.Labels[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(h.Annotations)) {
		c.foreign(at.Child("annotations").Key(key), key)
		if size := len(h.Annotations[key]); size > MaxAnnotation {
			c.invalid(at.Child("annotations").Key(key), fmt.Sprintf("%d bytes", size), fmt.Sprintf("must be at most %d bytes", MaxAnnotation))
		}
	}
	out.Labels, out.Annotations = merged(out.Labels, h.Labels), merged(out.Annotations, h.Annotations)
	for i, t := range h.Taints {
		c.foreign(at.Child("taints").Index(i).Child("key"), t.Key)
		checked := c.taint(at.Child("taints").Index(i), t, "")
		out.Taints = append(slices.DeleteFunc(out.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&checked) }), checked)
	}
	return out
}

// foreign checks a key that is to mean something to others.
func (c *checker) foreign(at *field.Path, key string) {
	c.all(at, key, validation.IsQualifiedName(key))
	if strings.HasPrefix(key, conditions.Domain+"/") {
		c.invalid(at, key, "is ours, and nobody else's to understand")
	}
}

func merged(onto, with map[string]string) map[string]string {
	if onto == nil {
		onto = map[string]string{}
	}
	maps.Copy(onto, with)
	return onto
}
