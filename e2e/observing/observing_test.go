// Package observing_test compares a whole cluster before and after the installation of the chart as it ships, which observes, while nodes
// fail. docs/stability.md says what it found.
package observing_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{}) }

const (
	patience  = 3 * time.Minute
	namespace = "pitcrew"
	team      = "team-a"
)

// ours are the namespaces in which everything is Pitcrew's.
var ours = []string{namespace, "pitcrew-evidence", "pitcrew-repair"}

func TestAnObservingInstallationChangesOnlyWhatIsItsOwn(t *testing.T) {
	c := clustertest.Get(t)
	nodes, err := c.AddNodes(t.Context(), "gpu", 3, func(n *corev1.Node) { n.Labels["nvidia.com/gpu.present"] = "true" })
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddNamespace(t.Context(), team, map[string]string{conditions.LabelRestartOnNodeFault: "true"}); err != nil {
		t.Fatal(err)
	}
	train(t, c, len(nodes))
	before := snapshot(t, c)

	args := install(t, c)
	stop := run(t, c, args...)
	fails(t, c, nodes[0], conditions.GPUXidError, "Reboot gpu 0000:1b:00: Xid 79 GPU has fallen off the bus")
	fails(t, c, nodes[1], conditions.GPUMemoryError, "ResetGPU gpu 0000:1b:00: the driver asks for a reset")
	for _, node := range nodes[:2] {
		clustertest.Until(t, patience, node+" would be quarantined", func() error { return reported(t, c, node, "WouldQuarantine") })
		// The Event comes first: a remediator that ends in between has written nothing of it.
		clustertest.Until(t, patience, node+" has the record", func() error { return recorded(t, c, node) })
	}
	stop()
	observing := snapshot(t, c)
	written := []string{
		"metadata.annotations." + conditions.AnnotationQuarantine, "metadata.labels." + conditions.LabelRepair,
		"metadata.labels." + conditions.LabelStatus, "status.conditions",
	}
	want := map[string][]string{"Node /" + nodes[0]: written, "Node /" + nodes[1]: written}
	if diff := cmp.Diff(want, compare(before, observing)); diff != "" {
		t.Error("changed beside what is Pitcrew's own:", diff)
	}

	stop = run(t, c, append(args, "-dry-run")...)
	fails(t, c, nodes[2], conditions.GPUXidError, "Reboot gpu 0000:1b:00: Xid 79 GPU has fallen off the bus")
	clustertest.Until(t, patience, nodes[2]+" would be quarantined", func() error { return reported(t, c, nodes[2], "WouldQuarantine") })
	stop()
	want = map[string][]string{"Node /" + nodes[2]: {"status.conditions"}}
	if diff := cmp.Diff(want, compare(observing, snapshot(t, c))); diff != "" {
		t.Error("changed by a dry run:", diff)
	}
}

// train runs a job that is opted in, a pod on each node.
func train(t *testing.T, c *cluster.Cluster, pods int) {
	t.Helper()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "train"},
		Spec: batchv1.JobSpec{Parallelism: new(int32(pods)), Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"job": "train"}},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "none"}},
				NodeSelector: map[string]string{"nvidia.com/gpu.present": "true"},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"job": "train"}},
				}},
			},
		}},
	}
	if err := c.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	clustertest.Until(t, patience, "the job runs", func() error {
		err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job)
		if err == nil && (job.Status.Ready == nil || int(*job.Status.Ready) != pods) {
			err = fmt.Errorf("status %+v", job.Status)
		}
		return err
	})
}

// install installs the chart with Helm and the values of a first installation, and returns the arguments of its remediator.
func install(t *testing.T, c *cluster.Cluster) (args []string) {
	t.Helper()
	if err := components.Build(t.Context(), os.Stderr, c.Root, components.Helm); err != nil {
		t.Fatal(err)
	}
	helm := exec.CommandContext(t.Context(), components.Helm.Path(c.Root), "install", "pitcrew", filepath.Join(c.Root, "manifests/chart"),
		"--namespace", namespace, "--create-namespace", "--set", "pools[0].name=gpu,pools[0].preset=nvidia", "--wait", "--timeout=3m")
	helm.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig)
	if out, err := helm.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var deployment appsv1.Deployment
	if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "pitcrew-remediator"}, &deployment); err != nil {
		t.Fatal(err)
	}
	var policy corev1.ConfigMap
	if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "pitcrew-policy"}, &policy); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(policy.Data["policy.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, arg := range deployment.Spec.Template.Spec.Containers[0].Args {
		args = append(args, strings.Replace(arg, "/etc/pitcrew/policy.yaml", file, 1))
	}
	return args
}

// run runs the remediator as its Deployment would.
func run(t *testing.T, c *cluster.Cluster, args ...string) (stop func()) {
	t.Helper()
	remediator, err := c.RunRemediator(t.Context(), nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		remediator.Stop(10 * time.Second)
		if log := remediator.Log(); t.Failed() {
			t.Logf("log of the remediator:\n%s", log[max(0, len(log)-5_000):])
		}
	}
}

// fails writes what the Node Problem Detector of the pool would.
func fails(t *testing.T, c *cluster.Cluster, node string, condition corev1.NodeConditionType, message string) {
	t.Helper()
	now := metav1.Now()
	text, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: condition, Status: corev1.ConditionTrue, Reason: "Seen", Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Status().Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		client.RawPatch("application/strategic-merge-patch+json", text)); err != nil {
		t.Fatal(err)
	}
}

func reported(t *testing.T, c *cluster.Cluster, node, reason string) error {
	t.Helper()
	var events corev1.EventList
	if err := c.Client.List(t.Context(), &events); err != nil {
		return err
	}
	if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == node && e.Reason == reason }) {
		return fmt.Errorf("no Event %s", reason)
	}
	return nil
}

func recorded(t *testing.T, c *cluster.Cluster, node string) error {
	t.Helper()
	var n corev1.Node
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: node}, &n); err != nil {
		return err
	}
	if n.Annotations[conditions.AnnotationQuarantine] == "" || n.Labels[conditions.LabelRepair] == "" {
		return fmt.Errorf("labels %v, annotations %v", n.Labels, n.Annotations)
	}
	return nil
}

// changing are kinds that Kubernetes itself writes all the time. Events are how an observing installation reports.
var changing = []string{"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses", "endpoints"}

// snapshot has the objects of all kinds that are not Pitcrew's own, by kind, namespace and name.
func snapshot(t *testing.T, c *cluster.Cluster) map[string]map[string]any {
	t.Helper()
	kinds, err := c.Kubectl(t.Context(), "api-resources", "--verbs=list", "--output=name")
	if err != nil {
		t.Fatal(err)
	}
	listed := slices.DeleteFunc(strings.Fields(kinds), func(kind string) bool { return slices.Contains(changing, kind) })
	text, err := c.Kubectl(t.Context(), "get", strings.Join(listed, ","), "--all-namespaces", "--output=json")
	if err != nil {
		t.Fatal(err)
	}
	var list unstructured.UnstructuredList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string]any{}
	for _, o := range list.Items {
		if slices.Contains(ours, o.GetNamespace()) || o.GetKind() == "Namespace" && slices.Contains(ours, o.GetName()) ||
			o.GetLabels()["app.kubernetes.io/part-of"] == "pitcrew" {
			continue
		}
		found[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = stripped(o)
	}
	if len(found) < 100 {
		t.Fatalf("only %d objects", len(found))
	}
	return found
}

// stripped leaves out of an object what says only that it was written.
func stripped(o unstructured.Unstructured) map[string]any {
	o.SetManagedFields(nil)
	o.SetResourceVersion("")
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, condition := range conditions {
		if fields, ok := condition.(map[string]any); ok {
			delete(fields, "lastHeartbeatTime")
		}
	}
	if conditions != nil {
		_ = unstructured.SetNestedSlice(o.Object, conditions, "status", "conditions")
	}
	return o.Object
}

// compare returns the fields that differ, three levels deep, by object; an object that came or went has one field, its name.
func compare(before, after map[string]map[string]any) map[string][]string {
	changes := map[string][]string{}
	for name, now := range after {
		if was, ok := before[name]; !ok {
			changes[name] = []string{"created"}
		} else if fields := differ("", was, now, 2); len(fields) > 0 {
			slices.Sort(fields)
			changes[name] = fields
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			changes[name] = []string{"deleted"}
		}
	}
	return changes
}

func differ(at string, a, b map[string]any, deeper int) (fields []string) {
	keys := map[string]bool{}
	for _, m := range []map[string]any{a, b} {
		for key := range m {
			keys[key] = true
		}
	}
	for key := range keys {
		x, isMap := a[key].(map[string]any)
		y, areMaps := b[key].(map[string]any)
		switch {
		case cmp.Equal(a[key], b[key]):
		case deeper > 0 && isMap && areMaps:
			fields = append(fields, differ(at+key+".", x, y, deeper-1)...)
		default:
			fields = append(fields, at+key)
		}
	}
	return fields
}
