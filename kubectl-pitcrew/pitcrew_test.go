package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{}) }

// A person works through a quarantine with the built plugin, beside a running remediator.
func TestAPersonSteersTheRemediator(t *testing.T) {
	p := NewPerson(t)
	c := p.Cluster
	nodes, err := c.AddNodes(t.Context(), "hand", 2, func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "example.com/theirs", Effect: corev1.TaintEffectNoSchedule}}
	})
	if err != nil {
		t.Fatal(err)
	}
	faulty, other := nodes[0], nodes[1]

	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 2}
  rules: {gpu: {match: {condition: GPUXidError, repair: [Reboot]}}}
`), 0o644); err != nil {
		t.Fatal(err)
	}
	remediator, err := c.StartRemediator(t.Context(), "-policy", policy, "-leader-elect=false")
	if err != nil {
		t.Fatal(err)
	}

	p.says("status", "HEALTHY")
	p.refused("pause")
	p.does("pause", "--reason", "network work")
	p.says("status", " (network work): no quarantines, releases or restarts")
	p.report(faulty)
	p.refused("resume")
	p.does("resume")
	p.until("the node is quarantined", func() error {
		if out := p.run("status"); !strings.Contains(out, faulty) || !strings.Contains(out, "quarantined") {
			return errors.New(out)
		}
		return nil
	})
	p.says("describe "+faulty, "waits for a reboot")
	p.says("describe "+other, "Record:   none")

	p.refused("release " + faulty)
	p.says("release --dry-run "+faulty, "Release node "+faulty)
	p.taints(faulty, "example.com/theirs:NoSchedule pitcrew.dev/unhealthy=GPUXidError:NoSchedule")
	p.does("release", faulty, "--reason", "needed\nfor\x1b[31m a demo")
	p.taints(faulty, "example.com/theirs:NoSchedule")
	p.wrote(client.ObjectKey{Name: faulty}, causes.ReleaseByHand, "released manually by person: needed for [31m a demo")
	p.says("describe "+faulty, "a user released the node (person: needed for [31m a demo) ")
	p.says("status", "released by a person")

	p.does("quarantine", other, "--reason", "smells of smoke")
	p.taints(other, "example.com/theirs:NoSchedule pitcrew.dev/unhealthy=ByHand:NoSchedule")
	p.says("status", "smells of smoke")
	p.wrote(client.ObjectKey{Name: other}, causes.NodeQuarantined, "quarantined manually by person: smells of smoke")
	p.says("describe "+other, "first seen ")
	p.says("describe "+other, "; by person; ")
	p.fails("quarantine -y "+other, "quarantined manually already")
	p.fails("release -y nowhere", "not found")

	p.says("reset -y", "There is nothing to do")
	// The remediator has looked at both nodes since and left them alone.
	p.report(other)
	p.until("the fault on top is dealt with", func() error { return p.tainted(other, "GPUXidError") })
	p.taints(faulty, "example.com/theirs:NoSchedule")

	const another = "gpu 0000:5e:00: Xid 79 GPU has fallen off the bus"
	p.reports(faulty, "True", clitest.Lost+"; "+another)
	p.until("another GPU's fault is dealt with", func() error { return p.tainted(faulty, "GPUXidError") })
	p.says("status", "GPUXidError: Reboot "+another)
	p.says("describe "+faulty, "Cause:    GPUXidError: Reboot "+another)

	// Outside the cluster it has no Deployment that could be deleted first.
	remediator.Stop(10 * time.Second)
	p.says("uninstall --dry-run", "Clean node "+other)
	p.taints(other, "example.com/theirs:NoSchedule pitcrew.dev/unhealthy=GPUXidError:NoSchedule")
	p.does("uninstall")
	for _, name := range nodes {
		n := p.get(name)
		for _, condition := range n.Status.Conditions {
			if conditions.Ours(string(condition.Type)) {
				t.Errorf("node %s still has condition %s", name, condition.Type)
			}
		}
		if n.Annotations[conditions.AnnotationQuarantine] != "" || n.Labels[conditions.LabelStatus] != "" {
			t.Errorf("node %s still has %v %v", name, n.Annotations, n.Labels)
		}
		p.taints(name, "example.com/theirs:NoSchedule")
	}
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: "pitcrew"}, &corev1.Namespace{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is still there: %v", err)
	}
	p.says("uninstall", "There is nothing to do")
}

func TestExplainAndValidate(t *testing.T) {
	shipped, err := os.ReadFile("../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, want, fails string }{
		{"explain 79", "Xid 79", ""},
		{"explain xid 79", "Xid 79", ""},
		{"explain sxid 20034", "SXid 20034", ""},
		{"explain GPU", "",
			"unknown topic GPU. Did you mean GPUCountMismatch, GPUMemoryError, GPUOverheated, GPUPodsRejected, GPUStalled, GPUXidError, "},
		{"explain HCAPortsDwn", "", "unknown topic HCAPortsDwn. Did you mean HCAPortDown?"},
		{"explain nonsense", "", "unknown topic nonsense. `kubectl pitcrew explain -h` lists the kinds of topics"},
		{"explain gpuxiderror", "# GPUXidError", ""},
		{"explain condition Ready", "# PitcrewNodeNotReady", ""},
		{"explain condition HCAPortDown", "# HCAPortDown", ""},
		{"explain alert PitcrewBreakerOpen", "# PitcrewBreakerOpen", ""},
		{"explain ResetGPU", "ResetGPU: Repair class. ", ""},
		{"explain class inspect", "Inspect: Repair class. ", ""},
		{"explain event WouldQuarantine", "the rule observes; the text says what it would do\nMore: docs/words.md", ""},
		{"explain budget", "budget: the number of nodes out of service has reached the policy's limit", ""},
		{"explain devices-unknown", "It ends within two minutes: the whole node", ""},
		{"explain reason observe-only", "To act: `mode: enforce`", ""},
		{"explain status isolated", "single GPUs", ""},
		{"explain reason rule-gone", "More: kubectl pitcrew explain PitcrewQuarantineBlocked", ""},
		{"explain BudgetPerJob", "BudgetPerJob: the job was restarted as often as", ""},
		{"explain Held", "Held: an old pod of the stopped job has not ended, because its node is dead, a process hangs in the kernel (D state), or a finalizer holds the object. Two sets of ranks", ""},
		{"explain metric pitcrew_node_blocked", "pitcrew_node_blocked: node, rule, reason; 1 while a decision is blocked", ""},
		{"explain ResetGUP", "", "unknown topic ResetGUP. Did you mean ResetGPU?"},
		{"explain JobRestartBlock", "", "Did you mean JobRestartBlocked"},
		{"explain breaker", "no new one begins; see PitcrewBreakerOpen\n", ""},
		{"explain alert PitcrewJobRestartHeld", "why (docs/dead-nodes.md#when-a-node-dies)", ""},
		{"explain GPUXidError", "POD is the pod that `kubectl pitcrew describe NODE` names", ""},
		{"explain gpu HCAPortDown", "", "unknown topic gpu HCAPortDown: neither an Xid"},
		{"policy validate ../manifests/policy.yaml", "ok: 0 rules enforce", ""},
		{"policy validate -f ../manifests/policy.yaml", "ok: 0 rules enforce", ""},
		{"policy validate --policy ../manifests/policy.yaml", "ok: 0 rules enforce", ""},
		{"policy validate -f -", "-: ok: 0 rules enforce", ""},
		{"policy validate ../manifests/install-values.yaml", "", "this looks like values of the chart: a policy file begins with apiVersion and kind"},
		{"policy validate pitcrew_test.go", "", "line "},
		{"policy validate nothing", "", "open nothing: no such file"},
		{"status --kubeconfig /dev/null", "", "no kubeconfig found (/dev/null): name one with --kubeconfig or KUBECONFIG"},
		{"policy validate", "", "name the policy with -f"},
	} {
		cmd := newCommand()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetIn(bytes.NewReader(shipped))
		cmd.SetArgs(strings.Fields(test.args))
		err := cmd.ExecuteContext(t.Context())
		if (err != nil) != (test.fails != "") || err != nil && !strings.Contains(err.Error(), test.fails) || !strings.Contains(out.String(), test.want) {
			t.Errorf("%s: %v\n%s", test.args, err, out.String())
		}
	}
}

type person struct {
	*testing.T
	*cluster.Cluster
	kubeconfig string
}

func (p person) Context() context.Context { return p.T.Context() }

func (p person) exec(args ...string) (string, error) {
	cmd := exec.CommandContext(p.Context(), filepath.Join(p.Root, "bin", "kubectl-pitcrew"), append([]string{"--kubeconfig", p.kubeconfig}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (p person) run(args ...string) string {
	p.Helper()
	out, err := p.exec(args...)
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() == 2 && args[0] == "status" {
		err = nil // it has worked, and says that Pitcrew is not well: most tests install only what they need
	}
	if err != nil {
		p.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}

func (p person) says(args, want string) {
	p.Helper()
	if out := p.run(strings.Fields(args)...); !strings.Contains(out, want) {
		p.Errorf("%s: no %q in\n%s", args, want, out)
	}
}

// does runs a command for good.
func (p person) does(args ...string) {
	p.Helper()
	p.run(append(args, "-y")...)
}

func (p person) fails(args, want string) {
	p.Helper()
	if out, err := p.exec(strings.Fields(args)...); err == nil || !strings.Contains(out, want) {
		p.Errorf("%s: %v, no %q in\n%s", args, err, want, out)
	}
}

// refused is a command that changes something, without a terminal and without a yes.
func (p person) refused(args string) {
	p.Helper()
	p.fails(args, "there is no terminal to ask for confirmation")
}

func (p person) get(name string) *corev1.Node {
	p.Helper()
	n := &corev1.Node{}
	if err := p.Client.Get(p.Context(), client.ObjectKey{Name: name}, n); err != nil {
		p.Fatal(err)
	}
	return n
}

func (p person) taints(name, want string) {
	p.Helper()
	if got := cli.Taints(p.get(name)); got != want {
		p.Errorf("node %s has taints %q, want %q", name, got, want)
	}
}

func (p person) tainted(name, value string) error {
	p.Helper()
	if got := cli.Taints(p.get(name)); !strings.Contains(got, "="+value+":") {
		return fmt.Errorf("taints %q", got)
	}
	return nil
}

// report is what the Node Problem Detector reports of a lost GPU.
func (p person) report(name string) {
	p.Helper()
	p.reports(name, "True", clitest.Lost)
}

func (p person) until(what string, check func() error) {
	p.Helper()
	clustertest.Until(p, 2*time.Minute, what, check)
}
