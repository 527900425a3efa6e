package handoff

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// MaxKnown bounds how many keys the remediator remembers of policies that are no longer in force.
const MaxKnown = 512

// KnownKey is the key of ConfigMap [conditions.KnownConfigMap] with what [Known.String] writes.
const KnownKey = "known"

// Known are the labels, annotations and taints that quarantines put on nodes, and whether they cordon them. A record on a Node is input:
// whoever may annotate the Node can claim in it that anything is ours. Only what is known is added or removed for the sake of a record.
type Known struct {
	keys map[string]bool
	// any accepts every annotation, and every label and taint but those of Kubernetes itself.
	any bool
}

// KnownOf are those that a policy can produce, and those of a manual quarantine.
func KnownOf(p *policy.Policy) Known {
	k := Known{keys: map[string]bool{taintKey(corev1.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule}): true}}
	k.add(policy.HandOff{Annotations: policy.KeepNode})
	for _, r := range p.Rules {
		if !r.AlertOnly {
			k.keys[taintKey(r.Taint)] = true
			k.add(r.HandOff)
			if r.Isolate {
				k.keys[isolateKey] = true
			}
		}
	}
	return k
}

// AnyKnown is for the command line, which has no policy: a person agrees to each change. It accepts all annotations, as a policy
// does: whoever can forge a record can write them, too. Of labels and taints it accepts none in the domains of Kubernetes, where
// a forged record could remove what keeps workloads off a node.
func AnyKnown() Known {
	k := KnownOf(&policy.Policy{})
	k.any = true
	return k
}

// ParseKnown reads what [Known.String] wrote. What is no key of its form has no effect.
func ParseKnown(text string) Known {
	k := Known{keys: map[string]bool{}}
	for _, key := range strings.Split(text, "\n") {
		if key != "" && len(k.keys) < MaxKnown {
			k.keys[key] = true
		}
	}
	return k
}

// KnownIn is what a policy can put on nodes, and what earlier ones could as far as ConfigMap [conditions.KnownConfigMap] has it. A nil
// ConfigMap has nothing.
func KnownIn(p *policy.Policy, stored *corev1.ConfigMap) Known {
	if stored == nil {
		return KnownOf(p)
	}
	return KnownOf(p).With(ParseKnown(stored.Data[KnownKey]))
}

// With is what is known by either. Of the other, only as much is kept as fits [MaxKnown].
func (k Known) With(other Known) Known {
	all := Known{keys: maps.Clone(k.keys), any: k.any || other.any}
	for _, key := range slices.Sorted(maps.Keys(other.keys)) {
		if len(all.keys) >= MaxKnown {
			break
		}
		all.keys[key] = true
	}
	return all
}

// String is a line for each key, sorted.
func (k Known) String() string { return strings.Join(slices.Sorted(maps.Keys(k.keys)), "\n") }

// HasTaint reports whether a quarantine can have set a taint with this key and effect.
func (k Known) HasTaint(t corev1.Taint) bool { return k.has(taintKey(t), t.Key) }

// CanCordon reports whether a quarantine can have cordoned a node.
func (k Known) CanCordon() bool { return k.any || k.keys[cordonKey] }

// CanIsolate reports whether a policy isolates devices, or has done so.
func (k Known) CanIsolate() bool { return k.keys[isolateKey] }

// Split divides what a record claims to have added into what is known and what is not.
func (k Known) Split(claimed *Added) (known *Added, unknown []string) {
	if claimed == nil {
		return nil, nil
	}
	known = &Added{Labels: map[string]string{}, Annotations: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(claimed.Labels)) {
		if value := claimed.Labels[key]; k.has(labelKey(key, value), key) {
			known.Labels[key] = value
		} else {
			unknown = append(unknown, "label "+key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(claimed.Annotations)) {
		if value := claimed.Annotations[key]; k.any || k.keys[annotationKey(key, value)] {
			known.Annotations[key] = value
		} else {
			unknown = append(unknown, "annotation "+key)
		}
	}
	for _, t := range claimed.Taints {
		if k.has(extraTaintKey(t), t.Key) {
			known.Taints = append(known.Taints, t)
		} else {
			unknown = append(unknown, "taint "+t.ToString())
		}
	}
	if known.Cordon = claimed.Cordon && k.CanCordon(); claimed.Cordon && !known.Cordon {
		unknown = append(unknown, "the cordon")
	}
	return known, unknown
}

func (k Known) add(h policy.HandOff) {
	for key, value := range h.Labels {
		k.keys[labelKey(key, value)] = true
	}
	for key, value := range h.Annotations {
		k.keys[annotationKey(key, value)] = true
	}
	for _, t := range h.Taints {
		k.keys[extraTaintKey(t)] = true
	}
	if h.Cordons() {
		k.keys[cordonKey] = true
	}
}

func (k Known) has(entry, key string) bool { return k.keys[entry] || k.any && !ofKubernetes(key) }

// ofKubernetes reports whether a key is in a domain that Kubernetes reserves (kubernetes.io, Well-Known Labels, Annotations
// and Taints).
func ofKubernetes(key string) bool {
	domain, _, qualified := strings.Cut(key, "/")
	if !qualified {
		return false
	}
	return slices.ContainsFunc([]string{"kubernetes.io", "k8s.io"}, func(reserved string) bool {
		return domain == reserved || strings.HasSuffix(domain, "."+reserved)
	})
}

// The forms of an entry. No key and no value of a label or taint has a line break; that of an annotation is quoted away.

const (
	cordonKey  = "cordon"
	isolateKey = "isolate devices"
)

func labelKey(key, value string) string { return "label " + key + "=" + value }

func annotationKey(key, value string) string {
	return "annotation " + key + "=" + strings.ReplaceAll(value, "\n", `\n`)
}

func taintKey(t corev1.Taint) string { return "taint " + t.Key + ":" + string(t.Effect) }

func extraTaintKey(t corev1.Taint) string {
	return "handOff taint " + t.Key + "=" + t.Value + ":" + string(t.Effect)
}
