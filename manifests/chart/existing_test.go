package chart_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	npdconfig "k8s.io/node-problem-detector/pkg/custompluginmonitor/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// existing is the folder of the manifests for a Node Problem Detector that runs already.
const existing = "../existing-npd"

// guard runs a plugin through a shell that always exists: NPD does not start while the path of a rule does not exist. The plugin replaces
// the shell's process, so it is a direct child of NPD.
const guard = `[ -x "$0" ] || { echo "unknown: $0 is not installed yet"; exit 2; }; exec "$0" "$@"`

// An existing NPD gets what a pool of the chart has: monitors, mounts, and the settings that keep it running. It runs on all nodes, also
// on those without a GPU.
func TestGeneratedExistingNPD(t *testing.T) {
	objects := mustRender(t, "pools: [{name: existing, preset: nvidia, checks: {HCAPortDown: {}, GPUCountMismatch: {args: {expect: 0}}}}]")
	ds := find[appsv1.DaemonSet](t, objects, "DaemonSet", "pitcrew-npd-existing")
	monitors := find[corev1.ConfigMap](t, objects, "ConfigMap", "pitcrew-npd-existing").Data
	pod := ds.Spec.Template.Spec
	var volumes, mounts []any
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			v.Name = "pitcrew-" + v.Name
			volumes = append(volumes, v)
		}
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		if m.Name != "monitors" {
			m.Name = "pitcrew-" + m.Name
			mounts = append(mounts, m)
		}
	}
	write := func(file string, value any) {
		t.Helper()
		text, err := yaml.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		written(t, filepath.Join(existing, file), append([]byte("# Made from the chart's pool with the preset nvidia by `make generate`.\n"), text...))
	}
	type object = map[string]any
	type list = []any

	write("monitors.yaml", object{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": object{"name": "pitcrew-monitors", "namespace": "kube-system", "labels": object{"app.kubernetes.io/part-of": "pitcrew"}},
		"data":     monitors,
	})
	image := strings.Replace(pod.Containers[0].Image, "/npd-plugins:", "/plugins:", 1)
	if installer, err := os.ReadFile(filepath.Join(existing, "installer.yaml")); err != nil || !strings.Contains(string(installer), "image: "+image+"\n") {
		t.Errorf("installer.yaml (%v) does not install %s", err, image)
	}
	plugins := func(path string, readOnly bool) object {
		return object{"name": "pitcrew-plugins", "mountPath": path, "readOnly": readOnly}
	}
	write("patch.yaml", object{
		"apiVersion": "apps/v1", "kind": "DaemonSet",
		"metadata": object{"name": "node-problem-detector", "namespace": "kube-system"},
		"spec": object{"template": object{"spec": object{
			"shareProcessNamespace":         true,
			"terminationGracePeriodSeconds": 5,
			// It starts after all of them exist.
			"initContainers": list{object{
				"name": "pitcrew-plugins", "image": image, "args": list{"/target"}, "volumeMounts": list{plugins("/target", false)},
			}},
			"containers": list{object{
				"name":      "node-problem-detector",
				"resources": object{"limits": object{"cpu": nil, "memory": pod.Containers[0].Resources.Limits.Memory()}},
				"volumeMounts": append(slices.Clone(mounts), plugins("/opt/pitcrew", true),
					object{"name": "pitcrew-monitors", "mountPath": "/etc/pitcrew/monitors", "readOnly": true}),
			}},
			"volumes": append(slices.Clone(volumes), object{"name": "pitcrew-plugins", "emptyDir": object{}},
				object{"name": "pitcrew-monitors", "configMap": object{"name": "pitcrew-monitors"}}),
		}}},
	})
	args := list{}
	for _, arg := range pod.Containers[0].Args[:2] {
		args = append(args, object{"op": "add", "path": "/spec/template/spec/containers/0/command/-", "value": arg})
	}
	write("command.yaml", args)
	definitions, paths := object{}, list{}
	for file, text := range monitors {
		definitions[file] = guarded(t, text)
	}
	for _, file := range slices.Sorted(maps.Keys(monitors)) {
		paths = append(paths, "/custom-config/"+file)
	}
	write("deliveryhero-values.yaml", object{
		"image": object{"tag": npdVersion(t)},
		"settings": object{
			"custom_monitor_definitions": definitions, "custom_plugin_monitors": paths, "heartBeatPeriod": "1m0s",
		},
		// The chart cannot share the process namespace of a pod, so the node's first process reaps.
		"hostPID":     true,
		"tolerations": pod.Tolerations,
		"extraVolumes": append(slices.Clone(volumes), object{"name": "pitcrew-plugins",
			"hostPath": object{"path": "/var/lib/pitcrew", "type": "DirectoryOrCreate"}}),
		"extraVolumeMounts": append(slices.Clone(mounts), plugins("/opt/pitcrew", true)),
	})
}

// npdVersion is the version of the Node Problem Detector that the tests run. Its image has a C library that is new enough for the plugins
// that open NVML; the images of upstream's manifest and of the community chart do not.
func npdVersion(t *testing.T) string {
	t.Helper()
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	module, err := components.NodeProblemDetector.ModuleDir(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(filepath.Base(module), "@")
	return version
}

// guarded makes a monitor run its plugin by [guard].
func guarded(t *testing.T, monitor string) string {
	t.Helper()
	var config map[string]any
	if err := json.Unmarshal([]byte(monitor), &config); err != nil {
		t.Fatal(err)
	}
	rule := config["rules"].([]any)[0].(map[string]any)
	rule["args"] = append([]any{"-c", guard, rule["path"]}, rule["args"].([]any)...)
	rule["path"] = "/bin/sh"
	text, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// The API server accepts upstream's manifest with our component. The result is the same as a pool of the chart.
func TestUpstreamsManifestWithOurComponent(t *testing.T) {
	c := clustertest.Get(t)
	upstream, err := components.NodeProblemDetector.ModuleDir(t.Context(), c.Root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	relative := func(path string) string {
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		return rel
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, "resources: [%s]\ncomponents: [%s]\n",
		relative(filepath.Join(upstream, "deployment")), relative(filepath.Join(c.Root, "manifests", "existing-npd"))), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := notice(existing); err != nil {
		t.Fatal(err)
	}
	out := kubectl(t, c, "kustomize", dir)
	objects := decode(t, out)
	var ds appsv1.DaemonSet
	for _, o := range objects {
		if o.GetKind() == "DaemonSet" {
			ds = find[appsv1.DaemonSet](t, objects, "DaemonSet", o.GetName())
		}
	}
	keepsTheRules(t, ds)
	pod := ds.Spec.Template.Spec
	if image := pod.Containers[0].Image; image != "registry.k8s.io/node-problem-detector/node-problem-detector:"+npdVersion(t) {
		t.Errorf("it runs %s", image)
	}
	// The last two are ours, as in a pool of our own.
	pod.Containers[0].Args = pod.Containers[0].Command[len(pod.Containers[0].Command)-2:]
	ds.Spec.Template.Spec = pod
	monitorsRun(t, ds, find[corev1.ConfigMap](t, objects, "ConfigMap", "pitcrew-monitors"))
	file := filepath.Join(dir, "all.yaml")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "apply", "--server-side", "--validate=strict", "-f", file)
	kubectl(t, c, "delete", "-f", file)
	for _, verb := range [][]string{{"apply", "--server-side", "--validate=strict"}, {"delete"}} {
		kubectl(t, c, append(verb, "--namespace=kube-system", "-f", filepath.Join(existing, "installer.yaml"))...)
	}
}

// communityValues are those of the community chart that we set, by its own README.
type communityValues struct {
	Image struct {
		Tag string `json:"tag"`
	} `json:"image"`
	Settings struct {
		Definitions map[string]string `json:"custom_monitor_definitions"`
		Monitors    []string          `json:"custom_plugin_monitors"`
		Heartbeat   string            `json:"heartBeatPeriod"`
	} `json:"settings"`
	HostPID           bool                 `json:"hostPID"`
	Tolerations       []corev1.Toleration  `json:"tolerations"`
	ExtraVolumes      []corev1.Volume      `json:"extraVolumes"`
	ExtraVolumeMounts []corev1.VolumeMount `json:"extraVolumeMounts"`
}

func readCommunityValues(t *testing.T) (values communityValues) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(existing, "deliveryhero-values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// The community chart itself is not available here. From the values it makes a pod with them and a file for each definition.
func TestCommunityChartValues(t *testing.T) {
	c := clustertest.Get(t)
	values := readCommunityValues(t)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "community"},
		Spec: corev1.PodSpec{
			HostPID: values.HostPID, Tolerations: values.Tolerations, Volumes: values.ExtraVolumes, ServiceAccountName: "default",
			Containers: []corev1.Container{{Name: "npd", Image: "npd", VolumeMounts: values.ExtraVolumeMounts}},
		},
	}
	clustertest.Until(t, 3*time.Minute, "the API server takes the pod", func() error {
		return c.Client.Create(t.Context(), pod.DeepCopy(), client.DryRunAll)
	})
	for _, path := range values.Settings.Monitors {
		var monitor npdconfig.CustomPluginConfig
		definition := strings.ReplaceAll(values.Settings.Definitions[filepath.Base(path)], "/opt/pitcrew/bin/", filepath.Join(c.Root, "bin")+"/")
		if err := json.Unmarshal([]byte(definition), &monitor); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := errors.Join(monitor.ApplyConfiguration(), monitor.Validate()); err != nil {
			t.Error(err)
		}
		rule := monitor.Rules[0]
		plugin := filepath.Base(rule.Args[2])
		if err := components.BuildOurs(t.Context(), c.Root, "./plugins/"+plugin); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), rule.Path, append(slices.Clone(rule.Args), "-version")...).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), plugin+" ") {
			t.Errorf("%s %q: %v: %s", rule.Path, rule.Args, err, out)
		}
	}
}

// If a plugin is missing, the Node Problem Detector continues and reports Unknown. It runs the plugin as soon as it exists.
func TestAMissingPluginIsUnknown(t *testing.T) {
	c := clustertest.Get(t)
	if err := c.AddThisMachine(t.Context(), "existing"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	monitor := strings.NewReplacer("/opt/pitcrew/bin/", dir+"/", "/host/proc", "/proc").
		Replace(readCommunityValues(t).Settings.Definitions["MountReadOnly.json"])
	file := filepath.Join(dir, "MountReadOnly.json")
	if err := os.WriteFile(file, []byte(monitor), 0o600); err != nil {
		t.Fatal(err)
	}
	npd, err := c.StartNPD(t.Context(), cluster.NPD{Node: "existing", Monitors: []cluster.Monitor{{File: file}}})
	if err != nil {
		t.Fatal(err)
	}
	defer npd.Stop(5 * time.Second)
	message := func() string {
		var node corev1.Node
		if err := c.Client.Get(t.Context(), client.ObjectKey{Name: "existing"}, &node); err != nil {
			return err.Error()
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == "MountReadOnly" {
				return fmt.Sprintf("%s %s", condition.Status, condition.Message)
			}
		}
		return "no condition"
	}
	missing := "Unknown unknown: " + dir + "/mounts is not installed yet"
	clustertest.Until(t, 3*time.Minute, "the plugin is missing", func() error {
		if got := message(); got != missing {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
	if err := components.BuildOurs(t.Context(), c.Root, "./plugins/mounts"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(c.Root, "bin", "mounts"), filepath.Join(dir, "mounts")); err != nil {
		t.Fatal(err)
	}
	clustertest.Until(t, 3*time.Minute, "the plugin is there", func() error {
		if got := message(); got == missing {
			return fmt.Errorf("%s", got)
		}
		return nil
	})
}
