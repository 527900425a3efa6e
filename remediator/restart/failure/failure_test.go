package failure

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPodFailure(t *testing.T) {
	ended := func(name, reason string, code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, Image: "large", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code}}}
	}
	running := corev1.ContainerStatus{Name: "sidecar", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	disrupted := []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "PodFailed"},
		{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"},
	}
	tests := map[string]struct {
		status  corev1.PodStatus
		restart corev1.RestartPolicy
		deleted bool
		want    string
	}{
		"it runs":                   {status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running}}},
		"it waits":                  {status: corev1.PodStatus{Phase: corev1.PodPending}},
		"it succeeded":              {status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{ended("main", "Completed", 0)}}},
		"one container is through":  {status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{ended("main", "Completed", 0), running}}},
		"an error":                  {status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{ended("main", "Error", 1)}}, want: "container main: Error, exit code 1"},
		"out of memory":             {status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{ended("log", "Completed", 0), ended("main", "OOMKilled", 137)}}, want: "container main: OOMKilled, exit code 137"},
		"an error beside a sidecar": {status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running, ended("main", "Error", 1)}}, want: "container main: Error, exit code 1"},
		"an error that the kubelet restarts": {restart: corev1.RestartPolicyOnFailure,
			status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{ended("main", "Error", 1)}}},
		"preflight failed":                       {status: corev1.PodStatus{Phase: corev1.PodFailed, InitContainerStatuses: []corev1.ContainerStatus{ended("preflight", "Error", 1)}}, want: "container preflight: Error, exit code 1"},
		"preflight failed, the pod says so late": {status: corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{ended("preflight", "Error", 1)}}, want: "container preflight: Error, exit code 1"},
		"evicted by the kubelet":                 {restart: corev1.RestartPolicyAlways, status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, want: "Evicted"},
		"evicted through the API":                {deleted: true, status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: disrupted}, want: "disrupted: EvictionByEvictionAPI"},
		"no longer to be disrupted":              {status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionFalse}}}},
		"the node is lost":                       {status: corev1.PodStatus{Phase: corev1.PodRunning, Reason: "NodeLost"}, want: "its node does not answer"},
		"nobody knows":                           {status: corev1.PodStatus{Phase: corev1.PodUnknown}, want: "its node does not answer"},
		"somebody deleted it":                    {deleted: true, status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{ended("main", "Error", 143)}}},
		"failed without a reason":                {status: corev1.PodStatus{Phase: corev1.PodFailed}, want: "no reason given"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}, Status: test.status}
			if test.restart != "" {
				pod.Spec.RestartPolicy = test.restart
			}
			if test.deleted {
				pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			}
			slim, err := Slim(pod)
			if err != nil {
				t.Fatal(err)
			}
			for what, p := range map[string]*corev1.Pod{"whole": pod, "slim": slim.(*corev1.Pod)} {
				if got, _ := Of(p); got != test.want {
					t.Errorf("%s: got %q, want %q", what, got, test.want)
				}
			}
			if c := slim.(*corev1.Pod).Status.ContainerStatuses; len(c) > 0 && c[0].Image != "" {
				t.Error("the slim pod is not slim")
			}
		})
	}
}

// A tenant's pods may have any number of labels, owners and containers, and a kubelet writes how their containers ended.
func TestOfAPodThatIsTooLargeOrHasNotFailedOnlyTheNameIsKept(t *testing.T) {
	for name, test := range map[string]struct {
		phase              corev1.PodPhase
		labels, containers int
		kept               bool
	}{
		"as many labels as any has":     {corev1.PodFailed, 50, 0, true},
		"as many containers as any has": {corev1.PodFailed, 10, 8, true},
		"too many labels":               {corev1.PodFailed, 500, 0, false},
		"too many containers":           {corev1.PodFailed, 10, 500, false},
		"one that runs":                 {corev1.PodRunning, 10, 0, false},
		"one that waits":                {corev1.PodPending, 10, 0, false},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train-0", UID: "u", Labels: map[string]string{}, OwnerReferences: []metav1.OwnerReference{{Name: "train"}}},
			Status:     corev1.PodStatus{Phase: test.phase},
		}
		for i := range test.labels {
			pod.Labels[fmt.Sprint(i)] = strings.Repeat("x", 63)
		}
		for range test.containers {
			ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{State: ended})
		}
		slim, err := Slim(pod)
		if err != nil {
			t.Fatal(err)
		}
		got := slim.(*corev1.Pod)
		has := []bool{len(got.Labels) > 0, len(got.OwnerReferences) > 0, got.Status.Phase != ""}
		if got.Name != "train-0" || got.UID != "u" || slices.Contains(has, !test.kept) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
