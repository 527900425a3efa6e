package attacks

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// The admission policies on the remediator's own account.
const (
	onJobs     = "pitcrew-remediator-jobs"
	onNodes    = "pitcrew-remediator-nodes"
	onCommands = "pitcrew-remediator-commands"
)

// stolen has the token of the remediator. It returns once the policies on this account are in force.
func (s *scene) stolen() client.Client {
	s.Helper()
	cfg, err := s.cluster.ServiceAccountConfig(s.Context(), "pitcrew", "pitcrew-remediator")
	if err != nil {
		s.Fatal(err)
	}
	cfg.QPS = -1
	token := s.client(cfg)
	s.until("the policies on the remediator's account are in force", func() error {
		target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.nodes[0]}}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))
		if err := token.Patch(s.Context(), target, patch, client.DryRunAll); !deniedBy(err, onNodes) {
			return fmt.Errorf("the remediator may cordon a node: %w", err)
		}
		return nil
	})
	return token
}

// refused is [scene.denied], for a reason that the policy gives: an expression that fails denies everything.
func (s *scene) refused(err error, policy, attack string) {
	s.Helper()
	s.denied(err, policy, attack)
	if err != nil && !strings.Contains(err.Error(), "denied request: the remediator ") {
		s.Errorf("%s: not denied for a reason: %v", attack, err)
	}
}

// namespace adds a namespace for the test.
func (s *scene) namespace(name string) {
	s.Helper()
	if err := s.cluster.AddNamespace(s.Context(), name, nil); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := s.admin.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			s.Error(err)
		}
	})
}

// customResource is a custom resource that the cluster is to serve, whatever its objects contain.
type customResource struct {
	plural, kind, group string
	versions            []string
}

// serve adds custom resources for the test.
func (s *scene) serve(all ...customResource) {
	s.Helper()
	for _, r := range all {
		var versions []any
		for i, v := range r.versions {
			versions = append(versions, map[string]any{
				"name": v, "served": true, "storage": i == 0, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			})
		}
		crd := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": r.plural + "." + r.group, "annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, a test"}},
			"spec": map[string]any{
				"group": r.group, "scope": "Namespaced", "versions": versions,
				"names": map[string]any{"kind": r.kind, "listKind": r.kind + "List", "plural": r.plural, "singular": strings.ToLower(r.kind)},
			},
		}}
		if err := s.admin.Create(s.Context(), crd); err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() {
			//nolint:usetesting // the test's own context has ended by now
			if err := s.admin.Delete(context.Background(), crd); err != nil {
				s.Error(err)
			}
		})
		for _, v := range r.versions {
			s.until(r.kind+" is served", func() error {
				list := &unstructured.UnstructuredList{}
				list.SetGroupVersionKind(schema.GroupVersionKind{Group: r.group, Version: v, Kind: r.kind + "List"})
				return s.admin.List(s.Context(), list)
			})
		}
	}
}

// createOf creates an object of a kind from the YAML of its spec, as admin.
func (s *scene) createOf(gvk schema.GroupVersionKind, namespace, name, spec string) *unstructured.Unstructured {
	s.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(spec), &object.Object); err != nil {
		s.Fatal(err)
	}
	object.SetGroupVersionKind(gvk)
	object.SetNamespace(namespace)
	object.SetName(name)
	// A custom resource may be listed before its objects can be created.
	s.until(fmt.Sprintf("%s %s is created", gvk.Kind, name), func() error {
		return client.IgnoreAlreadyExists(s.admin.Create(s.Context(), object.DeepCopy()))
	})
	s.Cleanup(func() { // before a remediator of another test finds it
		//nolint:usetesting // the test's own context has ended by now
		if err := s.admin.Delete(context.Background(), object.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			s.Error(err)
		}
	})
	return object
}

func patchOf(s *scene, by client.Client, object *unstructured.Unstructured, patch string) error {
	s.Helper()
	body, err := yaml.YAMLToJSON([]byte(patch))
	if err != nil {
		s.Fatal(err)
	}
	return by.Patch(s.Context(), object.DeepCopy(), client.RawPatch(types.MergePatchType, body))
}

// The specs of jobs, and changes of them that no restart makes, by API group and kind.
var jobsUnderAttack = map[string]struct {
	spec    string
	attacks []string
}{
	"batch Job": {"{spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: none}]}}}}", []string{
		"{spec: {parallelism: 9}}", "{spec: {activeDeadlineSeconds: 1}}", "{spec: {ttlSecondsAfterFinished: 0}}",
		"{spec: {template: {spec: {nodeSelector: {owner: me}}}}}", // a suspended Job's may change
	}},
	"jobset.x-k8s.io JobSet": {"{spec: {suspend: true, replicatedJobs: [{name: r, template: {spec: {template: {spec: {containers: [{name: c, image: none}]}}}}}]}}", []string{
		"{spec: {ttlSecondsAfterFinished: 0}}",
	}},
	"trainer.kubeflow.org TrainJob": {"{spec: {runtimeRef: {name: torch}}}", []string{"{spec: {trainer: {image: evil}}}", "{spec: {runtimeRef: {name: evil}}}", "{spec: {runtimeRef: null}}"}},
	"kubeflow.org": {"{spec: {runPolicy: {backoffLimit: 3}, replicaSpecs: {Worker: {replicas: 2, template: {spec: {containers: [{name: c, image: none}]}}}}}}", []string{
		"{spec: {replicaSpecs: {Worker: {template: {spec: {containers: [{name: c, image: evil}]}}}}}}",
		"{spec: {replicaSpecs: {Worker: {replicas: 9}}}}", "{spec: {runPolicy: {backoffLimit: 9}}}", "{spec: {runPolicy: {ttlSecondsAfterFinished: 0}}}",
		"{spec: {runPolicy: null}}", "{spec: {suspend: true}}",
	}},
	"ray.io": {"{spec: {shutdownAfterJobFinishes: true, entrypoint: train}}", []string{"{spec: {entrypoint: evil}}", "{spec: {clusterSelector: {a: b}}}", "{spec: {shutdownAfterJobFinishes: null}}"}},
	"batch.volcano.sh Job": {"{spec: {maxRetry: 3, minAvailable: 1, tasks: [{name: t, replicas: 1, template: {spec: {containers: [{name: c, image: none}]}}}]}}", []string{
		"{spec: {minAvailable: 0}}", "{spec: {tasks: [{name: t, replicas: 1, template: {spec: {containers: [{name: c, image: evil}]}}}]}}",
	}},
	"leaderworkerset.x-k8s.io LeaderWorkerSet": {"{spec: {replicas: 1, leaderWorkerTemplate: {size: 2, restartPolicy: RecreateGroupOnPodRestart}}}", []string{"{spec: {replicas: 0}}", "{spec: {leaderWorkerTemplate: {size: 3}}}"}},
	"apps": {"{spec: {replicas: 0, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: none}]}}}}", []string{
		"{spec: {template: {spec: {containers: [{name: c, image: evil}]}}}}", "{spec: {template: {spec: {containers: [{name: c, image: none, command: [sh]}]}}}}",
		"{spec: {replicas: 9}}", "{spec: {template: {spec: {serviceAccountName: admin}}}}",
	}},
}

// changesOfMetadata are attacks on an object of any kind.
var changesOfMetadata = []string{
	"{metadata: {labels: {pitcrew.dev/restart-on-node-fault: 'true'}}}", "{metadata: {labels: {team: other}}}", "{metadata: {annotations: {example.com/x: theirs}}}",
	"{metadata: {finalizers: [example.com/stay]}}", "{metadata: {ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: x, uid: x}]}}",
}

// The remediator may patch every kind that it restarts. With a stolen token that is an image of the attacker's choice in every
// namespace, unless admission allows no more than a restart needs: that, and nothing else, is tried here on each kind.
func TestAttack23AStolenTokenChangesNoImageOfAJob(t *testing.T) {
	s := newScene(t, "stolen", 1, nil)
	token := s.stolen()
	const namespace = "stolen-jobs"
	s.namespace(namespace)
	s.serve(customResources(kinds.BuiltIn())...)
	for _, kind := range kinds.BuiltIn() {
		t.Run(strings.ReplaceAll(kind.GVK.GroupVersion().String(), "/", "_")+"_"+kind.GVK.Kind, func(t *testing.T) {
			s := *s
			s.T = t
			play, known := jobsUnderAttack[kind.GVK.Group+" "+kind.GVK.Kind]
			if !known {
				play, known = jobsUnderAttack[kind.GVK.Group]
			}
			if !known {
				t.Fatal("jobsUnderAttack has no object of this kind, and no attack on one")
			}
			object := s.createOf(kind.GVK, namespace, "x-"+strings.ToLower(kind.GVK.Kind)+"-"+kind.GVK.Version, play.spec)
			s.until("the policy about jobs is in force", func() error {
				probe := client.NewDryRunClient(token)
				if err := patchOf(&s, probe, object, play.attacks[0]); !deniedBy(err, onJobs) {
					return fmt.Errorf("%s is allowed: %w", play.attacks[0], err)
				}
				return nil
			})
			for _, attack := range append(play.attacks, changesOfMetadata...) {
				s.refused(patchOf(&s, token, object, attack), onJobs, attack)
			}
			s.restartsAllowed(token, kind, object)
		})
	}
	t.Run("Workload of Kueue", func(t *testing.T) {
		s := *s
		s.T = t
		gvk := schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta1", Kind: "Workload"}
		object := s.createOf(gvk, namespace, "x", "{spec: {active: true, queueName: q}}")
		for _, active := range []bool{false, true} {
			if err := patchOf(&s, token, object, fmt.Sprintf("{metadata: {annotations: {%s: x}}, spec: {active: %t}}", conditions.AnnotationRestartStep, active)); err != nil {
				t.Error(err)
			}
		}
		for _, attack := range append([]string{"{spec: {queueName: other}}", "{spec: {priority: 9}}"}, changesOfMetadata...) {
			s.refused(patchOf(&s, token, object, attack), onJobs, attack)
		}
	})
	t.Run("Command of Volcano", func(t *testing.T) {
		s := *s
		s.T = t
		command := func(action string) *unstructured.Unstructured {
			object := &unstructured.Unstructured{Object: map[string]any{"action": action}}
			object.SetGroupVersionKind(schema.GroupVersionKind{Group: "bus.volcano.sh", Version: "v1alpha1", Kind: "Command"})
			object.SetNamespace(namespace)
			object.SetName(strings.ToLower(action))
			return object
		}
		s.until("the policy about Commands is in force", func() error {
			if err := token.Create(t.Context(), command("TerminateJob"), client.DryRunAll); !deniedBy(err, onCommands) {
				return fmt.Errorf("the remediator may terminate a Volcano Job: %w", err)
			}
			return nil
		})
		s.refused(token.Create(t.Context(), command("AbortJob")), onCommands, "abort a Volcano Job")
		sent := command("RestartJob")
		if err := token.Create(t.Context(), sent); err != nil {
			t.Error(err)
		}
		if err := patchOf(&s, token, sent, "{target: {name: x}}"); err != nil {
			t.Error(err)
		}
		s.refused(patchOf(&s, token, sent, "{action: AbortJob}"), onCommands, "make a restart an abort")
		users := command("AbortJob")
		if err := s.admin.Create(t.Context(), users); err != nil {
			t.Fatal(err)
		}
		s.refused(patchOf(&s, token, users, "{action: RestartJob}"), onCommands, "take a Command of a user")
	})
}

// restartsAllowed writes what a restart writes, and fails the test if that is denied.
func (s *scene) restartsAllowed(token client.Client, kind kinds.Kind, object *unstructured.Unstructured) {
	s.Helper()
	for _, phase := range []restart.Phase{restart.Stopping, restart.Starting} {
		s.until(fmt.Sprintf("the remediator may write phase %s", phase), func() error {
			job, err := kind.Read(s.Context(), token, client.ObjectKeyFromObject(object))
			if err != nil {
				return err
			}
			rec := restart.Record{Current: &restart.Restart{ID: "x", Phase: phase}}
			patch, err := rec.Patch(job.Object, job.SuspendField)
			if err != nil {
				return err
			}
			err = token.Patch(s.Context(), object.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
			if deniedBy(err, onJobs) {
				s.Fatalf("%s: %v", patch, err)
			}
			return err
		})
	}
}

// customResources are those that the cluster of these tests does not serve by itself, and two that restarts need.
func customResources(all []kinds.Kind) (resources []customResource) {
	for _, k := range all {
		if k.GVK.Group == "batch" || k.GVK.Group == "apps" || k.GVK.Group == "jobset.x-k8s.io" {
			continue
		}
		same := false
		for i := range resources {
			if resources[i].plural == k.Resource && resources[i].group == k.GVK.Group {
				resources[i].versions, same = append(resources[i].versions, k.GVK.Version), true
			}
		}
		if !same {
			resources = append(resources, customResource{k.Resource, k.GVK.Kind, k.GVK.Group, []string{k.GVK.Version}})
		}
	}
	return append(resources, customResource{"workloads", "Workload", "kueue.x-k8s.io", []string{"v1beta1"}}, customResource{"commands", "Command", "bus.volcano.sh", []string{"v1alpha1"}})
}

// A kind that the policy names is not known to the admission policy. It allows a boolean of the spec and nothing else.
func TestAttack23AStolenTokenChangesNoImageOfAConfiguredKind(t *testing.T) {
	s := newScene(t, "gangs", 1, nil)
	token := s.stolen()
	const namespace = "stolen-gangs"
	s.namespace(namespace)
	s.serve(customResource{"gangs", "Gang", "example.com", []string{"v1"}})
	// As the chart does for the kinds of its value policy.jobKinds.
	text, err := os.ReadFile(filepath.Join(s.cluster.Root, "manifests", "remediator", "admission-self.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ = bytes.Cut(text, []byte("\n---\n# A Command"))
	const rule = "    - apiGroups: [kueue.x-k8s.io]\n"
	if !bytes.Contains(text, []byte(rule)) {
		t.Fatal("the policy has changed")
	}
	text = bytes.ReplaceAll(text, []byte(onJobs), []byte("pitcrew-remediator-gangs"))
	text = bytes.Replace(text, []byte(rule), []byte("    - {apiGroups: [example.com], apiVersions: ['*'], resources: ['*/*'], operations: [UPDATE]}\n"+rule), 1)
	role := []byte(`
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: pitcrew-gangs}
rules: [{apiGroups: [example.com], resources: [gangs, gangs/status], verbs: [get, list, watch, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: pitcrew-gangs}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: pitcrew-gangs}
subjects: [{kind: ServiceAccount, name: pitcrew-remediator, namespace: pitcrew}]
`)
	if err := s.cluster.Apply(t.Context(), append(text, role...)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"spec.active", "spec.run.active", "spec.run.policy.active"} {
		t.Run(path, func(t *testing.T) {
			s := *s
			s.T = t
			kind, _ := kinds.Get(kinds.All([]jobkind.Kind{{APIVersion: "example.com/v1", Kind: "Gang", ActivePath: path, PodLabel: "example.com/gang"}}),
				schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gang"})
			object := s.createOf(kind.GVK, namespace, strings.ReplaceAll(path, ".", "-"), "{spec: {image: none, run: {image: none, policy: {image: none, deep: {image: none}}}}}")
			s.until("the policy is in force", func() error {
				// A change that comes before the policy must not be made: the next one would be none.
				if err := patchOf(&s, client.NewDryRunClient(token), object, "{spec: {image: evil}}"); !deniedBy(err, "pitcrew-remediator-gangs") {
					return fmt.Errorf("an image may be changed: %w", err)
				}
				return nil
			})
			s.restartsAllowed(token, kind, object)
			for _, attack := range append([]string{
				"{spec: {image: null}}", "{spec: {replicas: 9}}", "{spec: {run: {image: evil}}}", "{spec: {run: {image: null}}}", "{spec: {run: null}}",
				"{spec: {run: {policy: {image: evil}}}}", "{spec: {run: {policy: {image: null}}}}", "{spec: {run: {policy: {deep: {image: evil}}}}}",
				"{spec: {run: {policy: {deep: {on: true}}}}}", "{spec: {run: {policy: null}}}", "{spec: {other: {image: evil}}}", "{spec: null}", "{data: x}",
			}, changesOfMetadata...) {
				s.refused(patchOf(&s, token, object, attack), "pitcrew-remediator-gangs", attack)
			}
			body := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Done"}}`))
			s.refused(token.Status().Patch(t.Context(), object.DeepCopy(), body), "pitcrew-remediator-gangs", "the status")
		})
	}
}

// With a stolen token a node becomes one of the control plane, or is taken out of its pool, unless admission leaves no more than
// taints, labels and annotations that are not Kubernetes' own, and in the status the conditions of the preflight.
func TestAttack23AStolenTokenOnlyMarksNodes(t *testing.T) {
	t.Parallel()
	s := newScene(t, "stolen-nodes", 1, func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/pinned", Effect: corev1.TaintEffectNoSchedule}}
		n.Labels["tenant.node-restriction.kubernetes.io/team"] = "a"
	})
	token := s.stolen()
	node := &unstructured.Unstructured{}
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	node.SetName(s.nodes[0])

	const kept = "{key: node.kubernetes.io/pinned, effect: NoSchedule}"
	for _, patch := range []string{
		"{metadata: {labels: {pitcrew.dev/status: quarantined, example.com/broken: 'true'}, annotations: {pitcrew.dev/quarantine: '{}', cluster-autoscaler.kubernetes.io/scale-down-disabled: 'true'}}}",
		"{spec: {taints: [" + kept + ", {key: pitcrew.dev/unhealthy, value: GPUXidError, effect: NoSchedule}]}}",
		"{metadata: {annotations: {pitcrew.dev/repair: '{}'}}, spec: {taints: [" + kept + ", {key: pitcrew.dev/unchecked, effect: NoSchedule}, {key: pitcrew.dev/maintenance, value: repair, effect: NoSchedule}]}}",
		"{metadata: {annotations: {pitcrew.dev/repair: null}}, spec: {taints: [" + kept + "]}}",
		"{metadata: {labels: {pitcrew.dev/status: null}, annotations: {pitcrew.dev/quarantine: null}}}",
	} {
		if err := patchOf(s, token, node, patch); err != nil {
			t.Errorf("%s: %v", patch, err)
		}
	}
	for _, attack := range []string{
		"{spec: {unschedulable: true}}", "{spec: {providerID: 'evil://x'}}", "{spec: {podCIDR: 10.9.0.0/24, podCIDRs: [10.9.0.0/24]}}",
		"{metadata: {labels: {node-role.kubernetes.io/control-plane: ''}}}", "{metadata: {labels: {tenant.node-restriction.kubernetes.io/team: null}}}",
		"{metadata: {labels: {tenant.node-restriction.kubernetes.io/team: b}}}", "{metadata: {labels: {topology.kubernetes.io/zone: b}}}",
		"{metadata: {labels: {kubernetes.io/hostname: other}}}", "{metadata: {labels: {feature.node.kubernetes.io/x: other}}}", "{metadata: {labels: {topology.k8s.aws/x: other, app.k8s.io/x: other}}}",
		"{spec: {taints: [" + kept + ", {key: node.kubernetes.io/out-of-service, effect: NoExecute}]}}", "{spec: {taints: null}}",
		"{spec: {taints: [{key: node.kubernetes.io/pinned, effect: NoExecute}]}}",
		"{metadata: {finalizers: [example.com/stay]}}", "{metadata: {ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: x, uid: x}]}}",
	} {
		s.refused(patchOf(s, token, node, attack), onNodes, attack)
	}

	status := func(patch string) error {
		body, err := yaml.YAMLToJSON([]byte(patch))
		if err != nil {
			t.Fatal(err)
		}
		target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.nodes[0]}}
		return token.Status().Patch(t.Context(), target, client.RawPatch(types.StrategicMergePatchType, body))
	}
	condition := func(kind string) string {
		return fmt.Sprintf("{status: {conditions: [{type: %s, status: 'True', reason: x, message: Inspect x, lastHeartbeatTime: 2026-01-01T00:00:00Z}]}}", kind)
	}
	suspicion := func(value, reason string) string {
		return fmt.Sprintf("{status: {conditions: [{type: HardwareIssuesSuspected, status: '%s', reason: '%s'}]}}", value, reason)
	}
	if err := patchNode(t.Context(), s.admin, s.nodes[0], "status", types.StrategicMergePatchType,
		`{"status":{"conditions":[{"type":"HardwareIssuesSuspected","status":"True","reason":"QuarantinedByPitcrew"}]}}`); err != nil {
		t.Fatal(err)
	}
	s.refused(status(suspicion("False", "GPUHealthCheckFailed (Soperator)")), onNodes, "the reason of another writer")
	if err := status(suspicion("False", "ReleasedByPitcrew")); err != nil {
		t.Errorf("what an earlier policy has set: %v", err)
	}
	s.refused(status(suspicion("True", "QuarantinedByPitcrew")), onNodes, "a suspicion that the policy does not ask for")
	if err := patchNode(t.Context(), s.admin, s.nodes[0], "status", types.StrategicMergePatchType,
		`{"status":{"conditions":[{"type":"HardwareIssuesSuspected","status":"True","reason":"GPUHealthCheckFailed (Soperator)"}]}}`); err != nil {
		t.Fatal(err)
	}
	for _, attack := range []string{suspicion("False", "ReleasedByPitcrew"), "{status: {conditions: [{$patch: delete, type: HardwareIssuesSuspected}]}}"} {
		s.refused(status(attack), onNodes, "soperator's own suspicion: "+attack)
	}
	maintenance := func(reason string) string {
		return fmt.Sprintf("{status: {conditions: [{type: MaintenanceInProgress, status: 'True', reason: '%s'}]}}", reason)
	}
	if err := patchOf(s, token, node, "{spec: {taints: ["+kept+", {key: pitcrew.dev/maintenance, value: repair, effect: NoSchedule}]}}"); err != nil {
		t.Fatal(err)
	}
	s.refused(status(maintenance(conditions.ReasonRepair)), onNodes, "a maintenance that the policy does not ask for")
	if err := patchNode(t.Context(), s.admin, s.nodes[0], "status", types.StrategicMergePatchType,
		`{"status":{"conditions":[{"type":"MaintenanceInProgress","status":"True","reason":"RepairByPitcrew"}]}}`); err != nil {
		t.Fatal(err)
	}
	if err := status("{status: {conditions: [{$patch: delete, type: MaintenanceInProgress}]}}"); err != nil {
		t.Errorf("what an earlier policy has set: %v", err)
	}
	for _, verdict := range []string{conditions.PreflightFailed, conditions.SlowNode} {
		if err := status(condition(verdict)); err != nil {
			t.Error(err)
		}
	}
	for _, attack := range []string{
		condition("Ready"), condition("GPUXidError"), "{status: {capacity: {nvidia.com/gpu: '0'}}}", "{status: {addresses: [{type: InternalIP, address: 10.0.0.9}]}}",
		"{status: {daemonEndpoints: {kubeletEndpoint: {Port: 1}}}}", "{status: {conditions: [{$patch: delete, type: Ready}]}}",
		"{metadata: {labels: {pitcrew.dev/status: healthy}}}", "{metadata: {annotations: {pitcrew.dev/quarantine: '{}'}}}",
	} {
		s.refused(status(attack), onNodes, attack)
	}
}

// All of that is refused, and yet the remediator does its whole work: a faulty node is tainted, the training job on it is stopped
// and started elsewhere, and the node is released.
func TestAttack23TheRemediatorRestartsAJobSetUnderItsPolicies(t *testing.T) {
	s := newScene(t, "under-policies", 3, nil)
	s.stolen() // in force
	const namespace = "under-policies"
	s.namespace(namespace)
	set := s.createOf(schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}, namespace, "train", fmt.Sprintf(`
metadata: {labels: {pitcrew.dev/restart-on-node-fault: "true"}}
spec:
  replicatedJobs:
  - name: rank
    template:
      spec:
        parallelism: 2
        completions: 2
        backoffLimit: 0
        template:
          spec:
            restartPolicy: Never
            nodeSelector: {%s: %s}
            containers: [{name: train, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]
`, cluster.LabelPool, s.pool))
	var sick string
	ranks := func() (running []corev1.Pod) {
		var pods corev1.PodList
		if err := s.admin.List(t.Context(), &pods, client.InNamespace(namespace)); err != nil {
			t.Fatal(err)
		}
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running = append(running, p)
			}
		}
		return running
	}
	old := map[types.UID]bool{}
	s.until("both ranks run", func() error {
		running := ranks()
		if len(running) != 2 {
			return fmt.Errorf("%d ranks run", len(running))
		}
		clear(old)
		for _, p := range running {
			sick, old[p.UID] = p.Spec.NodeName, true
		}
		return nil
	})
	s.remediator(s.policy(`
  budget: {maxNodes: 1}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}, restartJobs: true, clearAfter: 1s}
`))
	s.report(sick, corev1.ConditionTrue, lost)
	s.becomes(sick, causes.Quarantined)
	s.until("the JobSet is restarted elsewhere", func() error {
		fresh := set.DeepCopy()
		if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(set), fresh); err != nil {
			return err
		}
		record, err := restart.ReadRecord(fresh)
		if err != nil {
			return err
		}
		if record.Current != nil || len(record.Last) != 1 || record.Last[0].Phase != restart.Done {
			return fmt.Errorf("record %+v", record)
		}
		running := ranks()
		if len(running) != 2 {
			return fmt.Errorf("%d ranks run", len(running))
		}
		for _, p := range running {
			if old[p.UID] || p.Spec.NodeName == sick {
				return fmt.Errorf("pod %s is an old one or on %s", p.Name, sick)
			}
		}
		return nil
	})
	// A repaired node has rebooted.
	s.until("the node has rebooted", func() error {
		n := s.get(sick)
		n.Status.NodeInfo.BootID = "after-the-repair"
		return s.admin.Status().Update(t.Context(), n)
	})
	s.until("the reboot was seen, and before this second: heartbeats are of whole seconds", func() error {
		record, err := causes.RecordOf(s.get(sick))
		if err == nil && (record.Boot.ID != "after-the-repair" || !record.Boot.Seen.Before(time.Now().Truncate(time.Second))) {
			return fmt.Errorf("boot %+v", record.Boot)
		}
		return err
	})
	s.report(sick, corev1.ConditionFalse, "fine")
	s.becomes(sick, causes.Released)
	if apierrors.IsNotFound(s.admin.Get(t.Context(), client.ObjectKeyFromObject(set), set.DeepCopy())) {
		t.Error("the JobSet is gone")
	}
}
