package docs

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// TestEveryKindHasAnExampleThatIsRestarted reads the manifests as the remediator does. That the real API server takes them, and that
// they are restarted, is tested in remediator/jobs/operators.
func TestEveryKindHasAnExampleThatIsRestarted(t *testing.T) {
	page := read(t, "jobs.md") + read(t, "job-kinds.md")
	shown := map[string]bool{"apps/v1 ReplicaSet": true} // which a Deployment makes
	for _, file := range yamls(t, "examples/jobs") {
		if !strings.Contains(page, "("+file+")") {
			t.Errorf("jobs.md has no link to %s", file)
		}
		objects := decode(t, []byte(read(t, file)))
		job := objects[len(objects)-1]
		if job.GetKind() == "Namespace" {
			if job.GetLabels()["pitcrew.dev/restart-on-node-fault"] != "true" {
				t.Errorf("%s: the namespace opts in to nothing", file)
			}
			continue
		}
		kind, known := kinds.Find(kinds.BuiltIn(), job.GetAPIVersion(), job.GetKind())
		if !known {
			t.Errorf("%s: %s %s is no kind that the remediator restarts", file, job.GetAPIVersion(), job.GetKind())
			continue
		}
		shown[job.GetAPIVersion()+" "+job.GetKind()] = true
		job.SetNamespace("team-a")
		job.SetUID("job-uid")
		_, queued := job.GetLabels()["kueue.x-k8s.io/queue-name"]
		objects = []*unstructured.Unstructured{asServed(t, job)}
		if queued {
			objects = append(objects, workloadOf(job))
		}
		served := fake.NewClientBuilder().WithScheme(scheme.Scheme)
		for _, object := range objects {
			served.WithObjects(object)
		}
		reader := served.Build()
		read, err := kind.Read(t.Context(), reader, client.ObjectKeyFromObject(job))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if read.Unsupported.Reason != "" || read.ManagedBy != "" || read.Suspended {
			t.Errorf("%s would not be restarted: %+v, managed by %q, suspended %t", file, read.Unsupported, read.ManagedBy, read.Suspended)
		}
		in, err := kinds.ReadOptIn(t.Context(), reader, kinds.Workload{Namespace: "team-a", Kind: kind, Job: &read})
		if err != nil || !in.In || in.Namespace {
			t.Errorf("%s: opted in by %+v: %v", file, in, err)
		}
		if queued && read.SuspendField.Elsewhere == nil {
			t.Errorf("%s: Kueue does not stop and start it", file)
		}
	}
	for _, k := range kinds.BuiltIn() {
		apiVersion, kind := k.GVK.ToAPIVersionAndKind()
		if !shown[apiVersion+" "+kind] {
			t.Errorf("examples/jobs has no %s of %s", kind, apiVersion)
		}
	}
}

// asServed is a job as the API server gives it: of a Job, with the selector that it fills in.
func asServed(t *testing.T, job *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	if job.GetAPIVersion() == "batch/v1" {
		selector := map[string]string{"batch.kubernetes.io/job-name": job.GetName()}
		if err := unstructured.SetNestedStringMap(job.Object, selector, "spec", "selector", "matchLabels"); err != nil {
			t.Fatal(err)
		}
	}
	return job
}

// workloadOf is what Kueue makes for a job in a queue.
func workloadOf(job *unstructured.Unstructured) *unstructured.Unstructured {
	uid := string(job.GetUID())
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": map[string]any{"active": true},
		"metadata": map[string]any{
			"namespace": job.GetNamespace(), "name": "job-train", "labels": map[string]any{"kueue.x-k8s.io/job-uid": uid},
			"ownerReferences": []any{map[string]any{
				"apiVersion": job.GetAPIVersion(), "kind": job.GetKind(), "name": job.GetName(), "uid": uid, "controller": true,
			}},
		},
	}}
}

// The page shows the manifests themselves.
func TestTheManifestsOnThePageOfJobsAreExamples(t *testing.T) {
	var examples []string
	for _, file := range yamls(t, "examples/jobs") {
		examples = append(examples, read(t, file))
	}
	blocks := values.FindAllStringSubmatch(read(t, "jobs.md")+read(t, "job-kinds.md"), -1)
	if len(blocks) == 0 {
		t.Error("the pages show no manifest")
	}
	for _, block := range blocks {
		if !slices.ContainsFunc(examples, func(text string) bool { return strings.HasSuffix(text, block[1]) }) {
			t.Errorf("jobs.md or job-kinds.md shows what is in no file of examples/jobs:\n%s", block[1])
		}
	}
}

// TestTheValuesOfTheExamplesRender renders each file with the chart and parses the policy that comes out.
func TestTheValuesOfTheExamplesRender(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.Build(t.Context(), os.Stderr, root, components.Helm); err != nil {
		t.Fatal(err)
	}
	for _, file := range yamls(t, "examples/values") {
		out, err := exec.CommandContext(t.Context(), components.Helm.Path(root), "template", "pitcrew", filepath.Join(root, "manifests/chart"),
			"--namespace", "pitcrew", "--values", file).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%.2000s", file, err, out)
			continue
		}
		pools, enforces := 0, false
		for _, object := range decode(t, out) {
			switch {
			case object.GetKind() == "DaemonSet":
				pools++
			case object.GetKind() == "ConfigMap" && object.GetName() == "pitcrew-policy":
				text, _, _ := unstructured.NestedString(object.Object, "data", "policy.yaml")
				enforces = enforcesSomething(t, file, text)
			}
		}
		if pools == 0 || !enforces {
			t.Errorf("%s: %d pools, a rule enforces: %t", file, pools, enforces)
		}
	}
}

// TestTheValuesOfGitOpsRender renders the chart with the values in the examples for Argo CD and Flux.
func TestTheValuesOfGitOpsRender(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.Build(t.Context(), os.Stderr, root, components.Helm); err != nil {
		t.Fatal(err)
	}
	at := map[string][]string{"Application": {"spec", "source", "helm", "valuesObject"}, "HelmRelease": {"spec", "values"}}
	rendered := 0
	for _, file := range yamls(t, "examples/gitops") {
		for _, object := range decode(t, []byte(read(t, file))) {
			fields, ok := at[object.GetKind()]
			if !ok {
				continue
			}
			values, found, err := unstructured.NestedMap(object.Object, fields...)
			if err != nil || !found {
				t.Fatalf("%s has no values: %v", file, err)
			}
			text, err := yaml.Marshal(values)
			if err != nil {
				t.Fatal(err)
			}
			helm := exec.CommandContext(t.Context(), components.Helm.Path(root), "template", "pitcrew", filepath.Join(root, "manifests/chart"),
				"--namespace", "pitcrew", "--values", "-")
			helm.Stdin = bytes.NewReader(text)
			out, err := helm.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "kind: DaemonSet") {
				t.Errorf("%s: %v\n%.2000s", file, err, out)
			}
			rendered++
		}
	}
	if rendered != 2 {
		t.Errorf("%d examples, want Argo CD and Flux", rendered)
	}
}

// TestTheAccountsOfOpenShiftAreThoseOfTheChart compares the accounts that may use a security context constraint with those that the chart makes.
func TestTheAccountsOfOpenShiftAreThoseOfTheChart(t *testing.T) {
	chart := ""
	for _, file := range yamls(t, "../manifests/chart/templates") {
		chart += read(t, file)
	}
	accounts := 0
	for _, object := range decode(t, []byte(read(t, "examples/openshift/scc.yaml"))) {
		subjects, _, _ := unstructured.NestedSlice(object.Object, "subjects")
		for _, subject := range subjects {
			name, _ := subject.(map[string]any)["name"].(string)
			accounts++
			if name == "" || !strings.Contains(chart, "serviceAccountName: "+name+"\n") {
				t.Errorf("no pod of the chart has the account %q", name)
			}
		}
	}
	if accounts != 3 {
		t.Errorf("%d accounts, want 3", accounts)
	}
}

func TestThePolicyOfTheExamplesIsValid(t *testing.T) {
	const file = "examples/policy.yaml"
	if !enforcesSomething(t, file, read(t, file)) {
		t.Errorf("%s: no rule enforces", file)
	}
}

func enforcesSomething(t *testing.T, file, text string) bool {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	if err != nil {
		t.Errorf("%s: %v", file, err)
		return false
	}
	return slices.ContainsFunc(p.Rules, func(r policy.Rule) bool { return !r.Observe && !r.AlertOnly })
}

// yamls are the files of a folder; there must be some.
func yamls(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", dir, err)
	}
	return files
}

// decode reads the objects of a YAML stream.
func decode(t *testing.T, stream []byte) (objects []*unstructured.Unstructured) {
	t.Helper()
	for documents := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096); ; {
		object := &unstructured.Unstructured{}
		err := documents.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if object.Object != nil {
			objects = append(objects, object)
		}
	}
}
