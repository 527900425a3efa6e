package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/gang"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

func inCluster() (kubernetes.Interface, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

var (
	// errEnded: the other ranks have been tested already, and run.
	errEnded = errors.New("rank 0 has already ended its preflight")
	// errAlone: rank 0 will never listen.
	errAlone = errors.New("the pod of rank 0 has no container " + gang.Container)
	// errBad: a restart of the container does not make the node good, and the other ranks do not test it again.
	errBad = errors.New("this container has ended before, because this node is bad")
)

// isFinal reports whether waiting does not help.
func isFinal(err error) bool {
	return errors.Is(err, errEnded) || errors.Is(err, errAlone) ||
		apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err)
}

// locate sets the rank and the size of the group by this pod and its Job. The function that it returns finds rank 0, which may not have an
// address yet.
func (o *options) locate(ctx context.Context) (leader func(context.Context) (rank0, error), err error) {
	cluster, err := o.connect()
	if err != nil {
		return nil, err
	}
	var pod *corev1.Pod
	var job *batchv1.Job
	if err := o.retry(ctx, func(ctx context.Context) error {
		pod, job, err = o.self(ctx, cluster)
		return err
	}); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(pod.Status.InitContainerStatuses, hasFailed) {
		return nil, errBad
	}
	p, err := gang.Of(pod, job, o.env)
	if err != nil {
		return nil, err
	}
	if p.Size > report.MaxRanks {
		return nil, fmt.Errorf("%d ranks are more than %d", p.Size, report.MaxRanks)
	}
	slog.Info("Found this pod's rank", "rank", p.Rank, "of", p.Size)
	o.group.rank, o.group.size, o.pod = p.Rank, p.Size, pod.UID
	var found rank0
	var next time.Time
	return func(ctx context.Context) (rank0, error) {
		if time.Now().After(next) {
			found, err = o.findLeader(ctx, cluster, pod, p)
			next = time.Now().Add(pause(p.Size))
		}
		return found, err
	}, nil
}

// self returns this pod, and its Job if it has one.
func (o options) self(ctx context.Context, cluster kubernetes.Interface) (*corev1.Pod, *batchv1.Job, error) {
	namespace := o.env("POD_NAMESPACE")
	pod, err := cluster.CoreV1().Pods(namespace).Get(ctx, o.env("POD_NAME"), metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("get this pod: %w", err)
	}
	name := gang.JobOf(pod)
	if name == "" {
		return pod, nil, nil
	}
	job, err := cluster.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("get the Job of this pod: %w", err)
	}
	return pod, job, nil
}

// retry calls f until it succeeds or waiting does not help, at most for the meet timeout. The network of a pod may not be ready when its
// first container starts, and without this rank the others would wait.
func (o options) retry(ctx context.Context, f func(context.Context) error) error {
	var last error
	delay := wait.Backoff{Duration: time.Second, Factor: 1.5, Jitter: 1, Steps: 8, Cap: 10 * time.Second}.DelayFunc()
	ctx, cancel := context.WithTimeout(ctx, o.meetTimeout)
	defer cancel()
	err := delay.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := f(ctx); ctx.Err() == nil || last == nil {
			last = err
		}
		return last == nil || isFinal(last), nil
	})
	if last != nil {
		return last
	}
	return err
}

// pause is how long a rank waits before it asks again for rank 0: all ranks ask, and each question costs the API server time for each pod
// of the namespace. So 64 ranks ask about 20 times a second, and 1000 ranks about 70 times.
func pause(ranks int) time.Duration {
	least := min(max(2*time.Second, time.Duration(ranks)*10*time.Millisecond), 30*time.Second)
	return least + rand.N(least)
}

// findLeader returns the address of rank 0: that of its pod, which the API server knows before DNS does.
func (o options) findLeader(ctx context.Context, cluster kubernetes.Interface, self *corev1.Pod, p gang.Place) (rank0, error) {
	if p.Leader == (metav1.ListOptions{}) {
		return rank0{address: o.address(p.Host)}, nil
	}
	// The answer may be from the API server's cache: a late one is as good as a late question.
	options := p.Leader
	options.ResourceVersion = "0"
	pods, err := cluster.CoreV1().Pods(self.Namespace).List(ctx, options)
	if err != nil {
		return rank0{}, fmt.Errorf("find the pod of rank 0: %w", err)
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || !p.Owns(&pod)
	})
	if len(pods.Items) == 0 {
		if p.Host != "" {
			return rank0{address: o.address(p.Host)}, nil
		}
		return rank0{}, fmt.Errorf("there is no pod of rank 0 (%s)", p.Leader.LabelSelector)
	}
	pod := pods.Items[0]
	switch {
	case slices.ContainsFunc(pod.Status.InitContainerStatuses, hasPassed):
		return rank0{}, errEnded
	case hasPreflight(self) && !hasPreflight(&pod):
		return rank0{}, fmt.Errorf("pod %s: %w", pod.Name, errAlone)
	case pod.Status.PodIP == "":
		return rank0{}, fmt.Errorf("pod %s of rank 0 has no address", pod.Name)
	}
	return rank0{o.address(pod.Status.PodIP), pod.UID}, nil
}

func hasPreflight(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == gang.Container })
}

// hasFailed reports whether an init container is a preflight that has found its node bad before it was restarted.
func hasFailed(s corev1.ContainerStatus) bool {
	last := s.LastTerminationState.Terminated
	return s.Name == gang.Container && last != nil && last.ExitCode == exitNodeBad
}

// hasPassed reports whether an init container is a preflight that has let the job start.
func hasPassed(s corev1.ContainerStatus) bool {
	return s.Name == gang.Container && s.State.Terminated != nil && s.State.Terminated.ExitCode == exitOK
}
