// Package attacks plays attackers against the shipped manifests and the built remediator: with the credentials that the
// attacker has in production, on an API server that authorizes nodes and restricts them. docs/security-*.md name its tests.
//
// What an API server, its tokens or its admission policies decide is played here. What the programs decide is a test of their packages:
// of that there is one test of a process that is attacked in many ways at once, as if the admission policies were switched off.
package attacks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{JobSet: true}) }

// patience is how long a test waits for what takes a second or two.
const patience = 3 * time.Minute

// Messages of GPUXidError.
const (
	lost = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	ecc  = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"
)

// scene is a pool of nodes of one test, in a cluster with Pitcrew's roles and admission policies.
type scene struct {
	*testing.T
	cluster *cluster.Cluster
	admin   client.WithWatch
	pool    string
	nodes   []string
}

// installed are the roles and the admission policies of the cluster, which no test leaves changed.
var installed struct {
	sync.Once
	err error
}

// installOnce installs them, once for all tests.
func installOnce(c *cluster.Cluster) error {
	installed.Do(func() {
		for _, file := range []string{"remediator/rbac.yaml", "remediator/admission.yaml", "remediator/admission-self.yaml", "preflight/admission.yaml"} {
			text, err := os.ReadFile(filepath.Join(c.Root, "manifests", file))
			if err == nil {
				err = c.Apply(c.Context(), text)
			}
			installed.err = errors.Join(installed.err, err)
		}
	})
	return installed.err
}

// newScene adds n nodes, which only this test uses, and waits until the admission policies are in force.
func newScene(t *testing.T, pool string, n int, mutate func(*corev1.Node)) *scene {
	t.Helper()
	c := clustertest.Get(t)
	s := &scene{T: t, cluster: c, admin: c.Client, pool: pool}
	if err := installOnce(c); err != nil {
		t.Fatal(err)
	}
	// What remediators of earlier tests remember of nodes that are gone would use up this one's limits.
	err := c.ForgetLimits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.nodes, err = c.AddNodes(t.Context(), pool, n, mutate); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := c.DeleteNodes(context.Background(), s.nodes...); err != nil {
			t.Error(err)
		}
	})
	probe := s.kubelet(s.nodes[0])
	clustertest.Until(t, patience, "the admission policies are in force", func() error {
		target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.nodes[0]}}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"{}"}}}`, conditions.AnnotationQuarantine))
		if err := probe.Patch(t.Context(), target, patch, client.DryRunAll); !deniedBy(err, "pitcrew-node-records") {
			return fmt.Errorf("a kubelet may write a record: %w", err)
		}
		return nil
	})
	return s
}

// deniedBy reports whether an error is the refusal of one of our admission policies.
func deniedBy(err error, policy string) bool {
	return (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && strings.Contains(err.Error(), fmt.Sprintf("ValidatingAdmissionPolicy '%s'", policy))
}

// denied fails the test unless the API server refused the attacker's request by the admission policy.
func (s *scene) denied(err error, policy, attack string) {
	s.Helper()
	if !deniedBy(err, policy) {
		s.Errorf("%s: not denied by %s: %v", attack, policy, err)
	}
}

func (s *scene) client(cfg *rest.Config) client.Client {
	s.Helper()
	c, err := client.New(cfg, client.Options{Scheme: s.admin.Scheme(), Mapper: s.admin.RESTMapper()}) // else each asks for what is served
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// kubelet has the credentials of the kubelet of a node.
func (s *scene) kubelet(node string) client.Client {
	s.Helper()
	cfg, err := s.cluster.Config("system:node:"+node, "system:nodes")
	if err != nil {
		s.Fatal(err)
	}
	return s.client(cfg)
}

// tenant adds a namespace and returns a client with the credentials of a service account that may edit there: roles edit, and
// everything on JobSets.
func (s *scene) tenant(namespace string) client.Client {
	s.Helper()
	if err := s.cluster.AddNamespace(s.Context(), namespace, nil); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := s.admin.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
			s.Error(err)
		}
	})
	const name = "tenant"
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	subject := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}
	jobSets := metav1.ObjectMeta{Namespace: namespace, Name: "jobsets"}
	for _, object := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"}},
		&rbacv1.Role{ObjectMeta: jobSets, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"jobset.x-k8s.io"}, Resources: []string{"*"}, Verbs: []string{"*"}}}},
		&rbacv1.RoleBinding{ObjectMeta: jobSets, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: jobSets.Name}},
	} {
		if err := s.admin.Create(s.Context(), object); err != nil {
			s.Fatal(err)
		}
	}
	s.until("the API server has read the tenant's roles", func() error {
		return s.cluster.Authorized(s.Context(), namespace, name,
			authorizationv1.ResourceAttributes{Verb: "create", Resource: "pods", Namespace: namespace},
			authorizationv1.ResourceAttributes{Verb: "create", Group: "jobset.x-k8s.io", Resource: "jobsets", Namespace: namespace})
	})
	cfg, err := s.cluster.ServiceAccountConfig(s.Context(), namespace, name)
	if err != nil {
		s.Fatal(err)
	}
	return s.client(cfg)
}

// Context is the test's; it ends early when a component of the cluster dies.
func (s *scene) Context() context.Context { return s.T.Context() }

// policy writes a policy in mode enforce with the given fields of its spec, and returns the file. POOL stands for a
// nodeSelector of the scene's nodes.
func (s *scene) policy(spec string) string {
	s.Helper()
	path := filepath.Join(s.TempDir(), "policy.yaml")
	text := "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nspec:\n  mode: enforce\n" +
		strings.ReplaceAll(spec, "POOL", fmt.Sprintf("nodeSelector: {%s: %s}", cluster.LabelPool, s.pool))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	return path
}

// remediator runs the built remediator under its own service account until the test ends, without a lease.
func (s *scene) remediator(policy string, args ...string) *cluster.Process {
	s.Helper()
	p, err := s.cluster.StartRemediator(s.Context(), append([]string{"-policy", policy, "-leader-elect=false"}, args...)...)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		p.Stop(10 * time.Second)
		log := p.Log()
		refused := false
		for line := range strings.Lines(log) {
			// Events about the jobs of earlier tests, whose namespaces are on their way out.
			refused = refused || strings.Contains(line, "is forbidden:") && !strings.Contains(line, "because it is being terminated")
		}
		// An API server that has just started refuses all users until it has read the roles.
		refused = refused && !strings.Contains(log, "connection refused")
		if refused || strings.Contains(log, "panic") || s.Failed() {
			s.Errorf("log of the remediator:\n%s", log)
		}
	})
	return p
}

// report writes GPUXidError as the Node Problem Detector does.
func (s *scene) report(node string, status corev1.ConditionStatus, message string) {
	s.Helper()
	now := metav1.Now().Format(time.RFC3339)
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"GPUXidError","status":%q,"reason":"x","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`,
		status, message, now, now)
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := s.admin.Status().Patch(s.Context(), target, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) get(node string) *corev1.Node {
	s.Helper()
	n := &corev1.Node{}
	if err := s.admin.Get(s.Context(), client.ObjectKey{Name: node}, n); err != nil {
		s.Fatal(err)
	}
	return n
}

// until polls until check returns nil. After patience it fails the test with the last error.
func (s *scene) until(what string, check func() error) {
	s.Helper()
	clustertest.Until(s, patience, what, check)
}

// becomes waits until the node is in a phase, and returns it with its record.
func (s *scene) becomes(node string, phase causes.Phase) (n *corev1.Node, r *causes.Record) {
	s.Helper()
	s.until(fmt.Sprintf("node %s becomes %s", node, phase), func() error {
		n = s.get(node)
		var err error
		if r, err = causes.RecordOf(n); err != nil {
			return err
		}
		if r == nil || r.Phase != phase {
			return fmt.Errorf("record %s; conditions %+v", n.Annotations[conditions.AnnotationQuarantine], n.Status.Conditions)
		}
		return nil
	})
	return n, r
}
