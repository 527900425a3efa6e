package upgrade_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// swept labels the nodes of the sweep.
const swept = "e2e.pitcrew.dev/swept"

// values switch everything on that can be under way. Both charts take them.
const values = `
policy:
  mode: enforce
  budget: {maxNodes: 9, maxPercent: 100}
  repair: {mode: auto, maxConcurrent: 2, actions: {ResetGPU: [{template: reset-gpu, timeout: 10m}]}}
  sweeps: {all: {nodeSelector: {e2e.pitcrew.dev/swept: "true"}, every: 2m, idleFor: 30s, maxNodes: 2, template: check}}
  rules:
    gpu-xid: {clearAfter: 1s}
    gpu-memory: {clearAfter: 1s, isolate: device}
    hca-port: {for: 1s, clearAfter: 1s}
repair: {enabled: true}
`

// scene is a pool whose nodes are each in the middle of something else, and what was seen of that.
type scene struct {
	*world
	pool string

	restarted, spare, repaired, isolated, checked string

	old         corev1.Pod // of the job that is restarted
	reset, test corev1.Pod // of the Jobs on the nodes
	rule        resourceapi.DeviceTaintRule
	records     map[string]record
}

const (
	job       = "train"
	doneReset = `{"result":"done","message":"reset 1 GPU"}`
	healthy   = `{"result":"healthy","message":"level 3 has passed"}`
)

// begins has the version that leads begin a restart, a repair, the isolation of a GPU and a sweep, and returns in the middle of each.
func (w *world) begins(pool string) *scene {
	w.Helper()
	s := &scene{world: w, pool: pool, records: map[string]record{}}
	names, err := w.AddNodes(w.Context(), pool, 5, func(n *corev1.Node) {
		if strings.HasSuffix(n.Name, "-4") {
			n.Labels[swept] = "true"
		}
	})
	w.must(err)
	s.restarted, s.spare, s.repaired, s.isolated, s.checked = names[0], names[1], names[2], names[3], names[4]
	w.must(w.AddNamespace(w.Context(), pool, nil))
	s.publishes()
	w.reports(s.checked, "DCGMDiagFailed", corev1.ConditionFalse, "")
	s.test = s.works("check", s.checked) // due a minute after it was registered
	s.records["sweep"] = s.working(s.checked, "sweep")

	s.trains()
	w.reports(s.restarted, "HCAPortDown", corev1.ConditionTrue, "Inspect hca mlx5_0 port 1: state DOWN, expected ACTIVE")
	s.records["restart"] = s.restart("Stopping")

	w.reports(s.repaired, "GPUXidError", corev1.ConditionTrue, "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error")
	s.reset = s.works("reset-gpu", s.repaired)
	s.records["repair"] = s.working(s.repaired, "repair")
	s.records["quarantine"] = w.quarantine(s.repaired, "quarantined")

	w.reports(s.isolated, "GPUMemoryError", corev1.ConditionTrue, "ResetGPU gpu 0000:1b:00: uncorrectable error")
	s.rule = s.rules(1)[0]
	s.records["isolation"] = w.quarantine(s.isolated, "quarantined")
	return s
}

// ends has the hardware and the jobs go on, and the version that leads then end all that another one has begun.
func (s *scene) ends() {
	s.Helper()
	s.kubelet(s.old, 143, "")
	restarted := s.restart("Done")
	for _, name := range []string{"id", "startedAt", "quarantines"} {
		s.differs("the restart, "+name, s.records["restart"].at("current", name), restarted.at("last", name))
	}
	s.until("the job runs on the spare node", func() error {
		for _, pod := range s.pods(s.pool) {
			if pod.UID != s.old.UID && pod.Spec.NodeName == s.spare && pod.Status.Phase == corev1.PodRunning {
				return nil
			}
		}
		return errStill
	})

	s.kubelet(s.reset, 0, doneReset)
	s.proves(s.repaired, "repair", "GPUXidError")
	s.differs("the quarantine of the repair", s.records["quarantine"].at("id"), s.released(s.repaired, "GPUXidError").at("id"))

	// The version that leads has decided about all nodes by now.
	for _, name := range []string{"address", "uuid"} {
		s.differs("the isolation, "+name, s.records["isolation"].at("isolation", "gpus", name), s.quarantine(s.isolated, "quarantined").at("isolation", "gpus", name))
	}
	if now := s.rules(1)[0]; now.UID != s.rule.UID {
		s.Errorf("rule %s was made anew", now.Name)
	}
	s.differs("the quarantine of the isolation", s.records["isolation"].at("id"), s.released(s.isolated, "GPUMemoryError").at("id"))
	s.rules(0)

	s.kubelet(s.test, 0, healthy)
	s.proves(s.checked, "sweep", "DCGMDiagFailed")
}

// trains starts a job on the node that will fail. Its pod does not end by itself.
func (s *scene) trains() {
	s.Helper()
	on := func(names ...string) []corev1.NodeSelectorRequirement {
		return []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names}}
	}
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	s.must(s.Client.Create(s.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.pool, Name: job, Labels: map[string]string{conditions.LabelRestartOnNodeFault: "true"}},
		Spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"e2e.pitcrew.dev/term-delay": "24h"}},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Limits: gpus}}},
				Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: on(s.restarted, s.spare)}}},
					PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
						{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: on(s.restarted)}},
					},
				}},
			},
		}},
	}))
	s.until("the job runs", func() error {
		pods := s.pods(s.pool)
		if len(pods) != 1 || pods[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%d pods", len(pods))
		}
		s.old = pods[0]
		return nil
	})
	if s.old.Spec.NodeName != s.restarted {
		s.Fatalf("the job runs on %s", s.old.Spec.NodeName)
	}
}

// restart waits until the restart of the job is in a phase, and returns the record.
func (s *scene) restart(phase string) record {
	s.Helper()
	var r record
	s.until("the restart is "+phase, func() error {
		var j batchv1.Job
		err := s.Client.Get(s.Context(), client.ObjectKey{Namespace: s.pool, Name: job}, &j)
		if err == nil {
			r, err = recordOf(&j, conditions.AnnotationRestart)
		}
		if err == nil && r.at("current", "phase") != phase && (r.at("current") != "" || r.at("last", "phase") != phase) {
			err = fmt.Errorf("record %v", r)
		}
		return err
	})
	return r
}

// works waits until the Job of a template runs on a node, and returns its pod.
func (s *scene) works(template, node string) (found corev1.Pod) {
	s.Helper()
	s.until(template+" runs on "+node, func() error {
		var all []string
		for _, pod := range s.pods(conditions.RepairNamespace) {
			if pod.Spec.NodeName == node && pod.Status.Phase == corev1.PodRunning && slices.Contains(pod.Spec.Containers[0].Args, template) {
				found = pod
				return nil
			}
			all = append(all, pod.Name)
		}
		var n corev1.Node
		s.must(s.Client.Get(s.Context(), client.ObjectKey{Name: node}, &n))
		return fmt.Errorf("pods %q; the node has %v", all, n.Annotations)
	})
	return found
}

// working waits until a visit of a kind works on a node, and returns the record.
func (s *scene) working(node, kind string) record {
	s.Helper()
	var r record
	s.until(kind+" works on "+node, func() (err error) {
		r, err = s.visits(node)
		if err == nil && (r.at("current", "kind") != kind || r.at("current", "phase") != "Working" || r.at("current", "jobUID") == "") {
			err = fmt.Errorf("record %v", r)
		}
		return err
	})
	return r
}

func (s *scene) visits(node string) (record, error) {
	var n corev1.Node
	if err := s.Client.Get(s.Context(), client.ObjectKey{Name: node}, &n); err != nil {
		return nil, err
	}
	return recordOf(&n, conditions.AnnotationRepair)
}

// proves has the node report a condition as healthy until its visit has passed, which is the one that was begun, with one Job.
func (s *scene) proves(node, kind string, condition corev1.NodeConditionType) {
	s.Helper()
	var r record
	s.until(kind+" of "+node+" has passed", func() (err error) {
		s.reports(node, condition, corev1.ConditionFalse, "")
		r, err = s.visits(node)
		if err == nil && (r.at("current") != "" || r.at("last", "phase") != "Passed") {
			err = fmt.Errorf("record %v", r)
		}
		return err
	})
	for _, name := range []string{"id", "kind", "startedAt", "attempt", "jobUID"} {
		s.differs("the "+kind+", "+name, s.records[kind].at("current", name), r.at("last", name))
	}
}

// released has the node report a condition as healthy until it is released, and returns the record.
func (s *scene) released(node string, condition corev1.NodeConditionType) record {
	s.Helper()
	s.reports(node, condition, corev1.ConditionFalse, "")
	return s.quarantine(node, "released")
}

// publishes publishes two GPUs of the node whose GPU is isolated, as the driver of a vendor does.
func (s *scene) publishes() {
	s.Helper()
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: s.isolated}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &s.isolated, Pool: resourceapi.ResourcePool{Name: s.isolated, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range 2 {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprint("gpu-", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/pciBusID": {StringValue: ptr.To(fmt.Sprintf("0000:%02x:00.0", 0x1a+i))}, "uuid": {StringValue: ptr.To(fmt.Sprintf("GPU-%s-%d", s.isolated, i))},
		}})
	}
	s.must(s.Client.Create(s.Context(), slice))
}

// rules waits until there are so many DeviceTaintRules for the pool, and returns them.
func (s *scene) rules(n int) (found []resourceapi.DeviceTaintRule) {
	s.Helper()
	s.until(fmt.Sprintf("%d rules", n), func() error {
		var list resourceapi.DeviceTaintRuleList
		s.must(s.Client.List(s.Context(), &list))
		found = slices.DeleteFunc(list.Items, func(r resourceapi.DeviceTaintRule) bool {
			return r.Spec.DeviceSelector == nil || ptr.Deref(r.Spec.DeviceSelector.Pool, "") != s.isolated
		})
		if len(found) != n {
			return fmt.Errorf("%d rules", len(found))
		}
		return nil
	})
	return found
}

func (s *scene) pods(in string) []corev1.Pod {
	s.Helper()
	var list corev1.PodList
	s.must(s.Client.List(s.Context(), &list, client.InNamespace(in)))
	return list.Items
}

// kubelet reports the end of a pod's container.
func (s *scene) kubelet(pod corev1.Pod, code int32, message string) {
	s.Helper()
	before := pod.DeepCopy()
	pod.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		pod.Status.Phase = corev1.PodFailed
	}
	now := metav1.Now()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, Message: message, StartedAt: now, FinishedAt: now, ContainerID: "x://1",
		}},
	}}
	s.must(s.Client.Status().Patch(s.Context(), &pod, client.MergeFrom(before)))
}

func (s *scene) until(what string, check func() error) {
	s.Helper()
	clustertest.Until(s, patience, s.pool+": "+what, check)
}

// Whoever upgrades, or rolls back, while a job is restarted, a node is repaired, another one is swept and a GPU is isolated has each of them
// ended by the other version, as if nothing had happened. The chart is installed, upgraded and rolled back with it.
func TestUpgradeAndDowngradeInTheMiddleOfEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster.Options{})
	w.must(w.AddNamespace(t.Context(), namespace, nil))
	file := w.valuesFile(values)

	w.mustHelm("install", "pitcrew", w.tree+"/manifests/chart", "--values", file)
	end := w.leads(w.tree)
	up := w.begins("up")
	end()
	w.mustHelm("upgrade", "pitcrew", w.Root+"/manifests/chart", "--reset-then-reuse-values", "--values", file)
	end = w.leads(w.Root)
	up.ends()

	down := w.begins("down")
	end()
	w.mustHelm("rollback", "pitcrew", "1")
	end = w.leads(w.tree)
	down.ends()
	end()

	for what, theirs := range up.records {
		if names := lacks(theirs, down.records[what]); len(names) > 0 {
			t.Errorf("the record of a %s lacks %q, which the earlier version reads", what, names)
		}
	}
}
