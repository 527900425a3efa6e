package quarantine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// forger writes records as a compromised kubelet can where no admission policy reserves them: on any node, at any time.
type forger struct{ *rand.Rand }

func pick[T any](f forger, list ...T) T { return list[f.IntN(len(list))] }

// at is a time about now, long ago, or in a distant future.
func (f forger) at(now time.Time) time.Time {
	return pick(f, time.Time{}, now, now.Add(-time.Duration(f.IntN(7200))*time.Second), now.Add(time.Duration(f.IntN(7200))*time.Second), now.AddDate(0, 0, 40), now.AddDate(90, 0, 0))
}

func (f forger) taint() *causes.Taint {
	t := pick(f,
		corev1.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule},
		corev1.Taint{Key: conditions.TaintUnhealthy, Value: "SlowNode", Effect: corev1.TaintEffectPreferNoSchedule},
		corev1.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoExecute},
		corev1.Taint{Key: conditions.TaintMaintenance, Effect: corev1.TaintEffectNoSchedule},
		corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute},
		corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
	return &causes.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect, Rule: pick(f, "gpu", "disk", "slow", "dead", "nonsense", policy.ByHand),
		Repair: pick(f, conditions.Inspect, conditions.ResetGPU, conditions.Replace), Restored: f.IntN(2) == 0, PreExisting: f.IntN(2) == 0}
}

func (f forger) quarantine(now time.Time, phase causes.Phase) causes.Quarantine {
	q := causes.Quarantine{
		ID: fmt.Sprintf("forged-%d", f.IntN(3)), Phase: pick(f, causes.Suspect, causes.Quarantined, causes.Quarantined, causes.Released),
		QuarantinedAt: f.at(now), ReleasedAt: f.at(now), ReleasedBy: pick(f, "", causes.ByPitcrew, causes.ByPerson),
		ManualReleaseOnly: f.IntN(4) == 0, ManualReleaseActive: f.IntN(4) == 0,
	}
	for range 1 + f.IntN(3) {
		q.Causes = append(q.Causes, causes.Cause{
			Condition: pick[corev1.NodeConditionType](f, "GPUXidError", "DiskFailing", "SlowNode", "Ready", "Nonsense", conditionByHand), Rule: pick(f, "gpu", "disk", "slow", "dead", "nonsense", policy.ByHand),
			Repair: pick(f, conditions.Inspect, conditions.Reboot, conditions.Replace), Message: lost, FirstSeen: f.at(now), HealthySince: f.at(now), Due: f.IntN(4) > 0, BootID: "boot-1",
		})
	}
	if q.Phase != causes.Suspect {
		q.Taint = f.taint()
		q.Taint.Since = f.at(now)
	}
	if f.IntN(2) == 0 {
		q.HandOff = &handoff.Added{
			Labels:      map[string]string{restricted: "a", "example.com/drain": "true", "rack": "r0"},
			Annotations: map[string]string{"example.com/theirs": "x"},
			Taints:      []corev1.Taint{{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute}, {Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}},
			Cordon:      f.IntN(2) == 0,
		}
	}
	return q
}

// visits is what a record of visits says that was forged, too.
func (f forger) visits(r *causes.Record) (v Visits) {
	if r != nil && f.IntN(4) > 0 {
		v.Quarantine = r.ID
	}
	v.Validated = f.IntN(2) == 0
	if f.IntN(2) == 0 {
		v.Release = &Manual{User: "mallory"}
	}
	return v
}

// forge replaces the record of a node: by nothing, by one that is made up, by an earlier one, by that of another node, or by one
// with a changed piece.
func (f forger) forge(w *world, other *causes.Record, earlier string) {
	r := &causes.Record{V: 1, NodeUID: w.node.UID, Boot: causes.Boot{ID: pick(f, "boot-1", "x"), Seen: f.at(w.now)}, Quarantine: f.quarantine(w.now, pick(f, causes.Suspect, causes.Quarantined, causes.Quarantined, causes.Released))}
	for range f.IntN(7) {
		r.Last = append(r.Last, f.quarantine(w.now, causes.Released))
	}
	for range f.IntN(20) {
		r.Notices = append(r.Notices, handoff.Notice{ID: fmt.Sprint(f.Uint32()), Event: pick(f, causes.NodeQuarantined, "Forged"), At: f.at(w.now), To: []string{"pager"}})
	}
	text := r.String()
	switch f.IntN(6) {
	case 0:
		delete(w.node.Annotations, conditions.AnnotationQuarantine)
		return
	case 1:
		if other != nil {
			copied := other.Clone()
			copied.NodeUID = w.node.UID
			text = copied.String()
		}
	case 2:
		text = earlier
	case 3:
		own, err := causes.RecordOf(w.node)
		if err == nil && own != nil {
			changed := own.Clone()
			changed.Phase, changed.ManualReleaseActive = pick(f, causes.Suspect, causes.Quarantined, causes.Released), f.IntN(2) == 0
			text = changed.String()
		}
	}
	if text != "" && f.IntN(10) == 0 {
		cut := f.IntN(len(text))
		text = text[:cut] + pick(f, "", `"`, "9", "}") + text[cut:]
	}
	w.node.Annotations[conditions.AnnotationQuarantine] = text
}

// Whatever is forged, the remediator takes no more nodes out of service than the budget allows, touches no key of others, and
// restarts no job of a node that has no fault.
func TestForgedRecordsNeverExceedABudgetNorTouchAForeignKey(t *testing.T) {
	const limit = 3
	theirs := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute}
	hard := func(w *world) bool {
		return slices.ContainsFunc(w.node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == conditions.TaintUnhealthy && t.Effect != corev1.TaintEffectPreferNoSchedule
		})
	}
	foreign := func(n *corev1.Node) (all []string) {
		ours := func(key string) bool {
			return strings.HasPrefix(key, conditions.Domain+"/") || key == "example.com/drain" || policy.KeepNode[key] != ""
		}
		for _, m := range []map[string]string{n.Labels, n.Annotations} {
			for _, key := range slices.Sorted(maps.Keys(m)) {
				if !ours(key) {
					all = append(all, key+"="+m[key])
				}
			}
		}
		for _, t := range n.Spec.Taints {
			if t.Key != conditions.TaintUnhealthy {
				all = append(all, t.ToString())
			}
		}
		return append(all, fmt.Sprintf("cordoned: %v", n.Spec.Unschedulable))
	}
	events := []step{gpu(lost), gpu(ecc), gpuFine, gpuFine, gpuFine, says("SlowNode", "True", "Inspect node: suspected slow"), says("SlowNode", "False", ""),
		says("DiskFailing", "True", "x"), says("DiskFailing", "False", ""), reboots, restarted, silent, kubelet(corev1.ConditionFalse), kubelet(corev1.ConditionTrue), kubelet(corev1.ConditionTrue)}
	taken, dead, restarts := 0, 0, 0
	for seed := range uint64(20) {
		f := forger{rand.New(rand.NewPCG(seed, 6))}
		fleet := newFleet(t, 12, fmt.Sprintf("budget: {maxNodes: %d}\ncorrelated: {maxPercent: 50, minNodes: 4, window: 2m}\nrepair: {validate: {template: check}}", limit),
			"restartJobs: true\n      validate: true\n      handOff: {labels: {example.com/drain: \"true\"}}\n"+
				"    slow: {match: {condition: SlowNode, repair: [Inspect]}, taint: {effect: PreferNoSchedule}}\n"+
				"    dead: {match: {condition: Ready, status: [Unknown, 'False'], repair: [Inspect]}, for: 30s, restartJobs: true, handOff: {keepNode: false}}")
		for i, w := range fleet.worlds {
			w.node.Labels[restricted] = "a"
			w.node.Annotations = map[string]string{"example.com/theirs": "x"}
			if i%2 == 0 {
				w.node.Spec.Taints = []corev1.Taint{theirs}
			}
			w.node.Spec.Unschedulable = i == 1
		}
		records := make([]string, len(fleet.worlds))
		for range 250 {
			pass := time.Duration(f.IntN(60)) * time.Second
			for _, w := range fleet.worlds {
				w.now = w.now.Add(pass)
				beats(w)
			}
			i := f.IntN(len(fleet.worlds))
			w := fleet.worlds[i]
			if f.IntN(2) == 0 {
				f.forge(w, parsed(fleet.worlds[f.IntN(len(fleet.worlds))]), records[i])
			} else {
				pick(f, events...)(w)
			}
			// A forged record may take more than one decision, but it must come to rest.
			for again := 0; ; again++ {
				before, was := foreign(w.node), hard(w)
				fleet.meets(i)
				o := w.observe()
				if again == 0 {
					w.visits = f.visits(o.Record)
				}
				o.Visits = w.visits
				d := Decide(w.policy, o, w.now)
				changes := d.Changes(w.node)
				w.seen = d.SeenAfter(o, w.now)
				if d.State != nil {
					d.State.Apply(w.node)
				}
				fleet.setBreaker(d)
				record := w.node.Annotations[conditions.AnnotationQuarantine]
				if after := foreign(w.node); !slices.Equal(before, after) {
					t.Fatalf("seed %d: %v became %v; %s", seed, before, after, record)
				}
				if hard(w) && !was {
					taken++
					if r := parsed(w); r != nil && r.Taint != nil && r.Taint.Rule == "dead" {
						dead++
					}
					out := 0
					for _, other := range fleet.worlds {
						if hard(other) {
							out++
						}
					}
					if out > limit {
						t.Fatalf("seed %d: %d nodes are tainted, the budget is %d; %s", seed, out, limit, record)
					}
				}
				if d.RestartJobs {
					restarts++
					if !hasFault(w) && !w.seen.Of(parsed(w)).Decided {
						t.Fatalf("seed %d: the jobs of a healthy node are restarted; %s", seed, record)
					}
				}
				if !changes {
					break
				}
				if again == 4 {
					t.Fatalf("seed %d: the node does not come to rest; %s", seed, record)
				}
			}
			records[i] = w.node.Annotations[conditions.AnnotationQuarantine]
		}
	}
	if taken < 60 || dead < 25 || restarts < 100 {
		t.Errorf("only %d nodes were taken out, %d of them not Ready, and jobs restarted %d times: the walks prove little", taken, dead, restarts)
	}
}

func parsed(w *world) *causes.Record {
	r, err := causes.RecordOf(w.node)
	if err != nil {
		return nil
	}
	return r
}

// hasFault reports whether a condition of the node restarts jobs by the rules of the fleet.
func hasFault(w *world) bool {
	return slices.ContainsFunc(w.node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == "GPUXidError" && c.Status == corev1.ConditionTrue || c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
	})
}
