package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/docs/examples/webhook"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{}) }

const patience = 3 * time.Minute

// answers counts the writes of a replacer, and loses the answer to the first one: to the replacer that is as if it had crashed after it.
type answers struct {
	http.RoundTripper
	mu     sync.Mutex
	writes []string
}

func (a *answers) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := a.RoundTripper.RoundTrip(request)
	if request.Method == http.MethodGet || err != nil {
		return answer, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writes = append(a.writes, fmt.Sprintf("%s %s: %d", request.Method, request.URL.Path, answer.StatusCode))
	if len(a.writes) == 1 {
		answer.Body.Close()
		return nil, errors.New("the answer is lost")
	}
	return answer, nil
}

func (a *answers) made() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.writes)
}

// server is the webhook's, in front of the receiver. It keeps what was delivered.
type server struct {
	*httptest.Server
	mu   sync.Mutex
	kept []func() int // each sends a delivery again
}

func serve(t *testing.T, receiver http.Handler) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			t.Error(err)
		}
		send := func() int {
			again := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
			again.Header = request.Header
			answer := httptest.NewRecorder()
			receiver.ServeHTTP(answer, again)
			return answer.Code
		}
		w.WriteHeader(send())
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept = append(s.kept, send)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// replay sends all deliveries again, and returns how many there were.
func (s *server) replay(t *testing.T) int {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, send := range s.kept {
		if code := send(); code != http.StatusNoContent {
			t.Errorf("a repeated delivery is answered with %d", code)
		}
	}
	return len(s.kept)
}

// claim is a NodeClaim as Karpenter has it for a node.
func claim(name string, node *corev1.Node) (object, status *unstructured.Unstructured) {
	object = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": map[string]any{"name": name, "finalizers": []any{"karpenter.sh/termination"}},
		"spec": map[string]any{
			"nodeClassRef": map[string]any{"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"},
			"requirements": []any{map[string]any{"key": "kubernetes.io/arch", "operator": "In", "values": []any{"amd64"}}},
		},
	}}
	return object, &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"nodeName": node.Name, "providerID": node.Spec.ProviderID}}}
}

// machineOf is a Machine as Cluster API has it for a node.
func machineOf(name string, node *corev1.Node) (object, status *unstructured.Unstructured) {
	object = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
		"metadata": map[string]any{"name": name, "namespace": "clusters", "labels": map[string]any{"cluster.x-k8s.io/cluster-name": "training"}, "finalizers": []any{"machine.cluster.x-k8s.io"}},
		"spec": map[string]any{
			"clusterName": "training", "providerID": node.Spec.ProviderID,
			"bootstrap":         map[string]any{"dataSecretName": "bootstrap"},
			"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "MetalMachine", "name": name},
		},
	}}
	return object, &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"nodeRef": map[string]any{"name": node.Name}}}}
}

func TestAQuarantineOfTheRemediatorReplacesAMachineOnce(t *testing.T) {
	tests := map[string]struct {
		kind   kind
		rights string
		module components.Component
		crd    string
		object func(name string, node *corev1.Node) (object, status *unstructured.Unstructured)
		// asked reports whether the object is to be replaced.
		asked func(*unstructured.Unstructured) bool
	}{
		"nodeclaim": {
			nodeClaim, "karpenter.yaml", components.Karpenter, "pkg/apis/crds/karpenter.sh_nodeclaims.yaml", claim,
			func(u *unstructured.Unstructured) bool { return u.GetDeletionTimestamp() != nil },
		},
		"machine": {
			machine("clusters", "training"), "cluster-api.yaml", components.ClusterAPI, "core/config/crd/bases/cluster.x-k8s.io_machines.yaml", machineOf,
			func(u *unstructured.Unstructured) bool { _, asked := u.GetAnnotations()[remediate]; return asked },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := clustertest.Get(t)
			module, err := test.module.ModuleDir(t.Context(), c.Root)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.InstallRemediator(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.AddNamespace(t.Context(), "clusters", nil); client.IgnoreAlreadyExists(err) != nil {
				t.Fatal(err)
			}
			crd := filepath.Join(module, test.crd)
			for _, args := range [][]string{
				{"apply", "--server-side", "-f", crd}, {"wait", "--for=condition=Established", "-f", crd}, {"apply", "-f", test.rights},
			} {
				if out, err := c.Kubectl(t.Context(), args...); err != nil {
					t.Fatal(err, out)
				}
			}
			generation := "first"
			add := func() []string {
				t.Helper()
				nodes, err := c.AddNodes(t.Context(), name, 2, func(n *corev1.Node) { n.Spec.ProviderID = "cloud:///" + generation + "/" + n.Name })
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range nodes {
					node := &corev1.Node{}
					if err := c.Client.Get(t.Context(), client.ObjectKey{Name: n}, node); err != nil {
						t.Fatal(err)
					}
					object, status := test.object(generation+"-"+n, node)
					if err := c.Client.Create(t.Context(), object); err != nil {
						t.Fatal(err)
					}
					text, err := status.MarshalJSON()
					if err != nil {
						t.Fatal(err)
					}
					if err := c.Client.Status().Patch(t.Context(), object, client.RawPatch(types.MergePatchType, text)); err != nil {
						t.Fatal(err)
					}
				}
				return nodes
			}
			get := func(node string) *unstructured.Unstructured {
				t.Helper()
				object, _ := test.object(generation+"-"+node, &corev1.Node{})
				if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
					t.Fatal(err)
				}
				return object
			}
			nodes := add()

			// The replacer has the rights of its manifest and no others.
			var writes *answers
			cfg, err := c.ServiceAccountConfig(t.Context(), "replacer", "replacer")
			if err != nil {
				t.Fatal(err)
			}
			cfg.Wrap(func(transport http.RoundTripper) http.RoundTripper {
				writes = &answers{RoundTripper: transport}
				return writes
			})
			api, err := client.New(cfg, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			secret := filepath.Join(dir, "secret")
			if err := os.WriteFile(secret, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), 0o600); err != nil {
				t.Fatal(err)
			}
			receiver, err := webhook.New(secret)
			if err != nil {
				t.Fatal(err)
			}
			hook := serve(t, receiver)
			r := &replacer{kind: test.kind, nodes: api, machines: api, when: onClass, pitcrewNamespace: "pitcrew"}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				receiver.Loop(ctx, every, r.look)
				close(ended)
			}()
			t.Cleanup(func() {
				stop()
				<-ended
			})

			// Two faults, of which one needs a replacement.
			remediator := startRemediator(t, c, name, hook, dir, secret)
			report(t, c, nodes[0], "Replace gpu 0000:4e:00: Xid 64 row remap failed")
			report(t, c, nodes[1], "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus")
			clustertest.Until(t, patience, "both deliveries arrive and the machine is replaced", func() error {
				if object := get(nodes[0]); !test.asked(object) || hook.replay(t) < 2 {
					return fmt.Errorf("writes %q, object %v", writes.made(), object)
				}
				return nil
			})
			once := func() {
				t.Helper()
				hook.replay(t)
				for range 2 { // after a crash, too: there is nothing in memory
					if err := r.look(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if made := writes.made(); len(made) != 1 || !strings.Contains(made[0], "/"+"first-"+nodes[0]+": 200") {
					t.Errorf("writes %q", made)
				}
				if test.asked(get(nodes[1])) {
					t.Error("the machine of a node that needs a reboot is replaced")
				}
			}
			once()
			if object := get(nodes[0]); name == "machine" { // a person decides against it
				if err := c.Client.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+remediate+`":null}}}`))); err != nil {
					t.Fatal(err)
				}
				once()
			}

			// The machine is replaced by one whose node has the same name. The old deliveries do nothing to it.
			remediator.Stop(10 * time.Second)
			for _, n := range nodes {
				object := get(n)
				if err := c.Client.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
					t.Fatal(err)
				}
				if err := c.Client.Delete(t.Context(), object); client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
			}
			if err := c.DeleteNodes(t.Context(), nodes...); err != nil {
				t.Fatal(err)
			}
			generation = "second"
			add()
			once()
			if test.asked(get(nodes[0])) {
				t.Error("a repeated delivery has replaced the new machine")
			}
			if err := c.DeleteNodes(t.Context(), nodes...); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func startRemediator(t *testing.T, c *cluster.Cluster, pool string, hook *server, dir, secret string) *cluster.Process {
	t.Helper()
	ca, policy := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "policy.yaml")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	text := fmt.Sprintf(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 2}
  webhooks: {replacer: {url: %s, secretFile: %s, caFile: %s, events: [NodeQuarantined, QuarantineUpgraded]}}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [Reboot, Replace], nodeSelector: {%s: %s}}}
`, hook.URL, secret, ca, cluster.LabelPool, pool)
	if err := errors.Join(os.WriteFile(ca, certificate, 0o600), os.WriteFile(policy, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	p, err := c.StartRemediator(t.Context(), "-policy", policy, "-leader-elect=false")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(10 * time.Second)
		if t.Failed() {
			t.Logf("log of the remediator:\n%s", p.Log())
		}
	})
	return p
}

// report writes a condition as the Node Problem Detector does.
func report(t *testing.T, c *cluster.Cluster, node, message string) {
	t.Helper()
	if err := c.Report(t.Context(), node, conditions.GPUXidError, corev1.ConditionTrue, message, time.Now()); err != nil {
		t.Fatal(err)
	}
}
