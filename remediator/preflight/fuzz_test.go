package preflight

import (
	"encoding/json"
	"runtime/metrics"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

// maxAllocation is the number of bytes that reading one input may allocate.
const maxAllocation = 8 << 20

// allocated is the number of bytes that f allocates. Other goroutines of the test count as well.
func allocated(f func()) uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before := sample[0].Value.Uint64()
	f()
	metrics.Read(sample)
	return sample[0].Value.Uint64() - before
}

// Everything in the ConfigMap is the tenant's: what is kept of it is bounded, and what is read of it is consistent.
func FuzzReadSubmission(f *testing.F) {
	cm, err := reportconfigmap.New(testPod(), report.Report{RunID: "r", Size: 4, Node: "node-a", GPU: report.Passed})
	if err != nil {
		f.Fatal(err)
	}
	seed, err := json.Marshal(cm)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"metadata":{"labels":{"pitcrew.dev/preflight-run":"r"},"ownerReferences":[{},{}]},"immutable":true,"data":{"report.json":"{}"}}`))
	f.Add([]byte(`{"metadata":{"annotations":{"pitcrew.dev/preflight-pod":"a/b","pitcrew.dev/preflight-pod-uid":"u"},"finalizers":["x"]},"binaryData":{"x":"eA=="},"data":{"/refused":"x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var cm corev1.ConfigMap
		if json.Unmarshal(data, &cm) != nil {
			return
		}
		if n := allocated(func() {
			kept := keep(&cm)
			_, _, _ = runOf(kept), podOf(kept), compareAge(kept, &cm)
			if text := kept.Data[reportconfigmap.Key]; len(text) > report.MaxBytes || metadataBytes(kept) > maxMetadataBytes+2*63 || len(kept.Data) > 1 && kept.Data[refusedKey] == "" {
				t.Errorf("kept %+v", kept)
			}
			s, err := readSubmission(kept)
			if err != nil {
				return
			}
			if s.run == "" || s.pod == "" || s.podUID == "" || s.report.Node == "" || s.notKept || s.report.RunID != "" && s.report.RunID != s.run {
				t.Errorf("accepted %+v", s)
			}
			pod := testPod()
			if err := s.checkPod(pod); err == nil && (s.podUID != pod.UID || s.report.Node != pod.Spec.NodeName || s.owner.UID != pod.OwnerReferences[0].UID) {
				t.Errorf("accepted %+v for pod %+v", s, pod)
			}
			runs, refusals := assembleRuns([]submission{s, s}, time.Minute)
			if len(runs) != 1 || len(refusals) != 1 {
				t.Errorf("%d runs, %d refusals", len(runs), len(refusals))
			}
		}); n > maxAllocation {
			t.Errorf("%d bytes allocated for %d", n, len(data))
		}
	})
}

// Whatever the message of a condition is: a tenant's run never makes it confirmed without another namespace, never clears
// what is confirmed or another's, and never renews what is confirmed.
func FuzzCondition(f *testing.F) {
	f.Add("Inspect node: suspected slow by run team-a/r, drop 0.40, seen by 5 partners", true)
	f.Add("Inspect node: confirmed slow by run admin/r, drop 0.40, seen by 5 partners", true)
	f.Add("Inspect node: suspected failure of gpu and storage check by run team-a/r", true)
	f.Add("Inspect node: gpu check failed by run team-a/r", true)
	f.Add("clean in run team-a/r", false)
	f.Fuzz(func(t *testing.T, message string, asserted bool) {
		for _, conditionType := range []string{conditions.PreflightFailed, conditions.SlowNode} {
			before := corev1.NodeCondition{Type: corev1.NodeConditionType(conditionType), Status: corev1.ConditionFalse, Message: message, LastHeartbeatTime: metav1.NewTime(noon)}
			if asserted {
				before.Status = corev1.ConditionTrue
			}
			n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{before}}}
			var after, renewed corev1.NodeCondition
			var cleared, ok bool
			if size := allocated(func() {
				after, cleared = clearedCondition(n, conditionType, by("team-a", 1))
				renewed, ok = failedOrSlow(conditionType)(n)
			}); size > maxAllocation {
				t.Errorf("%d bytes allocated for a message of %d", size, len(message))
			}
			if cleared && (!asserted || isConfirmed(before) || namespaceOf(before) != "team-a" || after.Status != corev1.ConditionFalse) {
				t.Errorf("%q becomes %+v", message, after)
			}
			if asserted && isConfirmed(before) && ok {
				t.Errorf("%q is renewed to %q", message, renewed.Message)
			}
			other := namespaceOf(before)
			if isConfirmed(renewed) && !isConfirmed(before) && (!asserted || other == "" || other == "team-a") {
				t.Errorf("%q becomes %q", message, renewed.Message)
			}
		}
	})
}

// failedOrSlow asserts a condition by a run of team-a, a minute after noon.
func failedOrSlow(conditionType string) step {
	if conditionType == conditions.SlowNode {
		return slow(by("team-a", 1))
	}
	return func(n *corev1.Node) (corev1.NodeCondition, bool) { return failedCondition(n, "gpu", by("team-a", 1)) }
}

// The runs of a run id follow from the reports alone, whatever ranks, sizes, pods and times these have. Each report is in a
// run or refused.
func FuzzAssembleRuns(f *testing.F) {
	f.Add([]byte{0, 4, 0, 0, 0, 1, 4, 1, 0, 9, 1, 6, 1, 1, 200})
	f.Fuzz(func(t *testing.T, data []byte) {
		var all []submission
		for i := 0; i+5 <= len(data) && i < 5*1000; i += 5 {
			d := data[i : i+5]
			s := submitted(int(d[0]%8), int(d[4]))
			s.uid, s.podUID, s.workload = types.UID(rune('a'+i)), types.UID(rune('a'+d[2]%16)), types.UID(rune('a'+d[3]%4))
			s.report.Size = max(int(d[1]%16), s.report.Rank+1)
			all = append(all, s)
		}
		if n := allocated(func() {
			runs, refusals := assembleRuns(all, time.Minute)
			count := len(refusals)
			for _, r := range runs {
				count += len(r.submissions)
				if len(r.submissions) == 0 || len(r.submissions) > r.size || r.decidedAt().After(r.deadline) {
					t.Errorf("run %+v", r)
				}
			}
			if count != len(all) {
				t.Errorf("%d of %d reports are in a run or refused", count, len(all))
			}
		}); n > maxAllocation {
			t.Errorf("%d bytes allocated for %d reports", n, len(all))
		}
	})
}
