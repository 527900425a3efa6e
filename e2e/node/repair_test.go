package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	nodefacts "github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// repairValues are the chart's values for repairs. The remediator of the tests is not in a pod: a reboot of the only node would end it.
// The Job that uninstalls the chart has no node either, so the tests with these values come last.
const repairValues = `
image: {tag: ` + tag + `, pullPolicy: Never}
npd: {heartbeatPeriod: 1s}
remediator: {replicas: 1, nodeSelector: {e2e.pitcrew.dev/none: "true"}}
policy: {output: {maintenance: true}}
repair:
  enabled: true
  collect: {enabled: true}
  templates:
    no-image: {spec: {containers: [{name: reset, image: "ghcr.io/pitcrew-dev/no-such:1", imagePullPolicy: Never, args: [-gpu=$(GPUS)]}]}}
pools:
- name: gpu
  nodeSelector: {kubernetes.io/hostname: machine}
  checks:
    GPUXidError: {}
    DCGMDiagFailed: {}
`

// jobTimeout bounds a Job, and how long its node may take to be in a new boot. Only a test that fails waits so long.
const jobTimeout = 4 * time.Minute

// repairPolicy repairs every fault at once. RESET are the actions for class ResetGPU. What the node refuses is not tried again: the drain
// would have to take longer than the 5 minutes until then.
const repairPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxPercent: 100}
  rules:
    gpu-xid:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}
      clearAfter: 1s
      restartJobs: true
      validate: true
    gpu-diag:
      match: {condition: DCGMDiagFailed, repair: [Inspect, ResetGPU, Reboot, Replace]}
      clearAfter: 1s
      validate: true
  repair:
    mode: auto
    maxPerDay: 400 # of which one node may have a quarter, and these tests have one node
    actions:
      ResetGPU: RESET
      Reboot: [{template: reboot, timeout: 4m}]
    drain: {mode: wait, timeout: 4m}
    proofTimeout: 4m
    validate: {template: check, timeout: 4m}
    lemon: {repairs: 0}
`

const (
	xid79  = "NVRM: Xid (PCI:" + theGPU + "): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
	xid119 = "NVRM: Xid (PCI:" + theGPU + "): 119, Timeout after 6s of waiting for RPC response from GPU0 GSP!"

	resetThenReboot = "[{template: reset-gpu, timeout: 4m}, {template: reboot, timeout: 4m}]"
	// noReset are actions of which the first cannot run.
	noReset = "[{template: no-image, timeout: 4m}, {template: reboot, timeout: 4m}]"
	// What DCGM's diagnostics answer: GPU, test, result, error. Test 2 is that of the memory, error 118 one of its faults.
	diagPassed = "result 0 2 0 0\n"
	diagFailed = "result 0 2 3 81 uncontained\n"
)

// repairs is the policy with these actions for class ResetGPU.
func repairs(reset string) string { return strings.Replace(repairPolicy, "RESET", reset, 1) }

// repairCase is one run of the loop, with a remediator of its own.
type repairCase struct {
	*testing.T
	m *host
	*hardware
	policy string
	// old are the Events that earlier cases have left.
	old map[types.UID]bool
	// reboots0 and resets0 are the actions before this case.
	reboots0, resets0 int
}

// startRepairCase starts with a healthy node in service, and a remediator unless the case starts its own.
func startRepairCase(t *testing.T, policy string, remediator bool) *repairCase {
	t.Helper()
	m := theMachine(t)
	r := &repairCase{T: t, m: m, hardware: m.addHardware(t), old: map[types.UID]bool{}}
	m.answer(t, "gpus 1\n")
	t.Cleanup(func() { m.answer(t, sickGPU) })
	r.diagnosis(t, diagPassed)
	if m.installed != repairValues {
		m.helm(t, repairValues, "--force-conflicts") // tests change the template check
		// The pod of earlier values would run on until that of these is ready, which it cannot become, and keep the node from a reboot.
		if _, err := m.Kubectl(t.Context(), "scale", "deployment", "pitcrew-remediator", "--namespace=pitcrew", "--replicas=0"); err != nil {
			t.Fatal(err)
		}
		// The shipped one waits until the GPUs have been idle for half a minute. Flags of the plugin are for the admin, not for the policy.
		if _, err := m.Kubectl(t.Context(), "patch", "podtemplate", "check", "--namespace", conditions.RepairNamespace, "--type=json", "--patch",
			`[{"op": "replace", "path": "/template/spec/containers/0/args", "value": ["check", "-level=1", "--", "-idle-for=0s"]}]`); err != nil {
			t.Fatal(err)
		}
	}
	r.clean()
	for _, e := range r.events() {
		r.old[e.UID] = true
	}
	r.reboots0, r.resets0 = r.counts()
	r.policy = m.Write(t, "repair-policy.yaml", policy)
	if remediator {
		r.remediator()
	}
	return r
}

// clean has the node forget earlier cases, and waits until it is healthy.
func (r *repairCase) clean() {
	r.Helper()
	clustertest.Until(r, patience, "the node without traces", func() error {
		var jobs batchv1.JobList
		if err := r.m.Client.List(r.Context(), &jobs, client.InNamespace(conditions.RepairNamespace)); err != nil || len(jobs.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d Jobs, deleting them: %w", len(jobs.Items), r.m.Client.DeleteAllOf(r.Context(), &batchv1.Job{},
				client.InNamespace(conditions.RepairNamespace), client.PropagationPolicy(metav1.DeletePropagationBackground))))
		}
		// They would be in the way of the next visit.
		var pods corev1.PodList
		if err := r.m.Client.List(r.Context(), &pods, client.InNamespace(conditions.RepairNamespace)); err != nil || len(pods.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d pods of Jobs", len(pods.Items)))
		}
		node := r.node()
		changed := node.DeepCopy()
		delete(changed.Annotations, conditions.AnnotationQuarantine)
		delete(changed.Annotations, conditions.AnnotationRepair)
		changed.Spec.Taints = slices.DeleteFunc(changed.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, conditions.Domain+"/") })
		return r.m.Client.Patch(r.Context(), changed, client.MergeFrom(node))
	})
	r.m.pod(r.T, "gpu", nil)
	if out, err := r.m.RunPlugin(r.Context(), "xid", "-clear"); err != nil {
		r.Fatal(out, err)
	}
	if err := os.Remove("/run/pitcrew/dcgm-report.json"); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.Fatal(err)
	}
	for _, name := range []string{conditions.GPUXidError, conditions.DCGMDiagFailed} {
		r.m.until(r.T, name, corev1.ConditionFalse, "")
	}
}

// flags are those of the remediator.
func (r *repairCase) flags() []string {
	return []string{"-policy", r.policy, "-leader-elect=false", "-repair-namespace", conditions.RepairNamespace}
}

// remediator runs the remediator until the end of the case.
func (r *repairCase) remediator() {
	r.Helper()
	p, err := r.m.RunRemediator(r.Context(), nil, r.flags()...)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		p.Kill()
		if r.Failed() {
			r.Log(p.Log())
		}
	})
}

func (r *repairCase) node() *corev1.Node {
	r.Helper()
	node, err := r.m.Node(r.T)
	if err != nil {
		r.Fatal(err)
	}
	return node
}

// record is that of the visits to the node.
func (r *repairCase) record() *visit.Record {
	r.Helper()
	record, err := visit.RecordOf(r.node())
	if err != nil {
		r.Fatal(err)
	}
	return cmp.Or(record, &visit.Record{})
}

// visit waits for a visit of a kind in a phase.
func (r *repairCase) visit(kind visit.Kind, phase visit.Phase) visit.Visit {
	r.Helper()
	var found visit.Visit
	clustertest.Until(r, patience, fmt.Sprintf("%s is %s", kind, phase), func() error {
		record := r.record()
		visits := record.Last
		if record.Current != nil {
			visits = append([]visit.Visit{*record.Current}, visits...)
		}
		i := slices.IndexFunc(visits, func(v visit.Visit) bool { return v.Kind == kind && v.Phase == phase })
		if i < 0 {
			return fmt.Errorf("record %s\nquarantine %s\nEvents %q", record, r.node().Annotations[conditions.AnnotationQuarantine], r.notes())
		}
		found = visits[i]
		return nil
	})
	return found
}

// released waits until the node is in service again, after a validation in its boot, and returns the closed quarantine.
func (r *repairCase) released() {
	r.Helper()
	clustertest.Until(r, patience, "the node is released", func() error {
		node := r.node()
		for _, taint := range node.Spec.Taints {
			if strings.HasPrefix(taint.Key, conditions.Domain+"/") {
				return fmt.Errorf("taint %s, record %s\nquarantine %s\nEvents %q", taint.ToString(), node.Annotations[conditions.AnnotationRepair],
					node.Annotations[conditions.AnnotationQuarantine], r.notes())
			}
		}
		q, err := causes.RecordOf(node)
		if err != nil || q == nil || q.ReleasedBy != causes.ByPitcrew {
			return fmt.Errorf("record %s, %w", node.Annotations[conditions.AnnotationQuarantine], err)
		}
		if !r.record().ValidatedFor(q.ID, node.Status.NodeInfo.BootID) {
			return fmt.Errorf("it was not validated: %s", r.record())
		}
		return nil
	})
}

// actions checks how often the node was rebooted, and its GPU reset, in this case.
func (r *repairCase) actions(reboots, resets int) {
	r.Helper()
	b, s := r.counts()
	if b -= r.reboots0; b != reboots {
		r.Errorf("logind was asked for %d reboots, want %d", b, reboots)
	}
	if s -= r.resets0; s != resets {
		r.Errorf("nvidia-smi was asked for %d resets, want %d", s, resets)
	}
}

// events are those on the node in this case.
func (r *repairCase) events() []eventsv1.Event {
	r.Helper()
	var events eventsv1.EventList
	if err := r.m.Client.List(context.WithoutCancel(r.Context()), &events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		r.Fatal(err)
	}
	return slices.DeleteFunc(events.Items, func(e eventsv1.Event) bool { return e.Regarding.Name != machine.NodeName || r.old[e.UID] })
}

func (r *repairCase) notes() (notes []string) {
	r.Helper()
	for _, e := range r.events() {
		if e.ReportingController == quarantine.ControllerName {
			notes = append(notes, e.Reason+": "+e.Note)
		}
	}
	return notes
}

// event waits for an Event on the node with that reason and a text.
func (r *repairCase) event(reason, text string) {
	r.Helper()
	clustertest.Until(r, patience, fmt.Sprintf("Event %s with %q", reason, text), func() error {
		if notes := r.notes(); !slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, reason+": ") && strings.Contains(n, text) }) {
			return fmt.Errorf("Events %q", notes)
		}
		return nil
	})
}

// later moves the times of the visit under way back, as if it had begun that much earlier.
func (r *repairCase) later(by time.Duration) {
	r.Helper()
	clustertest.Until(r, patience, "the record is changed", func() error {
		node := r.node()
		record, err := visit.RecordOf(node)
		if err != nil || record == nil || record.Current == nil {
			return fmt.Errorf("no visit: %w", err)
		}
		for _, at := range []*time.Time{&record.Current.StartedAt, &record.Current.PhaseSince, &record.Current.ActionSince, &record.Current.Deadline} {
			if !at.IsZero() {
				*at = at.Add(-by)
			}
		}
		text, err := json.Marshal(record)
		if err != nil {
			return err
		}
		changed := node.DeepCopy()
		changed.Annotations[conditions.AnnotationRepair] = string(text)
		return r.m.Client.Patch(r.Context(), changed, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
	})
}

// waitsForAPerson checks that the node stays out of service, without a visit.
func (r *repairCase) waitsForAPerson() {
	r.Helper()
	node := r.node()
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy }) {
		r.Errorf("the node is in service: %v", node.Spec.Taints)
	}
	if record := r.record(); record.Current != nil {
		r.Errorf("a visit is under way: %s", record)
	}
	if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance }) {
		r.Errorf("the node is under maintenance: %v", node.Spec.Taints)
	}
}

// repairJob is a training job with a rank on the machine, with its GPU, which is restarted elsewhere.
const repairJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: $NAME, labels: {$OPTIN: "true"}}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      nodeSelector: {$LABEL: $NAME}
      containers:
      - name: rank
        image: ghcr.io/pitcrew-dev/preflight:` + tag + `
        imagePullPolicy: Never
        command: [/bin/busybox, sleep, "3600"]
`

// train runs the job on the machine, and lets it go to a simulated node afterwards.
func (r *repairCase) train() (elsewhere func()) {
	r.Helper()
	const name = "repaired"
	nodes, err := r.m.AddNodes(r.Context(), name, 1, nil)
	r.Cleanup(func() {
		if err := errors.Join(r.m.DeleteNodes(context.Background(), nodes...),
			r.m.Client.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})); err != nil {
			r.Error(err)
		}
	})
	if err != nil {
		r.Fatal(err)
	}
	label := func(node string) {
		if _, err := r.m.Kubectl(r.Context(), "label", "--overwrite", "node", node, deadLabel+"="+name); err != nil {
			r.Fatal(err)
		}
	}
	label(machine.NodeName)
	if err := r.m.AddNamespace(r.Context(), name, nil); err != nil {
		r.Fatal(err)
	}
	if err := r.m.Apply(r.Context(), []byte(strings.NewReplacer("$NAME", name, "$OPTIN", conditions.LabelRestartOnNodeFault, "$LABEL", deadLabel).Replace(repairJob))); err != nil {
		r.Fatal(err)
	}
	on := func(node string) {
		r.Helper()
		clustertest.Until(r, patience, "the job runs on "+node, func() error {
			var pods corev1.PodList
			if err := r.m.Client.List(r.Context(), &pods, client.InNamespace(name)); err != nil {
				return err
			}
			if len(pods.Items) != 1 || pods.Items[0].Spec.NodeName != node || pods.Items[0].Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%d pods %v", len(pods.Items), pods.Items)
			}
			return nil
		})
	}
	on(machine.NodeName)
	label(nodes[0])
	return func() { on(nodes[0]) }
}

// The whole loop: a GPU falls off the bus, its node is quarantined, the job restarts elsewhere, the node is rebooted and checked under
// load, and returns.
func TestANodeWhoseGPUFellOffTheBusIsRebootedCheckedAndReturned(t *testing.T) {
	r := startRepairCase(t, repairs("[]"), true)
	elsewhere := r.train()
	before := r.node().Status.NodeInfo.BootID
	r.m.kernel(t, xid79)
	elsewhere()
	r.rebooted(t)
	r.released()
	if boot := r.node().Status.NodeInfo.BootID; boot == before {
		t.Errorf("the node is in boot %s as before", boot)
	}
	r.actions(1, 0)
	for _, reason := range []string{repair.RepairStarted, repair.RepairSucceeded, repair.NodeChecked, "NodeReleased"} {
		r.event(reason, "")
	}
	report, err := os.ReadFile("/run/pitcrew/dcgm-report.json")
	if err != nil || !strings.Contains(string(report), r.node().Status.NodeInfo.BootID) {
		t.Errorf("the report of the diagnostics: %s, %v", report, err)
	}
}

// A fault that shows only under load: the check after the reset finds it. The node gets what is left of its actions, and then waits.
func TestANodeThatFailsUnderLoadStaysOutEscalatesAndWaitsForAPerson(t *testing.T) {
	r := startRepairCase(t, repairs(resetThenReboot), true)
	r.diagnosis(t, diagFailed)
	r.m.kernel(t, xid119)
	r.reset(t, r.resets0)
	failed := r.visit(visit.Validation, visit.Failed)
	if !strings.Contains(failed.Outcome, "found a fault") {
		t.Errorf("the validation: %q", failed.Outcome)
	}
	r.m.until(t, conditions.DCGMDiagFailed, corev1.ConditionTrue, "diag test")
	r.event(repair.NodeChecked, "found a fault")
	r.rebooted(t)
	clustertest.Until(t, patience, "the advice to replace it", func() error {
		record := r.record()
		if record.Advice == nil || record.Advice.Do != visit.AdviseReplace {
			return fmt.Errorf("%s\nEvents %q", record, r.notes())
		}
		return nil
	})
	r.waitsForAPerson()
	r.actions(1, 1)
}

// A process that the cluster does not know to have a GPU holds its device file.
func TestAResetIsRefusedWhileAPodHoldsTheDevice(t *testing.T) {
	r := startRepairCase(t, repairs("[{template: reset-gpu, args: [-wait=1s], timeout: 4m}]"), true)
	holder := r.holder()
	r.m.kernel(t, xid119)
	r.event(repair.RepairRefused, "pod "+holder)
	r.visit(visit.Repair, visit.Failed)
	r.waitsForAPerson()
	r.actions(0, 0)
}

// holder runs a pod that keeps a device file open, and returns its name.
func (r *repairCase) holder() string {
	r.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "holder"},
		Spec: corev1.PodSpec{
			NodeName: machine.NodeName, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "debug", Image: "ghcr.io/pitcrew-dev/preflight:" + tag, ImagePullPolicy: corev1.PullNever,
				Command:      []string{"/bin/sh", "-c", "exec /bin/busybox sleep 3600 </dev/nvidia0"},
				VolumeMounts: []corev1.VolumeMount{{Name: "device", MountPath: "/dev/nvidia0"}},
			}},
			Volumes: []corev1.Volume{{Name: "device", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/null"}}}},
		},
	}
	if err := r.m.Client.Create(r.Context(), pod); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := r.m.Client.Delete(context.Background(), pod); err != nil {
			r.Error(err)
		}
	})
	clustertest.Until(r, patience, "the holder runs", func() error {
		if err := r.m.Client.Get(r.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	// The kubelet of the tests makes no control groups for pods; this is how others name them.
	groups, err := filepath.Glob("/sys/fs/cgroup/*/k8s.io")
	if err != nil {
		r.Fatal(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		groups = []string{"/sys/fs/cgroup/k8s.io"}
	}
	pid := r.m.pid(r.T, pod)
	for _, group := range groups {
		group = filepath.Join(group, "pod"+string(pod.UID))
		if err := errors.Join(os.Mkdir(group, 0o755), os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)); err != nil && strings.Contains(group, "systemd") {
			r.Fatal(err)
		}
	}
	return pod.Namespace + "/" + pod.Name
}

func TestAJobWhoseImageIsMissingWaitsForAPerson(t *testing.T) {
	r := startRepairCase(t, repairs(noReset), true)
	r.m.kernel(t, xid119)
	r.visit(visit.Repair, visit.Working)
	var pods corev1.PodList
	clustertest.Until(t, patience, "the pod waits for its image", func() error {
		if err := r.m.Client.List(t.Context(), &pods, client.InNamespace(conditions.RepairNamespace)); err != nil {
			return err
		}
		if len(pods.Items) != 1 || len(pods.Items[0].Status.ContainerStatuses) != 1 || pods.Items[0].Status.ContainerStatuses[0].State.Waiting == nil ||
			pods.Items[0].Status.ContainerStatuses[0].State.Waiting.Reason != "ErrImageNeverPull" {
			return fmt.Errorf("%v", pods.Items)
		}
		return nil
	})
	r.later(job.StartTimeout)
	r.event(repair.RepairFailed, "ErrImageNeverPull")
	r.visit(visit.Repair, visit.Failed)
	r.waitsForAPerson()
	r.actions(0, 0)
}

func TestANodeThatDiesDuringItsRepairWaitsForItsProvider(t *testing.T) {
	r := startRepairCase(t, repairs("[]"), true)
	r.m.kernel(t, xid79)
	r.askedForReboot(t)
	r.m.PowerOff(t)
	defer func() { r.m.UntilBoot(t, r.m.PowerOn(t)) }() // also for the tests after this one
	clustertest.Until(t, patience, "the node is not Ready", func() error {
		for _, c := range r.node().Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is Ready")
	})
	if v := r.visit(visit.Repair, visit.Working); v.Attempt != 1 {
		t.Errorf("attempt %d", v.Attempt)
	}
	r.later(job.StartTimeout + jobTimeout)
	r.event(repair.RepairFailed, "has not come back")
	r.visit(visit.Repair, visit.Failed)
	r.waitsForAPerson()
	r.actions(1, 0)
}

func TestAPersonTakesANodeOverFromItsRepair(t *testing.T) {
	for name, takeOver := range map[string]func(*repairCase){
		"by kubectl pitcrew repair --stop": func(r *repairCase) { r.m.pitcrew(r.T, "repair", machine.NodeName, "--stop", "--reason", "mine", "-y") },
		"by the removal of the taint": func(r *repairCase) {
			if _, err := r.m.Kubectl(r.Context(), "taint", "node", machine.NodeName, conditions.TaintMaintenance+"-"); err != nil {
				r.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRepairCase(t, repairs(noReset), true)
			r.m.kernel(t, xid119)
			r.visit(visit.Repair, visit.Working)
			var jobs batchv1.JobList
			has := func(n int) func() error {
				return func() error {
					if err := r.m.Client.List(t.Context(), &jobs, client.InNamespace(conditions.RepairNamespace)); err != nil {
						return err
					}
					if len(jobs.Items) != n {
						return fmt.Errorf("%d Jobs", len(jobs.Items))
					}
					return nil
				}
			}
			clustertest.Until(t, patience, "the Job", has(1))
			takeOver(r)
			r.visit(visit.Repair, visit.Failed)
			clustertest.Until(t, patience, "the end of the Job", has(0))
			r.waitsForAPerson()
			r.actions(0, 0)
		})
	}
}

// Each life of the remediator does one write, and ends before it learns of it. The condition of the repair comes and goes with its taint,
// although the kubelet, which starts in the middle, writes its own.
func TestARepairHappensOnceAlthoughTheRemediatorDiesAfterEveryWrite(t *testing.T) {
	r := startRepairCase(t, strings.Replace(repairs("[]"), "  mode: enforce\n", "  mode: enforce\n  output: {maintenance: true}\n", 1), false)
	shown := r.m.maintained(t)
	stop := clustertest.Lives(t, r.m.Cluster, r.flags()...)
	r.m.kernel(t, xid79)
	r.rebooted(t)
	r.released()
	clustertest.Until(t, patience, "the end of the condition", func() error {
		if c, found := nodefacts.ConditionOf(r.node(), corev1.NodeMaintenanceInProgress); found {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	writes := stop()
	r.actions(1, 0)
	if came, wrong := shown(); came == 0 || len(wrong) > 0 {
		t.Errorf("the condition came %d times, without the taint %q", came, wrong)
	}
	if jobs := created(writes); jobs != 2 {
		t.Errorf("%d Jobs were created, want a reboot and a check: %q", jobs, writes)
	}
	if record := r.record(); len(record.Repairs) != 1 || !record.Repairs[0].Proven {
		t.Errorf("record %s", record)
	}
	t.Logf("%d writes, each the last one of a process", len(writes))
}

// maintained follows condition MaintenanceInProgress of the node, and returns how often it came, and the versions in which it came without
// the taint of a repair.
func (m *host) maintained(t *testing.T) func() (came int, wrong []string) {
	t.Helper()
	watcher, err := m.Client.Watch(t.Context(), &corev1.NodeList{}, client.MatchingFields{"metadata.name": machine.NodeName})
	if err != nil {
		t.Fatal(err)
	}
	var came int
	var wrong []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		had := false
		for event := range watcher.ResultChan() {
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				continue
			}
			c, has := nodefacts.ConditionOf(node, corev1.NodeMaintenanceInProgress)
			if has && !had {
				came++
				if !nodefacts.HasTaintValue(node.Spec.Taints, conditions.TaintMaintenance, conditions.MaintenanceRepair) {
					wrong = append(wrong, fmt.Sprintf("%s: %v", c.Status, node.Spec.Taints))
				}
			}
			had = has
		}
	}()
	return func() (int, []string) {
		watcher.Stop()
		<-done
		return came, wrong
	}
}

// created counts the Jobs among writes.
func created(writes []string) (jobs int) {
	for _, write := range writes {
		if strings.HasPrefix(write, http.MethodPost) && strings.HasSuffix(write, "/jobs") {
			jobs++
		}
	}
	return jobs
}

// The API server is away from before the reset until after it.
func TestARepairGoesOnWhenTheAPIServerIsBack(t *testing.T) {
	r := startRepairCase(t, repairs(resetThenReboot), true)
	r.m.kernel(t, xid119)
	clustertest.Until(t, patience, "a call of nvidia-smi", func() error {
		if _, resets := r.counts(); resets == r.resets0 {
			return errors.New("none yet")
		}
		return nil
	})
	end := clustertest.Outage(t, r.m.Cluster)
	r.reset(t, r.resets0)
	end()
	r.released()
	r.actions(0, 1)
}
