package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
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
	module, err := components.JobSet.ModuleDir(ctx, c.Root)
	if err != nil {
		return err
	}
	manifests := filepath.Join(module, "config", "components")
	crd, err := os.ReadFile(filepath.Join(manifests, "crd", "bases", "jobset.x-k8s.io_jobsets.yaml"))
	if err != nil {
		return fmt.Errorf("install the JobSet CRD: %w", err)
	}
	if err := c.Apply(ctx, crd); err != nil {
		return fmt.Errorf("install the JobSet CRD: %w", err)
	}
	// The controller ends when the API server does not serve its kind yet.
	if err := poll(ctx, func(context.Context) error {
		_, err := c.Client.RESTMapper().RESTMapping(jobSetKind.GroupKind(), jobSetKind.Version)
		return err
	}); err != nil {
		return fmt.Errorf("wait for the JobSet CRD: %w", err)
	}
	kubeconfig, err := c.kubeconfigFor("jobset-controller", "system:masters")
	if err != nil {
		return err
	}
	server := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.PEM}}
	if err := c.onFreePort(ctx, func(port int) (*Process, func(context.Context) error, error) {
		server.Host = hostURL(port)
		if err := c.write("jobset.yaml", fmt.Appendf(nil, jobSetConfig, loopback, port, c.Dir)); err != nil {
			return nil, nil, err
		}
		p, err := c.run("jobset-controller", components.JobSet.Path(c.Root), []string{"KUBECONFIG=" + kubeconfig},
			"--config=jobset.yaml")
		return p, func(ctx context.Context) error {
			return serves(ctx, server, "/mutate-jobset-x-k8s-io-v1alpha2-jobset")
		}, err
	}); err != nil {
		return err
	}
	if err := c.installWebhooks(ctx, filepath.Join(manifests, "webhook"), server.Host); err != nil {
		return fmt.Errorf("install the JobSet webhooks: %w", err)
	}
	if err := poll(ctx, c.jobSetDefaulted); err != nil {
		return fmt.Errorf("wait for the JobSet webhooks: %w", err)
	}
	return nil
}

// installWebhooks installs webhook configurations from a kustomization, with their Services, which nobody implements
// here, replaced by the address of the server.
func (c *Cluster) installWebhooks(ctx context.Context, kustomization, host string) error {
	manifests, err := c.Kubectl(ctx, "kustomize", kustomization)
	if err != nil {
		return err
	}
	objects, err := decode([]byte(manifests))
	if err != nil {
		return err
	}
	var configurations []*unstructured.Unstructured
	for _, object := range objects {
		webhooks, found, err := unstructured.NestedSlice(object.Object, "webhooks")
		if err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
		if !found {
			continue
		}
		for _, webhook := range webhooks {
			path, _, err := unstructured.NestedString(webhook.(map[string]any), "clientConfig", "service", "path")
			if err != nil {
				return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
			}
			webhook.(map[string]any)["clientConfig"] = map[string]any{
				"url": host + path, "caBundle": base64.StdEncoding.EncodeToString(c.ca.PEM),
			}
		}
		object.Object["webhooks"] = webhooks
		configurations = append(configurations, object)
	}
	return c.applyObjects(ctx, configurations)
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
