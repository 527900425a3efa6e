package main

import (
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// gang starts an opted-in job whose ranks ask for so many devices each, by a claim or by an extended resource, and waits until they run.
func (tm team) gang(name string, ranks int32, devices int64, extended bool) {
	tm.Helper()
	pod := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{cluster.LabelPool: tm.pool},
		Containers: []corev1.Container{{Name: "main", Image: "none"}},
	}
	if extended {
		of := corev1.ResourceList{corev1.ResourceName(tm.pool + ".example.com/gpu"): *resource.NewQuantity(devices, resource.DecimalSI)}
		pod.Containers[0].Resources = corev1.ResourceRequirements{Requests: of, Limits: of}
	} else {
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: tm.pool, Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
				{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: tm.pool, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: devices}},
			}}},
		}}
		if err := tm.Client.Create(tm.Context(), template); err != nil {
			tm.Fatal(err)
		}
		pod.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}}
		pod.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: tm.pool, Name: name, Labels: map[string]string{conditions.LabelRestartOnNodeFault: "true"}},
		Spec:       batchv1.JobSpec{Parallelism: &ranks, Completions: &ranks, BackoffLimit: ptr.To[int32](0), Template: corev1.PodTemplateSpec{Spec: pod}},
	}
	if err := tm.Client.Create(tm.Context(), job); err != nil {
		tm.Fatal(err)
	}
	tm.until(name+" runs", func() error {
		if on := tm.ranks(name); len(on) != int(ranks) {
			return fmt.Errorf("runs on %v", on)
		}
		return nil
	})
}

// ranks are the running pods of a job, by their nodes.
func (tm team) ranks(job string) map[string]corev1.Pod {
	tm.Helper()
	var pods corev1.PodList
	if err := tm.Client.List(tm.Context(), &pods, client.InNamespace(tm.pool), client.MatchingLabels{batchv1.JobNameLabel: job}); err != nil {
		tm.Fatal(err)
	}
	on := map[string]corev1.Pod{}
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			on[p.Spec.NodeName] = p
		}
	}
	return on
}

// A job has all GPUs of two of three nodes. What is free on the third is not known to checkCapacity, which reads no claims, and is no objection.
func TestAJobWithClaimsIsRestartedThoughTheirDevicesAreUnknown(t *testing.T) {
	for _, extended := range []bool{false, true} {
		pool := map[bool]string{false: "claims", true: "claims-extended"}[extended]
		t.Run(pool, func(t *testing.T) {
			tm := newDeviceTeam(t, pool, 3)
			var class resourceapi.DeviceClass
			if err := tm.Client.Get(t.Context(), client.ObjectKey{Name: pool}, &class); err != nil {
				t.Fatal(err)
			}
			class.Spec.ExtendedResourceName = ptr.To(pool + ".example.com/gpu")
			if err := tm.Client.Update(t.Context(), &class); err != nil {
				t.Fatal(err)
			}
			if err := tm.AddNamespace(t.Context(), pool, nil); err != nil {
				t.Fatal(err)
			}
			tm.gang("train", 2, 8, extended)
			before := tm.ranks("train")
			var bad string
			for bad = range before {
			}
			policy := tm.policy(1, "restartJobs: true", "clearAfter: 1h")
			tm.rewrite(policy, "  rules:", "  restart: {checkCapacity: true}\n  rules:")
			tm.start(policy, alone)
			tm.report(bad, "True", lost)
			tm.until("all ranks run again", func() error {
				now := tm.ranks("train")
				for node, p := range now {
					if was, found := before[node]; len(now) != 2 || node == bad || found && was.UID == p.UID {
						return fmt.Errorf("%d ranks run, pod %s on %s", len(now), p.Name, node)
					}
				}
				if len(now) != 2 {
					return fmt.Errorf("%d ranks run", len(now))
				}
				return nil
			})
		})
	}
}
