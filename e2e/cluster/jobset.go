package cluster

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

var jobSetKind = schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}

// startJobSet installs the JobSet CRD and starts the JobSet controller with its webhooks, as upstream ships them.
func (c *Cluster) startJobSet(ctx context.Context) error {
	if err := c.startConfigured(ctx, configured{
		operator: components.JobSet,
		crds:     "config/components/crd/bases",
		group:    "config.jobset.x-k8s.io/v1alpha1",
		paths:    []string{"/mutate-jobset-x-k8s-io-v1alpha2-jobset"},
		webhooks: "config/components/webhook",
	}); err != nil {
		return err
	}
	if err := Poll(ctx, c.jobSetDefaulted); err != nil {
		return fmt.Errorf("wait for the JobSet webhooks: %w", err)
	}
	return nil
}

// jobSetDefaulted checks that the API server already calls the webhooks: upstream's defaulting is one of them.
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
