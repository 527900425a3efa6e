package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// documentedToleration reads the toleration that docs/handoff.md asks the owners of DaemonSets to add.
func documentedToleration(tm team) []corev1.Toleration {
	tm.Helper()
	block := regexp.MustCompile("(?s)```yaml\n(tolerations:\n.*?)```").FindStringSubmatch(read(tm.T, filepath.Join(tm.Root, "docs", "handoff.md")))
	if block == nil {
		tm.Fatal("docs/handoff.md has no tolerations")
	}
	var spec corev1.PodSpec
	if err := yaml.UnmarshalStrict([]byte(block[1]), &spec); err != nil || len(spec.Tolerations) == 0 {
		tm.Fatalf("%s: %v", block[1], err)
	}
	return spec.Tolerations
}

// daemonSet runs a pod on each node of the pool.
func (tm team) daemonSet(name string, tolerations []corev1.Toleration) {
	tm.Helper()
	of := map[string]string{"app": name}
	if err := tm.Client.Create(tm.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: tm.pool, Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: of},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: of},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{cluster.LabelPool: tm.pool},
					Tolerations:  tolerations,
					Containers:   []corev1.Container{{Name: "main", Image: "none"}},
				},
			},
		},
	}); err != nil {
		tm.Fatal(err)
	}
}

// runs waits for a running pod of a DaemonSet that is not the one it had before.
func (tm team) runs(name string, before *corev1.Pod) *corev1.Pod {
	tm.Helper()
	var running corev1.Pod
	tm.until("a pod of "+name+" runs", func() error {
		var pods corev1.PodList
		if err := tm.Client.List(tm.Context(), &pods, client.InNamespace(tm.pool), client.MatchingLabels{"app": name}); err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && (before == nil || p.UID != before.UID) {
				running = p
				return nil
			}
		}
		return fmt.Errorf("%d pods", len(pods.Items))
	})
	return &running
}

func TestADaemonSetWithTheDocumentedTolerationComesBackOnAQuarantinedNode(t *testing.T) {
	tm := newTeam(t, "tolerate", 1, nil)
	if err := tm.AddNamespace(t.Context(), tm.pool, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := tm.Client.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tm.pool}}); err != nil {
			t.Error(err)
		}
	})
	tm.daemonSet("tolerant", documentedToleration(tm))
	tm.daemonSet("plain", nil)
	tolerant, plain := tm.runs("tolerant", nil), tm.runs("plain", nil)
	tm.start(tm.policy(1), alone)
	tm.report(tm.nodes[0], "True", ecc)
	tm.becomes(tm.nodes[0], causes.Quarantined)

	// Running pods are not evicted.
	if now := tm.runs("plain", nil); now.UID != plain.UID {
		t.Error("a pod without the toleration was evicted")
	}
	for _, pod := range []*corev1.Pod{plain, tolerant} {
		if err := tm.Client.Delete(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	tm.runs("tolerant", tolerant)
	tm.until("no node is left for the one without the toleration", func() error {
		var ds appsv1.DaemonSet
		err := tm.Client.Get(t.Context(), client.ObjectKey{Namespace: tm.pool, Name: "plain"}, &ds)
		if s := ds.Status; s.DesiredNumberScheduled != 0 || s.CurrentNumberScheduled != 0 {
			return errors.Join(err, fmt.Errorf("status %+v", s))
		}
		return err
	})
}
