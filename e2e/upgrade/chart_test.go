package upgrade_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

// everything are values of the earlier chart with all that it can do, also what later ones only ignore.
const everything = `
pools:
- {name: nvidia, preset: nvidia}
- {name: roce, preset: nvidia-roce, nodeSelector: {fabric: roce}, checks: {HCAPortDown: {args: {profile: h100}}}}
- {name: ascend, preset: ascend, tolerations: [{operator: Exists}]}
- {name: plain, nodeSelector: {kubernetes.io/os: linux}, checks: {KernelHardwareError: {}, DCGMDiagFailed: {}}}
remediator: {args: [-topology-label=rack], nodeSelector: {kubernetes.io/os: linux}}
preflight: {namespaces: [team-a], trustedNamespaces: [team-b]}
progress: {enabled: true, ncclRASPorts: [28028]}
networkPolicies: {metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
userRoles:
  aggregateToView: true
  viewers: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: dev}]
  operators: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: sre}]
repair:
  enabled: true
  pairs: {enabled: true, args: [-unit=GB/s]}
  templates: {burn-in: {annotations: {pitcrew.dev/verdict: DCGMDiagFailed}, spec: {containers: [{name: burn, image: ours}]}}}
policy:
  mode: enforce
  output: {soperator: true}
  restart: {stalls: {mode: observe}}
  repair: {mode: auto, actions: {ResetGPU: [{template: reset-gpu, timeout: 10m}]}, validate: {template: check}}
  sweeps:
    weekly: {template: burn-in, every: 168h}
    links: {template: preflight, every: 168h, pairwise: {rounds: 1}}
  rules:
    gpu-memory: {isolate: device}
`

// A release of the earlier chart with everything switched on is upgraded with its own values and rolled back. An upgrade leaves in the cluster
// what an installation does, and a rollback what there was; each version reads the policy that is then in force.
func TestTheChartIsUpgradedAndRolledBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, cluster.Options{})
	for _, name := range []string{namespace, "team-a", "team-b"} {
		w.must(w.AddNamespace(t.Context(), name, nil))
	}
	objects := map[string]*unstructured.Unstructured{}

	w.mustHelm("install", "pitcrew", w.tree+"/manifests/chart", "--values", w.valuesFile(everything))
	w.manifest(objects)
	installed := w.live(objects)
	w.validates(w.tree)

	w.mustHelm("upgrade", "pitcrew", w.Root+"/manifests/chart", "--reset-then-reuse-values")
	w.manifest(objects)
	for name := range objects {
		if _, found := installed[name]; !found {
			installed[name] = nil // the earlier chart does not have it
		}
	}
	upgraded := w.live(objects)
	w.validates(w.Root)
	if len(objects) < 40 {
		t.Errorf("%d objects in both releases", len(objects))
	}

	w.mustHelm("rollback", "pitcrew", "1")
	w.differs("after the rollback", installed, w.live(objects))
	w.validates(w.tree)

	w.mustHelm("uninstall", "pitcrew", "--no-hooks")
	clustertest.Until(w, patience, "everything is deleted", func() error {
		for name, o := range w.live(objects) {
			if o != nil {
				return fmt.Errorf("%s is left", name)
			}
		}
		return nil
	})
	w.mustHelm("install", "pitcrew", w.Root+"/manifests/chart", "--values", w.valuesFile(everything))
	w.differs("an upgrade (-) and an installation (+)", upgraded, w.live(objects))
}

// manifest adds the objects of the release, by kind and name.
func (w *world) manifest(to map[string]*unstructured.Unstructured) {
	w.Helper()
	text, err := w.helm("get", "manifest", "pitcrew")
	w.must(err)
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			w.Fatal(err)
		}
		if len(o.Object) > 0 {
			to[fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())] = o
		}
	}
}

// live returns what the API server has of objects; nil of one that does not exist. What it writes itself is left out.
func (w *world) live(objects map[string]*unstructured.Unstructured) map[string]map[string]any {
	w.Helper()
	all := map[string]map[string]any{}
	for name, wanted := range objects {
		o := wanted.DeepCopy()
		err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(wanted), o)
		if apierrors.IsNotFound(err) {
			all[name] = nil
			continue
		}
		w.must(err)
		o.SetManagedFields(nil)
		for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field)
		}
		for _, counter := range []string{"deployment.kubernetes.io/revision", "deprecated.daemonset.template.generation"} {
			unstructured.RemoveNestedField(o.Object, "metadata", "annotations", counter)
		}
		delete(o.Object, "status")
		all[name] = o.Object
	}
	return all
}

// validates has the remediator of a tree read the policy that is in force.
func (w *world) validates(tree string) {
	w.Helper()
	var m corev1.ConfigMap
	w.get("pitcrew-policy", &m)
	file := filepath.Join(w.TempDir(), "policy.yaml")
	w.must(os.WriteFile(file, []byte(m.Data["policy.yaml"]), 0o600))
	if out, err := exec.CommandContext(w.Context(), filepath.Join(tree, "bin", "remediator"), "-policy="+file, "-validate").CombinedOutput(); err != nil {
		w.Errorf("the policy of the release: %v\n%s", err, out)
	}
}
