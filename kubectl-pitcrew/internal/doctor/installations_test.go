package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// patient is a doctor of a remediator with a flag, on a cluster with objects.
func patient(t *testing.T, funcs interceptor.Funcs, nodes []corev1.Node, objects ...client.Object) *doctor {
	t.Helper()
	p, err := policy.Parse([]byte(clitest.RepairPolicy))
	if err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
	container := corev1.Container{Args: []string{"-repair-namespace=pitcrew-repair"}}
	return &doctor{Target: &cli.Target{Namespace: "pitcrew", Now: time.Now}, api: api, nodes: nodes, Inspection: &health.Inspection{
		Installation: health.Installation{Parsed: p, Pods: []corev1.Pod{{Spec: corev1.PodSpec{Containers: []corev1.Container{container}}}}},
	}}
}

func lines(found []cli.Finding) string {
	var all []string
	for _, f := range found {
		all = append(all, fmt.Sprintf("%s: %s", f.Level, f.Seen))
	}
	return strings.Join(all, "\n")
}

func TestTheDoctorFindsASecondInstallation(t *testing.T) {
	deployment := func(namespace string) client.Object {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "pitcrew-remediator", Labels: map[string]string{cli.LabelName: quarantine.ControllerName},
		}}
	}
	visited := func(namespace string) []corev1.Node {
		record := `{"v":1,"nodeUID":"u","current":{"id":"x","kind":"repair","phase":"Emptying","startedAt":"2026-11-27T12:00:00Z",` +
			`"phaseSince":"2026-11-27T12:00:00Z","namespace":"` + namespace + `"}}`
		return []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Annotations: map[string]string{conditions.AnnotationRepair: record}}}}
	}
	forbidden := interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, "", errors.New("no"))
	}}
	const others = "problem: visits are of another installation, whose Jobs are not in pitcrew-repair, and this one leaves them alone: namespace elsewhere: n"
	for name, test := range map[string]struct {
		funcs   interceptor.Funcs
		nodes   []corev1.Node
		objects []client.Object
		want    string
	}{
		"one":                     {objects: []client.Object{deployment("pitcrew")}, want: "ok: one at most"},
		"two":                     {objects: []client.Object{deployment("pitcrew"), deployment("other")}, want: "problem: the cluster has 2 remediators: other/pitcrew-remediator, pitcrew/pitcrew-remediator"},
		"a visit of ours":         {nodes: visited("pitcrew-repair"), want: "ok: one at most"},
		"of an earlier version":   {nodes: visited(""), want: "ok: one at most"},
		"of another one":          {nodes: visited("elsewhere"), want: others},
		"without rights, a visit": {funcs: forbidden, nodes: visited("elsewhere"), want: others},
	} {
		found, err := patient(t, test.funcs, test.nodes, test.objects...).installations(t.Context())
		if got := lines(found); err != nil || got != test.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, test.want)
		}
	}
	if found, err := patient(t, forbidden, nil).installations(t.Context()); !apierrors.IsForbidden(err) || len(found) > 0 {
		t.Errorf("without rights: %v, %v", found, err)
	}
}

func TestTheDoctorNamesATaintThatNobodyRemoves(t *testing.T) {
	node := func(phase, taint, more string, has ...corev1.Taint) corev1.Node {
		record := `{"v":1,"nodeUID":"u","id":"q","phase":"` + phase + `","causes":[{"condition":"GPUXidError","rule":"xid","repair":"Reboot",` +
			`"firstSeen":"2026-11-27T12:00:00Z","due":true}],"quarantinedAt":"2026-11-27T12:00:00Z","taint":{"key":"` + taint +
			`","value":"x","effect":"NoSchedule","rule":"xid","repair":"Reboot","since":"2026-11-27T12:00:00Z"` + more + `}}`
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: types.UID("u"), Annotations: map[string]string{conditions.AnnotationQuarantine: record}},
			Spec:       corev1.NodeSpec{Taints: has},
		}
	}
	old := corev1.Taint{Key: "example.com/broken", Value: "x", Effect: corev1.TaintEffectNoSchedule}
	remembered := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.KnownConfigMap},
		Data:       map[string]string{handoff.KnownKey: handoff.KnownOf(&policy.Policy{Rules: []policy.Rule{{Name: "xid", Taint: old}}}).String()},
	}
	// afterwards is a node whose next suspicion has begun since.
	afterwards := node("released", old.Key, "", old)
	record := afterwards.Annotations[conditions.AnnotationQuarantine]
	afterwards.Annotations[conditions.AnnotationQuarantine] = `{"v":1,"nodeUID":"u","id":"q2","phase":"suspect","causes":[{"condition":"GPUXidError","rule":"xid",` +
		`"repair":"Reboot","firstSeen":"2026-11-27T12:00:00Z"}],"last":[` + strings.Replace(record, `"v":1,"nodeUID":"u",`, "", 1) + `]}`
	const want = "problem: taint example.com/broken:NoSchedule is on nodes whose record says that a quarantine has set it, and no known policy does, so it stays: n"
	for name, test := range map[string]struct {
		node    corev1.Node
		objects []client.Object
		want    string
	}{
		"quarantined":          {node: node("quarantined", old.Key, "", old), want: want},
		"released":             {node: node("released", old.Key, "", old), want: want},
		"suspect since":        {node: afterwards, want: want},
		"still remembered":     {node: node("quarantined", old.Key, "", old), objects: []client.Object{remembered}, want: "ok: all can be read"},
		"gone":                 {node: node("quarantined", old.Key, ""), want: "ok: all can be read"},
		"there before":         {node: node("quarantined", old.Key, `,"foreign":true`, old), want: "ok: all can be read"},
		"the one of this mode": {node: node("quarantined", conditions.TaintUnhealthy, "", old), want: "ok: all can be read"},
	} {
		if _, err := causes.RecordOf(&test.node); err != nil {
			t.Fatal(err)
		}
		found, err := patient(t, interceptor.Funcs{}, []corev1.Node{test.node}, test.objects...).records(t.Context())
		if got := lines(found); err != nil || got != test.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, test.want)
		}
	}
}
