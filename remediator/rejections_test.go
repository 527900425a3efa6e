package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// reject makes a pod with a GPU that is sent to a node, by the scheduler or, pinned, by its author, and that the node's kubelet rejects.
func (tm team) reject(namespace, node string, pinned bool) {
	tm.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "rejected-"},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // the node may be quarantined by now
			Containers: []corev1.Container{{Name: "main", Image: "train", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")},
			}}},
		},
	}
	if pinned {
		pod.Spec.NodeName = node
	}
	if err := tm.Client.Create(tm.Context(), pod); err != nil {
		tm.Fatal(err)
	}
	tm.until("the pod is on its node", func() error {
		if err := tm.Client.Get(tm.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.Spec.NodeName == "" {
			return errors.Join(err, errors.New("not yet"))
		}
		return nil
	})
	tm.kubectl("patch", "pod", "-n", namespace, pod.Name, "--subresource=status", "--type=merge", "-p",
		`{"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError", "containerStatuses": null}}`)
}

// The real scheduler sends the pods, the real API server selects those that fail, and the shipped role suffices.
func TestANodeThatRejectsGPUPodsIsQuarantined(t *testing.T) {
	tm := newTeam(t, "rejects", 2, nil)
	node, other := tm.nodes[0], tm.nodes[1]
	for _, namespace := range []string{"rejects-a", "rejects-b"} {
		if err := tm.AddNamespace(t.Context(), namespace, nil); err != nil {
			t.Fatal(err)
		}
	}
	tm.reject("rejects-a", other, false)
	tm.reject("rejects-a", other, false)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 2}
  rules:
    rejects: {match: {condition: GPUPodsRejected, repair: [Inspect], nodeSelector: {%s: %s}}, unknownAfter: 168h}
`, cluster.LabelPool, tm.pool), 0o644); err != nil {
		t.Fatal(err)
	}
	tm.start(path, alone, "-rejected-pods=4")
	// What a tenant sends to a node by itself does not count, nor what had failed before the watch began: the other node has as many of
	// both. It is not known when the watch begins, so pods are rejected until they count.
	tm.until("the node has the condition", func() error {
		for _, namespace := range []string{"rejects-a", "rejects-b"} {
			tm.reject(namespace, other, true)
			tm.reject(namespace, node, false)
		}
		for _, c := range tm.get(node).Status.Conditions {
			if c.Type == "GPUPodsRejected" && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("not yet")
	})
	_, r := tm.becomes(node, causes.Quarantined)
	if got := r.Decisive().Condition; got != "GPUPodsRejected" {
		t.Errorf("quarantined by %s", got)
	}
	for _, c := range tm.get(other).Status.Conditions {
		if c.Type == "GPUPodsRejected" {
			t.Errorf("the other node has %s %s", c.Type, c.Status)
		}
	}
}
