package chart_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	npdconfig "k8s.io/node-problem-detector/pkg/custompluginmonitor/types"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Every check alone gets only the mounts and privileges that it needs, and so does every preset.
func TestLeastPrivilege(t *testing.T) {
	const nvml = "privileged: /dev, /run/nvidia/driver->/host/driver ro"
	for name, test := range map[string]struct{ pool, want string }{
		"xid":        {"checks: {GPUXidError: {}}", "privileged: /dev/kmsg ro"},
		"hardware":   {"checks: {KernelHardwareError: {}}", "privileged: /dev/kmsg ro"},
		"ecc":        {"checks: {GPUMemoryError: {}}", nvml},
		"gpucount":   {"checks: {GPUCountMismatch: {}}", nvml},
		"thermal":    {"checks: {GPUOverheated: {}}", nvml},
		"nvlink":     {"checks: {NVLinkDown: {}}", nvml},
		"stall":      {"checks: {GPUStalled: {}}", nvml + ", /sys->/host/sys ro"},
		"dcgm":       {"checks: {DCGMDiagFailed: {}}", "drop [ALL]: "},
		"validation": {"checks: {NodeValidationFailed: {}}", "drop [ALL]: "},
		"hca":        {"checks: {HCAPortDown: {}}", "privileged: /dev/kmsg ro, /sys->/host/sys ro"},
		"hung":       {"checks: {NodeIOHung: {}}", "drop [ALL]: /proc->/host/proc ro, /->/host/root ro"},
		"containers": {"checks: {ContainersBroken: {}}", "privileged: /run/containerd/io.containerd.runtime.v2.task->/host/tasks ro, " +
			"/var/lib/kubelet/pod-resources->/host/kubelet ro, /proc->/host/proc ro, /sys->/host/sys ro"},
		"fabric":     {"checks: {FabricDegraded: {}}", "drop [ALL]: /sys->/host/sys ro"},
		"ntp":        {"checks: {ClockSkewed: {}}", "drop [ALL] add [DAC_OVERRIDE]: /run/chrony, /run/dbus ro"},
		"units":      {"checks: {NodeServiceDown: {}}", "drop [ALL]: /run/systemd ro"},
		"mounts":     {"checks: {MountReadOnly: {}}", "drop [ALL]: /proc->/host/proc ro"},
		"room":       {"checks: {MountReadOnly: {args: {min-free: 5, min-inodes: 5}}}", "drop [ALL]: /proc->/host/proc ro, /->/host/root ro"},
		"podlog":     {"checks: {WorkloadGPUError: {args: {namespaces: 'team-a,team-b'}}}", "drop [ALL]: /var/log/pods ro"},
		"metax":      {"checks: {MetaXGPUUnhealthy: {}}", "privileged: /dev, /dev/kmsg ro, /opt/mxdriver ro"},
		"ascend":     {"checks: {AscendNPUUnhealthy: {}}", "privileged: /usr/local/Ascend/driver ro, /usr/local/dcmi ro, /usr/local/sbin ro, /dev"},
		"library":    {"checks: {NVLinkDown: {}}, driverRoot: /usr/lib64", "privileged: /dev, /usr/lib64->/host/driver ro"},
		"switch off": {"preset: metax, checks: {MetaXGPUUnhealthy: {enabled: false}, ClockSkewed: {enabled: false}}", "drop [ALL]: /proc->/host/proc ro, /run/systemd ro"},
		"nvidia":     {"preset: nvidia", "privileged: /run/chrony, /run/dbus ro, /dev, /run/nvidia/driver->/host/driver ro, /dev/kmsg ro, /var/log->/host/log ro, /proc->/host/proc ro, /run/systemd ro"},
		"aws-efa":    {"preset: aws-efa", "privileged: /run/chrony, /run/dbus ro, /dev, /usr/lib64->/host/driver ro, /dev/kmsg ro, /var/log->/host/log ro, /proc->/host/proc ro, /sys->/host/sys ro, /run/systemd ro"},
		"own units":  {"preset: nvidia, checks: {NodeServiceDown: {args: {restarts: 5}}}", "privileged: /run/chrony, /run/dbus ro, /dev, /run/nvidia/driver->/host/driver ro, /dev/kmsg ro, /var/log->/host/log ro, /proc->/host/proc ro, /run/systemd ro"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := mustRender(t, "pools: [{name: p, nodeSelector: {kubernetes.io/os: linux}, "+test.pool+"}]")
			ds := find[appsv1.DaemonSet](t, objects, "DaemonSet", "pitcrew-npd-p")
			if diff := cmp.Diff(test.want, privileges(ds.Spec.Template.Spec)); diff != "" {
				t.Error(diff)
			}
			keepsTheRules(t, ds)
			monitorsRun(t, ds, find[corev1.ConfigMap](t, objects, "ConfigMap", "pitcrew-npd-p"))
		})
	}
}

// privileges lists what a pod can do to its node beyond its state directory.
func privileges(pod corev1.PodSpec) string {
	c := pod.Containers[0]
	who := "privileged"
	if s := c.SecurityContext; s.Privileged == nil || !*s.Privileged {
		who = fmt.Sprintf("drop %s", s.Capabilities.Drop)
		if len(s.Capabilities.Add) > 0 {
			who += fmt.Sprintf(" add %s", s.Capabilities.Add)
		}
	}
	var mounts []string
	for _, m := range c.VolumeMounts {
		if m.Name == "state" || m.Name == "monitors" {
			continue
		}
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		text := pod.Volumes[i].HostPath.Path
		if m.MountPath != text {
			text += "->" + m.MountPath
		}
		if m.ReadOnly {
			text += " ro"
		}
		mounts = append(mounts, text)
	}
	return who + ": " + strings.Join(mounts, ", ")
}

// keepsTheRules tests the rules that every Node Problem Detector of the chart follows.
func keepsTheRules(t *testing.T, ds appsv1.DaemonSet) {
	t.Helper()
	pod := ds.Spec.Template.Spec
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
		if !slices.Contains(pod.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: effect}) {
			t.Errorf("it does not tolerate %s", effect)
		}
	}
	if *pod.TerminationGracePeriodSeconds != 5 || !*pod.ShareProcessNamespace || pod.HostPID || pod.HostNetwork || pod.HostIPC {
		t.Error("grace period or namespaces are wrong")
	}
	if cpu := pod.Containers[0].Resources.Limits.Cpu(); !cpu.IsZero() {
		t.Errorf("it is throttled at %s CPUs", cpu)
	}
	for _, p := range pod.Containers[0].Ports {
		if p.HostPort != 0 {
			t.Errorf("port %d is open on the node", p.HostPort)
		}
	}
}

// monitorsRun tests that NPD accepts the monitors that the pod names, and that the plugins accept the arguments in them.
func monitorsRun(t *testing.T, ds appsv1.DaemonSet, config corev1.ConfigMap) {
	t.Helper()
	args := ds.Spec.Template.Spec.Containers[0].Args
	list, ok := strings.CutPrefix(args[0], "--config.custom-plugin-monitor=")
	if !ok || len(strings.Split(list, ",")) != len(config.Data) {
		t.Fatalf("args %q, monitors %d", args, len(config.Data))
	}
	for path := range strings.SplitSeq(list, ",") {
		var monitor npdconfig.CustomPluginConfig
		decoder := json.NewDecoder(strings.NewReader(config.Data[filepath.Base(path)]))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&monitor); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		rule := monitor.Rules[0]
		plugin := filepath.Base(rule.Path)
		if err := components.BuildOurs(t.Context(), root, "./plugins/"+plugin); err != nil {
			t.Fatal(err)
		}
		rule.Path = filepath.Join(root, "bin", plugin)
		if err := monitor.ApplyConfiguration(); err != nil {
			t.Fatal(err)
		}
		if err := monitor.Validate(); err != nil {
			t.Error(err)
		}
		// -version is handled after parsing: it fails if an argument is unknown.
		if out, err := exec.CommandContext(t.Context(), rule.Path, append(slices.Clone(rule.Args), "-version")...).CombinedOutput(); err != nil {
			t.Errorf("%s %q: %v: %s", plugin, rule.Args, err, out)
		}
	}
}

// The programs accept the arguments that the chart gives them: -version is handled after parsing.
func TestArguments(t *testing.T) {
	if err := errors.Join(components.Build(t.Context(), os.Stderr, root, components.NodeProblemDetector),
		components.BuildOurs(t.Context(), root, "./remediator")); err != nil {
		t.Fatal(err)
	}
	objects := mustRender(t, everything)
	for _, name := range []string{"nvidia", "metax"} { // without and with the host's network
		ds := find[appsv1.DaemonSet](t, objects, "DaemonSet", "pitcrew-npd-"+name)
		args := append(slices.Clone(ds.Spec.Template.Spec.Containers[0].Args), "--version")
		if out, err := exec.CommandContext(t.Context(), components.NodeProblemDetector.Path(root), args...).CombinedOutput(); err != nil {
			t.Errorf("node-problem-detector %q: %v\n%s", args, err, out)
		}
	}
	for values, want := range map[string][]string{
		everything: nil,
		"remediator: {logLevel: debug, logFormat: json}": {"-log-level=debug", "-log-format=json"},
		"remediator: {logLevel: error}":                  {"-log-level=error"},
		"remediator: {logLevel: info, logFormat: text}":  nil,
	} {
		d := find[appsv1.Deployment](t, mustRender(t, values), "Deployment", "pitcrew-remediator")
		args := d.Spec.Template.Spec.Containers[0].Args
		logging := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return !strings.HasPrefix(arg, "-log-") })
		if !slices.Equal(logging, want) {
			t.Errorf("%s: %q, want %q", values, logging, want)
		}
		args = append(slices.Clone(args), "-version")
		if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "bin", "remediator"), args...).CombinedOutput(); err != nil {
			t.Errorf("remediator %q: %v\n%s", args, err, out)
		}
	}
}

func TestPresetsChooseNodesByLabel(t *testing.T) {
	for pool, want := range map[string]string{
		"preset: nvidia":      `[{"key":"nvidia.com/gpu.present","operator":"In","values":["true"]}]`,
		"preset: nvidia-roce": `[{"key":"nvidia.com/gpu.present","operator":"In","values":["true"]},{"key":"feature.node.kubernetes.io/pci-15b3.present","operator":"In","values":["true"]}]`,
		"preset: metax":       `[{"key":"metax-tech.com/gpu.installed","operator":"In","values":["true"]}]`,
		"preset: ascend":      `[{"key":"accelerator","operator":"In","values":["huawei-Ascend910","huawei-Ascend310","huawei-Ascend310P"]}]`,
		"preset: metax, matchExpressions: [{key: pool, operator: Exists}]": `[{"key":"pool","operator":"Exists"}]`,
	} {
		ds := find[appsv1.DaemonSet](t, mustRender(t, "pools: [{name: p, "+pool+"}]"), "DaemonSet", "pitcrew-npd-p")
		terms := ds.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		got, err := json.Marshal(terms[0].MatchExpressions)
		if err != nil || len(terms) != 1 || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", pool, got, err, want)
		}
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	const nodes = "nodeSelector: {gpu: a}"
	for values, want := range map[string]string{
		"pools: [{name: a, " + nodes + ", checks: {GPUXidEror: {}}}]":                         "GPUXidEror",
		"pools: [{name: a, " + nodes + ", checks: {ClockSkewed: {args: {max-ofset: 1s}}}}]":   "max-ofset",
		"pools: [{name: a, " + nodes + ", checks: {GPUXidError: {args: {hold: 1m}}}}]":        "hold",
		"pools: [{name: a, " + nodes + ", checks: {GPUXidError: {args: {kmsg: /dev/null}}}}]": "kmsg",
		"pools: [{name: a, " + nodes + "}]":                                                   "missing propert",
		"pools: [{name: a, checks: {GPUXidError: {}}}]":                                       "missing propert",
		"pools: [{name: a, nodeSelector: {}, checks: {GPUXidError: {}}}]":                     "minProperties",
		"pools: [{preset: nvidia}]":                                                           "missing property 'name'",
		"pools: [{name: A, preset: nvidia}]":                                                  "does not match pattern",
		"pools: [{name: a, preset: nvida}]":                                                   "must be one of",
		"pools: [{name: a, preset: nvidia, nodeselector: {a: b}}]":                            "nodeselector",
		"pools: [{name: a, preset: nvidia}, {name: a, preset: metax}]":                        "the name a is there twice",
		"pools: [{name: a, preset: nvidia}, {name: b, preset: nvidia}]":                       "pools a and b: both write ClockSkewed on the same nodes",
		"pools: [{name: a, " + nodes + ", checks: {GPUXidError: {enabled: false}}}]":          "every check is switched off",
		"pools: [{name: a, preset: nvidia, tag: 'a b'}]":                                      "does not match pattern",
		"remediator: {replicas: 0}":                                                           "minimum",
		"remediator: {logLevel: trace}":                                                       "must be one of",
		"remediator: {logFormat: logfmt}":                                                     "must be one of",
		"remediater: {}":                                                                      "remediater",
		"policy: {moed: enforce}":                                                             "moed",
		"policy: {mode: act}":                                                                 "must be one of",
		"policy: {rules: {gpu-xd: {mode: enforce}}}":                                          "policy.rules: no rule gpu-xd; did you mean gpu-xid?",
		"policy: {rules: {gpu-xdi: {mode: enforce}}}":                                         "policy.rules: no rule gpu-xdi; did you mean gpu-xid?",
		"policy: {rules: {hca-ports: {mode: enforce}}}":                                       "policy.rules: no rule hca-ports; did you mean hca-port?",
		"policy: {rules: {nonsense: {mode: enforce}}}":                                        "policy.rules: no rule nonsense; the rules are ascend, ascend-inspect, clock, ",
		"policy: {rules: {gpu-xid: {clearAfter: soon}}}":                                      "does not match pattern",
		"preflight: {namespaces: [Team]}":                                                     "does not match pattern",
		"userRoles: {viewers: [{kind: Groups, name: a}]}":                                     "must be one of",
		"npd: {heartbeatPeriod: 60}":                                                          "want string",
	} {
		if out, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q\n%.200s", values, err, want, out)
		}
	}
	// Two pools may share nodes if they share no check.
	mustRender(t, "pools: [{name: a, "+nodes+", checks: {GPUXidError: {}}}, {name: b, "+nodes+", checks: {ClockSkewed: {}}}]")
}

func TestAnotherNamespace(t *testing.T) {
	for _, o := range mustRender(t, everything, "--namespace=health") {
		if ns := o.GetNamespace(); ns == "pitcrew" || o.GetKind() == "Namespace" && o.GetName() == "pitcrew" {
			t.Errorf("%s %s/%s", o.GetKind(), ns, o.GetName())
		}
		subjects, _, _ := unstructured.NestedSlice(o.Object, "subjects")
		for _, s := range subjects {
			if s := s.(map[string]any); s["kind"] == "ServiceAccount" && s["namespace"] != "health" && s["namespace"] != o.GetNamespace() {
				t.Errorf("%s %s binds %v", o.GetKind(), o.GetName(), s)
			}
		}
		if o.GetKind() == "Deployment" && !strings.Contains(fmt.Sprint(o.Object), "-namespace=health") {
			t.Error("the remediator reads another namespace")
		}
	}
}

func TestHostNetworkOpensNoPort(t *testing.T) {
	ds := find[appsv1.DaemonSet](t, mustRender(t, "pools: [{name: p, preset: nvidia, hostNetwork: true}]"), "DaemonSet", "pitcrew-npd-p")
	c := ds.Spec.Template.Spec.Containers[0]
	if len(c.Ports) > 0 || !slices.Contains(c.Args, "--prometheus-port=0") || !slices.Contains(c.Args, "--port=0") {
		t.Errorf("ports %v, args %q", c.Ports, c.Args)
	}
}

func TestImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	text, err := os.ReadFile("Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var chart struct{ AppVersion string }
	if err := yaml.Unmarshal(text, &chart); err != nil {
		t.Fatal(err)
	}
	for values, want := range map[string][]string{
		"":                                    {"ghcr.io/pitcrew-dev/npd-plugins:" + chart.AppVersion, "ghcr.io/pitcrew-dev/remediator:" + chart.AppVersion},
		"image: {registry: r, tag: '2'}":      {"r/npd-plugins:2", "r/remediator:2"},
		"remediator: {tag: '2'}":              {"ghcr.io/pitcrew-dev/npd-plugins:" + chart.AppVersion, "ghcr.io/pitcrew-dev/remediator:2"},
		"remediator: {tag: '" + digest + "'}": {"ghcr.io/pitcrew-dev/npd-plugins:" + chart.AppVersion, "ghcr.io/pitcrew-dev/remediator@" + digest},
	} {
		objects := mustRender(t, values+"\npools: [{name: p, preset: nvidia}]")
		got := []string{
			find[appsv1.DaemonSet](t, objects, "DaemonSet", "pitcrew-npd-p").Spec.Template.Spec.Containers[0].Image,
			find[appsv1.Deployment](t, objects, "Deployment", "pitcrew-remediator").Spec.Template.Spec.Containers[0].Image,
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", values, got, want)
		}
	}
}

// A new remediator with unchanged plugins restarts no Node Problem Detector.
func TestANewRemediatorLeavesPoolsAlone(t *testing.T) {
	const pool = "pools: [{name: p, preset: nvidia}]\n"
	template := func(values string) corev1.PodTemplateSpec {
		return find[appsv1.DaemonSet](t, mustRender(t, values), "DaemonSet", "pitcrew-npd-p").Spec.Template
	}
	if diff := cmp.Diff(template(pool), template(pool+"remediator: {tag: '2', replicas: 3}\npolicy: {mode: enforce}")); diff != "" {
		t.Error(diff)
	}
	changed := template("pools: [{name: p, preset: nvidia, checks: {ClockSkewed: {args: {max-offset: 1s}}}}]")
	if cmp.Equal(template(pool).Annotations, changed.Annotations) {
		t.Error("a changed threshold does not restart NPD, which reads its configuration once")
	}
}

func TestPolicyIsMerged(t *testing.T) {
	shipped, err := os.ReadFile("files/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := policyText(t, mustRender(t, "")); got != string(shipped) {
		t.Errorf("without values the policy is not the shipped one:\n%s", cmp.Diff(string(shipped), got))
	}
	text := policyText(t, mustRender(t, "policy: {mode: enforce, budget: {maxPercent: 20}, rules: {gpu-heat: {mode: observe}, disk: {match: {condition: DiskFailing, repair: [Replace]}, clearAfter: 10m}}}"))
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := policy.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	p := file.Policy()
	if p.Budget.MaxPercent != 20 || p.Budget.MaxNodes != 3 {
		t.Errorf("budget %+v", p.Budget)
	}
	for rule, observe := range map[string]bool{"gpu-heat": true, "gpu-xid": false, "disk": false} {
		if r, ok := p.Rule(rule); !ok || r.Observe != observe {
			t.Errorf("rule %s: there %v, observes %v, want %v", rule, ok, r.Observe, observe)
		}
	}
}

func policyText(t *testing.T, objects []*unstructured.Unstructured) string {
	t.Helper()
	text := find[corev1.ConfigMap](t, objects, "ConfigMap", "pitcrew-policy").Data["policy.yaml"]
	return strings.TrimRight(text, "\n") + "\n"
}

// VALUES.md has a row for every value and no other rows.
func TestThePageHasEveryValue(t *testing.T) {
	table, err := os.ReadFile("VALUES.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for line := range bytes.Lines(table) {
		if cells := strings.Split(string(line), "|"); len(cells) > 2 && strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			documented = append(documented, strings.Trim(cells[1], " `"))
		}
	}
	if diff := cmp.Diff(schemaPaths(t), slices.Sorted(slices.Values(documented))); diff != "" {
		t.Errorf("values (-) and VALUES.md (+) differ: %s", diff)
	}
}

// schemaPaths lists what values.schema.json allows, a pool's fields as pools[].x.
func schemaPaths(t *testing.T) (paths []string) {
	t.Helper()
	text, err := os.ReadFile("values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Properties map[string]node `json:"properties"`
		Items      *struct {
			Ref string `json:"$ref"`
		} `json:"items"`
	}
	var schema struct {
		node
		Definitions map[string]node `json:"definitions"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var walk func(prefix string, n node)
	walk = func(prefix string, n node) {
		for name, child := range n.Properties {
			path := prefix + name
			switch {
			case path == "global": // Helm's own
			case child.Items != nil && child.Items.Ref == "#/definitions/pool":
				walk(path+"[].", schema.Definitions["pool"])
			case len(child.Properties) > 0:
				walk(path+".", child)
			default:
				paths = append(paths, path)
			}
		}
	}
	walk("", schema.node)
	slices.Sort(paths)
	return paths
}
