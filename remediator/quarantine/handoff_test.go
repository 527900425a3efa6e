package quarantine

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// handsOver has every rule of a class hand off more than the annotations that keep the node.
func handsOver(w *world) {
	for i, r := range w.policy.Rules {
		h := policy.HandOff{Annotations: maps.Clone(policy.KeepNode), Labels: map[string]string{"example.com/broken": "yes"}}
		h.Taints = []corev1.Taint{{Key: "example.com/repair", Value: "now", Effect: corev1.TaintEffectNoSchedule}}
		if r.Name == "disk" {
			h = policy.HandOff{Labels: map[string]string{"example.com/broken": "disk"}}
		}
		w.policy.Rules[i].HandOff = h
	}
}

func annotates(key, value string) step {
	return changes(func(c *handoff.NodeChanges) { c.SetAnnotation(key, value) })
}

const (
	scaleDown = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	disrupt   = "karpenter.sh/do-not-disrupt"
	broken    = "example.com/broken"
)

func TestHandOff(t *testing.T) {
	kept := map[string]string{scaleDown: "true", disrupt: "true"}
	byDefault := func(*world) {}
	tests := map[string]struct {
		steps       []step
		annotations map[string]string // but for the record
		labels      map[string]string // but for ours
		taints      string
	}{
		"a quarantine keeps the node":             {[]step{byDefault, gpu(ecc), decide}, kept, nil, gpuTaint},
		"a suspicion does not":                    {[]step{byDefault, others(1), gpu(ecc), decide}, nil, nil, ""},
		"a release does no longer":                {[]step{byDefault, gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, nil, nil, ""},
		"neither does a person's":                 {[]step{byDefault, gpu(ecc), decide, pardoned}, nil, nil, ""},
		"nor one by removing the taint":           {[]step{byDefault, gpu(ecc), decide, untaints, decide, untaints, decide}, nil, nil, ""},
		"a quarantine by hand keeps it":           {[]step{byDefault, ordered}, kept, nil, "pitcrew.dev/unhealthy=ByHand:NoSchedule"},
		"what stood there is somebody else's":     {[]step{annotates(disrupt, "theirs"), gpu(ecc), decide}, map[string]string{scaleDown: "true", disrupt: "theirs"}, nil, gpuTaint},
		"and stays":                               {[]step{annotates(disrupt, "true"), gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, map[string]string{disrupt: "true"}, nil, ""},
		"what somebody changes is theirs":         {[]step{gpu(ecc), decide, annotates(disrupt, "false"), gpuFine, decide, lasts(10 * time.Minute)}, map[string]string{disrupt: "false"}, nil, ""},
		"what somebody removes stays away":        {[]step{gpu(ecc), decide, annotates(disrupt, ""), decide, lasts(time.Hour)}, map[string]string{scaleDown: "true"}, nil, gpuTaint},
		"a label and a taint":                     {[]step{handsOver, gpu(ecc), decide}, kept, map[string]string{broken: "yes"}, gpuTaint + " example.com/repair=now:NoSchedule"},
		"and they go":                             {[]step{handsOver, gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, nil, nil, ""},
		"a label of somebody else stays":          {[]step{handsOver, labels(broken, "for long"), gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, nil, map[string]string{broken: "for long"}, ""},
		"a taint that got another value stays":    {[]step{handsOver, gpu(ecc), decide, func(w *world) { w.node.Spec.Taints[1].Value = "later" }, gpuFine, decide, lasts(10 * time.Minute)}, nil, nil, "example.com/repair=later:NoSchedule"},
		"an upgrade brings that of the new rule":  {[]step{handsOver, gpu(ecc), says("DiskFailing", "True", "x"), decide, lasts(time.Minute)}, nil, map[string]string{broken: "disk"}, diskTaint},
		"a node created anew is not handed off":   {[]step{handsOver, gpu(ecc), decide, func(w *world) { w.node.UID = "uid-2" }, gpuFine, decide}, nil, nil, ""},
		"in maintenance the repairer still finds": {[]step{handsOver, gpu(ecc), decide, taints(maintenance), decide, lasts(time.Hour)}, kept, map[string]string{broken: "yes"}, gpuTaint + " example.com/repair=now:NoSchedule pitcrew.dev/maintenance=sweep:NoSchedule"},
		"an uninstall takes it back":              {[]step{handsOver, gpu(ecc), decide, func(w *world) { w.node = Strip(w.node) }}, nil, nil, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			delete(w.node.Annotations, conditions.AnnotationQuarantine)
			delete(w.node.Labels, conditions.LabelStatus)
			delete(w.node.Labels, conditions.LabelRepair)
			if !maps.Equal(w.node.Annotations, test.annotations) || !maps.Equal(w.node.Labels, test.labels) {
				t.Errorf("annotations %v, labels %v", w.node.Annotations, w.node.Labels)
			}
			if got := w.outcome().Taints; got != test.taints {
				t.Errorf("taints %q, want %q", got, test.taints)
			}
		})
	}
}

// Whatever marks others set, change and remove while quarantines come and go: none of theirs is ever changed or lost, and when
// the node is in service none of ours is left.
func TestMarksOfOthersOnRandomWalks(t *testing.T) {
	keys := []string{scaleDown, disrupt, broken, "example.com/other"}
	values := []string{"true", "yes", "theirs", ""}
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t)
		handsOver(w)
		theirs := map[string]string{} // what others have set, by kind and key
		for range 60 {
			switch random.IntN(4) {
			case 0:
				events := []step{gpu(ecc), gpu(lost), gpuFine, reboots, says("DiskFailing", "True", "x"), says("DiskFailing", "False", ""), lasts(time.Minute), lasts(11 * time.Minute), pardonedIfQuarantined}
				events[random.IntN(len(events))](w)
			case 1:
				key, value := keys[random.IntN(len(keys))], values[random.IntN(len(values))]
				annotates(key, value)(w)
				theirs["annotation "+key] = value
			case 2:
				value := values[1+random.IntN(3)]
				labels(broken, value)(w)
				theirs["label "+broken] = value
			}
			w.decide()
			inService := w.record() == nil || w.record().Phase != causes.Quarantined
			for _, key := range keys {
				check := func(kind string, marks map[string]string) {
					value, on := marks[key]
					want, set := theirs[kind+" "+key]
					ours := false
					if !inService && w.record().HandOff != nil {
						h := w.record().HandOff
						put, handed := map[string]map[string]string{"annotation": h.Annotations, "label": h.Labels}[kind][key]
						ours = handed && put == value
					}
					if on && !ours && (!set || value != want) {
						t.Fatalf("seed %d: %s %s=%q is nobody's: others have set %q", seed, kind, key, value, want)
					}
				}
				check("annotation", w.node.Annotations)
				check("label", w.node.Labels)
			}
		}
	}
}

func pardonedIfQuarantined(w *world) {
	if r := w.record(); r != nil && r.Phase == causes.Quarantined && r.NodeUID == w.node.UID {
		pardoned(w)
	}
}
