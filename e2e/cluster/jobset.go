package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// jobSetConfig is the controller's configuration: our own certificate, and no server but the webhooks'.
const jobSetConfig = `apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
health: {healthProbeBindAddress: "0"}
metrics: {bindAddress: "0"}
webhook: {host: %s, port: %d, certDir: %s}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
`

var jobSetKind = schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}

// startJobSet installs the JobSet CRD and starts the JobSet controller with its webhooks, as upstream ships them.
func (c *Cluster) startJobSet(ctx context.Context) error {
	module, kubeconfig, err := c.prepare(ctx, components.JobSet, "config/components/crd/bases")
	if err != nil {
		return err
	}
	host, err := c.startWebhooks(ctx, func(port int) (*Process, error) {
		if err := c.write("jobset.yaml", fmt.Appendf(nil, jobSetConfig, loopback, port, c.Dir)); err != nil {
			return nil, err
		}
		return c.run("jobset-controller", components.JobSet.Path(c.Root), []string{"KUBECONFIG=" + kubeconfig}, "--config=jobset.yaml")
	}, "/mutate-jobset-x-k8s-io-v1alpha2-jobset")
	if err != nil {
		return err
	}
	manifests, err := c.kustomize(ctx, filepath.Join(module, "config", "components", "webhook"))
	if err != nil {
		return err
	}
	if err := c.installWebhooks(ctx, manifests, "jobset-", host); err != nil {
		return fmt.Errorf("install the JobSet webhooks: %w", err)
	}
	if err := poll(ctx, c.jobSetDefaulted); err != nil {
		return fmt.Errorf("wait for the JobSet webhooks: %w", err)
	}
	return nil
}

// jobSetDefaulted checks that the API server knows the webhooks by now: upstream's defaulting is one of them.
func (c *Cluster) jobSetDefaulted(ctx context.Context) error {
	probe := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"replicatedJobs": []any{map[string]any{
			"name": "probe", "template": map[string]any{"spec": map[string]any{"template": map[string]any{
				"spec": map[string]any{"containers": []any{map[string]any{"name": "probe", "image": "none"}}},
			}}},
		}}},
	}}
	probe.SetGroupVersionKind(jobSetKind)
	probe.SetNamespace(metav1.NamespaceDefault)
	probe.SetName("e2e-probe")
	if err := c.Client.Create(ctx, probe, client.DryRunAll); err != nil {
		return err
	}
	if _, found, err := unstructured.NestedString(probe.Object, "spec", "successPolicy", "operator"); err != nil || !found {
		return errors.New("spec.successPolicy is not defaulted")
	}
	return nil
}
