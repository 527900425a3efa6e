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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// errEnded: the other ranks have been tested already, and run.
var errEnded = errors.New("rank 0 has already ended its preflight")

// locate sets the rank and the size of the group by this pod and its Job. The function that it returns finds the address of rank 0,
// which may not have one yet.
func (o *options) locate(ctx context.Context) (leader func(context.Context) (string, error), err error) {
	cluster, err := o.connect()
	if err != nil {
		return nil, err
	}
	name, namespace := o.env("POD_NAME"), o.env("POD_NAMESPACE")
	pod, err := cluster.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get this pod: %w", err)
	}
	var job *batchv1.Job
	if name := gang.JobOf(pod); name != "" {
		if job, err = cluster.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, fmt.Errorf("get the Job of this pod: %w", err)
		}
	}
	p, err := gang.Of(pod, job, o.env)
	if err != nil {
		return nil, err
	}
	if p.Size > report.MaxRanks {
		return nil, fmt.Errorf("%d ranks are more than %d", p.Size, report.MaxRanks)
	}
	slog.Info("Found this pod's rank", "rank", p.Rank, "of", p.Size)
	o.group.rank, o.group.size = p.Rank, p.Size
	var address string
	var asked time.Time
	return func(ctx context.Context) (string, error) {
		// All ranks ask, and at the same time.
		if time.Since(asked) > 2*time.Second+rand.N(time.Second) {
			address, err = o.findLeader(ctx, cluster, p)
			asked = time.Now()
		}
		return address, err
	}, nil
}

// findLeader returns the address of rank 0: that of its pod, which the API server knows before DNS does.
func (o options) findLeader(ctx context.Context, cluster kubernetes.Interface, p gang.Place) (string, error) {
	if p.Leader == (metav1.ListOptions{}) {
		return o.address(p.Host), nil
	}
	pods, err := cluster.CoreV1().Pods(o.env("POD_NAMESPACE")).List(ctx, p.Leader)
	if err != nil {
		return "", fmt.Errorf("find the pod of rank 0: %w", err)
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
		return pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	})
	if len(pods.Items) == 0 {
		if p.Host != "" {
			return o.address(p.Host), nil
		}
		return "", fmt.Errorf("there is no pod of rank 0 (%s)", p.Leader.LabelSelector)
	}
	pod := pods.Items[0]
	switch {
	case slices.ContainsFunc(pod.Status.InitContainerStatuses, hasPassed):
		return "", errEnded
	case pod.Status.PodIP == "":
		return "", fmt.Errorf("pod %s of rank 0 has no address", pod.Name)
	}
	return o.address(pod.Status.PodIP), nil
}

// hasPassed tells whether an init container is a preflight that has let the job start.
func hasPassed(s corev1.ContainerStatus) bool {
	return s.Name == gang.Container && s.State.Terminated != nil && s.State.Terminated.ExitCode == exitOK
}
