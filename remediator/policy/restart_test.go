package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
)

const restartHead = head + "spec:\n  mode: enforce\n  budget: {maxNodes: 1}\n  rules: {}\n"

var compareLabels = cmp.Comparer(func(a, b labels.Selector) bool { return a.String() == b.String() })

func TestRestartsAreNotLimitedUnlessThePolicySaysSo(t *testing.T) {
	got := parse(t, restartHead).Restart
	want := Restart{
		BackOff: BackOff{Max: 30 * time.Minute}, ForceDelete: ForceNever, ForceDeleteAfter: 5 * time.Minute, Stalls: Stalls{Mode: StallsOff},
		PodFailures: PodFailures{Pods: labels.Everything()},
	}
	if diff := cmp.Diff(want, got, compareLabels); diff != "" {
		t.Error(diff)
	}
}

func TestTheShippedPolicyForcesNothing(t *testing.T) {
	file, err := Open("../../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := file.Policy().Restart
	if r.ForceDelete != ForceNever || r.PodFailures.Enabled || !r.CheckCapacity || r.MaxPerDay == 0 || r.MaxConcurrent == 0 || r.BackOff.First == 0 {
		t.Errorf("%+v", r)
	}
}

func TestParseRestart(t *testing.T) {
	got := parse(t, restartHead+`  restart:
    settle: 5s
    maxPerDay: 8
    maxPerJob: 50
    backOff: {first: 30s, max: 10m}
    maxConcurrent: 20
    checkCapacity: true
    forceDelete: unreachable
    forceDeleteAfter: 1m
    stalls: {mode: observe}
    podFailures: {enabled: true, podSelector: {app: train}}
`).Restart
	want := Restart{
		Settle: 5 * time.Second, MaxPerDay: 8, MaxPerJob: 50, BackOff: BackOff{30 * time.Second, 10 * time.Minute}, MaxConcurrent: 20,
		CheckCapacity: true, ForceDelete: ForceUnreachable, ForceDeleteAfter: time.Minute, Stalls: Stalls{Mode: StallsObserve},
		PodFailures: PodFailures{true, labels.SelectorFromSet(labels.Set{"app": "train"})},
	}
	if diff := cmp.Diff(want, got, compareLabels); diff != "" {
		t.Error(diff)
	}
}

func TestRestartIsStrict(t *testing.T) {
	for field, want := range map[string]string{
		"maxPerDay: -1":                "spec.restart.maxPerDay: Invalid value: -1: must be at least 0",
		"maxPerDay: 101":               "spec.restart.maxPerDay: Invalid value: 101: must be at most 100",
		"settle: soon":                 `spec.restart.settle: Invalid value: "soon"`,
		"backOff: {first: 1h}":         `spec.restart.backOff.max: Invalid value: "30m0s": must not be shorter than first`,
		"backOff: {max: 10m}":          `spec.restart.backOff.max: Invalid value: "10m0s": has no effect without first: 0s sets no pause`,
		"stalls: {mode: enforce}":      `spec.restart.stalls.mode: Unsupported value: "enforce": supported values: "off", "observe", "restart"`,
		"forceDelete: always":          `spec.restart.forceDelete: Unsupported value: "always": supported values: "never", "unreachable", "quarantined"`,
		"podFailures: {on: true}":      "field on not found",
		"podFailures: {enabled: 1}":    "cannot unmarshal",
		"podFailures: {enabled: true}": "spec.restart.podFailures.podSelector: Required value",
		"podFailures: {enabled: true, podSelector: {a/b/c: d}}": "spec.restart.podFailures.podSelector[a/b/c]: Invalid value",
	} {
		_, err := Parse([]byte(restartHead + "  restart:\n    " + field + "\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", field, err, want)
		}
	}
}

func TestCheckpointGraceIsOfARuleThatRestartsJobs(t *testing.T) {
	const match = "match: {condition: GPUMemoryError, repair: [ResetGPU]}\ncheckpointGrace: 2m\n"
	if got := parse(t, oneRule(match+"restartJobs: true")).Rules[0].CheckpointGrace; got != 2*time.Minute {
		t.Errorf("got %s", got)
	}
	if _, err := Parse([]byte(oneRule(match))); err == nil || !strings.Contains(err.Error(), "has no effect without restartJobs") {
		t.Errorf("got %v", err)
	}
}
