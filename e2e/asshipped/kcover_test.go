package asshipped_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/asshipped/pages"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// kcoverReport is what kcover's container writes on the host: node, rank and whether its only pair was good.
const kcoverReport = `{"version": 1, "workload": "train", "workload_size": 2, "rank": %[2]d, "node_name": %[1]q, "node_ip": "10.1.0.%[2]d",
"storage_check": 1, "gpu_check": 1, "batches": [{"schema": "v3", "phase": "pairwise", "batch_idx": 0, "pair": ["10.1.0.0", "10.1.0.1"],
"self_ip": "10.1.0.%[2]d", "local_rank": 0, "device": "MetaX C500", "status": "ok", "allreduce_ms": 120.0, "world_size": 16,
"allreduce_shape": 536870912, "dtype_bytes": 4, "ranks_recorded": 8}]}`

// kcoverPage: the container of docs/migrate-kcover.md sends the reports that kcover's has left on the hosts of a job, and the remediator
// gives a verdict.
func kcoverPage(t *testing.T, c *cluster.Cluster) {
	s := newSite(t, c, "page-kcover", 2, nil)
	var container corev1.Container
	for _, shown := range pages.Of(t, c.Root, "migrate-kcover.md") {
		var pod corev1.PodSpec
		if err := yaml.Unmarshal([]byte(shown.Text), &pod); err == nil && len(pod.InitContainers) == 1 {
			container = pod.InitContainers[0]
		}
	}
	if len(container.Args) == 0 {
		t.Fatal("the page shows no init container")
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "kcover"}, Spec: batchv1.JobSpec{
		Parallelism: ptr.To[int32](2), Completions: ptr.To[int32](2), CompletionMode: ptr.To(batchv1.IndexedCompletion),
	}}
	job.Spec.Template.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{"train": s.name}, ServiceAccountName: "pitcrew-preflight",
		InitContainers: []corev1.Container{container}, Containers: []corev1.Container{s.wholeNode()},
		Volumes: []corev1.Volume{{Name: container.VolumeMounts[0].Name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: container.VolumeMounts[0].MountPath},
		}}},
	}
	if err := c.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	s.until("both ranks have a node", func() error {
		err := c.Client.List(t.Context(), &pods, client.InNamespace(job.Namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name})
		if err != nil || len(pods.Items) != 2 || pods.Items[0].Status.StartTime == nil || pods.Items[1].Status.StartTime == nil {
			return fmt.Errorf("%d pods, %w", len(pods.Items), err)
		}
		return nil
	})
	for i := range pods.Items {
		pod := &pods.Items[i]
		rank := pod.Annotations[batchv1.JobCompletionIndexAnnotation]
		s.kubectl("label", "pod", pod.Name, "--namespace", pod.Namespace, "training.kubeflow.org/replica-index="+rank)
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			t.Fatal(err)
		}
		folder := t.TempDir()
		file := filepath.Join(folder, pod.Namespace, "train-"+rank+".json")
		if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(kcoverReport, pod.Spec.NodeName, int(rank[0]-'0'))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		// With -best-effort it ends well whatever happens.
		if out, err := s.preflight(pod, container, folder); err != nil || strings.Contains(out, "level=WARN") {
			t.Fatalf("rank %s: %v\n%s", rank, err, out)
		}
	}
	s.until("the run has a verdict", func() error {
		var reports corev1.ConfigMapList
		run := client.MatchingLabels{conditions.LabelPreflightRun: string(job.UID)}
		if err := c.Client.List(t.Context(), &reports, client.InNamespace(job.Namespace), run); err != nil {
			return err
		}
		want := "run " + string(job.UID) + ": 2 of 2 reported"
		for _, r := range reports.Items {
			if r.Annotations[conditions.AnnotationPreflightVerdict] == want {
				return nil
			}
		}
		return fmt.Errorf("%d reports", len(reports.Items))
	})
}
