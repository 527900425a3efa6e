package asshipped_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// infra is the node of the remediator's pods.
const namespace, infra = "pitcrew", "infra"

// values are those of the page about the installation, with what the pages of the policy and of devices tell to set. Only the times are
// shorter.
const values = `
createNamespace: true
pools: [{name: gpu, preset: nvidia}]
policy:
  mode: enforce
  budget: {maxNodes: 8, maxPercent: 50}
  domains: [{label: nvidia.com/gpu.clique, incidents: {}}]
  rules:
    gpu-xid: {clearAfter: 3s}
    gpu-memory: {isolate: device, clearAfter: 3s}
    hca-port: {for: 3s, clearAfter: 3s}
    node-not-ready: {for: 3s, clearAfter: 3s}
`

// policyFile is the policy of the remediator that runs.
var policyFile string

// install applies the rendered chart, but for what would run as a pod, and starts the remediator as its Deployment would.
// sets are what a page has Helm set on its command line.
func install(
	t *testing.T, values func(root string) string, sets func(root string) []string, may ...authorizationv1.ResourceAttributes,
) *cluster.Cluster {
	t.Helper()
	c := clustertest.Get(t)
	if err := components.Build(t.Context(), os.Stderr, c.Root, components.Helm); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values(c.Root)), 0o600); err != nil {
		t.Fatal(err)
	}
	chart := filepath.Join(c.Root, "manifests", "chart")
	helm := []string{"template", "pitcrew", chart, "--namespace=" + namespace, "--values=" + file, "--kube-version=1.37.0"}
	if sets != nil {
		helm = append(helm, sets(c.Root)...)
	}
	out, err := exec.CommandContext(t.Context(), components.Helm.Path(c.Root), helm...).Output()
	if err != nil {
		t.Fatal(err)
	}
	var kept, args []string
	policyFile = filepath.Join(t.TempDir(), "policy.yaml")
	for _, document := range strings.Split(string(out), "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		switch {
		case object.Kind == "DaemonSet":
			continue
		case object.Kind == "Deployment":
			var d appsv1.Deployment
			if err := yaml.Unmarshal([]byte(document), &d); err != nil {
				t.Fatal(err)
			}
			args = d.Spec.Template.Spec.Containers[0].Args
			d.Spec.Template.Spec.NodeSelector = map[string]string{cluster.LabelPool: infra}
			shown, err := yaml.Marshal(d) // kubectl finds the policy by its pods, which KWOK plays
			if err != nil {
				t.Fatal(err)
			}
			document = string(shown)
		case object.Kind == "ConfigMap" && object.Name == "pitcrew-policy":
			var shipped corev1.ConfigMap
			if err := yaml.Unmarshal([]byte(document), &shipped); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(policyFile, []byte(shipped.Data["policy.yaml"]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		kept = append(kept, document)
	}
	if err := c.AddNamespace(t.Context(), namespace, nil); err != nil && !apierrors.IsAlreadyExists(errors.Unwrap(err)) {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), []byte(strings.Join(kept, "\n---\n"))); err != nil {
		t.Fatal(err)
	}
	clustertest.Until(t, patience, "the roles are known", func() error { return mayWork(t, c, may) })
	if _, err := c.AddNodes(t.Context(), infra, 1, func(n *corev1.Node) {
		delete(n.Status.Capacity, "nvidia.com/gpu")
		delete(n.Status.Allocatable, "nvidia.com/gpu")
	}); err != nil && !apierrors.IsAlreadyExists(errors.Unwrap(err)) {
		t.Fatal(err)
	}
	for i := range args {
		args[i] = strings.Replace(args[i], "/etc/pitcrew/policy.yaml", policyFile, 1)
	}
	remediator, err := c.RunRemediator(t.Context(), nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		remediator.Stop(10 * time.Second)
		if log := remediator.Log(); t.Failed() {
			t.Logf("log of the remediator:\n%s", log[max(0, len(log)-10_000):])
		}
	})
	return c
}

// mayWork reports whether the API server knows the roles of the remediator, some of which concern another namespace.
func mayWork(t *testing.T, c *cluster.Cluster, more []authorizationv1.ResourceAttributes) error {
	return c.Authorized(t.Context(), namespace, "pitcrew-remediator", append([]authorizationv1.ResourceAttributes{
		{Verb: "patch", Resource: "nodes"},
		{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace},
		{Verb: "create", Resource: "configmaps", Namespace: "pitcrew-evidence"},
	}, more...)...)
}

// wholeNode asks for all GPUs of a node, oneClaim for a device of the driver that [site.publish] plays.
const (
	wholeNode = `resources: {limits: {nvidia.com/gpu: 8}}`
	oneClaim  = `resources: {claims: [{name: gpu}]}`
)

// train starts a JobSet whose ranks fill the nodes, and waits until it runs.
func (s *site) train(asks string) {
	s.Helper()
	claims := ""
	if asks == oneClaim {
		claims = "resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]"
	}
	if err := s.Apply(s.T.Context(), fmt.Appendf(nil, `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train, namespace: %[1]s}
spec:
  replicatedJobs:
  - name: worker
    template:
      spec:
        parallelism: %[2]d
        completions: %[2]d
        backoffLimit: 0
        template:
          spec:
            restartPolicy: Never
            terminationGracePeriodSeconds: 1
            nodeSelector: {train: %[1]s}
            %[4]s
            containers: [{name: main, image: none, %[3]s}]
`, s.name, s.ranks, asks, claims)); err != nil {
		s.Fatal(err)
	}
	s.until("the job runs", func() (err error) {
		s.before, err = s.running()
		return err
	})
}

// publish publishes GPUs of a node as a driver of dynamic resource allocation does, with a class and a template of claims for one.
func (s *site) publish(node string, addresses ...string) {
	s.Helper()
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.nvidia.com", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i, address := range addresses {
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/pciBusID": {StringValue: &address}, "uuid": {StringValue: ptr.To("GPU-" + address)},
		}
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: fmt.Sprint("gpu-", i), Attributes: attributes})
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.nvidia.com"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com"`}}},
	}}
	request := resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class.Name}}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "gpu"}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{request}
	for _, object := range []client.Object{class, slice, template} {
		if err := s.Client.Create(s.T.Context(), object); err != nil && (object != class || !apierrors.IsAlreadyExists(err)) {
			s.Fatal(err)
		}
	}
}

// devices are those that pods hold.
func (s *site) devices(pods []corev1.Pod) (held []string) {
	s.Helper()
	for i := range pods {
		for _, status := range pods[i].Status.ResourceClaimStatuses {
			var claim resourceapi.ResourceClaim
			key := client.ObjectKey{Namespace: s.name, Name: ptr.Deref(status.ResourceClaimName, "")}
			if err := s.Client.Get(s.T.Context(), key, &claim); err != nil || claim.Status.Allocation == nil {
				continue // the pod is about to go
			}
			for _, result := range claim.Status.Allocation.Devices.Results {
				held = append(held, result.Device)
			}
		}
	}
	return held
}
