package node

import (
	"context"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestDescribeCountsTheOptInsOnAQuarantinedNode(t *testing.T) {
	const key = "pitcrew.dev/restart-on-node-fault"
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	objects := []client.Object{
		node,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ml"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "in", Labels: map[string]string{key: "true"}}},
	}
	job := func(namespace, name, on string, phase corev1.PodPhase, labels map[string]string) {
		uid := types.UID(namespace + "-" + name)
		selector := map[string]string{"job": name}
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid, Labels: labels},
			Spec: batchv1.JobSpec{Selector: &metav1.LabelSelector{MatchLabels: selector}}}
		objects = append(objects, j)
		for _, rank := range []string{"-0", "-1"} {
			objects = append(objects, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + rank, Labels: selector,
					OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(j, batchv1.SchemeGroupVersion.WithKind("Job"))}},
				Spec: corev1.PodSpec{NodeName: on}, Status: corev1.PodStatus{Phase: phase},
			})
		}
	}
	job("ml", "train", "n", corev1.PodRunning, map[string]string{key: "true"})
	job("in", "train", "n", corev1.PodRunning, nil)
	job("ml", "eval", "n", corev1.PodRunning, nil)
	job("ml", "yes", "n", corev1.PodRunning, map[string]string{key: "yes"})
	job("in", "out", "n", corev1.PodRunning, map[string]string{key: "false"})
	job("ml", "elsewhere", "other", corev1.PodRunning, nil)
	job("ml", "ended", "n", corev1.PodSucceeded, nil)
	job(conditions.RepairNamespace, "reboot", "n", corev1.PodRunning, nil) // our own
	objects = append(objects, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "daemon", OwnerReferences: []metav1.OwnerReference{
		*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "d", UID: "d"}, metav1.SchemeGroupVersion.WithKind("x"))}}, Spec: corev1.PodSpec{NodeName: "n"}})
	api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
	c := &cli.Target{Namespace: "pitcrew"}
	record := &causes.Record{Quarantine: causes.Quarantine{Phase: causes.Quarantined}}
	var out strings.Builder
	describeOptIns(t.Context(), c, &out, api, node, record, "")
	const want = `Opt-in:   jobs with active pods on the node: 2 opted in, 3 not
          Job in/out is not restarted: opted out by label pitcrew.dev/restart-on-node-fault=false
          Job ml/eval is not restarted: no label pitcrew.dev/restart-on-node-fault=true on it or on its namespace
          Job ml/yes is not restarted: label pitcrew.dev/restart-on-node-fault=yes on Job ml/yes does not count: the value must be "true" or "false"
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	// What cannot be read does not cut the answer off.
	flaky := interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if key.Name == "in" || key.Name == "eval" { // a namespace and a job
				return apierrors.NewServiceUnavailable("try\nagain")
			}
			return api.Get(ctx, key, o, opts...)
		},
	})
	out.Reset()
	describeOptIns(t.Context(), c, &out, flaky, node, record, "")
	for _, want := range []string{"the node: 1 opted in, 2 not\n", "          the owners of 3 pods are unknown: ", "try again\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%swant %q", out.String(), want)
		}
	}
	out.Reset()
	describeOptIns(t.Context(), c, &out, interceptor.NewClient(api, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return apierrors.NewServiceUnavailable("later")
		},
	}), node, record, "")
	if !strings.HasPrefix(out.String(), "Opt-in:   unknown: ") {
		t.Errorf("without a list: %q", out.String())
	}
	out.Reset()
	record.Phase = causes.Released
	if describeOptIns(t.Context(), c, &out, api, node, record, ""); out.Len() > 0 {
		t.Errorf("of a node that is in service: %q", out.String())
	}
}
