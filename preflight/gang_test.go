package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/gang"
)

// rank is a pod of Job train with preflight.
func rank(name, index, jobUID string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID(name),
			Labels:          map[string]string{batchv1.JobNameLabel: "train", batchv1.JobCompletionIndexAnnotation: index},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: types.UID(jobUID), Controller: ptr.To(true)}},
		},
		Spec:   corev1.PodSpec{InitContainers: []corev1.Container{{Name: gang.Container}}, Containers: []corev1.Container{{Name: "train"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, PodIP: "127.0.0.1"},
	}
}

func ended(code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
}

// inPod is the program in a pod of Job train, with an API server that has these pods.
func inPod(t *testing.T, name string, ranks int32, args []string, pods ...runtime.Object) (options, *fake.Clientset) {
	t.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train"}, Spec: batchv1.JobSpec{Completions: &ranks, Parallelism: &ranks}}
	c := fake.NewClientset(append(pods, job)...)
	env := map[string]string{"NODE_NAME": "n-" + name, "POD_NAME": name, "POD_NAMESPACE": "team"}
	o, err := parse(append([]string{"-best-effort", "-from-pod"}, args...), func(n string) string { return env[n] })
	if err != nil {
		t.Fatal(err)
	}
	o.connect = func() (kubernetes.Interface, error) { return c, nil }
	return o, c
}

// With restartPolicy OnFailure or Always the kubelet restarts the container, when the other ranks run already.
func TestABadNodeStaysBadAfterARestartInPlace(t *testing.T) {
	for code, want := range map[int32]int{exitNodeBad: exitNodeBad, exitUnknown: exitOK} {
		rank0, self := rank("train-0-a", "0", "job"), rank("train-3-a", "3", "job")
		rank0.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: gang.Container, State: ended(exitOK)}}
		self.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: gang.Container, LastTerminationState: ended(code)}}
		o, _ := inPod(t, "train-3-a", 4, nil, rank0, self)
		got, err := run(t.Context(), o)
		if got := o.exitCode(got); got != want {
			t.Errorf("after exit %d it exits %d (%v), want %d", code, got, err, want)
		}
	}
}

func TestABadNodeIsBadWhateverElseFails(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := fmt.Sprint("-port=", l.Addr().(*net.TCPAddr).Port)
	for name, args := range map[string][]string{
		"the report cannot be written":       {"-rank=0", "-size=1", "-leader=127.0.0.1", "-port=29471", "-meet-timeout=20s", "-out=/dev/null/x"},
		"the port of rank 0 is taken":        {"-rank=0", "-size=1", "-leader=127.0.0.1", taken, "-out=/tmp"},
		"this pod's rank is not to be found": {"-from-pod"},
	} {
		o, err := parse(append([]string{"-best-effort", "-node=n", "-check=exit 1"}, args...), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		o.connect = func() (kubernetes.Interface, error) { return fake.NewClientset(), nil }
		code, err := run(t.Context(), o)
		if got := o.exitCode(code); got != exitNodeBad || err == nil {
			t.Errorf("%s: exit %d (%v)", name, got, err)
		}
	}
}

// The pods of a deleted Job run until they are collected, and those of the next Job have the same labels.
func TestRank0IsOfThisJobAndNotOfAnEarlierOne(t *testing.T) {
	old, rank0, self := rank("train-0-a", "0", "old"), rank("train-0-b", "0", "new"), rank("train-3-b", "3", "new")
	old.Status.Phase, old.Status.InitContainerStatuses = corev1.PodRunning, []corev1.ContainerStatus{{Name: gang.Container, State: ended(exitOK)}}
	rank0.Status.PodIP = "10.9.9.9"
	o, _ := inPod(t, "train-3-b", 4, nil, old, rank0, self)
	find, err := o.locate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := find(t.Context()); got.address != "10.9.9.9:29400" || got.pod != "train-0-b" {
		t.Errorf("found %+v, %v", got, err)
	}
}

func TestARankDoesNotWaitForWhatCannotCome(t *testing.T) {
	for want, change := range map[string]func(*corev1.Pod, *fake.Clientset){
		"has no container preflight": func(rank0 *corev1.Pod, _ *fake.Clientset) { rank0.Spec.InitContainers = nil },
		"may not list": func(_ *corev1.Pod, c *fake.Clientset) {
			c.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("may not list"))
			})
		},
	} {
		rank0, self := rank("train-0-a", "0", "job"), rank("train-3-a", "3", "job")
		o, c := inPod(t, "train-3-a", 4, []string{"-meet-timeout=1h", "-port=1"}, self)
		change(rank0, c)
		if err := c.Tracker().Add(rank0); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := run(ctx, o); ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A pod whose container has another name has rank 0 with that name, too.
func TestRank0MayCallItsContainerAsThisRankDoes(t *testing.T) {
	rank0, self := rank("train-0-a", "0", "job"), rank("train-3-a", "3", "job")
	rank0.Spec.InitContainers[0].Name, self.Spec.InitContainers[0].Name = "test", "test"
	o, _ := inPod(t, "train-3-a", 4, nil, rank0, self)
	find, err := o.locate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := find(t.Context()); got.address != "127.0.0.1:29400" {
		t.Errorf("found %+v, %v", got, err)
	}
}

// The network of a pod may not be ready when its first container starts.
func TestARankAsksAgainForItsPlace(t *testing.T) {
	o, c := inPod(t, "train-3-a", 4, nil, rank("train-0-a", "0", "job"), rank("train-3-a", "3", "job"))
	first := true
	c.PrependReactor("get", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		defer func() { first = false }()
		return first, nil, errors.New("connection refused")
	})
	if _, err := o.locate(t.Context()); err != nil || o.group.rank != 3 || first {
		t.Errorf("rank %d, %v", o.group.rank, err)
	}
}

func TestARankAsksForItsPlaceNoLongerThanTheOthersWait(t *testing.T) {
	o, c := inPod(t, "train-3-a", 4, []string{"-meet-timeout=300ms"}, rank("train-3-a", "3", "job"))
	c.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("connection refused")
	})
	if _, err := o.locate(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}

// On the host network rank 0 of another job may listen where this rank looks for its own.
func TestRank0TakesOnlyRanksThatLookForIt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := options{group: group{size: 3, leader: l.Addr().String()}, meetTimeout: 3 * time.Minute, pod: "mine"}
	gathered := make(chan []*member)
	go func() {
		members, err := gather(t.Context(), l, o)
		if err != nil {
			t.Error(err)
		}
		gathered <- members
	}()
	// A rank that was not told which pod it looks for is taken.
	for i, h := range []hello{{Rank: 0, Leader: "mine"}, {Rank: 1, Leader: "of-another-job"}, {Rank: 1, Leader: "mine"}, {Rank: 2}} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		h.Port, h.Node = 1, fmt.Sprint(i)
		if err := json.NewEncoder(conn).Encode(h); err != nil {
			t.Fatal(err)
		}
		if h.Leader == "of-another-job" {
			if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("the rank of another job is not sent away: %v", err)
			}
		}
	}
	if members := <-gathered; len(members) != 3 {
		t.Errorf("%+v", members)
	}
}

// However many ranks there are, they do not ask the API server more often than about 70 times a second, up to 2000 of them.
func TestMoreRanksAskLessOften(t *testing.T) {
	for ranks, want := range map[int]time.Duration{1: 2 * time.Second, 64: 2 * time.Second, 1000: 10 * time.Second, 10000: 30 * time.Second} {
		for range 100 {
			if got := pause(ranks); got < want || got >= 2*want {
				t.Errorf("%d ranks: %s", ranks, got)
			}
		}
	}
}
