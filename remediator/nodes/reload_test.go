package nodes

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Attack 24: a policy that is invalid at the start is no reason to touch a node.
func TestWithoutAPolicyNothingIsDecided(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("spec: invalid")
	file, err := policy.Follow(path)
	if err == nil {
		t.Fatal("the file is valid")
	}
	r := newRig(t, "quarantined", "sick", "tainted")
	rules := r.policy.Policy()
	if result := r.reconcile(t, "quarantined"); result.RequeueAfter == 0 {
		t.Fatal("the rig quarantines nothing")
	}
	if got := r.reasons(); !slices.Equal(got, []string{causes.NodeQuarantined}) {
		t.Fatalf("Events %q", got)
	}
	quarantine.Decide(rules, quarantine.Observation{Node: &r.client.nodes[0]}, r.clock.Now()).State.Apply(&r.client.nodes[0])
	// Of a rule that no policy lists, and of no record.
	r.client.nodes[2].Spec.Taints = []corev1.Taint{{Key: "pitcrew.dev/unhealthy", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
	r.client.patched = nil
	r.restarts.quarantines = nil

	r.policy = file
	elected := make(chan struct{})
	close(elected)
	r.elected = elected
	changes := make(chan event.GenericEvent, 1)
	reload := &reloader{Controller: r.Controller, changes: changes}
	for range 3 {
		reload.reload(t.Context())
		for _, n := range r.client.nodes {
			if result := r.reconcile(t, n.Name); result.RequeueAfter != 0 {
				t.Errorf("node %s is decided about again in %s", n.Name, result.RequeueAfter)
			}
		}
	}
	// What is in force is shown, once; no node is written.
	if !slices.Equal(r.client.patched, []string{conditions.KnownConfigMap}) || len(r.restarts.quarantines) > 0 {
		t.Errorf("%q were written, restarts %v", r.client.patched, r.restarts.quarantines)
	}
	if got := r.reasons(); !slices.Equal(got, []string{causes.PolicyInvalid}) {
		t.Errorf("Events %q, want one PolicyInvalid", got)
	}
	valid := func() float64 {
		t.Helper()
		var m dto.Metric
		if err := r.report.Metrics.PolicyValid.Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.GetGauge().GetValue()
	}
	if valid() != 0 {
		t.Errorf("pitcrew_policy_valid %g", valid())
	}

	write(testPolicy)
	reload.reload(t.Context())
	if len(changes) != 1 || valid() != 1 {
		t.Error("no node is decided about again")
	}
	r.reconcile(t, "tainted")
	if !slices.Contains(r.client.patched, "tainted") {
		t.Errorf("nodes %q were written", r.client.patched)
	}
}

func TestAnInvalidPolicyIsReportedOnceAndTheLastGoodOneStays(t *testing.T) {
	file, write := policyFile(t, testPolicy)
	elected := make(chan struct{})
	close(elected)
	recorder := events.NewFakeRecorder(10)
	changes := make(chan event.GenericEvent, 1)
	api := &laggard{}
	r := &reloader{Controller: &Controller{
		client: api, policy: file, elected: elected, clock: clock.RealClock{}, report: newReporter(recorder, clock.RealClock{}), namespace: "pitcrew",
	}, changes: changes}

	write(strings.Replace(testPolicy, "for: 1m", "for: soon", 1))
	for range 3 {
		r.reload(t.Context())
	}
	if len(recorder.Events) != 1 {
		t.Fatalf("said %d times", len(recorder.Events))
	}
	if e := <-recorder.Events; !strings.Contains(e, causes.PolicyInvalid) || !strings.Contains(e, "line ") {
		t.Errorf("said %q", e)
	}
	if len(changes) != 0 || len(file.Policy().Rules) == 0 {
		t.Error("the last good policy is gone")
	}
	write(strings.Replace(testPolicy, "for: 1m", "for: 2m", 1))
	r.reload(t.Context())
	r.reload(t.Context())
	if len(changes) != 1 {
		t.Error("nobody decides by the new policy")
	}
}

func TestTheWarningsOfAPolicyAreReportedOnceByTheLeader(t *testing.T) {
	misspelt := strings.Replace(testPolicy, "DiskFailing", "GPUXidErr", 1)
	file, write := policyFile(t, misspelt)
	elected := make(chan struct{})
	recorder := events.NewFakeRecorder(10)
	r := &reloader{
		Controller: &Controller{client: &laggard{}, policy: file, elected: elected, clock: clock.RealClock{}, report: newReporter(recorder, clock.RealClock{}), namespace: "pitcrew"},
		changes:    make(chan event.GenericEvent, 1),
	}
	reported := func(want int, when string) {
		t.Helper()
		for range 3 {
			r.reload(t.Context())
		}
		if got := len(recorder.Events); got != want {
			t.Fatalf("%s: reported %d times, want %d", when, got, want)
		}
		for range want {
			if e := <-recorder.Events; !strings.Contains(e, "PolicyWarning") || !strings.Contains(e, `"GPUXidErr"`) || !strings.Contains(e, "did you mean GPUXidError?") {
				t.Errorf("%s: reported %q", when, e)
			}
		}
	}
	reported(0, "a replica that does not lead")
	close(elected)
	reported(1, "the leader")
	write(testPolicy)
	reported(0, "a policy without warnings")
	write(misspelt)
	reported(1, "the mistake again")
}

// policyFile opens a policy in a file; write replaces it.
func policyFile(t *testing.T, text string) (file *policy.File, write func(text string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write = func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(text)
	file, err := policy.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return file, write
}
