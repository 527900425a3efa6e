//go:build operators

package operators

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// examples are the manifests that docs/jobs.md shows.
const examples = "../../../docs/examples/jobs"

// TestEachExampleIsRestarted applies each manifest to the real API server with the real CRDs, has its real operator run it, and
// restarts it. Of the manifest only the name, the namespace and where its pods run are changed.
func TestEachExampleIsRestarted(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		operator *operator
		ranks    int
		// before is applied before the manifest; spec is added to the spec, as its last lines.
		before, spec string
		// evicted: only the pods on the node are replaced.
		evicted bool
	}{
		"job":         {operator: kubernetes, ranks: 4},
		"jobset":      {operator: kubernetes, ranks: 4},
		"statefulset": {operator: kubernetes, ranks: 2, evicted: true},
		"deployment":  {operator: kubernetes, ranks: 2, evicted: true},
		"pytorchjob":  {operator: trainingOperator, ranks: 4},
		"tfjob":       {operator: trainingOperator, ranks: 4},
		"xgboostjob":  {operator: trainingOperator, ranks: 4},
		"paddlejob":   {operator: trainingOperator, ranks: 4},
		"jaxjob":      {operator: trainingOperator, ranks: 4},
		"mpijob-v1":   {operator: trainingOperator, ranks: 5},
		"mpijob":      {operator: mpiOperator, ranks: 5},
		"trainjob": {operator: trainer, ranks: 4, spec: `
  runtimePatches:
  - manager: e2e.pitcrew.dev/test
    trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {` + dying + `, spec: {nodeSelector: {` + cluster.LabelPool + `: NAMESPACE}}}}}}]}}}`},
		"raycluster": {operator: kubeRay, ranks: 5},
		// The sixth pod submits it.
		"rayjob": {operator: kubeRay, ranks: 6, spec: `
  submitterPodTemplate: {` + dying + `, spec: {restartPolicy: Never, containers: [{name: submit, image: none}]}}`},
		"volcano":         {operator: volcano, ranks: 4},
		"leaderworkerset": {operator: lws, ranks: 4},
		"kueue-job":       {operator: kueue, ranks: 4, before: strings.Replace(queue, "name: queue", "name: gpus", 1)},
	}
	files, err := filepath.Glob(filepath.Join(examples, "*.yaml"))
	if err != nil || len(files) != len(tests)+1 { // and the namespace
		t.Errorf("%d files in %s, want one for each of %d tests and namespace.yaml: %v", len(files), examples, len(tests), err)
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join(examples, name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			j := job{operator: test.operator, ranks: test.ranks}
			j.manifest, j.kind = placed(t, string(text)+strings.TrimPrefix(test.spec, "\n"))
			j.manifest = test.before + "\n" + j.manifest
			g := start(t, j)
			r, _ := run(t, g.config(), interceptor.Funcs{}, nil)
			q := g.quarantine(g.runs()[0].Spec.NodeName)
			restartJobs(t, r, q)
			if closed := g.closes(); closed.Phase != restart.Done {
				t.Errorf("closed as %+v", closed)
			}
			if !test.evicted {
				g.restartedOnce(q.Node)
			}
			for _, pod := range g.runs() {
				if pod.Spec.NodeName == q.Node {
					t.Errorf("pod %s runs on %s", pod.Name, q.Node)
				}
			}
		})
	}
}

// placed is a manifest whose objects are called as a gang calls them and whose pods run on the nodes of the gang, and the kind of
// its job, which is the last object.
func placed(t *testing.T, manifest string) (text string, kind kinds.Kind) {
	t.Helper()
	for document := range strings.SplitSeq(manifest, "\n---\n") {
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		metadata := object["metadata"].(map[string]any)
		metadata["name"], metadata["namespace"] = "train", "NAMESPACE"
		place(object)
		out, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		text += "---\n" + string(out)
		kind, _ = kinds.Get(kinds.BuiltIn(), schema.FromAPIVersionAndKind(object["apiVersion"].(string), object["kind"].(string)))
	}
	return text, kind
}

// place gives every pod template below v the node selector of the gang, ranks that take a while to end, and the label for preflight.
func place(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			place(item)
		}
	case map[string]any:
		for _, field := range v {
			place(field)
		}
		spec, _ := v["spec"].(map[string]any)
		if spec["containers"] == nil {
			return
		}
		spec["nodeSelector"] = map[string]any{cluster.LabelPool: "NAMESPACE"}
		metadata, _ := v["metadata"].(map[string]any)
		if metadata == nil {
			metadata = map[string]any{}
			v["metadata"] = metadata
		}
		metadata["annotations"] = map[string]any{"e2e.pitcrew.dev/term-delay": "1s"}
		labels, ok := metadata["labels"].(map[string]any)
		if !ok {
			labels = map[string]any{}
			metadata["labels"] = labels
		}
		labels[conditions.LabelPreflight] = "true"
	}
}
