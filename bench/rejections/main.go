// Command rejections measures what a node that rejects GPU pods costs the remediator: its memory, with and without -rejected-pods, and what
// it asks for pods. The pods are stored as kubelets leave them, straight in etcd; etcd, the API server and the remediator are real. It prints
// a Markdown table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

const (
	name     = "machine"
	patience = 5 * time.Minute
)

func main() {
	pods := flag.Int("pods", 5000, "how many pods the node rejects")
	size := flag.Int("size", 32<<10, "bytes of an annotation of each pod")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *pods, *size, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rejections:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pods, size int, out io.Writer) error {
	log.SetLogger(logr.Discard())
	fmt.Fprintf(out, "%d pods, %.0f MB\n\n", pods, float64(pods*size)/1e6)
	fmt.Fprint(out, "| -rejected-pods | memory (RSS) before | highest | after | stored in | pods asked for | condition of the node |\n"+
		"|--:|--:|--:|--:|--:|---|---|\n")
	for _, rejected := range []string{"0", "10"} {
		row, err := measure(ctx, rejected, pods, size)
		if err != nil {
			return fmt.Errorf("-rejected-pods %s: %w", rejected, err)
		}
		fmt.Fprintf(out, "| %s | %s |\n", rejected, row)
	}
	return nil
}

// measure measures one flood in a cluster of its own.
func measure(ctx context.Context, rejected string, pods, size int) (row string, err error) {
	c, err := cluster.Start(ctx, cluster.Options{APIOnly: true, Audit: true, Progress: os.Stderr})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.Client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return "", err
	}
	policy, err := c.ShippedPolicy(time.Minute)
	if err != nil {
		return "", err
	}
	p, err := c.StartRemediator(ctx, "-policy", policy, "-leader-elect=false", "-rejected-pods", rejected)
	if err != nil {
		return "", err
	}
	if err := cluster.Pause(ctx, 20*time.Second); err != nil { // the caches are filled, and the watch has begun
		return "", err
	}
	before, err := cluster.UsageOf(p.PID())
	if err != nil {
		return "", err
	}
	start := time.Now()
	if err := c.Store(ctx, flood(pods, size)...); err != nil {
		return "", err
	}
	stored, seen := time.Since(start), "none"
	if rejected != "0" {
		if err := untilRejected(ctx, c); err != nil {
			return "", err
		}
		seen = conditions.GPUPodsRejected
	}
	if err := cluster.Pause(ctx, 30*time.Second); err != nil {
		return "", err
	}
	after, err := cluster.UsageOf(p.PID())
	if err != nil {
		return "", err
	}
	asked, err := asked(c)
	return fmt.Sprintf("%.0f MB | %.0f MB | %.0f MB | %.0f s | %s | %s", before.RSS, after.Peak, after.RSS, stored.Seconds(), asked, seen), err
}

// flood are pods of two namespaces that a scheduler has sent to the node and its kubelet has rejected.
func flood(pods, size int) []client.Object {
	filler := strings.Repeat("x", size)
	all := make([]client.Object, pods)
	for i := range all {
		all[i] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: fmt.Sprintf("team-%d", i%2), Name: fmt.Sprintf("train-%d", i), UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(),
				Annotations: map[string]string{"filler": filler}, ManagedFields: []metav1.ManagedFieldsEntry{{
					Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:containers":{}}}`),
				}},
			},
			Spec: corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "train", Image: "train", Resources: corev1.ResourceRequirements{
				Limits:   corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
				Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			}}}},
			Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError", Message: "Pod was rejected: no healthy devices present"},
		}
	}
	return all
}

// untilRejected waits until the node has the condition.
func untilRejected(ctx context.Context, c *cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return cluster.Poll(ctx, func(ctx context.Context) error {
		var n corev1.Node
		if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, &n); err != nil {
			return err
		}
		if cond, _ := node.ConditionOf(&n, conditions.GPUPodsRejected); cond.Status != corev1.ConditionTrue {
			return errors.New("the node does not have the condition")
		}
		return nil
	})
}

// asked says what the remediator has asked of failed pods: the watch, and the list of one pod for its version.
func asked(c *cluster.Cluster) (string, error) {
	requests, err := c.AuditLog()
	if err != nil {
		return "", fmt.Errorf("%w in %s", err, filepath.Join(c.Dir, "audit.log"))
	}
	lists, ones, watches := 0, 0, 0
	for _, r := range requests {
		if r.ObjectRef.Resource != "pods" || !strings.HasSuffix(r.User.Username, ":pitcrew-remediator") {
			continue
		}
		switch {
		case r.Verb == "watch":
			watches++
		case r.Verb == "list" && strings.Contains(r.RequestURI, "limit=1&") || strings.HasSuffix(r.RequestURI, "limit=1"):
			ones++
		case r.Verb == "list":
			lists++
		}
	}
	return fmt.Sprintf("%d watches, %d lists of one, %d lists", watches, ones, lists), nil
}
