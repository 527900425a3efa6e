package quarantine

import (
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
)

// maxAllocation is how much a forged record may have the remediator allocate.
const maxAllocation = 8 << 20

// FuzzDecideOnAForgedRecord decides twice about a node with any record: by a remediator that has just started, and again. The
// node's faults, its reboot and the use of the budget are arbitrary, too. Only what the policy can produce is added or removed,
// no job is restarted and no taint added beyond the budget, and what is written is read again, by the previous version as well.
func FuzzDecideOnAForgedRecord(f *testing.F) {
	p, err := policy.Parse([]byte(testPolicy + `
  webhooks:
    pager: {url: "https://example.com", secretFile: /x}
`))
	if err != nil {
		f.Fatal(err)
	}
	seeds := []*causes.Record{full()}
	now := time.Date(2026, 11, 20, 12, 30, 0, 0, time.UTC)
	for _, phase := range []causes.Phase{causes.Suspect, causes.Quarantined, causes.Released} {
		r := full()
		r.NodeUID, r.Phase = "uid-1", phase
		claims(r)
		r.Taint.Rule, r.Taint.PreExisting, r.Taint.Restored = "gpu", false, false
		r.Causes[0].Rule = "gpu"
		r.ManualReleaseActive = phase == causes.Released // no other record can be read with it
		if phase == causes.Suspect {
			r.Taint, r.HandOff = nil, nil
		}
		seeds = append(seeds, r)
		out := r.Clone()
		if out.Taint != nil {
			out.Taint.Key, out.Taint.Value, out.Taint.Effect = "node.kubernetes.io/out-of-service", "", corev1.TaintEffectNoExecute
		}
		seeds = append(seeds, out)
		if cordoned := r.Clone(); phase != causes.Suspect {
			cordoned.HandOff, cordoned.ManualReleaseOnly = &handoff.Added{Cordon: true}, false
			seeds = append(seeds, cordoned)
		}
	}
	for _, r := range seeds {
		for _, state := range []uint8{0, 1, 2, 5, 7, 15, 18, 26} {
			f.Add(r.String(), state)
		}
	}
	f.Add(`{"v":1,"causes":null}`, uint8(0))
	f.Add(strings.Repeat("[", 10000), uint8(0))
	foreign := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute}
	known := handoff.KnownOf(p)
	f.Fuzz(func(t *testing.T, text string, state uint8) {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: "n", UID: "uid-1", Labels: map[string]string{restricted: "a"},
				Annotations: map[string]string{conditions.AnnotationQuarantine: text, "example.com/theirs": "x"},
			},
			Spec:   corev1.NodeSpec{Taints: []corev1.Taint{foreign}},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "b2"}},
		}
		status, message := corev1.ConditionFalse, "no fault"
		if state&1 != 0 {
			status, message = corev1.ConditionTrue, lost
		}
		n.Status.Conditions = []corev1.NodeCondition{{
			Type: "GPUXidError", Status: status, Message: message, LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
		}}
		if state&2 != 0 {
			n.Spec.Taints = append(n.Spec.Taints, oldTaint)
		}
		var peers []limits.Peer
		if state&4 != 0 {
			peers = []limits.Peer{{OutOfService: true}}
		}
		if state&8 != 0 {
			n.Status.NodeInfo.BootID = "b1"
		}
		n.Spec.Unschedulable = state&16 != 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		saw := seen.Seen{}
		for at := now; at.Before(now.Add(30 * time.Minute)); at = at.Add(10*time.Minute + time.Second) {
			n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(at)
			hadTaint := node.HasTaint(n.Spec.Taints, conditions.TaintUnhealthy)
			record, err := causes.RecordOf(n)
			o := Observation{Node: n, Record: record, RecordErr: err, Peers: limits.PeersOf(peers...), Seen: saw}
			d := Decide(p, o, at)
			saw = d.SeenAfter(o, at)
			was := n.DeepCopy()
			if d.State != nil {
				d.State.Apply(n)
			}
			if err != nil && d.Changes(was) {
				t.Fatalf("a record that cannot be read is acted on: %v", err)
			}
			// A node with our taint has its place under the budget, see [Seen].
			if d.RestartJobs && (len(peers) > 0 && !hadTaint || state&1 == 0) {
				t.Fatal("jobs are restarted without a fault or without a budget")
			}
			if len(peers) > 0 && !hadTaint && node.HasTaint(n.Spec.Taints, conditions.TaintUnhealthy) {
				t.Fatal("the node is tainted without a budget")
			}
			checkKeys(t, known, was, n)
			if text, ok := n.Annotations[conditions.AnnotationQuarantine]; ok && err == nil {
				if _, err := causes.ParseRecord(text); err != nil {
					t.Fatalf("%v: %s", err, text)
				}
				// The previous version has no cordons. Without the option none is in a record, unless one is forged.
				if err := readByPrevious(text); err != nil && !strings.Contains(text, `"cordon":`) && !strings.Contains(text, `"uncordoned":`) {
					t.Fatalf("the previous version: %v: %s", err, text)
				}
			}
			if r, err := causes.RecordOf(n); err == nil && r != nil && len(r.Notices) > handoff.MaxNotices {
				t.Fatalf("%d notices", len(r.Notices))
			}
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 3*maxAllocation { // three decisions
			t.Fatalf("%d bytes were allocated", used)
		}
	})
}

// checkKeys fails unless all that differs between two states of a node is ours: of our domain, or known.
func checkKeys(t *testing.T, known handoff.Known, was, is *corev1.Node) {
	t.Helper()
	ours := func(key string) bool { return strings.HasPrefix(key, conditions.Domain+"/") }
	check := func(kind string, a, b map[string]string, claim func(key, value string) *handoff.Added) {
		for _, m := range []map[string]string{a, b} {
			for key, value := range maps.All(m) {
				if a[key] == b[key] || ours(key) {
					continue
				}
				if _, unknown := known.Split(claim(key, value)); len(unknown) > 0 {
					t.Fatalf("%s %s is not ours: %q becomes %q", kind, key, a[key], b[key])
				}
			}
		}
	}
	check("label", was.Labels, is.Labels, func(key, value string) *handoff.Added {
		return &handoff.Added{Labels: map[string]string{key: value}}
	})
	check("annotation", was.Annotations, is.Annotations, func(key, value string) *handoff.Added {
		return &handoff.Added{Annotations: map[string]string{key: value}}
	})
	if was.Spec.Unschedulable != is.Spec.Unschedulable { // the policy does not cordon
		t.Fatalf("the cordon is not ours: %v becomes %v", was.Spec.Unschedulable, is.Spec.Unschedulable)
	}
	for _, lists := range [][2][]corev1.Taint{{was.Spec.Taints, is.Spec.Taints}, {is.Spec.Taints, was.Spec.Taints}} {
		for _, taint := range lists[0] {
			if !slices.Contains(lists[1], taint) && !ours(taint.Key) && !known.HasTaint(taint) {
				t.Fatalf("taint %s is not ours: %v becomes %v", taint.ToString(), was.Spec.Taints, is.Spec.Taints)
			}
		}
	}
}
