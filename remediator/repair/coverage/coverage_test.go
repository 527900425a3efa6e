package coverage

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

const text = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  budget: {maxNodes: 1}
  repair: {mode: off, validate: {template: check}}
  sweeps: {weekly: {every: 168h, template: check, nodeSelector: {pool: a}}, pairs: {every: 24h, template: pairs}}
  firstCheck: {template: check, nodeSelector: {pool: b}}
  pools: {a: {conditions: [GPUXidError]}}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot]}, validate: true}
`

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func newNode(name, pool string, age time.Duration, reported ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}, CreationTimestamp: metav1.NewTime(noon.Add(-age))}}
	n.Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	for _, c := range reported {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(c), Status: corev1.ConditionFalse,
			LastHeartbeatTime: metav1.NewTime(noon), LastTransitionTime: metav1.NewTime(noon.Add(-time.Minute)),
		})
	}
	n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	return n
}

func parse(t *testing.T) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFirstChecksThatWaitForLongAreNamedWithWhatIsMissing(t *testing.T) {
	broken := newNode("broken", "b", time.Hour)
	broken.Annotations = map[string]string{conditions.AnnotationRepair: "{"}
	waiting, late := FirstChecks(parse(t), []corev1.Node{
		newNode("young", "b", time.Minute), newNode("late", "b", time.Hour), newNode("later", "b", 2*time.Hour),
		newNode("healthy", "b", time.Hour, "GPUXidError"), newNode("other", "a", time.Hour), broken,
	}, noon)
	if diff := cmp.Diff([]string{"young", "late", "later", "healthy", "broken"}, waiting); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{
		"waiting for a first check for up to 120m: late, later: no report of this boot yet of GPUXidError",
		"waiting for a first check for up to 120m: healthy: the check does not begin; kubectl pitcrew describe NODE shows the last one",
	}, late); diff != "" {
		t.Error(diff)
	}
}

func TestChecksThatNoNodeCanPassAreNamed(t *testing.T) {
	verdicts := map[string][]string{"check": {"DCGMDiagFailed"}, "pairs": {"SlowNode"}}
	cpu := newNode("cpu", "a", time.Hour)
	cpu.Status.Allocatable = nil
	var lines []string
	for _, gap := range Gaps(parse(t), []corev1.Node{
		newNode("a1", "a", time.Minute, "GPUXidError"), newNode("a2", "a", time.Hour), newNode("b1", "b", time.Hour, "DCGMDiagFailed"), cpu,
	}, verdicts, noon) {
		lines = append(lines, gap.Text)
		if gap.Do == "" {
			t.Errorf("nothing to do about %s", gap.Text)
		}
	}
	got := strings.Join(lines, "\n")
	const want = "no node of sweep weekly reports DCGMDiagFailed, which proves template check: no check passes\n" +
		"2 of 3 nodes of a validation do not report DCGMDiagFailed, which proves template check: a1, a2\n" +
		"waiting for a first check for up to 60m: b1: no report of this boot yet of GPUXidError"
	if got != want {
		t.Errorf("got\n%s", got)
	}
	if got := slices.Concat(Gaps(parse(t), nil, verdicts, noon), Gaps(nil, nil, verdicts, noon)); got != nil {
		t.Errorf("without nodes, and without a policy: %q", got)
	}
}

// The names that doctor compares with the policy are those of all its fields.
func TestEveryTemplateOfAPolicyIsKnown(t *testing.T) {
	p, err := policy.Parse([]byte(strings.Replace(text, "{mode: off, validate",
		"{actions: {ResetGPU: [{template: reset-gpu}, {template: reboot}], Reboot: [{template: reboot}]}, validate", 1)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]string{
		"reset-gpu": {"repair.actions.ResetGPU"}, "reboot": {"repair.actions.ResetGPU", "repair.actions.Reboot"}, "pairs": {"sweep pairs"},
		"check": {"repair.validate", "sweep weekly", "firstCheck"},
	}, Templates(p)); diff != "" {
		t.Error(diff)
	}
}
