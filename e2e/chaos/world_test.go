package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const (
	// nodes are those of a world, of which the first have kubelets that freeze.
	nodes, frail = 20, 3
	// maxNodes and maxMemory are the largest budgets of any policy of a world.
	maxNodes, maxMemory = 4, 2
	// observedRule only observes.
	observedRule = "hca-port"
	// maxVisits is how many nodes may be repaired or validated at the same time, and validatedRule has them validated.
	maxVisits, validatedRule = 1, "gpu-memory"
	// incarnation is the label of a job and its pods that no later job of that name has.
	incarnation = foreign + "incarnation"
	// onlyWaits is the label of a pod that waits for the end of its job and is no rank of it, as the submitter of a RayJob.
	onlyWaits = foreign + "only-waits"
)

const rules = `apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 4}
  breaker: {maxNodes: 3, window: 10s, coolDown: 3s, pace: 2s}
  correlated: {maxPercent: 90, minNodes: 15, window: 5s}
  restart: {backOff: {first: 1s, max: 2s}, maxPerDay: 100}
  repair:
    mode: auto
    maxConcurrent: 1
    maxPerDay: 0 # a world of ten minutes repairs more than a day does
    maxFailures: 0
    actions:
      ResetGPU: [{template: reset-gpu, timeout: 10s}, {template: reboot, timeout: 10s}]
      Reboot: [{template: reboot, timeout: 10s}]
    validate: {template: check, timeout: 10s}
    lemon: {repairs: 0}
  sweeps:
    all: {every: 40s, idleFor: 2s, maxNodes: 1, template: check}
  rules:
    gpu-xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}, clearAfter: 2s, restartJobs: true}
    gpu-xid-inspect: {match: {condition: GPUXidError, repair: [Inspect]}, alertOnly: true}
    gpu-memory: {match: {condition: GPUMemoryError, repair: [ResetGPU, Reboot]}, for: 1s, clearAfter: 2s, restartJobs: true, validate: true, budget: {maxNodes: 2}}
    hca-port: {match: {condition: HCAPortDown, repair: [Inspect]}, mode: observe, clearAfter: 2s}
    node-not-ready:
      match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}
      for: 3s
      clearAfter: 2s
      restartJobs: true
      handOff: {keepNode: false}
`

// policies are those that the file of a world has at times, the first one most of the time.
var policies = []string{
	rules,
	strings.Replace(rules, "maxNodes: 4", "maxNodes: 2", 1),
	strings.Replace(rules, "clearAfter: 2s", "clearAfter: 10s", 1),
	strings.Replace(rules, "mode: auto", "mode: approve", 1),
	observing,
	invalid,
}

var (
	observing = strings.Replace(rules, "mode: enforce", "mode: observe", 1)
	invalid   = strings.Replace(rules, "mode: enforce", "mode: enforced", 1)
)

// isolates tells whether the world's GPUs are devices of dynamic resource allocation, so that a reset isolates one instead of its node.
func (w *world) isolates() bool { return w.seed%3 == 0 }

// policyOf is a policy as this world has it.
func (w *world) policyOf(text string) string {
	if w.isolates() {
		return strings.Replace(text, "Replace]}, clearAfter", "Replace]}, isolate: device, clearAfter", 1)
	}
	return text
}

// checks are the conditions that the Node Problem Detector of each node reports.
var checks = []corev1.NodeConditionType{conditions.GPUXidError, conditions.GPUMemoryError, conditions.HCAPortDown, conditions.DCGMDiagFailed}

// job is what a world has one of, under one name, with ever new incarnations.
type job struct {
	kind schema.GroupVersionKind
	name string
	// suspend and ranks are the paths of fields that its owner changes; nil: there is none.
	suspend []string
	ranks   [][]string
	spec    string
	// pods is how many it has beside those that its field of ranks counts; each of these counts as groups pods, 0 standing for one.
	pods, groups int
	// container is the name that its operator wants for containers; empty: any.
	container string
	// failsBesideOld: it fails when it is resumed while old pods end, so that its owner waits for their end.
	failsBesideOld bool
}

// isWhole tells whether a restart stops all of its pods.
func (j job) isWhole() bool { return j.suspend != nil }

// podMeta and podSpec are of the template of each pod.
const (
	podMeta = `{labels: {app: NAME, ` + incarnation + `: NAME.N}, annotations: {e2e.pitcrew.dev/term-delay: 1s}}`
	podSpec = `nodeSelector: {` + cluster.LabelPool + `: POOL}, containers: [{name: CONTAINER, image: none, resources: {limits: {nvidia.com/gpu: GPUS}}}]`
	// template is for jobs whose operator restarts what fails, once for the others.
	template = `{metadata: ` + podMeta + `, spec: {` + podSpec + `}}`
	once     = `{metadata: ` + podMeta + `, spec: {restartPolicy: Never, ` + podSpec + `}}`
)

var batch = schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}

var (
	suspend     = []string{"spec", "suspend"}
	replicas    = [][]string{{"spec", "replicas"}}
	parallelism = [][]string{{"spec", "parallelism"}, {"spec", "completions"}}
)

func kind(group, version, name string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: group, Version: version, Kind: name}
}

// jobs are those of a world, and startOperators starts what runs them beside Kubernetes and JobSet. With the build tag operators there is
// one of each kind that has an operator of its own.
var (
	jobs = []job{
		{kind: kind("jobset.x-k8s.io", "v1alpha2", "JobSet"), name: "jobset-a", suspend: suspend, spec: jobSet, pods: 3},
		{kind: kind("jobset.x-k8s.io", "v1alpha2", "JobSet"), name: "jobset-b", suspend: suspend, spec: jobSet, pods: 3},
		{kind: batch, name: "job-a", suspend: suspend, ranks: parallelism, spec: batchJob},
		{kind: batch, name: "job-b", suspend: suspend, ranks: parallelism, spec: batchJob},
		{kind: batch, name: "job-c", suspend: suspend, ranks: parallelism, spec: batchJob},
		{kind: batch, name: "job-d", suspend: suspend, ranks: parallelism, spec: batchJob},
		{kind: kind("apps", "v1", "StatefulSet"), name: "set", ranks: replicas, spec: app},
		{kind: kind("apps", "v1", "Deployment"), name: "deployment", ranks: replicas, spec: app},
	}
	startOperators = func(context.Context, *cluster.Cluster) error { return nil }
	// gpus is how many of a node's 8 GPUs each pod has.
	gpus = 4
)

const (
	batchJob = `{completionMode: Indexed, completions: 3, parallelism: 3, backoffLimit: 1000, template: ` + once + `}`
	jobSet   = `{failurePolicy: {maxRestarts: 1000}, replicatedJobs: [{name: rank, replicas: 1, template: {metadata: {labels: {` + incarnation + `: NAME.N}}, spec: ` + batchJob + `}}]}`
	app      = `{replicas: 2, selector: {matchLabels: {app: NAME}}, template: ` + template + `}`
)

// world is one seed's: nodes, jobs and two remediators.
type world struct {
	*cluster.Cluster
	ctx       context.Context
	seed      uint64
	pool      string // of the nodes, and the namespace of the jobs
	policy    string // the file
	breaker   *policy.Breaker
	frail     *cluster.Kubelets
	replicas  []*replica
	writers   writers
	nodes     *history[*corev1.Node]
	leases    *history[*coordinationv1.Lease]
	pods      *history[*corev1.Pod]
	jobs      []*history[*metav1.PartialObjectMetadata]
	made      map[string]int // incarnations, by job
	suspended map[string]bool
	cameBack  int                                     // how many jobs to nodes that they were stopped for
	restarts  int                                     // of the other programs of the cluster, because the world did not come to rest
	repairs   *history[*metav1.PartialObjectMetadata] // the Jobs of visits

	mu                   sync.Mutex
	policies             []written
	healed               metav1.Time           // since when no node has a fault
	skew                 map[int]time.Duration // by how much the clock of a node is wrong
	removed              map[string]bool       // marks
	cordoned, uncordoned map[types.UID]int
	putBack              map[string]bool // nodes
	commands, refused    map[string]int  // of the plugin
}

// newWorld starts a world. It ends with ctx.
func newWorld(t *testing.T, seed uint64) *world {
	c := clustertest.Get(t)
	dir := t.TempDir()
	w := &world{
		Cluster: c, ctx: t.Context(), seed: seed, pool: fmt.Sprintf("chaos-%d", seed), policy: filepath.Join(dir, "policy.yaml"),
		made: map[string]int{}, suspended: map[string]bool{}, skew: map[int]time.Duration{},
		removed: map[string]bool{}, cordoned: map[types.UID]int{}, uncordoned: map[types.UID]int{}, putBack: map[string]bool{},
		commands: map[string]int{}, refused: map[string]int{},
	}
	w.writers = writers{records: map[string][]string{}, leases: map[string][]byte{}, jobs: map[string][]byte{}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p, err := policy.Parse([]byte(rules))
	must(err)
	w.breaker = p.Breaker
	must(w.setPolicy(rules))
	must(c.InstallRemediator(w.ctx))
	must(w.installManifests("repair/rbac", "repair/templates", "repair/admission"))
	if w.isolates() {
		must(w.installManifests("remediator/devices"))
	}
	must(c.AddNamespace(w.ctx, w.pool, nil))
	w.frail, err = c.StartKubelets(w.ctx, w.pool)
	must(err)
	w.nodes = follow[*corev1.Node](w.ctx, c.Client, func() client.ObjectList { return &corev1.NodeList{} }, client.MatchingLabels{cluster.LabelPool: w.pool})
	w.leases = follow[*coordinationv1.Lease](w.ctx, c.Client, func() client.ObjectList { return &coordinationv1.LeaseList{} }, client.InNamespace("pitcrew"))
	w.pods = follow[*corev1.Pod](w.ctx, c.Client, func() client.ObjectList { return &corev1.PodList{} }, client.InNamespace(w.pool))
	metadata := func(kind schema.GroupVersionKind, options ...client.ListOption) *history[*metav1.PartialObjectMetadata] {
		return follow[*metav1.PartialObjectMetadata](w.ctx, c.Client, func() client.ObjectList {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
			return list
		}, options...)
	}
	for _, j := range jobs {
		w.jobs = append(w.jobs, metadata(j.kind, client.InNamespace(w.pool), client.MatchingLabels{"app": j.name}))
	}
	w.repairs = metadata(batch, client.InNamespace(conditions.RepairNamespace))
	for i := range nodes {
		must(w.addNode(i))
	}
	for i := range jobs {
		must(w.create(i))
	}
	for _, name := range []string{"a", "b"} {
		r := &replica{name: name, world: w}
		r.trouble.Store(&trouble{})
		w.replicas = append(w.replicas, r)
	}
	return w
}

func (w *world) node(i int) string { return fmt.Sprintf("%s-%d", w.pool, i) }

// index is the number of a node; -1: it is none of this world.
func (w *world) index(name string) int {
	for i := range nodes {
		if w.node(i) == name {
			return i
		}
	}
	return -1
}

func (w *world) addNode(i int) error {
	if w.isolates() {
		if err := w.publishDevices(w.node(i)); err != nil {
			return err
		}
	}
	_, err := w.AddNodes(w.ctx, w.pool, 1, func(n *corev1.Node) {
		n.Name = w.node(i)
		n.Labels[corev1.LabelHostname] = n.Name
		if i < frail {
			w.frail.Own(n)
		}
		for _, condition := range checks {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
				Type: condition, Status: corev1.ConditionFalse, Reason: "x", Message: "fine", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
			})
		}
	})
	return err
}

// change changes a node as it is, and tries again if another writer was faster. A node that is gone is not changed.
func (w *world) change(i int, change func(*corev1.Node)) error {
	return w.tried(func() error {
		var n corev1.Node
		if err := w.Client.Get(w.ctx, client.ObjectKey{Name: w.node(i)}, &n); err != nil {
			return err
		}
		before := n.DeepCopy()
		change(&n)
		return w.Client.Patch(w.ctx, &n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

// often is for objects that others change all the time: it gives up after some ten seconds.
var often = wait.Backoff{Steps: 11, Duration: 10 * time.Millisecond, Factor: 2, Jitter: 0.5}

// tried tries again after a conflict. What is gone needs no change.
func (w *world) tried(write func() error) error {
	return client.IgnoreNotFound(retry.OnError(often, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsInternalError(err)
	}, write))
}

// now is what the clock of a node shows.
func (w *world) now(i int) metav1.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return metav1.NewTime(time.Now().Add(w.skew[i]))
}

// report writes a condition as the Node Problem Detector does.
func (w *world) report(i int, condition corev1.NodeConditionType, status corev1.ConditionStatus, message string) error {
	now := w.now(i)
	return w.reportAll(i, []corev1.NodeCondition{{Type: condition, Status: status, Reason: "x", Message: message, LastHeartbeatTime: now, LastTransitionTime: now}})
}

func (w *world) reportAll(i int, all []corev1.NodeCondition) error {
	patch, err := patchOf(map[string]any{"status": map[string]any{"conditions": all}})
	if err != nil {
		return err
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node(i)}}
	return w.tried(func() error {
		return w.Client.Status().Patch(w.ctx, target, client.RawPatch(types.StrategicMergePatchType, patch))
	})
}

// reboot gives a node another boot id.
func (w *world) reboot(i int) error {
	var n corev1.Node
	if err := w.Client.Get(w.ctx, client.ObjectKey{Name: w.node(i)}, &n); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := n.DeepCopy()
	n.Status.NodeInfo.BootID = string(uuid.NewUUID())
	return w.tried(func() error { return w.Client.Status().Patch(w.ctx, &n, client.MergeFrom(before)) })
}

// mark puts something on a node that is not Pitcrew's: a taint, a label, an annotation or a cordon.
func (w *world) mark(i, what, id int) error {
	key := fmt.Sprintf("%sm%d", foreign, id)
	return w.change(i, func(n *corev1.Node) {
		switch what {
		case 0:
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectPreferNoSchedule})
		case 1:
			n.Labels[key] = "x"
		case 2:
			n.Annotations[key] = "x"
		case 3:
			if !n.Spec.Unschedulable {
				w.note(func() { w.cordoned[n.UID]++ })
			}
			n.Spec.Unschedulable = true
		}
	})
}

// unmark removes a mark again.
func (w *world) unmark(i, what, id int) error {
	key := fmt.Sprintf("%sm%d", foreign, id)
	return w.change(i, func(n *corev1.Node) {
		was := marks(n)
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
		delete(n.Labels, key)
		delete(n.Annotations, key)
		if what == 3 && n.Spec.Unschedulable {
			n.Spec.Unschedulable = false
			w.note(func() { w.uncordoned[n.UID]++ })
		}
		is := marks(n)
		w.note(func() {
			for mark := range was {
				w.removed[mark] = w.removed[mark] || !is[mark]
			}
		})
	})
}

func (w *world) note(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// rewriteTaints does what `kubectl taint` does with an old copy: it writes the taints as a whole, with a taint of Pitcrew or without it.
func (w *world) rewriteTaints(i int, back bool) error {
	if back {
		w.note(func() { w.putBack[w.node(i)] = true })
	}
	return w.change(i, func(n *corev1.Node) {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy })
		if back {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: conditions.TaintUnhealthy, Value: conditions.GPUXidError, Effect: corev1.TaintEffectNoSchedule})
		}
	})
}

func (w *world) skip(i int, on bool) error {
	return w.change(i, func(n *corev1.Node) {
		if delete(n.Labels, conditions.LabelSkip); on {
			n.Labels[conditions.LabelSkip] = "true"
		}
	})
}

// replace deletes a node and creates one of its name, unless it is quarantined: its place under the budget would be taken for an hour.
func (w *world) replace(i int) error {
	var n corev1.Node
	if err := w.Client.Get(w.ctx, client.ObjectKey{Name: w.node(i)}, &n); err != nil {
		return client.IgnoreNotFound(err)
	}
	if r, err := causes.RecordOf(&n); err == nil && r != nil {
		return nil
	}
	// Not DeleteNodes, which has the remediators forget what they know of nodes.
	if err := client.IgnoreNotFound(w.Client.Delete(w.ctx, &n)); err != nil {
		return err
	}
	return w.addNode(i)
}

func (w *world) kill(i int) {
	if r := w.replicas[i]; r.endsBy("killed") {
		r.current().Kill()
	}
}

func (w *world) stop(i int) {
	if r := w.replicas[i]; r.endsBy("stopped") {
		p := r.current()
		p.Thaw()
		p.Stop(5 * time.Second)
	}
}

func (w *world) freeze(i int) {
	if p := w.replicas[i].current(); p != nil {
		p.Freeze()
	}
}

func (w *world) thaw(i int) {
	if p := w.replicas[i].current(); p != nil {
		p.Thaw()
	}
}

func (w *world) outage(d time.Duration) error {
	w.StopAPIServer()
	pause(w.ctx, d)
	return w.StartAPIServer(w.ctx)
}

// setPolicy replaces the file as a whole, as a mounted ConfigMap is.
func (w *world) setPolicy(text string) error {
	w.note(func() { w.policies = append(w.policies, written{text, time.Now()}) })
	next := w.policy + ".next"
	if err := os.WriteFile(next, []byte(w.policyOf(text)), 0o600); err != nil {
		return err
	}
	return os.Rename(next, w.policy)
}

// written is a policy, and when its file was replaced.
type written struct {
	text string
	at   time.Time
}

// mayHaveObserved reports whether the policy of a remediator may have been the one that observes: it notices another one after a moment, and
// keeps the last one that is valid. w.mu is held.
func (w *world) mayHaveObserved(at time.Time) bool {
	const moment = 5 * time.Second
	last := ""
	for _, p := range w.policies {
		if p.at.After(at) {
			break
		}
		switch {
		case last == observing && p.at.Add(moment).After(at):
			return true
		case p.text != invalid:
			last = p.text
		}
	}
	return last == observing
}

func (w *world) setPause(on bool) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap}, Data: map[string]string{"reason": "chaos"}}
	if on {
		err := w.Client.Create(w.ctx, object)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	return client.IgnoreNotFound(w.Client.Delete(w.ctx, object))
}

// create creates the next incarnation of a job.
func (w *world) create(i int) error {
	j := jobs[i]
	w.made[j.name]++
	w.suspended[j.name] = false
	text := "apiVersion: " + j.kind.GroupVersion().String() + "\nkind: " + j.kind.Kind +
		"\nmetadata: {name: NAME, namespace: POOL, labels: {app: NAME, " + incarnation + ": NAME.N, " + conditions.LabelRestartOnNodeFault + ": \"true\"}}\nspec: " + j.spec
	for _, r := range [][2]string{
		{"CONTAINER", cmp.Or(j.container, "main")}, {"GPUS", strconv.Itoa(gpus)}, {"NAME.N", fmt.Sprintf("%s.%d", j.name, w.made[j.name])}, {"NAME", j.name}, {"POOL", w.pool},
	} {
		text = strings.ReplaceAll(text, r[0], r[1])
	}
	return w.Apply(w.ctx, []byte(text))
}

func (w *world) object(i int) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(jobs[i].kind)
	o.SetNamespace(w.pool)
	o.SetName(jobs[i].name)
	return o
}

// recreate deletes a job and creates it anew as soon as its name is free. It also deletes what the job has made: at times the garbage
// collector comes minutes later.
func (w *world) recreate(i int) error {
	background := client.PropagationPolicy(metav1.DeletePropagationBackground)
	if err := client.IgnoreNotFound(w.Client.Delete(w.ctx, w.object(i), background)); err != nil {
		return err
	}
	own := client.MatchingLabels{incarnation: fmt.Sprintf("%s.%d", jobs[i].name, w.made[jobs[i].name])}
	for _, child := range []client.Object{&batchv1.Job{}, &appsv1.ReplicaSet{}, &corev1.Pod{}} {
		if err := w.Client.DeleteAllOf(w.ctx, child, client.InNamespace(w.pool), own, background); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	for {
		if o := w.object(i); apierrors.IsNotFound(w.Client.Get(ctx, client.ObjectKeyFromObject(o), o)) {
			return w.create(i)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("job %s is not gone: %w", jobs[i].name, ctx.Err())
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// suspend sets the suspend field of a job, as its owner does who does not know of restarts.
func (w *world) suspend(i int, on bool) error {
	if jobs[i].suspend == nil {
		return nil
	}
	w.suspended[jobs[i].name] = on
	for waited := 0; !on && jobs[i].failsBesideOld && waited < 100; waited++ { // a restart may have resumed it
		pods, err := w.podsOf(i)
		if err != nil {
			return err
		}
		if len(pods) == 0 {
			break
		}
		pause(w.ctx, 100*time.Millisecond)
	}
	return w.set(i, on, jobs[i].suspend)
}

// evict deletes a pod of a job whose controller replaces it.
func (w *world) evict(i int) error {
	if !w.replacesPods(i) {
		return nil
	}
	pods, err := w.podsOf(i)
	if err != nil || len(pods) == 0 {
		return err
	}
	return client.IgnoreNotFound(w.Client.Delete(w.ctx, &pods[0]))
}

// comeBack has a restarted job come back to the node that it was stopped for: its pods are evicted while the node has no taint and no
// remediator sees it. It looks for such a job from job i on, and evicts a pod of job i if there is none.
func (w *world) comeBack(i int) error {
	for k := range jobs {
		job := (i + k) % len(jobs)
		node, err := w.stoppedFor(job)
		if err != nil {
			return err
		}
		if node < 0 {
			continue
		}
		for r := range w.replicas {
			w.freeze(r)
			defer w.thaw(r)
		}
		if err := w.rewriteTaints(node, false); err != nil {
			return err
		}
		pods, err := w.podsOf(job)
		if err != nil {
			return err
		}
		for p := range pods {
			if err := client.IgnoreNotFound(w.Client.Delete(w.ctx, &pods[p])); err != nil {
				return err
			}
		}
		pause(w.ctx, 2*time.Second) // the pods of some kinds end before new ones are created
		pods, err = w.podsOf(job)
		if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == w.node(node) }) {
			w.cameBack++
		}
		return err
	}
	return w.evict(i)
}

// stoppedFor is a node for whose quarantine a job was restarted, and which only the taint of that quarantine keeps it from; -1: there is
// none, or pods that are deleted do not come again.
func (w *world) stoppedFor(i int) (int, error) {
	if !w.replacesPods(i) {
		return -1, nil
	}
	_, rec, err := w.recordOf(i)
	if err != nil || rec.Current != nil {
		return -1, client.IgnoreNotFound(err)
	}
	for _, past := range rec.Last {
		for _, cause := range past.Quarantines {
			var n corev1.Node
			if err := w.Client.Get(w.ctx, client.ObjectKey{Name: cause.Node}, &n); client.IgnoreNotFound(err) != nil {
				return -1, err
			}
			r, err := causes.RecordOf(&n)
			visited := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance })
			if err == nil && r != nil && r.Phase == causes.Quarantined && r.ID == cause.ID && !visited && !n.Spec.Unschedulable {
				return w.index(cause.Node), nil
			}
		}
	}
	return -1, nil
}

// recordOf reads a job, and the record of its restarts.
func (w *world) recordOf(i int) (*unstructured.Unstructured, restart.Record, error) {
	o := w.object(i)
	if err := w.Client.Get(w.ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return nil, restart.Record{}, err
	}
	rec, err := restart.ReadRecord(o)
	return o, rec, err
}

// replacesPods tells whether the controller of a job replaces pods that are deleted.
func (w *world) replacesPods(i int) bool {
	return slices.Contains([]string{"batch", "apps", "jobset.x-k8s.io"}, jobs[i].kind.Group)
}

// podsOf are the pods of the present incarnation of a job.
func (w *world) podsOf(i int) ([]corev1.Pod, error) {
	var list corev1.PodList
	own := client.MatchingLabels{incarnation: fmt.Sprintf("%s.%d", jobs[i].name, w.made[jobs[i].name])}
	err := w.Client.List(w.ctx, &list, client.InNamespace(w.pool), own)
	return list.Items, err
}

func (w *world) resize(i, ranks int) error {
	if jobs[i].ranks == nil {
		return nil
	}
	return w.set(i, ranks, jobs[i].ranks...)
}

func (w *world) set(i int, value any, paths ...[]string) error {
	body := map[string]any{}
	for _, path := range paths {
		at := body
		for _, key := range path[:len(path)-1] {
			if at[key] == nil {
				at[key] = map[string]any{}
			}
			at = at[key].(map[string]any)
		}
		at[path[len(path)-1]] = value
	}
	patch, err := patchOf(body)
	if err != nil {
		return err
	}
	return w.tried(func() error { return w.Client.Patch(w.ctx, w.object(i), client.RawPatch(types.MergePatchType, patch)) })
}

// heal ends all that is wrong: from here on the world comes to rest.
func (w *world) heal() error {
	errs := []error{w.setPolicy(policies[0]), w.setPause(false)}
	w.note(func() { w.healed, w.skew = metav1.Now(), map[int]time.Duration{} })
	w.frail.Thaw()
	for i, r := range w.replicas {
		r.trouble.Store(&trouble{})
		w.thaw(i)
	}
	for i := range nodes {
		errs = append(errs, w.reboot(i), w.healthy(i), w.change(i, func(n *corev1.Node) {
			n.Labels = maps.Clone(n.Labels)
			delete(n.Labels, conditions.LabelSkip)
			if n.Spec.Unschedulable {
				w.note(func() { w.uncordoned[n.UID]++ })
				n.Spec.Unschedulable = false
			}
		}))
	}
	for i, j := range jobs {
		if w.suspended[j.name] {
			errs = append(errs, w.suspend(i, false))
		}
	}
	return errors.Join(errs...)
}

// atRest tells whether every node is in service, and every job runs as its owner wants. Meanwhile the checks report health.
func (w *world) atRest() error {
	var list corev1.NodeList
	if err := w.Client.List(w.ctx, &list, client.MatchingLabels{cluster.LabelPool: w.pool}); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		n := &list.Items[i]
		r, err := causes.RecordOf(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
			continue
		}
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, conditions.Domain+"/") })
		visits, err := visit.RecordOf(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", n.Name, err))
			continue
		}
		visited := visits != nil && visits.Current != nil
		open := visited || r != nil && (r.Phase == causes.Quarantined || r.Phase == causes.Released && r.ManualReleaseActive || n.Labels[conditions.LabelStatus] == conditions.StatusSuspect)
		if !tainted && !open {
			continue
		}
		errs = append(errs, fmt.Errorf("node %s: taints %v, record %s, visits %s", n.Name, n.Spec.Taints,
			n.Annotations[conditions.AnnotationQuarantine], n.Annotations[conditions.AnnotationRepair]))
		byHand := func(c causes.Cause) bool { return c.Rule == policy.ByHand }
		switch {
		case r == nil || r.Phase != causes.Quarantined:
		case r.Worst() == conditions.Replace || r.ManualReleaseOnly || slices.ContainsFunc(r.Causes, byHand):
			errs = append(errs, w.plugin("release", n.Name, "--without-validation"))
		case needsPerson(visits, r.ID, n.Status.NodeInfo.BootID):
			errs = append(errs, w.plugin("release", n.Name))
		}
		if visited && visits.Current.Phase == visit.Emptying && r != nil {
			errs = append(errs, w.evictFrom(n.Name, r))
		}
		errs = append(errs, w.healthy(w.index(n.Name)))
	}
	for i, j := range jobs {
		if err := w.runs(i, j); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, w.noDeviceRules())
	if len(errs) > 0 {
		errs = append(errs, w.readyAgain(list.Items))
	}
	return errors.Join(errs...)
}

// readyAgain reports running pods as ready whose node is. The controller of nodes takes the pods of a node that was silent for not ready; a
// kubelet reports them again, KWOK does not, and a StatefulSet waits for it.
func (w *world) readyAgain(nodes []corev1.Node) error {
	ready := map[string]bool{}
	for i := range nodes {
		ready[nodes[i].Name] = slices.ContainsFunc(nodes[i].Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	var pods corev1.PodList
	if err := w.Client.List(w.ctx, &pods, client.InNamespace(w.pool)); err != nil {
		return err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		before := p.DeepCopy()
		at := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse
		})
		if at < 0 || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || !ready[p.Spec.NodeName] {
			continue
		}
		p.Status.Conditions[at].Status = corev1.ConditionTrue
		if err := client.IgnoreNotFound(w.Client.Status().Patch(w.ctx, p, client.StrategicMergeFrom(before))); err != nil {
			return err
		}
	}
	return nil
}

// evictFrom does what a person does with pods on a node whose visit waits for them, and that nothing else moves: those of a job that was
// restarted for this quarantine already, and any if the faults of the node are gone, for which a new leader restarts no job.
func (w *world) evictFrom(node string, r *causes.Record) error {
	mended := !slices.ContainsFunc(r.Causes, func(c causes.Cause) bool { return c.HealthySince.IsZero() })
	for i := range jobs {
		if !w.replacesPods(i) {
			continue
		}
		_, rec, err := w.recordOf(i)
		if err != nil {
			return err
		}
		if !mended && !slices.ContainsFunc(rec.Last, func(past restart.Restart) bool { return past.Covers(r.ID) }) {
			continue
		}
		pods, err := w.podsOf(i)
		if err != nil {
			return err
		}
		for p := range pods {
			if pods[p].Spec.NodeName != node {
				continue
			}
			if err := client.IgnoreNotFound(w.Client.Delete(w.ctx, &pods[p])); err != nil {
				return err
			}
		}
	}
	return nil
}

// needsPerson tells whether no visit begins by itself any more in a quarantine: a person has stopped it, or the validation could not run.
func needsPerson(r *visit.Record, quarantineID, boot string) bool {
	if r == nil || r.Current != nil || r.Request != nil && slices.Contains([]string{visit.RequestRepair, visit.RequestRelease}, r.Request.Kind) {
		return false
	}
	if r.Stopped == quarantineID {
		return true
	}
	i := slices.IndexFunc(r.Last, func(v visit.Visit) bool { return v.Quarantine == quarantineID })
	return i >= 0 && r.Last[i].Kind == visit.Validation && r.Last[i].Phase == visit.Failed && r.Last[i].BootID == boot
}

// healthy has every check of a node report that it finds no fault, with another text each time, since a heartbeat alone is not looked at.
func (w *world) healthy(i int) error {
	now := w.now(i)
	since := now
	w.note(func() {
		if !w.healed.IsZero() {
			since = w.healed
		}
	})
	var all []corev1.NodeCondition
	for _, condition := range checks {
		all = append(all, corev1.NodeCondition{
			Type: condition, Status: corev1.ConditionFalse, Reason: "x", Message: "fine at " + now.Format(time.RFC3339), LastHeartbeatTime: now, LastTransitionTime: since,
		})
	}
	return w.reportAll(i, all)
}

// plugin runs the kubectl plugin.
func (w *world) plugin(args ...string) error {
	cmd := exec.CommandContext(w.ctx, filepath.Join(w.Root, "bin", "kubectl-pitcrew"), append(args, "-y")...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.Kubeconfig)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

// byPerson has a person do something with a node, which the plugin may refuse.
func (w *world) byPerson(i int, command string, flags ...string) error {
	return w.asPerson(append([]string{command, w.node(i), "--timeout=10s"}, flags...)...)
}

// abort has a person abort the restart of a job, which the plugin refuses if there is none.
func (w *world) abort(i int) error {
	kind := jobs[i].kind
	return w.asPerson("abort", fmt.Sprintf("%ss.%s.%s/%s", strings.ToLower(kind.Kind), kind.Version, kind.Group, jobs[i].name), "-n", w.pool)
}

func (w *world) asPerson(args ...string) error {
	err := w.plugin(args...)
	w.note(func() {
		if w.commands[args[0]]++; err != nil {
			w.refused[args[0]]++
		}
	})
	return w.ctx.Err()
}

// childrenOf describes the Jobs and pods of a job that does not run, for the message of a failure.
func (w *world) childrenOf(o *unstructured.Unstructured, pods []corev1.Pod) (text string) {
	var children batchv1.JobList
	if err := w.Client.List(w.ctx, &children, client.InNamespace(w.pool)); err != nil {
		return err.Error()
	}
	for _, c := range children.Items {
		if c.Name == o.GetName() || strings.HasPrefix(c.Name, o.GetName()+"-") {
			text += fmt.Sprintf("\n  Job %s, owners %v (now %s), created %s, deleted %v, suspend %v, status %+v", c.Name, c.OwnerReferences, o.GetUID(), c.CreationTimestamp, c.DeletionTimestamp,
				ptr.Deref(c.Spec.Suspend, false), c.Status)
		}
	}
	for _, p := range pods {
		text += fmt.Sprintf("\n  pod %s on %q, created %s, deleted %v: %s, %+v", p.Name, p.Spec.NodeName, p.CreationTimestamp, p.DeletionTimestamp, p.Status.Phase, p.Status.Conditions)
	}
	return text
}

// restartOthers has the other programs of the cluster start again, as a person does when nothing goes on: after an outage of the API server
// each watch of theirs waits for up to a minute, see [cluster.Cluster.RestartControllers], and the Job controller waits up to ten minutes
// before it creates pods for a Job of which persons have deleted several, or for one under the name of a job that was just deleted
// (pkg/controller/job/backoff_utils.go of Kubernetes).
func (w *world) restartOthers() error {
	w.restarts++
	w.RestartControllers()
	return errors.Join(w.Kubelets().Restart(w.ctx), w.frail.Restart(w.ctx))
}

// runs tells whether a job has no restart under way, is not suspended, and has all ranks.
func (w *world) runs(i int, j job) error {
	o, rec, err := w.recordOf(i)
	if err != nil {
		return err
	}
	if rec.Current != nil {
		return fmt.Errorf("job %s: restart %+v is under way", j.name, *rec.Current)
	}
	if suspended, _, _ := unstructured.NestedBool(o.Object, j.suspend...); suspended && j.suspend != nil {
		return fmt.Errorf("job %s is suspended, last by %s", j.name, o.GetAnnotations()[conditions.AnnotationRestart])
	}
	pods := int64(j.pods)
	if j.ranks != nil {
		ranks, _, _ := unstructured.NestedInt64(o.Object, j.ranks[0]...)
		pods += ranks * int64(max(1, j.groups))
	}
	var list corev1.PodList
	if err := w.Client.List(w.ctx, &list, client.InNamespace(w.pool), client.MatchingLabels{incarnation: o.GetLabels()[incarnation]}); err != nil {
		return err
	}
	running := 0
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			running++
		}
	}
	if running != int(pods) {
		return fmt.Errorf("job %s: %d of %d pods run; status %v%s", j.name, running, pods, o.Object["status"], w.childrenOf(o, list.Items))
	}
	return nil
}
