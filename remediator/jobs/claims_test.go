package jobs

import (
	"context"
	"maps"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestAJobWhoseClaimsCannotBeReadIsReported(t *testing.T) {
	rank := func(i int, claim string) *corev1.Pod {
		p := rankOf("train", i)
		p.Spec.NodeName, p.Status.Phase = "a", corev1.PodRunning
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
		return p
	}
	fails := interceptor.Funcs{Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, isClaim := o.(*resourceapi.ResourceClaim); isClaim && key.Name == "x" {
			return apierrors.NewForbidden(schema.GroupResource{Group: resourceapi.GroupName, Resource: "resourceclaims"}, key.Name, nil)
		}
		return api.Get(ctx, key, o, opts...)
	}}
	held := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "held"}}
	held.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.nvidia.com", Pool: "a", Device: "gpu-1"}},
	}}
	idle := labelled(t, "train", restart.Restart{})
	idle.Spec.Parallelism, idle.Spec.Completions = ptr.To[int32](2), ptr.To[int32](2)
	idle.Annotations, idle.Labels = nil, maps.Clone(optedIn)
	restarting := labelled(t, "train", restart.Restart{Phase: restart.Stopping})
	maps.Copy(restarting.Labels, optedIn)
	for name, test := range map[string]struct {
		job      *batchv1.Job
		labels   map[string]string
		pods     []*corev1.Pod
		failed   bool
		restarts bool
		want     []string
	}{
		"an opted-in job":       {idle, nil, []*corev1.Pod{rank(0, "x"), rank(1, "x")}, true, false, []string{"Job counted 1: ClaimUnread", "Job team/train ClaimUnread"}},
		"a job that is not in":  {idle, map[string]string{conditions.LabelRestartOnNodeFault: "false"}, []*corev1.Pod{rank(0, "x")}, true, false, nil},
		"a job under restart":   {restarting, nil, []*corev1.Pod{rank(0, "x")}, true, true, nil},
		"a job that holds one":  {idle, nil, []*corev1.Pod{rank(0, "x"), rank(1, "held")}, false, true, nil},
		"no claim that matters": {idle, nil, []*corev1.Pod{rank(0, "gone")}, false, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			job := test.job.DeepCopy()
			maps.Copy(job.Labels, test.labels)
			c, q, named := onNodeA(t, fails, test.pods, job, held.DeepCopy(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
			q.Devices = []devices.Device{{Driver: "gpu.nvidia.com", Pool: "a", Name: "gpu-1"}}
			for range 2 {
				if _, err := c.RestartJobsOnNode(t.Context(), q); apierrors.IsForbidden(err) != test.failed {
					t.Errorf("error %v", err)
				}
			}
			if err := c.apiReader.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
				t.Fatal(err)
			}
			if isRestarting := job.Annotations[conditions.AnnotationRestart] != ""; isRestarting != test.restarts {
				t.Errorf("restarting: %v", isRestarting)
			}
			if got := slices.Sorted(slices.Values(named())); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// Whoever may create pods can name any job as their owner. Such a pod on a quarantined node restarts no job of others.
func TestAForeignPodIsReportedAndRestartsNoJob(t *testing.T) {
	job := labelled(t, "train", restart.Restart{})
	job.Spec.Parallelism, job.Spec.Completions = ptr.To[int32](1), ptr.To[int32](1)
	job.Annotations, job.Labels = nil, maps.Clone(optedIn)
	foreign := rankOf("train", 0)
	foreign.Labels, foreign.Spec.NodeName, foreign.Status.Phase = nil, "a", corev1.PodRunning
	c, q, named := onNodeA(t, interceptor.Funcs{}, []*corev1.Pod{foreign}, job, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
	if _, err := c.RestartJobsOnNode(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if err := c.apiReader.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil || job.Annotations[conditions.AnnotationRestart] != "" {
		t.Errorf("restarted: %v, %v", job.Annotations, err)
	}
	if got := named(); !slices.Equal(got, []string{"Job counted 1: ForeignPod"}) {
		t.Errorf("got %q", got)
	}
}
