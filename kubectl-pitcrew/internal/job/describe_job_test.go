package job

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
)

const (
	// trainJobSet is a JobSet of one Job with two ranks, on n1 and n2.
	trainJobSet = `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train, namespace: ml, uid: set, labels: {OPTIN}}
spec: {replicatedJobs: [{name: w, replicas: 1, template: {spec: {parallelism: 2, completions: 2, completionMode: Indexed, template: {spec: {containers: [{name: c}]}}}}}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train-w-0, namespace: ml, uid: job, labels: {jobset.sigs.k8s.io/jobset-name: train, jobset.sigs.k8s.io/replicatedjob-name: w},
  ownerReferences: [{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, name: train, uid: set, controller: true}]}
spec: {parallelism: 2, completions: 2, completionMode: Indexed, selector: {matchLabels: {job-name: train-w-0}}, template: {spec: {containers: [{name: c}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: train-w-0-0, namespace: ml, uid: p0, labels: {job-name: train-w-0, jobset.sigs.k8s.io/jobset-name: train},
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: train-w-0, uid: job, controller: true}]}
spec: {nodeName: n1, containers: [{name: c}]}
status: {phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: train-w-0-1, namespace: ml, uid: p1, labels: {job-name: train-w-0, jobset.sigs.k8s.io/jobset-name: train},
  ownerReferences: [{apiVersion: batch/v1, kind: Job, name: train-w-0, uid: job, controller: true}]}
spec: {nodeName: n2, containers: [{name: c}]}
status: {phase: Running}
`
	optIn = `pitcrew.dev/restart-on-node-fault: "true"`
)

// jobWorld is a cluster for questions about the JobSet ml/train.
type jobWorld struct {
	asked       string                                          // the arguments of describe; empty: jobset/train
	policy      string                                          // empty: jobPolicy; "-": none can be read
	labels      string                                          // of the JobSet, YAML; empty: optIn
	namespace   map[string]string                               // labels of its namespace
	record      string                                          // of the JobSet
	quarantined string                                          // the rule that quarantined node n1; empty: it is not
	node        func(*corev1.Node)                              // changes node n1
	change      func(kind string, o *unstructured.Unstructured) // changes the objects of trainJobSet
	objects     string                                          // more objects, YAML
	forbidden   string                                          // the kind of which the user may not list all namespaces
}

// healthy leaves a node without a fault of now, whose own rule could restart the jobs.
func healthy(n *corev1.Node) { n.Status.Conditions = nil }

// quarantineRecord is the record of a node that was quarantined a minute ago.
func quarantineRecord(rule string) string {
	return fmt.Sprintf(`{"v":1,"nodeUID":"u1","boot":{"id":"b"},"id":"q1","phase":"quarantined","quarantinedAt":"2026-11-20T11:59:00Z",
		"causes":[{"condition":"GPUXidError","rule":%q,"repair":"Reboot","message":"Reboot gpu 0: Xid 79 lost","firstSeen":"2026-11-20T11:58:00Z","due":true,"bootID":"b"}],
		"taint":{"key":"pitcrew.dev/unhealthy","value":"GPUXidError","effect":"NoSchedule","rule":%[1]q,"repair":"Reboot","since":"2026-11-20T11:59:00Z"}}`, rule)
}

// describeInWorld asks about a job in a cluster of a fake API server.
func describeInWorld(t *testing.T, w jobWorld) (string, error) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, k := range append(cli.GvksOf(kinds.BuiltIn()), corev1.SchemeGroupVersion.WithKind("Pod"), batchv1.SchemeGroupVersion.WithKind("CronJob"),
		schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2", Kind: "Workload"}) {
		mapper.Add(k, meta.RESTScopeNamespace)
		if !scheme.Recognizes(k) {
			scheme.AddKnownTypeWithName(k, &unstructured.Unstructured{})
			scheme.AddKnownTypeWithName(k.GroupVersion().WithKind(k.Kind+"List"), &unstructured.UnstructuredList{})
		}
	}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ml", Labels: w.namespace}}}
	if w.policy != "-" {
		objects = append(objects,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "the-policy"}, Data: map[string]string{"policy.yaml": cmp.Or(w.policy, clitest.JobPolicy)}},
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "remediator", Labels: map[string]string{cli.LabelName: "pitcrew-remediator"}},
				Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
					ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "the-policy"}},
				}}}},
			})
	}
	for _, name := range []string{"n1", "n2", "n3"} {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(strings.Replace(name, "n", "u", 1)), CreationTimestamp: metav1.NewTime(clitest.Now.Add(-time.Hour))},
			Status: corev1.NodeStatus{
				NodeInfo:    corev1.NodeSystemInfo{BootID: "b"},
				Allocatable: corev1.ResourceList{corev1.ResourcePods: apiresource.MustParse("1")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(clitest.Now.Add(-time.Hour))}},
			},
		}
		if name == "n1" && w.quarantined != "" {
			n.Annotations = map[string]string{conditions.AnnotationQuarantine: quarantineRecord(w.quarantined)}
			n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule}}
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
				Type: conditions.GPUXidError, Status: corev1.ConditionTrue, Message: "Reboot gpu 0: Xid 79 lost",
				LastHeartbeatTime: metav1.NewTime(clitest.Now), LastTransitionTime: metav1.NewTime(clitest.Now.Add(-2 * time.Minute)),
			})
		}
		if name == "n1" && w.node != nil {
			w.node(n)
		}
		objects = append(objects, n)
	}
	for document := range strings.SplitSeq(strings.Replace(trainJobSet, "OPTIN", cmp.Or(w.labels, optIn), 1)+w.objects, "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if object.GetKind() == "JobSet" && w.record != "" {
			object.SetAnnotations(map[string]string{conditions.AnnotationRestart: w.record})
		}
		if w.change != nil {
			w.change(object.GetKind(), object)
		}
		objects = append(objects, object)
	}
	// As discovery does: the groups of Kubernetes come first.
	preferred := meta.PriorityRESTMapper{Delegate: mapper, KindPriority: []schema.GroupVersionKind{{Group: "batch", Version: meta.AnyVersion, Kind: meta.AnyKind}}}
	api := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(preferred).WithObjects(objects...).
		WithIndex(&resourceapi.ResourceSlice{}, "spec.nodeName", func(o client.Object) []string {
			return []string{ptr.Deref(o.(*resourceapi.ResourceSlice).Spec.NodeName, "")}
		}).
		WithInterceptorFuncs(interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			kind, err := apiutil.GVKForObject(list, scheme)
			if err == nil && kind.Kind == w.forbidden+"List" && new(client.ListOptions).ApplyOptions(opts).Namespace == "" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: w.forbidden}, "", nil)
			}
			asked := new(client.ListOptions).ApplyOptions(opts)
			pods, ok := list.(*corev1.PodList)
			if !ok || asked.FieldSelector == nil {
				return api.List(ctx, list, opts...)
			}
			// The fake serves no selector of several fields.
			all := *asked
			all.FieldSelector = nil
			if err := api.List(ctx, pods, &all); err != nil {
				return err
			}
			pods.Items = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
				return !asked.FieldSelector.Matches(fields.Set{"spec.nodeName": p.Spec.NodeName, "status.phase": string(p.Status.Phase)})
			})
			return nil
		}}).Build()
	c := &cli.Target{Rules: &clientcmd.ClientConfigLoadingRules{}, Namespace: "pitcrew", Now: func() time.Time { return clitest.Now }}
	resource, name, isJob, err := cli.JobArgument(strings.Fields(cmp.Or(w.asked, "jobset/train")))
	if err != nil || !isJob {
		t.Fatalf("%q: %t, %v", w.asked, isJob, err)
	}
	var out strings.Builder
	err = Describe(t.Context(), c, &out, api, resource, name, "ml", "")
	return out.String(), err
}

// restartRecord is a record of the JobSet.
func restartRecord(rest string) string { return `{"v":1,"jobUID":"set",` + rest + `}` }

const (
	causeOfN1 = `"quarantines":[{"id":"q1","node":"n1","nodeUID":"u1","reason":"GPUXidError: Xid 79","since":"2026-11-20T11:59:00Z","taint":{"key":"pitcrew.dev/unhealthy","effect":"NoSchedule"}}]`
	// pastRestart ended ten minutes ago, for an older quarantine.
	pastRestart = `"total":1,"recent":["2026-11-20T11:45:00Z"],"last":[{"id":"r0","phase":"Done","quarantines":[{"id":"q0","node":"n9","nodeUID":"u9","reason":"x","since":"2026-11-20T11:44:00Z"}],
		"startedAt":"2026-11-20T11:45:00Z","phaseSince":"2026-11-20T11:46:00Z","endedAt":"2026-11-20T11:50:00Z","streak":1,"outcome":"all ranks running (2/2)"}]`
)

func current(phase, rest string) string {
	return restartRecord(`"current":{"id":"r1","phase":"` + phase + `",` + causeOfN1 + `,"startedAt":"2026-11-20T11:59:10Z","phaseSince":"2026-11-20T11:59:10Z"` + rest + `}`)
}

// limited is the policy with limits.
func limited(limits string) string {
	return strings.Replace(clitest.JobPolicy, "  rules:", "  restart: {"+limits+"}\n  rules:", 1)
}

func suspended(kind string, o *unstructured.Unstructured) {
	if kind == "JobSet" {
		_ = unstructured.SetNestedField(o.Object, true, "spec", "suspend")
	}
}

func paused(w jobWorld) jobWorld {
	w.objects += "\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: pitcrew-pause, namespace: pitcrew}, data: {reason: network work}}"
	return w
}

func TestDescribeSaysWhyAJobIsNotRestarted(t *testing.T) {
	const (
		restarts = "Next:     node n1: the remediator restarts the job\n"
		observe  = "Next:     nothing: none of its pods is on a quarantined node; every rule that sets restartJobs is in observe mode: no job is restarted\n"
	)
	for name, test := range map[string]struct {
		world jobWorld
		want  []string
	}{
		"it is restarted": {jobWorld{quarantined: "gpu"}, []string{
			"Job:      JobSet ml/train\n", restarts,
			"Opt-in:   yes: label pitcrew.dev/restart-on-node-fault=true on JobSet ml/train\n",
			"Owners:   JobSet train\n",
			"Stop:     by spec.suspend until all old pods are gone\n",
			"Policy:   ConfigMap the-policy: 1 rules set restartJobs, 0 of them in observe mode\n",
			"Pods:     2 active on 2 nodes, of which 1 have no fault\n",
			"Node:     n1: quarantined by rule gpu since 2026-11-20T11:59:00Z, 60s ago: GPUXidError: Reboot gpu 0: Xid 79 lost\n",
			"Record:   none: the job was never restarted\n",
			"For node n1:\n", "OptedIn              yes     -       -",
		}},
		"a job of the set": {jobWorld{asked: "job train-w-0", quarantined: "gpu"}, []string{
			"Job:      JobSet ml/train\n", restarts,
			"Owners:   Job train-w-0 < JobSet train; JobSet ml/train counts: its labels opt in, and it is restarted as a whole\n",
		}},
		"a pod of the set": {jobWorld{asked: "pod/train-w-0-1", quarantined: "gpu"}, []string{
			restarts, "Owners:   Pod train-w-0-1 < Job train-w-0 < JobSet train; JobSet ml/train counts",
		}},

		"no label": {jobWorld{labels: "a: b", quarantined: "gpu"}, []string{
			"Next:     nothing: the job is not opted in; to opt in: kubectl label -n ml jobset.jobset.x-k8s.io/train pitcrew.dev/restart-on-node-fault=true\n",
			"Opt-in:   no: neither the job nor its namespace has the label pitcrew.dev/restart-on-node-fault\n",
			"OptedIn              no      -       neither the job nor its namespace opts in",
		}},
		"a label on the namespace": {jobWorld{labels: "a: b", namespace: map[string]string{conditions.LabelRestartOnNodeFault: "true"}, quarantined: "gpu"}, []string{
			restarts, "Opt-in:   yes: label pitcrew.dev/restart-on-node-fault=true on namespace ml\n",
		}},
		"kcover's label": {jobWorld{labels: `kcover.io/cascading-recovery: "true"`, quarantined: "gpu"}, []string{
			restarts, "Opt-in:   yes: label kcover.io/cascading-recovery=true on JobSet ml/train\n",
		}},
		"opted out": {jobWorld{labels: `pitcrew.dev/restart-on-node-fault: "false"`, namespace: map[string]string{conditions.LabelRestartOnNodeFault: "true"}, quarantined: "gpu"}, []string{
			"Next:     nothing: the job is opted out by label pitcrew.dev/restart-on-node-fault=false on JobSet ml/train\n",
		}},
		"a misspelt value": {jobWorld{labels: `pitcrew.dev/restart-on-node-fault: "True"`, quarantined: "gpu"}, []string{
			"Next:     nothing: the job is not opted in",
			`label pitcrew.dev/restart-on-node-fault=True on JobSet ml/train does not count: the value must be "true" or "false"`,
		}},
		"a misspelt value on the namespace": {jobWorld{labels: "a: b", namespace: map[string]string{conditions.LabelRestartOnNodeFault: "yes"}}, []string{
			`label pitcrew.dev/restart-on-node-fault=yes on namespace ml does not count`,
		}},
		"an annotation": {jobWorld{labels: "a: b", change: func(kind string, o *unstructured.Unstructured) {
			if kind == "JobSet" {
				o.SetAnnotations(map[string]string{conditions.LabelRestartOnNodeFault: "true"})
			}
		}}, []string{"annotation pitcrew.dev/restart-on-node-fault on JobSet ml/train does not count: it must be a label"}},
		"a label on the Job of the set": {jobWorld{asked: "job/train-w-0", labels: "a: b", change: func(kind string, o *unstructured.Unstructured) {
			if kind == "Job" {
				o.SetLabels(map[string]string{conditions.LabelRestartOnNodeFault: "true"})
			}
		}}, []string{"the label on Job ml/train-w-0 is not read: label JobSet ml/train"}},
		"a label on the pods": {jobWorld{labels: "a: b", change: func(kind string, o *unstructured.Unstructured) {
			if kind == "Pod" {
				labels := o.GetLabels()
				labels[conditions.LabelRestartOnNodeFault] = "true"
				o.SetLabels(labels)
			}
		}}, []string{"the label on pod train-w-0-0 is not read: label JobSet ml/train itself"}},

		"a kind of no job": {jobWorld{asked: "cronjob/nightly", objects: "\n---\n{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly, namespace: ml}}"}, []string{
			"Next:     nothing: it is no kind of job that the remediator restarts\n", "PyTorchJob, ", "more by jobKinds of the policy",
		}},
		"controlled by a CronJob": {jobWorld{asked: "job/nightly-1", objects: `
---
apiVersion: batch/v1
kind: Job
metadata: {name: nightly-1, namespace: ml, uid: n1, labels: {pitcrew.dev/restart-on-node-fault: "true"},
  ownerReferences: [{apiVersion: batch/v1, kind: CronJob, name: nightly, uid: cron, controller: true}]}
spec: {selector: {matchLabels: {job-name: nightly-1}}, template: {spec: {containers: [{name: c}]}}}`}, []string{
			"Next:     nothing: it is controlled by CronJob nightly, which cannot be restarted as a whole (UnknownOwner)\n",
		}},
		"a bare pod": {jobWorld{asked: "pod/alone", objects: "\n---\n{apiVersion: v1, kind: Pod, metadata: {name: alone, namespace: ml}, spec: {containers: [{name: c}]}}"}, []string{
			"Next:     nothing: it is a pod without a controller: none would replace it\n",
		}},

		"no node is quarantined": {jobWorld{}, []string{
			"Next:     nothing: none of its pods is on a quarantined node; if n1 were quarantined by a rule with restartJobs: the remediator restarts the job\n",
			"If node n1 were quarantined:\n",
		}},
		"no node is quarantined, and it would come back": {jobWorld{change: tolerates}, []string{
			"if n1 were quarantined by a rule with restartJobs: not restarted (ComesBack): pod train-w-0-0 tolerates the taint pitcrew.dev/unhealthy",
		}},
		"no pod is active": {jobWorld{change: func(kind string, o *unstructured.Unstructured) {
			if kind == "Pod" {
				_ = unstructured.SetNestedField(o.Object, "Failed", "status", "phase")
			}
		}}, []string{"Next:     nothing: none of its pods is on a quarantined node, and none is active\n", "If a node of the job were quarantined:\n"}},
		"it tolerates the taint": {jobWorld{quarantined: "gpu", change: tolerates}, []string{
			"Next:     node n1: not restarted (ComesBack): pod train-w-0-0 tolerates the taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule\n",
			"PodsLeaveNode        no      ComesBack",
		}},
		"a user stopped it": {jobWorld{quarantined: "gpu", change: suspended}, []string{"Next:     node n1: not restarted: ", "NotSuspended         no      -"}},

		"the rule observes": {jobWorld{quarantined: "gpu", policy: strings.Replace(clitest.JobPolicy, "enforce", "observe", 1)}, []string{
			"Next:     node n1: rule gpu is in observe mode: no job is restarted\n", "1 rules set restartJobs, 1 of them in observe mode",
		}},
		"all rules observe": {jobWorld{policy: strings.Replace(clitest.JobPolicy, "enforce", "observe", 1)}, []string{observe}},
		"no rule restarts jobs": {jobWorld{policy: strings.Replace(clitest.JobPolicy, ", restartJobs: true", "", 1)}, []string{
			"none of its pods is on a quarantined node; no rule of the policy sets restartJobs\n",
		}},
		"the rule does not restart jobs": {jobWorld{quarantined: "plain", node: healthy}, []string{"Next:     node n1: rule plain does not set restartJobs\n"}},
		"the rule is gone":               {jobWorld{quarantined: "other", node: healthy}, []string{"Next:     node n1: rule other is not in the policy any more\n"}},
		"quarantined by a user":          {jobWorld{quarantined: "by-hand", node: healthy}, []string{"Next:     node n1: a user quarantined the node; jobs on it are left alone\n"}},
		"a skipped node": {jobWorld{quarantined: "gpu", node: func(n *corev1.Node) { n.Labels = map[string]string{conditions.LabelSkip: "true"} }}, []string{
			"Next:     node n1: label pitcrew.dev/skip=true: the remediator leaves the node alone\n",
		}},
		"a node under maintenance": {jobWorld{quarantined: "gpu", node: func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: conditions.TaintMaintenance, Value: "sweep", Effect: corev1.TaintEffectNoSchedule})
		}}, []string{"Next:     node n1: the node is under maintenance (taint pitcrew.dev/maintenance, "}},
		"no policy": {jobWorld{quarantined: "gpu", policy: "-"}, []string{
			"Next:     node n1: unknown: no pod of the remediator in namespace pitcrew mounts a policy; name one with -f\n", "Policy:   unknown: ",
		}},
		"paused": {paused(jobWorld{quarantined: "gpu"}), []string{
			"Next:     nothing while everything is paused (network work); `kubectl pitcrew resume` ends the pause. Then: node n1: the remediator restarts the job\n",
			"Paused:   network work\n",
		}},
		"aborted before it begins": {jobWorld{quarantined: "gpu", change: func(kind string, o *unstructured.Unstructured) {
			if kind == "JobSet" {
				o.SetAnnotations(map[string]string{conditions.AnnotationAbortRestart: "x"})
			}
		}}, []string{"; annotation pitcrew.dev/abort-restart aborts the restart before it begins\n"}},

		"back-off": {jobWorld{quarantined: "gpu", policy: limited("backOff: {first: 30m, max: 2h}"), record: restartRecord(pastRestart)}, []string{
			"Next:     node n1: the restart waits (BackOff): ", "next attempt at 2026-11-20T12:20:00Z\n",
			"Before:   Done at 2026-11-20T11:50:00Z, 10m ago, after 5m, for node n9: all ranks running (2/2)\n",
			"BackOff              no      BackOff",
		}},
		"a budget per day": {jobWorld{quarantined: "gpu", policy: limited("maxPerDay: 1, maxPerJob: 5"), record: restartRecord(pastRestart)}, []string{
			"the restart waits (BudgetPerDay): ", "next attempt at 2026-11-21T11:45:00Z\n", "Limits:   maxPerDay 1/1, maxPerJob 1/5",
		}},
		"a budget per job": {jobWorld{quarantined: "gpu", policy: limited("maxPerJob: 1"), record: restartRecord(pastRestart)}, []string{"not restarted (BudgetPerJob): "}},
		"settle":           {jobWorld{quarantined: "gpu", policy: limited("settle: 2m")}, []string{"the restart waits (Settling): ", "next attempt at 2026-11-20T12:01:00Z\n"}},
		"others are restarted": {jobWorld{quarantined: "gpu", policy: limited("maxConcurrent: 1"), objects: `
---
apiVersion: batch/v1
kind: Job
metadata:
  name: other
  namespace: elsewhere
  uid: other
  labels: {pitcrew.dev/restarting: "true"}
  annotations: {pitcrew.dev/restart: '{"v":1,"jobUID":"other","current":{"id":"r","phase":"Stopping","quarantines":[{"id":"q","node":"n2","nodeUID":"u2","taint":{"key":"pitcrew.dev/unhealthy","effect":"NoSchedule"}}],"startedAt":"2026-11-20T11:59:00Z","phaseSince":"2026-11-20T11:59:00Z"}}'}`},
			[]string{"the restart waits (Concurrency): 1 other jobs are being restarted, and maxConcurrent is 1", "maxConcurrent 1/1"}},
		"no room": {jobWorld{quarantined: "gpu", policy: limited("checkCapacity: true"), node: func(*corev1.Node) {}, objects: `
---
apiVersion: v1
kind: Pod
metadata: {name: busy, namespace: elsewhere}
spec: {nodeName: n3, containers: [{name: c}]}
status: {phase: Running}`}, []string{"the restart waits (Capacity): 1 of its ranks must move", "Capacity             no      Capacity"}},
		"room": {jobWorld{quarantined: "gpu", policy: limited("checkCapacity: true")}, []string{restarts, "Capacity             yes"}},
		"room for a job whose nodes Kueue chose": {jobWorld{quarantined: "gpu", policy: limited("checkCapacity: true"), change: func(kind string, o *unstructured.Unstructured) {
			if kind == "Pod" {
				o.Object["spec"].(map[string]any)["nodeSelector"] = map[string]any{corev1.LabelHostname: "x"}
			}
		}, objects: `
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: train, namespace: ml, labels: {kueue.x-k8s.io/job-uid: set}, ownerReferences: [{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, name: train, uid: set, controller: true}]}
spec: {active: true}
status: {admission: {podSetAssignments: [{topologyAssignment: {levels: [kubernetes.io/hostname]}}]}}`}, []string{restarts, "Capacity             yes"}},
		"restarted for this quarantine before": {jobWorld{quarantined: "gpu", record: restartRecord(strings.Replace(pastRestart, `"q0"`, `"q1"`, 1))}, []string{
			"not restarted (AlreadyRestarted): this quarantine has already restarted the job once: all ranks running (2/2)",
		}},
		"an unreadable record": {jobWorld{quarantined: "gpu", record: "{"}, []string{"(RecordUnreadable); remove the annotation pitcrew.dev/restart\n"}},

		"a held restart of another job takes no place": {jobWorld{quarantined: "gpu", policy: limited("maxConcurrent: 1"), objects: `
---
apiVersion: batch/v1
kind: Job
metadata:
  name: other
  namespace: elsewhere
  uid: other
  labels: {pitcrew.dev/restarting: "true"}
  annotations: {pitcrew.dev/restart: '{"v":1,"jobUID":"other","current":{"id":"r","phase":"Stopping","quarantines":[],"startedAt":"2026-11-20T11:59:00Z","phaseSince":"2026-11-20T11:59:00Z","held":"x"}}'}`},
			[]string{restarts, "maxConcurrent 0/1"}},
		"jobs that may not be listed": {jobWorld{quarantined: "gpu", policy: limited("maxConcurrent: 1"), forbidden: "Job"}, []string{
			"Next:     node n1: the remediator restarts the job, if MaxConcurrent allows it, which you may not see\n",
			"MaxConcurrent        unknown  -       jobs of other namespaces cannot be listed",
		}},
		"pods that may not be listed": {jobWorld{quarantined: "gpu", policy: limited("checkCapacity: true"), forbidden: "Pod"}, []string{
			"if Capacity allows it, which you may not see\n", "Capacity             unknown  -       pods of other namespaces cannot be listed",
		}},
		"a pod on the node that the job's selector does not find": {jobWorld{quarantined: "gpu", change: func(kind string, o *unstructured.Unstructured) {
			if o.GetName() == "train-w-0-0" {
				o.SetLabels(map[string]string{"job-name": "train-w-0"})
			}
		}}, []string{restarts}},
		"a pod that only names a Job of the set as its owner": {jobWorld{quarantined: "gpu", change: func(kind string, o *unstructured.Unstructured) {
			if o.GetName() == "train-w-0-0" {
				o.SetLabels(nil)
			}
		}}, []string{"Next:     nothing: none of its pods is on a quarantined node; if n2 were quarantined"}},
		"a pod of another job with the labels of this one": {jobWorld{quarantined: "gpu", change: func(kind string, o *unstructured.Unstructured) {
			if o.GetName() == "train-w-0-0" {
				o.SetOwnerReferences(nil)
			}
		}}, []string{"Next:     nothing: none of its pods is on a quarantined node; if n2 were quarantined"}},

		"it saves its state": {jobWorld{quarantined: "gpu", record: current("Saving", `,"checkpointBy":"2026-11-20T12:30:00Z"`)}, []string{
			"Next:     the restart under way goes on: waits until the job has saved its state (annotation pitcrew.dev/checkpointed=2026-11-20T12:30:00Z), at most until 2026-11-20T12:30:00Z\n",
			"Restart:  Saving since 2026-11-20T11:59:10Z, 50s ago; ", "          for node n1: GPUXidError: Xid 79\n",
		}},
		"it saves its state while paused": {paused(jobWorld{quarantined: "gpu", record: current("Saving", `,"checkpointBy":"2026-11-20T12:30:00Z"`)}), []string{
			", and for the end of the pause (network work)\n",
		}},
		"it is being stopped": {jobWorld{quarantined: "gpu", change: suspended, record: current("Stopping", `,"pods":["p0","p1"]`)}, []string{
			"Next:     the restart under way goes on: waits for the end of its old pods: train-w-0-0 on node n1; train-w-0-1 on node n2\n",
		}},
		"a recorded pod that lost its labels": {jobWorld{quarantined: "gpu", record: current("Stopping", `,"pods":["p0"]`), change: func(kind string, o *unstructured.Unstructured) {
			suspended(kind, o)
			switch o.GetName() {
			case "train-w-0-0":
				o.SetLabels(nil)
			case "train-w-0-1":
				_ = unstructured.SetNestedField(o.Object, "Failed", "status", "phase")
			}
		}}, []string{"goes on: waits for the end of its old pods: train-w-0-0 on node n1\n"}},
		"a user resumed it while it was being stopped": {jobWorld{quarantined: "gpu", record: current("Stopping", `,"pods":["p0","p1"]`)}, []string{
			"Next:     the restart under way ends (Abandoned): another user or controller set spec.suspend to false while the job was being stopped; ",
		}},
		"it has saved its state": {jobWorld{quarantined: "gpu", record: current("Saving", `,"checkpointBy":"2026-11-20T11:59:59Z"`)}, []string{
			"Next:     the restart under way goes on: the remediator stops the job now\n",
		}},
		"its node is released while it saves its state": {jobWorld{record: current("Saving", `,"checkpointBy":"2026-11-20T12:30:00Z"`)}, []string{
			"Next:     the restart under way ends (Withdrawn): no rank is on a quarantined node any more; the job was not stopped\n",
		}},
		"its stop is held": {jobWorld{quarantined: "gpu", change: suspended, record: current("Stopping", `,"pods":["p0"],"held":"pod train-w-0-0 on node n1 has not ended"`)}, []string{
			"held: pod train-w-0-0 on node n1 has not ended; waits for the end of its old pods",
		}},
		"it starts again": {jobWorld{quarantined: "gpu", record: current("Starting", `,"ranks":2`)}, []string{"waits until all ranks run (2/2)\n"}},
		"its restart is aborted": {jobWorld{quarantined: "gpu", record: current("Starting", `,"ranks":2`), change: func(kind string, o *unstructured.Unstructured) {
			if kind == "JobSet" {
				annotations := o.GetAnnotations()
				annotations[conditions.AnnotationAbortRestart] = "x"
				o.SetAnnotations(annotations)
			}
		}}, []string{"Next:     the restart under way is aborted: "}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := describeInWorld(t, test.world)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

func tolerates(kind string, o *unstructured.Unstructured) {
	if kind == "Pod" {
		_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"operator": "Exists"}}, "spec", "tolerations")
	}
}

func TestDescribeOfAJobThatIsNotThere(t *testing.T) {
	for asked, want := range map[string]string{"jobset/nothing": "not found", "gang/train": `find the kind "gang"`} {
		if out, err := describeInWorld(t, jobWorld{asked: asked}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q\n%s", asked, err, want, out)
		}
	}
}

// A restart under way is not limited again, whatever the limits say by now.
func TestDescribeLimitsNoRestartUnderWay(t *testing.T) {
	out, err := describeInWorld(t, jobWorld{quarantined: "gpu", policy: limited("maxPerJob: 1"), record: current("Starting", `,"ranks":3`)})
	if err != nil || strings.Contains(out, "BudgetPerJob") || strings.Contains(out, "MaxPerJob") || !strings.Contains(out, "waits until all ranks run (2/2)") {
		t.Errorf("%v\n%s", err, out)
	}
}
