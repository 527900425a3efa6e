package preflight

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

// by is a run of a namespace, some minutes after noon.
func by(namespace string, minutes int) verdictSource {
	return verdictSource{namespace: namespace, run: "r", trusted: namespace == "admin", decidedAt: noon.Add(time.Duration(minutes) * time.Minute)}
}

// step changes a node's condition.
type step func(*corev1.Node) (corev1.NodeCondition, bool)

func slow(from verdictSource) step {
	return func(n *corev1.Node) (corev1.NodeCondition, bool) {
		return slowCondition(n, verdict.Slow{Node: "n", P: 0.99, Drop: 0.4, Partners: 5}, from)
	}
}

func clean(from verdictSource) step {
	return func(n *corev1.Node) (corev1.NodeCondition, bool) {
		return clearedCondition(n, conditions.SlowNode, from)
	}
}

func below(from verdictSource) step {
	return func(n *corev1.Node) (corev1.NodeCondition, bool) {
		return figureCondition(n, verdict.Figure{Name: "gemm", Median: 600, Nodes: 64}, verdict.Below{Node: "n", Value: 480, Drop: 0.2}, from)
	}
}

func TestSlowNode(t *testing.T) {
	expire := func(minutes int) step {
		return func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return expiredCondition(n, conditions.SlowNode, time.Hour, noon.Add(time.Duration(minutes)*time.Minute))
		}
	}
	const a, b, admin = "team-a", "team-b", "admin"
	tests := map[string]conditionTest{
		"one run":                                 {[]step{slow(by(a, 0))}, "True Inspect node: suspected slow by run team-a/r, drop 0.40, seen by 5 partners"},
		"an admin's run":                          {[]step{slow(by(admin, 0))}, "True Inspect node: confirmed slow by run admin/r, drop 0.40, seen by 5 partners"},
		"a second run of the same tenant":         {[]step{slow(by(a, 0)), slow(by(a, 1))}, "True Inspect node: suspected slow by run team-a/r, drop 0.40, seen by 5 partners"},
		"a second run of another tenant":          {[]step{slow(by(a, 0)), slow(by(b, 1))}, "True Inspect node: confirmed slow by run team-b/r, drop 0.40, seen by 5 partners"},
		"confirmed stays so":                      {[]step{slow(by(admin, 0)), slow(by(a, 1))}, "True Inspect node: confirmed slow by run admin/r, drop 0.40, seen by 5 partners"},
		"a tenant does not renew a confirmed one": {[]step{slow(by(b, 0)), slow(by(a, 1)), slow(by(a, 40)), expire(61)}, "False the last verdict has expired"},
		"an older verdict comes late":             {[]step{slow(by(a, 2)), slow(by(b, 1))}, "True Inspect node: suspected slow by run team-a/r, drop 0.40, seen by 5 partners"},
		"the same verdict again":                  {[]step{slow(by(a, 0)), clean(by(a, 1)), slow(by(a, 0))}, "False clean in run team-a/r"},
		"a later clean run":                       {[]step{slow(by(a, 0)), clean(by(a, 1))}, "False clean in run team-a/r"},
		"another tenant does not clear it":        {[]step{slow(by(a, 0)), clean(by(b, 1))}, "True Inspect node: suspected slow by run team-a/r, drop 0.40, seen by 5 partners"},
		"a tenant does not clear a confirmed one": {[]step{slow(by(b, 0)), slow(by(a, 1)), clean(by(a, 2))}, "True Inspect node: confirmed slow by run team-a/r, drop 0.40, seen by 5 partners"},
		"an admin's clean run":                    {[]step{slow(by(b, 0)), slow(by(a, 1)), clean(by(admin, 2))}, "False clean in run admin/r"},
		"clean, without a verdict":                {[]step{clean(by(a, 1))}, "none"},
		"after a clean run it is suspected anew":  {[]step{slow(by(a, 0)), clean(by(a, 1)), slow(by(b, 2))}, "True Inspect node: suspected slow by run team-b/r, drop 0.40, seen by 5 partners"},
		"a figure":                                {[]step{below(by(admin, 0))}, "True Inspect node: suspected slow by run admin/r, gemm 0.20 below the median of 64 nodes"},
		"a figure, then a tenant's run":           {[]step{below(by(admin, 0)), slow(by(a, 1))}, "True Inspect node: confirmed slow by run team-a/r, drop 0.40, seen by 5 partners"},
		"a run, then a figure":                    {[]step{slow(by(a, 0)), below(by(admin, 1))}, "True Inspect node: suspected slow by run admin/r, gemm 0.20 below the median of 64 nodes"},
		"a confirmed run, then a figure":          {[]step{slow(by(admin, 0)), below(by(admin, 1))}, "True Inspect node: confirmed slow by run admin/r, drop 0.40, seen by 5 partners"},
		"its tenant does not clear a figure":      {[]step{slow(by(a, 0)), below(by(admin, 1)), clean(by(a, 2))}, "True Inspect node: suspected slow by run admin/r, gemm 0.20 below the median of 64 nodes"},
		"a figure expires":                        {[]step{below(by(admin, 0)), expire(60)}, "False the last verdict has expired"},
		"a figure again is fresh":                 {[]step{below(by(admin, 0)), below(by(admin, 30)), expire(60)}, "True Inspect node: suspected slow by run admin/r, gemm 0.20 below the median of 64 nodes"},
		"a tenant does not clear a figure":        {[]step{below(by(admin, 0)), clean(by(a, 1))}, "True Inspect node: suspected slow by run admin/r, gemm 0.20 below the median of 64 nodes"},
		"not yet expired":                         {[]step{slow(by(a, 0)), expire(59)}, "True Inspect node: suspected slow by run team-a/r, drop 0.40, seen by 5 partners"},
		"expired":                                 {[]step{slow(by(a, 0)), expire(60)}, "False the last verdict has expired"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { tt.check(t, conditions.SlowNode) })
	}
}

// conditionTest is what a node's condition becomes after some steps.
type conditionTest struct {
	steps []step
	want  string
}

func (tt conditionTest) check(t *testing.T, conditionType string) {
	t.Helper()
	n := &corev1.Node{}
	for _, step := range tt.steps {
		if c, ok := step(n); ok {
			n.Status.Conditions = []corev1.NodeCondition{c}
		}
	}
	got := "none"
	if c, found := condition(n, conditionType); found {
		got = string(c.Status) + " " + c.Message
	}
	if diff := cmp.Diff(tt.want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPreflightFailed(t *testing.T) {
	failed := func(from verdictSource) step {
		return func(n *corev1.Node) (corev1.NodeCondition, bool) { return failedCondition(n, "gpu", from) }
	}
	clean := func(from verdictSource) step {
		return func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return clearedCondition(n, conditions.PreflightFailed, from)
		}
	}
	expire := func(minutes int) step {
		return func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return expiredCondition(n, conditions.PreflightFailed, time.Hour, noon.Add(time.Duration(minutes)*time.Minute))
		}
	}
	// is what another program wrote at noon, e.g. an earlier release.
	is := func(message string) step {
		return func(*corev1.Node) (corev1.NodeCondition, bool) {
			return corev1.NodeCondition{Type: conditions.PreflightFailed, Status: corev1.ConditionTrue, Message: message, LastHeartbeatTime: metav1.NewTime(noon)}, true
		}
	}
	const a, b, admin = "team-a", "team-b", "admin"
	tests := map[string]conditionTest{
		"one run":                                {[]step{failed(by(a, 0))}, "True Inspect node: suspected failure of gpu check by run team-a/r"},
		"an admin's run":                         {[]step{failed(by(admin, 0))}, "True Inspect node: confirmed failure of gpu check by run admin/r"},
		"a second run of the same tenant":        {[]step{failed(by(a, 0)), failed(by(a, 1))}, "True Inspect node: suspected failure of gpu check by run team-a/r"},
		"a second run of another tenant":         {[]step{failed(by(a, 0)), failed(by(b, 1))}, "True Inspect node: confirmed failure of gpu check by run team-b/r"},
		"a tenant's, then an admin's":            {[]step{failed(by(a, 0)), failed(by(admin, 1))}, "True Inspect node: confirmed failure of gpu check by run admin/r"},
		"a tenant launders an admin's":           {[]step{failed(by(admin, 0)), failed(by(a, 1)), clean(by(a, 2))}, "True Inspect node: confirmed failure of gpu check by run admin/r"},
		"a tenant launders another's":            {[]step{failed(by(b, 0)), failed(by(a, 1)), clean(by(a, 2))}, "True Inspect node: confirmed failure of gpu check by run team-a/r"},
		"nor does the other tenant":              {[]step{failed(by(b, 0)), failed(by(a, 1)), clean(by(b, 2))}, "True Inspect node: confirmed failure of gpu check by run team-a/r"},
		"another tenant's clean run":             {[]step{failed(by(b, 0)), clean(by(a, 1))}, "True Inspect node: suspected failure of gpu check by run team-b/r"},
		"the same tenant's clean run":            {[]step{failed(by(a, 0)), clean(by(a, 1))}, "False clean in run team-a/r"},
		"an admin's clean run":                   {[]step{failed(by(b, 0)), failed(by(a, 1)), clean(by(admin, 2))}, "False clean in run admin/r"},
		"a tenant keeps an admin's for ever":     {[]step{failed(by(admin, 0)), failed(by(a, 50)), expire(60)}, "False the last verdict has expired"},
		"an admin renews it":                     {[]step{failed(by(admin, 0)), failed(by(admin, 50)), expire(60)}, "True Inspect node: confirmed failure of gpu check by run admin/r"},
		"a tenant after it has expired":          {[]step{failed(by(admin, 0)), expire(60), failed(by(a, 61))}, "True Inspect node: suspected failure of gpu check by run team-a/r"},
		"a message of nobody confirms nothing":   {[]step{is("Inspect node: x"), failed(by(a, 1))}, "True Inspect node: suspected failure of gpu check by run team-a/r"},
		"an earlier release's, by an admin":      {[]step{is("Inspect node: gpu check failed by run admin/r"), failed(by(admin, 0))}, "True Inspect node: confirmed failure of gpu check by run admin/r"},
		"an admin's of the same second":          {[]step{failed(by(a, 0)), failed(by(admin, 0)), clean(by(a, 1))}, "True Inspect node: confirmed failure of gpu check by run admin/r"},
		"an admin's that is judged late":         {[]step{failed(by(a, 0)), failed(by(a, 2)), failed(by(admin, 1)), clean(by(a, 3))}, "True Inspect node: confirmed failure of gpu check by run admin/r"},
		"an admin's that was cleared":            {[]step{failed(by(admin, 0)), clean(by(admin, 1)), failed(by(a, 2)), failed(by(admin, 0))}, "True Inspect node: suspected failure of gpu check by run team-a/r"},
		"an earlier release's, another tenant's": {[]step{is("Inspect node: gpu check failed by run team-b/r"), failed(by(a, 1))}, "True Inspect node: confirmed failure of gpu check by run team-a/r"},
		"an earlier release's, laundered":        {[]step{is("Inspect node: gpu and storage check failed by run admin/r"), failed(by(a, 1)), clean(by(a, 2))}, "True Inspect node: confirmed failure of gpu check by run team-a/r"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { tt.check(t, conditions.PreflightFailed) })
	}
}

func TestTheHeartbeatIsTheTimeOfTheVerdict(t *testing.T) {
	n := &corev1.Node{}
	first, _ := slow(by("a", 0))(n)
	n.Status.Conditions = []corev1.NodeCondition{first}
	second, _ := slow(by("b", 7))(n)
	want := corev1.NodeCondition{
		Type: conditions.SlowNode, Status: corev1.ConditionTrue, Reason: "NodeIsSlow",
		Message:           "Inspect node: confirmed slow by run b/r, drop 0.40, seen by 5 partners",
		LastHeartbeatTime: metav1.NewTime(noon.Add(7 * time.Minute)), LastTransitionTime: metav1.NewTime(noon),
	}
	if diff := cmp.Diff(want, second); diff != "" {
		t.Error(diff)
	}
}
