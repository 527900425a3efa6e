package attacks

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

var (
	optedIn   = map[string]string{conditions.LabelRestartOnNodeFault: "true"}
	jobSetGVK = schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}
	gangGVK   = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gang"}
)

// gpus is a whole node of the scene.
var gpus = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}

// podSpec is that of a rank that takes a whole node of the scene.
func (s *scene) podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		NodeSelector:  map[string]string{cluster.LabelPool: s.pool},
		Containers:    []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus}}},
	}
}

// job has a tenant create a Job of one rank, and returns it and the node of the rank.
func (s *scene) job(as client.Client, namespace, name string) (*batchv1.Job, string) {
	s.Helper()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: optedIn},
		Spec:       batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), Template: corev1.PodTemplateSpec{Spec: s.podSpec()}},
	}
	if err := as.Create(s.Context(), job); err != nil {
		s.Fatal(err)
	}
	return job, s.ranks(namespace, 1)[0].Spec.NodeName
}

// ranks waits until n pods of a namespace run, beside those that are being deleted.
func (s *scene) ranks(namespace string, n int) (running []corev1.Pod) {
	s.Helper()
	s.until(fmt.Sprintf("%d pods run in %s", n, namespace), func() error {
		var list corev1.PodList
		if err := s.admin.List(s.Context(), &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		running = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning })
		if len(running) != n {
			return fmt.Errorf("%d run of %d", len(running), len(list.Items))
		}
		return nil
	})
	return running
}

// restartOf reads the record of a job.
func (s *scene) restartOf(gvk schema.GroupVersionKind, key client.ObjectKey) (restart.Record, error) {
	job := &metav1.PartialObjectMetadata{}
	job.SetGroupVersionKind(gvk)
	if err := s.admin.Get(s.Context(), key, job); err != nil {
		return restart.Record{}, err
	}
	return restart.ReadRecord(job)
}

// restarted waits until a job was restarted once and runs again.
func (s *scene) restarted(gvk schema.GroupVersionKind, key client.ObjectKey) {
	s.Helper()
	s.until(fmt.Sprintf("%s %s is restarted", gvk.Kind, key), func() error {
		rec, err := s.restartOf(gvk, key)
		if err != nil {
			return err
		}
		if rec.Current != nil || rec.Total != 1 || len(rec.Last) == 0 || rec.Last[0].Phase != restart.Done {
			return fmt.Errorf("record %+v; events %q", rec, s.events(key.Name))
		}
		return nil
	})
}

// forgeRestart writes a record of a restart under way on a job: as the attacker, whom an admission policy may refuse, and then by an
// admin, as if that policy were switched off.
func (s *scene) forgeRestart(attacker client.Client, job client.Object, rec restart.Record) {
	s.Helper()
	rec.V, rec.JobUID = 1, job.GetUID()
	text, err := json.Marshal(rec)
	if err != nil {
		s.Fatal(err)
	}
	labels := map[string]any{}
	if rec.Current != nil {
		labels[conditions.LabelRestarting] = "true"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": map[string]string{conditions.AnnotationRestart: string(text)}}})
	if err != nil {
		s.Fatal(err)
	}
	target := job.DeepCopyObject().(client.Object)
	if err := attacker.Patch(s.Context(), target, client.RawPatch(types.MergePatchType, patch)); err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		s.Fatal(err)
	}
	if err := s.admin.Patch(s.Context(), target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		s.Fatal(err)
	}
}

// events are the notes of all Events about objects of a name.
func (s *scene) events(name string) (notes []string) {
	s.Helper()
	var list eventsv1.EventList
	if err := s.admin.List(s.Context(), &list); err != nil {
		s.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == name {
			notes = append(notes, e.Reason+" "+e.Action+": "+e.Note)
		}
	}
	return notes
}

// reports waits for an Event about an object of a name.
func (s *scene) reports(name, text string) {
	s.Helper()
	s.until(fmt.Sprintf("an Event about %s says %q", name, text), func() error {
		notes := s.events(name)
		if !slices.ContainsFunc(notes, func(note string) bool { return strings.Contains(note, text) }) {
			return fmt.Errorf("events %q", notes)
		}
		return nil
	})
}

// bogus are causes that no node has.
func bogus(n int, node string) (causes []restart.Cause) {
	for i := range n {
		name := node
		if i > 0 {
			name = fmt.Sprintf("%s-%d", node, i)
		}
		causes = append(causes, restart.Cause{ID: fmt.Sprintf("forged-%d", i), Node: name, NodeUID: "bogus", Reason: "forged", Since: time.Now()})
	}
	return causes
}

const restartXid = `
  budget: {maxNodes: 3}
  restart: {maxConcurrent: 1, checkCapacity: true}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}, restartJobs: true}
    soft: {match: {condition: GPUMemoryError, repair: [ResetGPU], POOL}, restartJobs: true, checkpointGrace: 1h}
`

// One annotation must not hold up the restarts of all tenants: a checkpoint for 100 years, for a quarantine that no node has, with
// more ranks to move than there are in the world.
func TestAttack07AForgedRestartHoldsUpNoOther(t *testing.T) {
	s := newScene(t, "attack07", 3, nil)
	mallory, alice := s.tenant("mallory07"), s.tenant("alice07")
	forged, here := s.job(mallory, "mallory07", "forged")
	job, there := s.job(alice, "alice07", "train")
	s.remediator(s.policy(restartXid))
	// Its rank runs on the node, whose record has no such quarantine.
	now := time.Now()
	s.forgeRestart(mallory, forged, restart.Record{Current: &restart.Restart{
		Phase: restart.Checkpointing, StartedAt: now, PhaseSince: now, CheckpointBy: now.AddDate(100, 0, 0), Moving: 1 << 40, Quarantines: bogus(500, here),
	}})
	s.report(there, corev1.ConditionTrue, lost)
	s.restarted(batchv1.SchemeGroupVersion.WithKind("Job"), client.ObjectKeyFromObject(job))
	s.until("the forged restart is closed", func() error {
		rec, err := s.restartOf(batchv1.SchemeGroupVersion.WithKind("Job"), client.ObjectKeyFromObject(forged))
		if err != nil || rec.Current != nil {
			return fmt.Errorf("record %+v: %w", rec, err)
		}
		return nil
	})
}

// A deadline far away is no more than the longest checkpointGrace after the start, even for a quarantine that is real.
func TestAttack07AForgedDeadlineEnds(t *testing.T) {
	s := newScene(t, "attack07b", 2, nil)
	mallory := s.tenant("mallory07b")
	job, here := s.job(mallory, "mallory07b", "train")
	policy := s.policy(`
  budget: {maxNodes: 3}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}, restartJobs: true, checkpointGrace: 1h}
`)
	s.remediator(policy)
	s.report(here, corev1.ConditionTrue, lost)
	key, gvk := client.ObjectKeyFromObject(job), batchv1.SchemeGroupVersion.WithKind("Job")
	var rec restart.Record
	s.until("the job may save its state", func() (err error) {
		if rec, err = s.restartOf(gvk, key); err != nil || rec.Current == nil || rec.Current.Phase != restart.Checkpointing {
			return fmt.Errorf("record %+v: %w", rec, err)
		}
		return nil
	})
	rec.Current.StartedAt, rec.Current.CheckpointBy = time.Now().AddDate(100, 0, 0), time.Now().AddDate(100, 0, 0)
	s.forgeRestart(mallory, job, rec)
	s.change(policy, "checkpointGrace: 1h", "checkpointGrace: 1s") // the forgery comes while the job saves its state
	s.restarted(gvk, key)
}

// Labelled Deployments with as many annotations as fit must not fill the memory of the remediator. A record that is too large is
// refused, and said.
func TestAttack08LabelledJobsDoNotFillTheCache(t *testing.T) {
	s := newScene(t, "attack08", 1, nil)
	mallory := s.tenant("mallory08")
	metrics := clustertest.FreeAddress(t)
	t.Setenv("GOGC", "20") // the heap is never much more than what is kept; a collection that nothing calls for comes after two minutes
	s.remediator(s.policy(restartXid), "-metrics-bind-address", metrics)
	const n, size = 150, 240 << 10
	filler := strings.Repeat("x", size)
	var last *appsv1.Deployment
	for i := range n {
		labels := map[string]string{"app": fmt.Sprintf("filler-%d", i)}
		last = &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mallory08", Name: labels["app"], Annotations: map[string]string{"filler": filler}},
			Spec: appsv1.DeploymentSpec{Paused: true, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				// No such node: its rank never runs, so that the restart lasts.
				Spec: corev1.PodSpec{NodeSelector: map[string]string{"no": "where"}, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
			}},
		}
		if err := s.admin.Create(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		s.forgeRestart(mallory, last, restart.Record{Current: &restart.Restart{ID: "forged", Phase: restart.Starting, StartedAt: now, PhaseSince: now, Ranks: 1}})
	}
	// The heap is below this, unless the metadata is kept: that alone has 35 MiB.
	s.until("the heap is small", func() error {
		if heap := s.heap(metrics); heap > 30<<20 {
			return fmt.Errorf("%d MiB", heap>>20)
		}
		return nil
	})

	large := last.DeepCopy()
	large.ObjectMeta = metav1.ObjectMeta{Namespace: "mallory08", Name: "large"}
	if err := s.admin.Create(t.Context(), large); err != nil {
		t.Fatal(err)
	}
	s.forgeRestart(mallory, large, restart.Record{Current: &restart.Restart{Phase: restart.Starting, Outcome: filler + strings.Repeat("x", 8<<10)}})
	s.reports("large", "bytes, at most 245760")
	s.until("its label is gone", func() error {
		if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(large), large); err != nil {
			return err
		}
		if large.Labels[conditions.LabelRestarting] != "" {
			return fmt.Errorf("labels %v", large.Labels)
		}
		return nil
	})
}

// A tenant's pods of more than a megabyte each, on a node that a job is restarted for, must not fill the memory of the remediator, which reads
// the pods of the node. The chart's limit is 256Mi.
func TestAttack08LargePodsDoNotFillTheMemory(t *testing.T) {
	s := newScene(t, "attack08c", 2, nil)
	mallory := s.tenant("mallory08c")
	job, here := s.job(s.tenant("team08c"), "team08c", "train")
	for i := range 120 {
		if err := mallory.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "mallory08c", Name: fmt.Sprintf("large-%d", i)},
			Spec: corev1.PodSpec{NodeName: here, Containers: []corev1.Container{{
				Name: "c", Image: "none", Env: []corev1.EnvVar{{Name: "FILLER", Value: strings.Repeat("x", 1_200_000)}},
			}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	p := s.remediator(s.policy(restartXid))
	s.report(here, corev1.ConditionTrue, lost)
	s.restarted(batchv1.SchemeGroupVersion.WithKind("Job"), client.ObjectKeyFromObject(job))
	if mib := peakMemory(t, p); mib > 200 {
		t.Errorf("%d MiB", mib)
	} else {
		t.Logf("%d MiB", mib)
	}
}

// Thirty pods of a tenant whose labels have 0.6 MB each, on the node that fails and on the only one with room, made both too
// large to judge: no job was restarted.
func TestAttack08PodsWithManyLabelsHoldUpNoOther(t *testing.T) {
	s := newScene(t, "attack08d", 2, nil)
	mallory := s.tenant("mallory08d")
	job, here := s.job(s.tenant("team08d"), "team08d", "train")
	labels := map[string]string{}
	for i := range 3500 {
		labels[fmt.Sprintf("%s.example.com/%s-%d", strings.Repeat("l", 60), strings.Repeat("n", 50), i)] = strings.Repeat("v", 63)
	}
	for _, node := range s.nodes {
		for i := range 30 {
			if err := mallory.Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "mallory08d", Name: fmt.Sprintf("large-%s-%d", node, i), Labels: labels},
				Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.remediator(s.policy(restartXid))
	s.report(here, corev1.ConditionTrue, lost)
	s.restarted(batchv1.SchemeGroupVersion.WithKind("Job"), client.ObjectKeyFromObject(job))
}

var heapLine = regexp.MustCompile(`(?m)^go_memstats_heap_alloc_bytes (\S+)$`)

// heap is how many bytes the heap of the remediator has, as its metrics say.
func (s *scene) heap(address string) int {
	s.Helper()
	text, err := cluster.Scrape(s.Context(), address)
	if err != nil {
		return math.MaxInt
	}
	found := heapLine.FindStringSubmatch(text)
	if found == nil {
		s.Fatalf("no heap in the metrics: %.500s", text)
	}
	bytes, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		s.Fatal(err)
	}
	return int(bytes)
}

// The policy sets no back-off. A record with a row of restarts without end was counted down one by one, under the lock of all restarts.
func TestAttack15AForgedStreakDoesNotLoop(t *testing.T) {
	s := newScene(t, "attack15", 4, nil)
	mallory, alice := s.tenant("mallory15"), s.tenant("alice15")
	forged, here := s.job(mallory, "mallory15", "forged")
	job, there := s.job(alice, "alice15", "train")
	s.forgeRestart(mallory, forged, restart.Record{Last: []restart.Restart{{Phase: restart.Done, Streak: math.MaxInt64, EndedAt: time.Now()}}})
	s.remediator(s.policy(restartXid))
	s.report(here, corev1.ConditionTrue, lost)
	s.becomes(here, causes.Quarantined)
	s.report(there, corev1.ConditionTrue, lost)
	s.restarted(batchv1.SchemeGroupVersion.WithKind("Job"), client.ObjectKeyFromObject(job))
}

// A record names many nodes that have nothing to do with the job. Events about nodes are for the nodes' owners.
func TestAttack16AForgedRecordWritesNoEventsAboutNodes(t *testing.T) {
	s := newScene(t, "attack16", 3, nil)
	mallory, alice := s.tenant("mallory16"), s.tenant("alice16")
	forged, here := s.job(mallory, "mallory16", "forged16")
	job, there := s.job(alice, "alice16", "train")
	s.remediator(s.policy(restartXid))
	// The job is not suspended, so that the restart is closed at once.
	now := time.Now()
	s.forgeRestart(mallory, forged, restart.Record{Current: &restart.Restart{
		ID: "forged", Phase: restart.Stopping, StartedAt: now, PhaseSince: now, Quarantines: append(bogus(500, "victim"), bogus(1, here)...),
	}})
	s.reports("forged16", "JobRestartFailed Abandoned")
	// What follows it: a restart that is real, with its Events on its node.
	s.report(there, corev1.ConditionTrue, lost)
	s.restarted(batchv1.SchemeGroupVersion.WithKind("Job"), client.ObjectKeyFromObject(job))
	s.reports(there, "JobRestarted Restarted: Job alice16/train")
	var list eventsv1.EventList
	if err := s.admin.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Node" && strings.Contains(e.Note, "mallory16") {
			t.Errorf("an Event about node %s: %s", e.Regarding.Name, e.Note)
		}
	}
	ours := slices.DeleteFunc(s.events("forged16"), func(note string) bool { return !strings.HasPrefix(note, "JobRestart") })
	if len(ours) != 1 {
		t.Errorf("%d Events about the job: %.1000q", len(ours), ours)
	}
}

// podCreator is a service account that may only create pods.
func (s *scene) podCreator(namespace string) client.Client {
	s.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "pods"}
	for _, object := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}}}},
		&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "pods"}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "pods"}},
	} {
		if err := s.admin.Create(s.Context(), object); err != nil {
			s.Fatal(err)
		}
	}
	cfg, err := s.cluster.ServiceAccountConfig(s.Context(), namespace, "pods")
	if err != nil {
		s.Fatal(err)
	}
	return s.client(cfg)
}

// Whoever may create pods beside a job must not restart it, nor hold it stopped: with pods that have its labels and name it, or one
// of its child Jobs, as their owner.
func TestAttack17AForgedOwnerRestartsAndHoldsNoJob(t *testing.T) {
	s := newScene(t, "attack17", 4, nil)
	alice := s.tenant("alice17")
	job, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&batchv1.JobSpec{
		Parallelism: ptr.To[int32](1), Completions: ptr.To[int32](1), BackoffLimit: ptr.To[int32](0), Template: corev1.PodTemplateSpec{Spec: s.podSpec()}})
	if err != nil {
		t.Fatal(err)
	}
	set := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicatedJobs": []any{
		map[string]any{"name": "w", "replicas": int64(2), "template": map[string]any{"spec": job}},
	}}}}
	set.SetGroupVersionKind(jobSetGVK)
	set.SetNamespace("alice17")
	set.SetName("train")
	set.SetLabels(optedIn)
	if err := alice.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	ranks := s.ranks("alice17", 2)
	free := slices.DeleteFunc(slices.Clone(s.nodes), func(n string) bool { return n == ranks[0].Spec.NodeName || n == ranks[1].Spec.NodeName })

	attacker := s.podCreator("alice17")
	forge := func(name, node string, owner metav1.OwnerReference) {
		t.Helper()
		spec := s.podSpec()
		spec.NodeName, spec.Containers[0].Resources = node, corev1.ResourceRequirements{}
		spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "alice17", Name: name, OwnerReferences: []metav1.OwnerReference{owner},
			Labels: map[string]string{"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": "w"}}, Spec: spec}
		if err := attacker.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	ofSet := *metav1.NewControllerRef(set, jobSetGVK)
	ofSet.BlockOwnerDeletion = nil
	forge("away", free[0], ofSet)
	forge("beside", ranks[0].Spec.NodeName, ofSet)
	s.ranks("alice17", 4)

	s.remediator(s.policy(`
  budget: {maxNodes: 3}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}, restartJobs: true}
`))
	key := client.ObjectKeyFromObject(set)
	s.report(free[0], corev1.ConditionTrue, lost)
	s.reports("train", "the job did not make that pod")
	if rec, err := s.restartOf(jobSetGVK, key); err != nil || rec.Current != nil || rec.Total != 0 {
		t.Errorf("a pod of others restarts the job: %+v, %v", rec, err)
	}
	// The forged pod tolerates everything and stays. Only one node is left for the rank that moves.
	s.report(ranks[0].Spec.NodeName, corev1.ConditionTrue, lost)
	s.restarted(jobSetGVK, key)
	var pod corev1.Pod
	if err := s.admin.Get(t.Context(), client.ObjectKey{Namespace: "alice17", Name: "beside"}, &pod); err != nil || pod.DeletionTimestamp != nil {
		t.Errorf("the forged pod did not stay, so nothing was held: %v", err)
	}
}

// A policy that no longer names a kind must not leave its jobs stopped.
func TestAttack24AReloadThatDropsAJobKindFinishesItsRestart(t *testing.T) {
	s := newScene(t, "attack24", 2, nil)
	s.tenant("alice24")
	if err := s.cluster.Apply(t.Context(), []byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gangs.example.com}
spec:
  group: example.com
  names: {kind: Gang, singular: gang, plural: gangs}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pitcrew-attacks-gangs}
rules:
- {apiGroups: [example.com], resources: [gangs], verbs: [get, list, watch, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pitcrew-attacks-gangs}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pitcrew-attacks-gangs}
subjects: [{kind: ServiceAccount, name: pitcrew-remediator, namespace: pitcrew}]
`)); err != nil {
		t.Fatal(err)
	}
	gang := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"suspend": false}}}
	gang.SetGroupVersionKind(gangGVK)
	gang.SetNamespace("alice24")
	gang.SetName("train")
	gang.SetLabels(optedIn)
	s.until("a Gang is created", func() error { return s.admin.Create(t.Context(), gang) })
	rank := func(name string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "alice24", Name: name, Labels: map[string]string{"example.com/gang": "train"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(gang, gangGVK)}}, Spec: s.podSpec()}
		if err := s.admin.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		return pod
	}
	old := rank("train-0")
	bad := s.ranks("alice24", 1)[0].Spec.NodeName

	rules := `
  budget: {maxNodes: 1}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}, restartJobs: true}
`
	policy := s.policy(rules + "  jobKinds:\n  - {apiVersion: example.com/v1, kind: Gang, suspendPath: spec.suspend, podLabel: example.com/gang}\n")
	remediator := s.remediator(policy)
	suspended := func(want bool) {
		t.Helper()
		s.until(fmt.Sprintf("suspend of the Gang is %t", want), func() error {
			if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(gang), gang); err != nil {
				return err
			}
			if is, _, _ := unstructured.NestedBool(gang.Object, "spec", "suspend"); is != want {
				return fmt.Errorf("it is %t: %v", is, gang.GetAnnotations())
			}
			return nil
		})
	}
	s.report(bad, corev1.ConditionTrue, lost)
	suspended(true)
	without, err := os.ReadFile(s.policy(rules))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(policy, without, 0o644); err != nil {
		t.Fatal(err)
	}
	s.until("the policy has changed", func() error {
		if !strings.Contains(remediator.Log(), "The policy has changed") {
			return errors.New("it has not")
		}
		return nil
	})
	if err := s.admin.Delete(t.Context(), old, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	suspended(false)
	rank("train-1")
	s.restarted(gangGVK, client.ObjectKeyFromObject(gang))
}
