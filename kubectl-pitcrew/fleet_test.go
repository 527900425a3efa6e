package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/node"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

const (
	inspect = "Inspect gpu 0000:1b:00: Xid 999 unknown"
	byPool  = "--pool-label=" + cli.LabelPool
)

// NewPerson builds the plugin, with a kubeconfig of somebody who may do everything.
func NewPerson(t *testing.T) person {
	t.Helper()
	c := clustertest.Get(t)
	if err := components.BuildOurs(t.Context(), c.Root, "./kubectl-pitcrew"); err != nil {
		t.Fatal(err)
	}
	config, err := c.Config("person", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.WriteKubeconfig("person", config)
	if err != nil {
		t.Fatal(err)
	}
	return person{t, c, kubeconfig}
}

// The nodes of two pools, of which one is fine.
func newFleet(t *testing.T) person {
	t.Helper()
	p := NewPerson(t)
	names, err := p.AddNodes(t.Context(), "fleet", 6, func(n *corev1.Node) {
		n.Labels[cli.LabelPool] = "h100"
		if n.Name > "fleet-2" {
			n.Labels[cli.LabelPool] = "h200"
		}
		if n.Name == "fleet-4" {
			n.Annotations[conditions.AnnotationQuarantine] = "{"
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := p.DeleteNodes(p.Cluster.Context(), names...); err != nil {
			t.Error(err)
		}
	})
	p.reports("fleet-0", "True", inspect)
	p.reports("fleet-2", "False", "no fault")
	p.reports("fleet-3", "Unknown", "cannot open /dev/kmsg")
	p.carries("fleet-1", request.Quarantine, "smells of smoke")
	return p
}

func TestStatusIsByPoolAndTheWorstFirst(t *testing.T) {
	p := newFleet(t)
	ages := regexp.MustCompile(`\b\d+(s|m|m\d+s)\b`)
	got := ages.ReplaceAllString(p.run("status", byPool), "AGE")
	cluster, got, _ := strings.Cut(got, "\n")
	if !strings.HasPrefix(cluster, "CLUSTER     ") || !strings.Contains(cluster, p.Admin.Host) {
		t.Errorf("%q", cluster)
	}
	const want = `PITCREW     PROBLEM: not installed in namespace pitcrew, nor in any other one; see docs/install.md
BUDGET      not known: not installed in namespace pitcrew, nor in any other one
BREAKER     closed
PAUSED      no

POOL  NODE     STATUS       NEEDS    SINCE  CAUSE
h200  fleet-4  unreadable   -        -      decode quarantine record: unexpected end of JSON input
h200  fleet-3  unknown      -        AGE     GPUXidError: cannot open /dev/kmsg
h100  fleet-1  quarantined  Inspect  AGE     ByHand: smells of smoke
h100  fleet-0  alert        Inspect  AGE     GPUXidError: Inspect gpu 0000:1b:00: Xid 999 unknown

POOL  NODES  QUARANTINED  SUSPECT  ALERT  UNKNOWN  HEALTHY  UNCHECKED
h200  3      0            0        0      2        0        1
h100  3      1            0        1      0        1        0
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	p.says("status --all "+byPool, "h100  fleet-2  healthy")
	p.says("status --all "+byPool, "h200  fleet-5  unchecked")
	p.says("status -o wide "+byPool, "pitcrew.dev/unhealthy=ByHand:NoSchedule")
	p.fails("status -o table", "is not wide, json or yaml")

	var f status.Fleet
	if err := json.Unmarshal([]byte(p.run("status", "-o", "json", byPool)), &f); err != nil {
		t.Fatal(err)
	}
	fromYAML := status.Fleet{}
	if err := yaml.Unmarshal([]byte(p.run("status", "-o", "yaml", byPool)), &fromYAML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f, fromYAML); diff != "" || len(f.Nodes) != 4 || f.Nodes[2].Repair != conditions.Inspect {
		t.Errorf("json %+v: %s", f, diff)
	}

	// A pool of the chart is known by its node-problem-detector.
	p.pod("pitcrew-npd-training", "fleet-2", cli.OwnNPD, corev1.PodSpec{})
	p.says("status --all "+byPool, "training  fleet-2  healthy")
}

func TestWatchShowsAChangeAndOutlivesTheAPIServer(t *testing.T) {
	p := NewPerson(t)
	if _, err := p.AddNodes(t.Context(), "watched", 1, nil); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(p.Root, "bin", "kubectl-pitcrew"), "--kubeconfig", p.kubeconfig, "status", "--watch")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	until := func(want string) {
		t.Helper()
		for patience := time.After(2 * time.Minute); ; {
			select {
			case line, open := <-lines:
				if !open {
					t.Fatalf("it ended without %q", want)
				}
				if strings.Contains(line, want) {
					return
				}
			case <-patience:
				t.Fatalf("no %q within two minutes", want)
			}
		}
	}
	until("HEALTHY")
	end := clustertest.Outage(t, p.Cluster)
	until("ERROR at ")
	end()
	p.reports("watched-0", "True", inspect)
	until("watched-0")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for range lines { //nolint:revive // until it has ended
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
	if err := p.DeleteNodes(t.Context(), "watched-0"); err != nil {
		t.Fatal(err)
	}
}

func TestDescribeSaysWhatIsNextAndWhyNothingHappens(t *testing.T) {
	p := newFleet(t)
	p.says("describe fleet-0", "no pod of the remediator in namespace pitcrew mounts a policy; name one with -f")
	p.installPolicy("mode: observe")
	p.says("describe fleet-0", "Next:     blocked by observe-only: GPUXidError needs inspection (rule gpu: Inspect gpu 0000:1b:00: Xid 999 unknown); observe mode: would taint "+
		"pitcrew.dev/unhealthy=GPUXidError:NoSchedule (by ConfigMap the-policy)")
	p.says("describe fleet-0", "GPUXidError  True    Inspect  ")
	p.says("describe fleet-1", "Release:  only by `kubectl pitcrew release fleet-1`, when the node is fit again")
	p.says("describe fleet-2", "Next:     nothing: no rule matches its conditions")
	p.says("describe fleet-4", "annotation pitcrew.dev/quarantine cannot be read")
	p.fails("describe nowhere", "there is no node nowhere")
	p.fails("describe", "accepts between 1 and 2 arg(s), received 0: kubectl pitcrew describe NODE | KIND/NAME")
	p.does("pause", "--reason", "network work")
	p.fails("pause -y", "paused already (network work)")
	p.says("describe -f "+p.policyFile("mode: enforce")+" fleet-0", "blocked by paused: paused (network work), would be NodeQuarantined")
	p.does("resume")
	p.jobEvent("fleet-1", "older", "JobRestarting", "is stopped", -time.Hour) // of an earlier quarantine
	p.jobEvent("fleet-1", "llama", "JobRestarting", "is stopped", time.Second)
	p.jobEvent("fleet-1", "llama", "JobRestarted", "runs again", 2*time.Second)
	if out := p.run("describe", "fleet-1"); !strings.Contains(out, "Job:      JobRestarted: Job train/llama: runs again; ") || strings.Count(out, "Job: ") != 1 {
		t.Errorf("of a job that was restarted:\n%s", out)
	}
	p.carries("fleet-1", request.ReleaseNow, "")
	p.says("describe fleet-1", "Before:   smells of smoke, released by ")
	if out := p.run("describe", "fleet-1"); strings.Contains(out, "Taint:") || strings.Contains(out, "Cause:") {
		t.Errorf("of a node that was released:\n%s", out)
	}
}

// jobEvent is what the remediator says of a job, so long after now.
func (p person) jobEvent(nodeName, job, reason, text string, after time.Duration) {
	p.Helper()
	event := &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, GenerateName: nodeName + "-"},
		InvolvedObject:      corev1.ObjectReference{Kind: "Node", Name: nodeName},
		Related:             &corev1.ObjectReference{Kind: "Job", Namespace: "train", Name: job, UID: types.UID(job)},
		Reason:              reason,
		Message:             "Job train/" + job + ": " + text,
		Type:                corev1.EventTypeNormal,
		Action:              "Restart",
		EventTime:           metav1.NewMicroTime(time.Now().Add(after)),
		ReportingController: "pitcrew-remediator",
		ReportingInstance:   "pitcrew-remediator-0",
	}
	if err := p.Client.Create(p.Context(), event); err != nil {
		p.Fatal(err)
	}
}

func TestAPolicyIsTriedOnTheClusterAsItIs(t *testing.T) {
	p := newFleet(t)
	enforcing, observing := p.policyFile("mode: enforce"), p.policyFile("mode: observe")
	p.says("policy test -f "+enforcing, "The effect of the present policy is unknown")
	p.installPolicy("mode: observe")
	p.says("policy test -f "+observing, "No change on 6 nodes.")
	for _, args := range []string{"policy test -f " + enforcing, "policy test --enforce -f " + observing} {
		p.says(args, "fleet-0  -       quarantined  NodeQuarantined: GPUXidError needs inspection (rule gpu: ")
		p.says(args, "[now: blocked by observe-only: ")
		p.says(args, "No change on 5 of 6 nodes.")
	}
	if n := p.get("fleet-0"); len(n.Spec.Taints) > 0 || n.Annotations[conditions.AnnotationQuarantine] != "" {
		t.Errorf("the node was changed: %v %v", n.Spec.Taints, n.Annotations)
	}
	p.fails("policy test", "name the policy with -f")
}

func TestClearFindsTheDetectorOfTheNode(t *testing.T) {
	p := newFleet(t)
	p.fails("clear fleet-0 Nonsense -y", "no plugin answers for Nonsense")
	p.fails("clear fleet-0 SlowNode -y", "SlowNode is the remediator's verdict")
	p.fails("clear nowhere GPUXidError -y", `"nowhere" not found`)
	p.fails("clear fleet-0 GPUXidError -y", "no pod that runs on node fleet-0 has a container node-problem-detector")
	p.detector("npd-plain", "fleet-0", conditions.ClockSkewed)
	p.fails("clear fleet-0 GPUXidError -y", "mounts a ConfigMap with a monitor of GPUXidError")
	p.detector("npd-gpu", "fleet-0", conditions.GPUXidError, conditions.KernelHardwareError)
	p.detector("npd-elsewhere", "fleet-2", conditions.GPUXidError)
	p.says("describe fleet-2", "Detector: pod pitcrew/npd-elsewhere\n")
	p.refused("clear fleet-0 gpuxiderror")
	p.says("clear --dry-run fleet-0 GPUXidError", "Clear GPUXidError of node fleet-0: run /opt/pitcrew/bin/xid -hold 5m -every 5s -clear in pod pitcrew/npd-gpu")
	p.says("clear --dry-run fleet-0 KernelHardwareError", "run /opt/pitcrew/bin/xid -hardware ")
	p.fails("release --clear -y fleet-0", "is not quarantined")
	p.says("release --clear --dry-run fleet-1", "Release node fleet-1") // no plugin has latched a person's word
}

func TestTheShellCompletes(t *testing.T) {
	p := newFleet(t)
	p.says("__complete release fleet-", "fleet-1\n")
	p.says("__complete clear fleet-0 GPUX", "GPUXidError\n")
	p.says("__complete explain Pitcrew", "PitcrewBreakerOpen\n")
	cmd := exec.CommandContext(t.Context(), "./kubectl_complete-pitcrew", "stat")
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(p.Root, "bin")+":"+os.Getenv("PATH"))
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "status\t") {
		t.Errorf("%v: %s", err, out)
	}
}

// reports is what the Node Problem Detector says of the kernel log.
func (p person) reports(name, status, message string) {
	p.Helper()
	if err := p.Report(p.Context(), name, conditions.GPUXidError, corev1.ConditionStatus(status), message, time.Now()); err != nil {
		p.Fatal(err)
	}
}

// policyFile writes a policy that quarantines whatever the kernel log shows.
func (p person) policyFile(mode string) string {
	p.Helper()
	path := filepath.Join(p.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(policyText(mode)), 0o644); err != nil {
		p.Fatal(err)
	}
	return path
}

func policyText(mode string) string {
	return `apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  ` + mode + `
  budget: {maxNodes: 9}
  rules: {gpu: {match: {condition: GPUXidError, repair: [Inspect]}}}
`
}

// installPolicy leaves what a running remediator leaves in the cluster: a pod that mounts its policy.
func (p person) installPolicy(mode string) {
	p.Helper()
	p.namespace()
	policy := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "the-policy"},
		Data:       map[string]string{"policy.yaml": policyText(mode)},
	}
	if err := p.Client.Create(p.Context(), policy); err != nil {
		p.Fatal(err)
	}
	p.gone(policy)
	p.pod("remediator", "fleet-2", "pitcrew-remediator", corev1.PodSpec{Volumes: []corev1.Volume{{Name: "policy", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: policy.Name}},
	}}}})
}

// pod starts a pod in Pitcrew's namespace and waits until it runs.
func (p person) pod(name, on, app string, spec corev1.PodSpec) {
	p.Helper()
	p.namespace()
	spec.NodeName = on
	spec.Containers = []corev1.Container{{Name: "shell", Image: "none"}, {Name: node.ContainerNPD, Image: "none"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: name, Labels: map[string]string{cli.LabelName: app, cli.LabelPool: "training"}}, Spec: spec}
	if err := p.Client.Create(p.Context(), pod); err != nil {
		p.Fatal(err)
	}
	p.gone(pod)
	p.until("pod "+name+" runs", func() error {
		if err := p.Client.Get(p.Context(), client.ObjectKeyFromObject(pod), pod); err != nil || pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%s %w", pod.Status.Phase, err)
		}
		return nil
	})
}

// detector starts a pod with the monitors of the conditions, as the chart does.
func (p person) detector(name, on string, types ...string) {
	p.Helper()
	p.namespace()
	monitors := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: name}, Data: map[string]string{"README": "no monitor"}}
	for _, conditionType := range types {
		text, err := os.ReadFile(filepath.Join(p.Root, "monitors", conditionType+".json"))
		if err != nil {
			p.Fatal(err)
		}
		monitors.Data[conditionType+".json"] = string(text)
	}
	if err := p.Client.Create(p.Context(), monitors); err != nil {
		p.Fatal(err)
	}
	p.gone(monitors)
	p.pod(name, on, cli.OwnNPD, corev1.PodSpec{Volumes: []corev1.Volume{{Name: "monitors", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
	}}}})
}

// namespace makes Pitcrew's namespace, if it is not there.
func (p person) namespace() {
	p.Helper()
	var ns corev1.Namespace
	if p.Client.Get(p.Context(), client.ObjectKey{Name: "pitcrew"}, &ns) == nil {
		return
	}
	if err := p.AddNamespace(p.Context(), "pitcrew", nil); err != nil {
		p.Fatal(err)
	}
}

// carries does what the remediator does about the order of a person: none runs.
func (p person) carries(name string, kind request.Kind, reason string) {
	p.Helper()
	n := p.get(name)
	r := &request.Request{ID: "r", Kind: kind, User: "person", Reason: reason}
	r.Regard(n)
	o, err := request.Carry(request.Scope{}, n, r, time.Now().UTC())
	if err != nil {
		p.Fatal(err)
	}
	if err := p.Client.Patch(p.Context(), o.Node, client.MergeFrom(n)); err != nil {
		p.Fatal(err)
	}
}

// gone deletes an object, at once, when the test ends.
func (p person) gone(object client.Object) {
	p.Cleanup(func() {
		if err := p.Client.Delete(p.Cluster.Context(), object, client.GracePeriodSeconds(0), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			p.Error(err)
		}
	})
}
