package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// The remediator's namespace and service account, as manifests/remediator has them.
const (
	remediatorNamespace = "pitcrew"
	remediatorAccount   = "pitcrew-remediator"
)

// leaseOfTests is long, because a leader ends when a busy machine's API server does not answer for most of it.
const leaseOfTests = "-lease-duration=15s"

// goGC is how often this process and all that it starts collect garbage, but for remediators, which have a setting of their own.
var goGC = os.Getenv("GOGC")

// StartRemediator builds the remediator, installs its shipped roles and admission policies and starts it under its own service
// account, so that it has the same permissions as in production. args are its arguments except -kubeconfig, e.g.
// "-policy", file. It serves metrics and health only if args set their addresses.
func (c *Cluster) StartRemediator(ctx context.Context, args ...string) (*Process, error) {
	if err := c.InstallRemediator(ctx); err != nil {
		return nil, err
	}
	return c.RunRemediator(ctx, nil, args...)
}

// RunRemediator is [Cluster.StartRemediator] without the installation of roles and admission policies. With a proxy the remediator
// reaches the API server through it.
func (c *Cluster) RunRemediator(ctx context.Context, through *Proxy, args ...string) (*Process, error) {
	p, err := c.RunReplica(ctx, through, args...)
	if err == nil {
		c.need(p)
	}
	return p, err
}

// RunReplica is [Cluster.RunRemediator] for a remediator that may end by itself, as one of several does that loses the lease.
func (c *Cluster) RunReplica(ctx context.Context, through *Proxy, args ...string) (*Process, error) {
	if err := components.BuildOurs(ctx, c.Root, "./remediator"); err != nil {
		return nil, err
	}
	name := "remediator"
	var redirect func(*rest.Config)
	if through != nil {
		redirect = through.Redirect
		name += "-" + through.port() // another one may start at the same time
	}
	kubeconfig, err := c.RemediatorKubeconfig(ctx, name, redirect)
	if err != nil {
		return nil, err
	}
	return c.RunWith(kubeconfig, args...)
}

// RemediatorKubeconfig writes a kubeconfig of the remediator's account, which reaches the API server as redirect says; nil: directly.
func (c *Cluster) RemediatorKubeconfig(ctx context.Context, name string, redirect func(*rest.Config)) (string, error) {
	cfg, err := c.ServiceAccountConfig(ctx, remediatorNamespace, remediatorAccount)
	if err != nil {
		return "", err
	}
	if redirect != nil {
		redirect(cfg)
	}
	return c.WriteKubeconfig(name, cfg)
}

// RunWith starts a remediator that was built. It asks the API server for nothing.
func (c *Cluster) RunWith(kubeconfig string, args ...string) (*Process, error) {
	var env []string
	if os.Getenv("GOGC") == goGC { // that of the tests; a test may set another
		env = []string{"GOGC="}
	}
	return c.run("remediator", filepath.Join(c.Root, "bin", "remediator"), env,
		append([]string{"-kubeconfig", kubeconfig, "-metrics-bind-address", "0", "-health-probe-bind-address", "0", leaseOfTests}, args...)...)
}

// outputs are the variables of an admission policy that are true when the policy of the remediator has output.soperator and
// output.maintenance.
var outputs = regexp.MustCompile(`(- name: may(?:Suspect|Maintain)\n\s+expression: )"false"`)

// InstallRemediator installs the shipped roles of the remediator and the admission policies that limit its account.
func (c *Cluster) InstallRemediator(ctx context.Context) error {
	for _, file := range []string{"remediator/rbac.yaml", "remediator/admission-self.yaml"} {
		path := filepath.Join(c.Root, "manifests", file)
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("install the remediator's account: %w", err)
		}
		if c.handOff {
			text = outputs.ReplaceAll(text, []byte(`${1}"true"`))
		}
		if err := c.Apply(ctx, text); err != nil {
			return fmt.Errorf("install the remediator's account from %s: %w", path, err)
		}
	}
	if err := Poll(ctx, c.remediatorAuthorized); err != nil {
		return fmt.Errorf("wait for the remediator's roles: %w", err)
	}
	return nil
}

// remediatorAuthorized checks that the API server has read the remediator's roles: a cluster-wide one and those of its namespaces.
func (c *Cluster) remediatorAuthorized(ctx context.Context) error {
	return c.Authorized(ctx, remediatorNamespace, remediatorAccount,
		authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"},
		authorizationv1.ResourceAttributes{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: remediatorNamespace},
		authorizationv1.ResourceAttributes{Verb: "create", Resource: "configmaps", Namespace: conditions.EvidenceNamespace})
}

// Authorized returns an error unless the API server knows roles by which a service account may do all of it.
func (c *Cluster) Authorized(ctx context.Context, namespace, account string, all ...authorizationv1.ResourceAttributes) error {
	for _, may := range all {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + namespace + ":" + account, ResourceAttributes: &may,
		}}
		if err := c.Client.Create(ctx, review); err != nil {
			return err
		}
		if !review.Status.Allowed {
			return fmt.Errorf("it may not %s %s in namespace %q: %s", may.Verb, may.Resource, may.Namespace, review.Status.Reason)
		}
	}
	return nil
}

// ShippedPolicy writes the shipped policy with mode enforce and with another time after which a healthy node is
// released, and returns the file.
func (c *Cluster) ShippedPolicy(clearAfter time.Duration) (string, error) {
	shipped, err := os.ReadFile(filepath.Join(c.Root, "manifests", "policy.yaml"))
	if err != nil {
		return "", fmt.Errorf("read the shipped policy: %w", err)
	}
	pattern := regexp.MustCompile(`(?m)^(\s+clearAfter): .*$`)
	if !pattern.Match(shipped) {
		return "", errors.New("the shipped policy has no clearAfter to change")
	}
	const observe, enforce = "\n  mode: observe\n", "\n  mode: enforce\n"
	if !bytes.Contains(shipped, []byte(observe)) {
		return "", errors.New("the shipped policy has no mode to change")
	}
	changed := pattern.ReplaceAll(shipped, fmt.Appendf(nil, "${1}: %s", clearAfter))
	changed = bytes.Replace(changed, []byte(observe), []byte(enforce), 1)
	path := filepath.Join(c.Dir, "policy.yaml")
	if err := os.WriteFile(path, changed, 0o644); err != nil {
		return "", fmt.Errorf("write the policy: %w", err)
	}
	return path, nil
}
