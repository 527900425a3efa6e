//go:build operators

package operators

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	kubernetesclient "k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	inpod "github.com/pitcrew-dev/pitcrew/internal/preflight/gang"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/preflighttest"
)

// TestTheInjectedPreflightFindsItsRank applies each manifest of the examples with the label that opts its pods in. The real operators make
// the pods, the API server puts the container into them, and of what that container has in its environment and sees of its pod and its Job
// it finds rank, size and the pod of rank 0.
func TestTheInjectedPreflightFindsItsRank(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		operator *operator
		spec     string
		// change changes the manifest; nil: nothing.
		change *strings.Replacer
	}{
		"job":    {operator: kubernetes},
		"jobset": {operator: kubernetes},
		"jobset of several Jobs": {operator: kubernetes, change: strings.NewReplacer(
			"replicas: 1", "replicas: 2", "completions: 4", "completions: 2", "parallelism: 4", "parallelism: 2")},
		"pytorchjob":      {operator: trainingOperator},
		"tfjob":           {operator: trainingOperator},
		"xgboostjob":      {operator: trainingOperator},
		"paddlejob":       {operator: trainingOperator},
		"jaxjob":          {operator: trainingOperator},
		"leaderworkerset": {operator: lws},
		"volcano":         {operator: volcano},
		"volcano with its plugin pytorch": {operator: volcano, change: strings.NewReplacer("env: []", "pytorch: [--master=master, --worker=rank]",
			"  tasks:\n", "  tasks:\n  - name: master\n    replicas: 1\n    template: {spec: {restartPolicy: Never, containers: [{name: train, image: train}]}}\n",
			"replicas: 4", "replicas: 3")},
		"trainjob": {operator: trainer, spec: `
  runtimePatches:
  - manager: e2e.pitcrew.dev/test
    trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {metadata: {labels: {` + conditions.LabelPreflight + `: "true"}}, spec: {nodeSelector: {` + cluster.LabelPool + `: NAMESPACE}}}}}}]}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, _, _ := strings.Cut(name, " ")
			text, err := os.ReadFile(filepath.Join(examples, file+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			manifest := string(text) + strings.TrimPrefix(test.spec, "\n")
			if test.change != nil {
				manifest = test.change.Replace(manifest)
			}
			j := job{operator: test.operator, ranks: 4, before: gang.isInjected}
			j.manifest, j.kind = placed(t, manifest)
			g := start(t, j)
			var pods corev1.PodList
			if err := g.c.Client.List(t.Context(), &pods, client.InNamespace(g.namespace)); err != nil {
				t.Fatal(err)
			}
			clients, err := kubernetesclient.NewForConfig(g.c.Admin)
			if err != nil {
				t.Fatal(err)
			}
			var ranks []int
			var leaders []string
			byRank := map[int]string{}
			for i := range pods.Items {
				pod := &pods.Items[i]
				first := pod.Spec.InitContainers[0]
				if first.Name != inpod.Container {
					t.Fatalf("the first init container of %s is %s", pod.Name, first.Name)
				}
				var job *batchv1.Job
				if name := inpod.JobOf(pod); name != "" {
					job = &batchv1.Job{}
					if err := g.c.Client.Get(t.Context(), client.ObjectKey{Namespace: pod.Namespace, Name: name}, job); err != nil {
						t.Fatal(err)
					}
				}
				p, err := inpod.Of(pod, job, preflighttest.Environment(t, g.c.Client, pod, first))
				if err != nil {
					t.Fatalf("%s: %v", pod.Name, err)
				}
				if p.Size != j.ranks {
					t.Errorf("%s: size %d", pod.Name, p.Size)
				}
				ranks, byRank[p.Rank] = append(ranks, p.Rank), pod.Name
				found, err := clients.CoreV1().Pods(pod.Namespace).List(t.Context(), p.Leader)
				if err != nil || len(found.Items) != 1 || !p.Owns(&found.Items[0]) {
					t.Fatalf("%s: %d pods of rank 0 by %+v of %q: %v", pod.Name, len(found.Items), p.Leader, p.Owner, err)
				}
				leaders = append(leaders, found.Items[0].Name)
			}
			if slices.Sort(ranks); !slices.Equal(ranks, []int{0, 1, 2, 3}) {
				t.Errorf("ranks %v", ranks)
			}
			if slices.ContainsFunc(leaders, func(name string) bool { return name != byRank[0] }) {
				t.Errorf("rank 0 is %s, but the pods find %s", byRank[0], leaders)
			}
		})
	}
}

// isInjected applies the policy that puts preflight into the pods of the gang, and waits until it is in force.
func (g gang) isInjected() {
	g.Helper()
	policy, err := g.c.Kubectl(g.Context(), "kustomize", g.c.Root+"/manifests/preflight/inject")
	if err != nil {
		g.Fatal(err)
	}
	policy = strings.NewReplacer("ame: pitcrew-preflight-inject", "ame: "+g.namespace, "team-a", g.namespace).Replace(policy)
	if err := g.c.Apply(g.Context(), []byte(policy)); err != nil {
		g.Fatal(err)
	}
	clustertest.Until(g, patience, "wait for the policy", func() error {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "rank", Image: "none"}}}}
		pod.Namespace, pod.Name, pod.Labels = g.namespace, "rank", map[string]string{conditions.LabelPreflight: "true"}
		if err := g.c.Client.Create(g.Context(), pod, client.DryRunAll); err != nil || len(pod.Spec.InitContainers) == 0 {
			return fmt.Errorf("init containers %+v: %w", pod.Spec.InitContainers, err)
		}
		return nil
	})
}
