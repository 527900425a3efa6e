package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{}) }

// The shipped example, roles and admission policies let a pod write its report, once.
func TestAPodWritesItsReportOnce(t *testing.T) {
	c := clustertest.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := c.AddNamespace(ctx, "team", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AddNodes(ctx, "train", 1, nil); err != nil {
		t.Fatal(err)
	}
	manifests := c.Root + "/manifests/preflight"
	for _, args := range [][]string{{"-k", manifests}, {"-n", "team", "-k", manifests + "/namespace"}, {"-n", "team", "-f", manifests + "/namespace/example-job.yaml"}} {
		if out, err := c.Kubectl(ctx, append([]string{"apply"}, args...)...); err != nil {
			t.Fatalf("apply %s: %v\n%s", args, err, out)
		}
	}
	pod, err := scheduled(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	own, err := asPod(ctx, c, &pod)
	if err != nil {
		t.Fatal(err)
	}
	r := report.Report{RunID: "r", Size: 8, Node: pod.Spec.NodeName, GPU: report.Passed}
	for attempt := range 2 { // a container that has restarted writes it again
		if err := writeConfigMap(ctx, own, pod.Namespace, pod.Name, r); err != nil {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
	}
	var list corev1.ConfigMapList
	if err := c.Client.List(ctx, &list, client.InNamespace("team"), client.MatchingLabels{conditions.LabelPreflight: "report"}); err != nil || len(list.Items) != 1 {
		t.Fatalf("%d reports, %v", len(list.Items), err)
	}
	// The policies take a moment to be in force.
	for i := 0; writeConfigMap(ctx, own, pod.Namespace, pod.Name, report.Report{RunID: fmt.Sprint(i), Size: 8, Node: "another"}) == nil; i++ {
		if ctx.Err() != nil {
			t.Fatal("reports for another node are written")
		}
	}
}

// scheduled waits for a pod of the example that has a node.
func scheduled(ctx context.Context, c *cluster.Cluster) (pod corev1.Pod, err error) {
	err = cluster.Poll(ctx, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := c.Client.List(ctx, &pods, client.InNamespace("team")); err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		for _, pod = range pods.Items {
			if pod.Spec.NodeName != "" {
				return nil
			}
		}
		return errors.New("no pod is scheduled")
	})
	return pod, err
}
