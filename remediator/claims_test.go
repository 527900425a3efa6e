package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

const claimsRole = "claims.yaml"

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

// A job has all GPUs of two of three nodes, another job has one GPU of the third. One of the two is quarantined.
func TestAJobIsNotStoppedUntilDevicesAreFreeForItsRanks(t *testing.T) {
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
			tm.gang("small", 1, 1, extended)
			tm.gang("train", 2, 8, extended)
			before := tm.ranks("train")
			var bad string
			for bad = range before {
			}
			unharmed := func() {
				t.Helper()
				for node, p := range tm.ranks("train") {
					if was := before[node]; p.UID != was.UID {
						t.Errorf("the pod on %s was replaced", node)
					}
				}
			}

			policy := tm.policy(1, "restartJobs: true", "clearAfter: 1h")
			tm.rewrite(policy, "  rules:", "  restart: {checkCapacity: true}\n  rules:")
			p, err := tm.StartRemediator(t.Context(), "-policy", policy, alone)
			if err != nil {
				t.Fatal(err)
			}
			tm.report(bad, "True", lost)
			tm.becomes(bad, quarantine.Quarantined)
			tm.waitForEvent(tm.get(bad).UID, "(the role pitcrew-remediator-claims has this right)")
			unharmed()
			p.Stop(patience)

			role, err := os.ReadFile(filepath.Join("..", "manifests", "remediator", claimsRole))
			if err != nil {
				t.Fatal(err)
			}
			if err := tm.Apply(t.Context(), role); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { // the next run needs it to be missing
				//nolint:usetesting // the test's own context has ended by now
				if _, err := tm.Kubectl(context.Background(), "delete", "-f", filepath.Join(tm.Root, "manifests", "remediator", claimsRole)); err != nil {
					t.Error(err)
				}
			})
			tm.until("the role is in force", func() error {
				_, err := tm.Kubectl(t.Context(), "auth", "can-i", "list", "resourceslices.resource.k8s.io", "--as=system:serviceaccount:pitcrew:pitcrew-remediator")
				return err
			})
			tm.start(policy, alone) // none of its requests is refused any more
			tm.waitForEvent(tm.get(bad).UID, "1 of its ranks must move; found room, with devices for their resource claims, for 0 on the 2 nodes")
			unharmed()

			small := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: pool, Name: "small"}}
			if err := tm.Client.Delete(t.Context(), small, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
				t.Fatal(err)
			}
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
