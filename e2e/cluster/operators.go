package cluster

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// prepare builds an operator and installs the CRDs that its module has in folder crds. It returns the module's folder
// and a kubeconfig, relative to the cluster's folder, where programs run.
func (c *Cluster) prepare(ctx context.Context, operator components.Component, crds ...string) (module, kubeconfig string, err error) {
	if err := components.Build(ctx, c.progress, c.Root, operator); err != nil {
		return "", "", err
	}
	if module, err = operator.ModuleDir(ctx, c.Root); err != nil {
		return "", "", err
	}
	for _, dir := range crds {
		if err := c.installCRDs(ctx, filepath.Join(module, dir)); err != nil {
			return "", "", fmt.Errorf("install the CRDs of %s: %w", operator.Name, err)
		}
	}
	kubeconfig, err = c.kubeconfigFor(operator.Name, "system:masters")
	return module, filepath.Base(kubeconfig), err
}

// configured describes an operator of Kubernetes' special interest groups: it reads its configuration from a file.
type configured struct {
	operator components.Component
	// crds and webhooks are folders of upstream's manifests.
	crds, webhooks string
	// group is the apiVersion of its configuration, and config what that has beyond [configuredAs].
	group, config string
	// certificate is a folder in which it requires a certificate besides the webhooks'; empty for none.
	certificate string
	// paths are those of its webhooks that are waited for.
	paths []string
	// converted are its CRDs with versions between which a webhook at /convert converts.
	converted []string
}

// configuredAs is a configuration with our own certificate, and no server but the webhooks'.
const configuredAs = `apiVersion: %s
kind: Configuration
health: {healthProbeBindAddress: "0"}
metrics: {bindAddress: "0"}
webhook: {host: %s, port: %d, certDir: %s}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
%s`

func (c *Cluster) startConfigured(ctx context.Context, o configured) error {
	name := o.operator.Name
	module, kubeconfig, err := c.prepare(ctx, o.operator, o.crds)
	if err != nil {
		return err
	}
	host, err := c.startWebhooks(ctx, func(port int) (*Process, error) {
		file := name + ".yaml"
		if err := c.write(file, fmt.Appendf(nil, configuredAs, o.group, loopback, port, c.Dir, o.config)); err != nil {
			return nil, err
		}
		path, env := o.operator.Path(c.Root), []string{"KUBECONFIG=" + kubeconfig}
		if o.certificate != "" {
			return c.runWithCertificate(o.certificate, name, path, env, "--config="+file)
		}
		return c.run(name, path, env, "--config="+file)
	}, o.paths...)
	if err != nil {
		return err
	}
	manifests, err := c.kustomize(ctx, filepath.Join(module, o.webhooks))
	if err != nil {
		return err
	}
	if err := c.installWebhooks(ctx, manifests, name+"-", host); err != nil {
		return fmt.Errorf("install the webhooks of %s: %w", name, err)
	}
	for _, crd := range o.converted {
		if err := c.installConversion(ctx, crd, host); err != nil {
			return fmt.Errorf("install the webhooks of %s: %w", name, err)
		}
	}
	return nil
}

// installConversion has the objects of a CRD converted by the server. Without it the API server changes the apiVersion
// alone, and drops the fields that only one version has.
func (c *Cluster) installConversion(ctx context.Context, crd, host string) error {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("apiextensions.k8s.io/v1")
	object.SetKind("CustomResourceDefinition")
	object.SetName(crd)
	object.Object["spec"] = map[string]any{"conversion": map[string]any{
		"strategy": "Webhook",
		"webhook": map[string]any{
			"clientConfig":             map[string]any{"url": host + "/convert", "caBundle": base64.StdEncoding.EncodeToString(c.ca.PEM)},
			"conversionReviewVersions": []any{"v1"},
		},
	}}
	patch, err := object.MarshalJSON()
	if err != nil {
		return err
	}
	return c.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch))
}

// installCRDs installs the CRDs in a folder and waits until the API server serves them: an operator that asks too early
// ends.
func (c *Cluster) installCRDs(ctx context.Context, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	served := map[schema.GroupKind]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		objects, err := decode(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, crd := range objects {
			if crd.GetKind() != "CustomResourceDefinition" {
				continue // a kustomization
			}
			if err := c.applyObjects(ctx, []*unstructured.Unstructured{crd}); err != nil {
				return err
			}
			group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
			kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
			served[schema.GroupKind{Group: group, Kind: kind}] = file
		}
	}
	if len(served) == 0 {
		return fmt.Errorf("no CRD in %s", dir)
	}
	for kind, file := range served {
		if err := Poll(ctx, func(context.Context) error {
			_, err := c.Client.RESTMapper().RESTMapping(kind)
			return err
		}); err != nil {
			return fmt.Errorf("wait for the CRD of %s: %w", file, err)
		}
	}
	return nil
}

// kustomize renders a folder of upstream's manifests.
func (c *Cluster) kustomize(ctx context.Context, dir string) ([]byte, error) {
	manifests, err := c.Kubectl(ctx, "kustomize", dir)
	return []byte(manifests), err
}

// installWebhooks installs the webhook configurations among manifests, with their Services, which do not exist
// here, replaced by the address of the server. Their names, which several operators share, get the prefix.
func (c *Cluster) installWebhooks(ctx context.Context, manifests []byte, prefix, host string) error {
	objects, err := decode(manifests)
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
		object.SetName(prefix + object.GetName())
		configurations = append(configurations, object)
	}
	return c.applyObjects(ctx, configurations)
}

// startWebhooks starts a server of webhooks on a free port and waits until it serves all paths. It returns its address.
func (c *Cluster) startWebhooks(ctx context.Context, start func(port int) (*Process, error), paths ...string) (host string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	server := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.PEM}}
	err = c.onFreePort(ctx, func(port int) (*Process, func(context.Context) error, error) {
		server.Host = hostURL(port)
		p, err := start(port)
		return p, func(ctx context.Context) error {
			for _, path := range paths {
				if err := serves(ctx, server, path); err != nil {
					return err
				}
			}
			return nil
		}, err
	})
	return server.Host, err
}

// runWithCertificate starts a program that requires a certificate in a fixed folder, which no other program may
// use. It runs in a mount namespace in which the first part of that folder's path is replaced. This needs root or
// unprivileged user namespaces.
func (c *Cluster) runWithCertificate(dir, name, path string, env []string, args ...string) (*Process, error) {
	const root = "root"
	private := filepath.Join(c.Dir, root+"-"+name)
	if err := os.MkdirAll(filepath.Join(private, dir), 0o755); err != nil {
		return nil, err
	}
	for _, file := range []string{"tls.crt", "tls.key"} {
		content, err := os.ReadFile(filepath.Join(c.Dir, file))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(private, dir, file), content, 0o600); err != nil {
			return nil, err
		}
	}
	top := "/" + strings.Split(dir, "/")[1]
	// The program is opened first: it may lie in the part that is replaced.
	const script = `exec 3<"$0" && mount --bind "$1" "$2" && shift 2 && exec /proc/self/fd/3 "$@"`
	return c.run(name, "unshare", env, append([]string{"--map-root-user", "--mount", "sh", "-c", script,
		path, filepath.Join(private, top), top}, args...)...)
}
