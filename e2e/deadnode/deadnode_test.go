// Package deadnode_test has the nodes of a real control plane die, alone and in waves, beside the real remediator.
package deadnode_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{NodeGrace: 5 * time.Second}) }

// patience is far more than anything here takes on an idle machine.
const patience = 5 * time.Minute

// rules is the shipped policy, but for its times and the breaker: while many nodes come back one after the other, some of those that
// the budget has held back get the places that become free.
const rules = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 3, maxPercent: 10}
  breaker: {maxNodes: 60, window: 10m, coolDown: 30m, pace: 5m}
  correlated: {maxPercent: 50, minNodes: 4, window: 2m}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [Reboot]}}
    node-not-ready:
      match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}
      for: %s
      clearAfter: 2s
      flaps: {max: 3, window: 1h}
      restartJobs: true
      handOff: {keepNode: false}
`

// suite is a fleet of 52 nodes in three zones: each renews its lease every second, which costs most of the CPU time here. The kubelets of each group die and come back together.
type suite struct {
	*testing.T
	*cluster.Cluster
	solo, trio, many, zone *cluster.Kubelets
	kubeconfig             string
}

func newSuite(t *testing.T) *suite {
	s := &suite{T: t, Cluster: clustertest.Get(t)}
	for _, program := range []string{"./remediator", "./kubectl-pitcrew"} {
		if err := components.BuildOurs(t.Context(), s.Root, program); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.InstallRemediator(t.Context()); err != nil {
		t.Fatal(err)
	}
	account, err := s.ServiceAccountConfig(t.Context(), "pitcrew", "pitcrew-remediator")
	if err != nil {
		t.Fatal(err)
	}
	if s.kubeconfig, err = s.WriteKubeconfig("remediator", account); err != nil {
		t.Fatal(err)
	}
	for _, group := range []struct {
		name  string
		nodes int
		zones int
		of    **cluster.Kubelets
	}{{"solo", 1, 2, &s.solo}, {"trio", 3, 2, &s.trio}, {"many", 12, 2, &s.many}, {"zone", 20, 0, &s.zone}, {"rest", 16, 2, new(*cluster.Kubelets)}} {
		kubelets, err := s.StartKubelets(t.Context(), group.name)
		if err != nil {
			t.Fatal(err)
		}
		*group.of = kubelets
		added := 0
		if _, err := s.AddNodes(t.Context(), group.name, group.nodes, func(n *corev1.Node) {
			kubelets.Own(n)
			n.Labels[corev1.LabelTopologyZone] = "c"
			if group.zones > 0 {
				n.Labels[corev1.LabelTopologyZone] = string(rune('a' + added%group.zones))
			}
			// The checks of the hardware run on every node.
			n.Status.Conditions = []corev1.NodeCondition{{Type: conditions.GPUXidError, Status: corev1.ConditionFalse, Reason: "GPUKernelLogChecked", Message: "no fault"}}
			added++
		}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// remediator is a process of the remediator that takes the lease, like that of a Deployment.
type remediator struct {
	*exec.Cmd
	ended chan struct{}
}

// remediate starts a remediator, and waits until it leads.
func (s *suite) remediate(t *testing.T, wait time.Duration) *remediator {
	t.Helper()
	file := s.policy(t, wait)
	log, err := os.Create(filepath.Join(t.TempDir(), "remediator.log"))
	if err != nil {
		t.Fatal(err)
	}
	r := &remediator{exec.Command(filepath.Join(s.Root, "bin", "remediator"), "-kubeconfig", s.kubeconfig,
		"-policy", file, "-metrics-bind-address", "0", "-health-probe-bind-address", "0", "-lease-duration=15s"), make(chan struct{})}
	r.Stderr = log
	r.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		_ = r.Wait()
	}()
	t.Cleanup(func() {
		r.stop()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s", text[max(0, len(text)-8000):])
		}
	})
	clustertest.Until(t, patience, "a remediator leads", func() error {
		var lease coordinationv1.Lease
		if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: "pitcrew", Name: quarantine.ControllerName}, &lease); err != nil {
			return err
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder == "" || lease.Spec.AcquireTime == nil || lease.Spec.AcquireTime.Time.Before(began.Add(-time.Second)) {
			return errors.New("the lease is not taken anew")
		}
		return nil
	})
	return r
}

// stop ends the process, which gives the lease back.
func (r *remediator) stop() {
	_ = r.Process.Signal(syscall.SIGTERM)
	<-r.ended
}

func (s *suite) policy(t *testing.T, wait time.Duration) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, rules, wait), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// kubectl runs the plugin.
func (s *suite) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.Root, "bin", "kubectl-pitcrew"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl pitcrew %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// state is what the nodes of the fleet are.
type state struct {
	quarantined, due []string
	unknown          int
	records          map[string]*causes.Record
}

func (s *suite) state(ctx context.Context) (state, error) {
	var nodes corev1.NodeList
	if err := s.Client.List(ctx, &nodes); err != nil {
		return state{}, err
	}
	now := state{records: map[string]*causes.Record{}}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if _, dead := node.NotReady(n); dead {
			now.unknown++
		}
		record, err := causes.RecordOf(n)
		if err != nil {
			return now, err
		}
		if record == nil {
			continue
		}
		now.records[n.Name] = record
		switch {
		case record.Phase == causes.Quarantined:
			now.quarantined = append(now.quarantined, n.Name)
		case record.Phase == causes.Suspect && record.Causes[0].Due && record.Causes[0].HealthySince.IsZero():
			now.due = append(now.due, n.Name)
		}
	}
	return now, nil
}

// becomes waits until so many nodes are quarantined and so many others are due and held back. There are never more quarantined ones.
func (s *suite) becomes(t *testing.T, quarantined, due int) state {
	t.Helper()
	var now state
	clustertest.Until(t, patience, fmt.Sprintf("%d nodes are quarantined and %d held back", quarantined, due), func() (err error) {
		if now, err = s.state(t.Context()); err != nil {
			return err
		}
		if len(now.quarantined) > quarantined {
			t.Fatalf("%d nodes are quarantined: %v", len(now.quarantined), now.quarantined)
		}
		if len(now.quarantined) != quarantined || len(now.due) != due {
			return fmt.Errorf("%v are quarantined, %d are held back, %d are not Ready", now.quarantined, len(now.due), now.unknown)
		}
		return nil
	})
	return now
}

// recovers waits until all nodes are Ready and in service.
func (s *suite) recovers(t *testing.T) {
	t.Helper()
	clustertest.Until(t, patience, "all nodes are in service", func() error {
		now, err := s.state(t.Context())
		if err != nil {
			return err
		}
		if len(now.quarantined)+len(now.due)+now.unknown > 0 {
			return fmt.Errorf("%v are quarantined, %v are held back, %d are not Ready", now.quarantined, now.due, now.unknown)
		}
		return nil
	})
}

// change changes a node, by whoever does that in a real cluster.
func (s *suite) change(t *testing.T, name string, change func(*corev1.Node)) {
	t.Helper()
	var before corev1.Node
	if err := s.Client.Get(t.Context(), client.ObjectKey{Name: name}, &before); err != nil {
		t.Fatal(err)
	}
	after := before.DeepCopy()
	change(after)
	if err := s.Client.Patch(t.Context(), after.DeepCopy(), client.MergeFrom(&before)); err != nil {
		t.Fatal(err)
	}
	if err := s.Client.Status().Patch(t.Context(), after, client.MergeFrom(&before)); err != nil {
		t.Fatal(err)
	}
}

// blocked counts the nodes with an Event QuarantineBlocked that has a text.
func (s *suite) blocked(t *testing.T, text string) int {
	t.Helper()
	return len(s.events(t, causes.QuarantineBlocked, text))
}

// events are the objects of the Events with a reason and a text.
func (s *suite) events(t *testing.T, reason, text string) map[string]bool {
	t.Helper()
	var events corev1.EventList
	if err := s.Client.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	about := map[string]bool{}
	for _, e := range events.Items {
		if e.Reason == reason && strings.Contains(e.Message, text) {
			about[e.InvolvedObject.Name] = true
		}
	}
	return about
}

func TestDeadNodes(t *testing.T) {
	s := newSuite(t)
	const solo = "solo-0"
	t.Run("one node", func(t *testing.T) {
		s.remediate(t, 5*time.Second)
		s.solo.Freeze()
		now := s.becomes(t, 1, 0)
		record := now.records[solo]
		if record == nil || record.Taint.String() != "pitcrew.dev/unhealthy=Ready:NoSchedule" || record.HandOff != nil {
			t.Fatalf("record %s", record)
		}
		description := s.kubectl(t, "describe", solo, "-f", s.policy(t, 5*time.Second))
		for _, want := range []string{"Status:   quarantined, needs inspection (Inspect)", "Ready:    Unknown since ", "Kubelet stopped posting node status.", "waits for the node to be Ready again"} {
			if !strings.Contains(description, want) {
				t.Errorf("describe does not say %q:\n%s", want, description)
			}
		}
		s.solo.Thaw() // it was away
		s.recovers(t)
		if got := s.records(t)[solo]; got.ReleasedBy != causes.ByPitcrew || got.Boot != record.Boot {
			t.Errorf("record %s", got)
		}
	})
	t.Run("a node that reboots, and one that flaps", func(t *testing.T) {
		s.remediate(t, 5*time.Second)
		s.solo.Freeze()
		before := s.becomes(t, 1, 0).records[solo]
		bootID := string(uuid.NewUUID())
		s.change(t, solo, func(n *corev1.Node) { n.Status.NodeInfo.BootID = bootID })
		// Another kubelet after the boot, which lists the node: one that is thawed may write the status of before it was frozen.
		s.solo.Kill()
		kubelets, err := s.StartKubelets(t.Context(), "solo-rebooted")
		if err != nil {
			t.Fatal(err)
		}
		s.solo = kubelets
		s.change(t, solo, s.solo.Own)
		s.recovers(t)
		if after := s.records(t)[solo]; after.ReleasedBy != causes.ByPitcrew || after.Boot.ID != bootID || before.Boot.ID == bootID {
			t.Errorf("record %s", after)
		}
		s.solo.Freeze()
		if record := s.becomes(t, 1, 0).records[solo]; !record.ManualReleaseOnly {
			t.Errorf("the third time is like the others: %s", record)
		}
		s.solo.Thaw()
		s.kubectl(t, "release", solo, "-y")
		s.recovers(t)
	})
	t.Run("three nodes, beside one that is maintained", func(t *testing.T) {
		s.remediate(t, 5*time.Second)
		s.change(t, solo, func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: conditions.TaintMaintenance, Value: "reboot", Effect: corev1.TaintEffectNoSchedule})
		})
		s.solo.Freeze()
		clustertest.Until(t, patience, "the maintained node is not Ready", func() error {
			if now, err := s.state(t.Context()); err != nil || now.unknown != 1 {
				return fmt.Errorf("%d nodes are not Ready: %w", now.unknown, err)
			}
			return nil
		})
		s.trio.Freeze()
		if now := s.becomes(t, 3, 0); !strings.HasPrefix(strings.Join(now.quarantined, " "), "trio-0 trio-1 trio-2") {
			t.Errorf("%v are quarantined", now.quarantined)
		}
		s.solo.Thaw()
		s.trio.Thaw()
		s.recovers(t)
		s.change(t, solo, func(n *corev1.Node) { n.Spec.Taints = nil })
	})
	t.Run("twelve nodes", func(t *testing.T) {
		s.remediate(t, 5*time.Second)
		s.many.Freeze()
		s.becomes(t, 3, 9)
		clustertest.Until(t, patience, "9 Events", func() error {
			if got := s.blocked(t, "nodes are out of service and the budget is 3: many-"); got != 9 {
				return fmt.Errorf("%d nodes are blocked by the budget", got)
			}
			return nil
		})
		s.becomes(t, 3, 9)
		s.many.Thaw()
		s.recovers(t)
	})
	t.Run("a zone", func(t *testing.T) {
		s.remediate(t, 20*time.Second)
		s.zone.Freeze()
		s.becomes(t, 0, 20)
		const text = "nodes of topology.kubernetes.io/zone=c are not Ready, all within 2m0s: more likely the network or the control plane than the nodes"
		clustertest.Until(t, patience, "an Event", func() error {
			if len(s.events(t, causes.DetectorSuspect, text)) == 0 {
				return errors.New("none")
			}
			return nil
		})
		s.becomes(t, 0, 20)
		s.zone.Thaw()
		s.recovers(t)
	})
	t.Run("the API server", s.outage)
}

// records are those of all nodes.
func (s *suite) records(t *testing.T) map[string]*causes.Record {
	t.Helper()
	now, err := s.state(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return now.records
}

// outage stops the API server for longer than the rule waits, while a node is silent whose kubelet lives. The remediator ends,
// because it cannot renew its lease, and the next one leads before that kubelet could report.
func (s *suite) outage(t *testing.T) {
	const wait = 20 * time.Second
	first := s.remediate(t, wait)
	s.solo.Freeze()
	var seen time.Time
	clustertest.Until(t, patience, "the silent node is suspect", func() error {
		record := s.records(t)["solo-0"]
		if record == nil || record.Phase != causes.Suspect {
			return errors.New("it is not")
		}
		seen = record.Causes[0].FirstSeen
		return nil
	})
	end := clustertest.Outage(t, s.Cluster)
	<-first.ended
	clustertest.Until(t, patience, "the outage lasts longer than the rule waits", func() error {
		if left := time.Until(seen.Add(wait + time.Second)); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	end()
	s.remediate(t, wait)
	// The new leader decides about nodes: it quarantines one for another fault.
	s.change(t, "rest-0", func(n *corev1.Node) {
		for i := range n.Status.Conditions {
			if c := &n.Status.Conditions[i]; c.Type == conditions.GPUXidError {
				c.Status, c.Reason, c.Message = corev1.ConditionTrue, "GPUXidSeen", "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
				c.LastHeartbeatTime.Time, c.LastTransitionTime.Time = time.Now(), time.Now()
			}
		}
	})
	var now state
	clustertest.Until(t, patience, "the new leader decides", func() (err error) {
		if now, err = s.state(t.Context()); err != nil {
			return err
		}
		if len(now.quarantined) == 0 {
			return errors.New("nothing is quarantined")
		}
		return nil
	})
	if strings.Join(now.quarantined, " ") != "rest-0" {
		t.Fatalf("after the outage %v are quarantined", now.quarantined)
	}
	s.solo.Thaw()
	clustertest.Until(t, patience, "all nodes are Ready", func() error {
		now, err := s.state(t.Context())
		if err != nil || now.unknown > 0 {
			return fmt.Errorf("%d nodes are not Ready: %w", now.unknown, err)
		}
		return nil
	})
	if now := s.becomes(t, 1, 0); now.quarantined[0] != "rest-0" {
		t.Fatalf("%v is quarantined", now.quarantined)
	}
	// The guard ends with the time of the rule: a node that dies now is quarantined, and no other.
	s.solo.Freeze()
	if now := s.becomes(t, 2, 0); strings.Join(now.quarantined, " ") != "rest-0 solo-0" {
		t.Errorf("%v are quarantined", now.quarantined)
	}
	s.solo.Thaw()
}

// The rule of this test is the shipped one but for its times and the number of nodes of the breaker.
func TestTheRuleIsTheShippedOne(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	shipped, err := policy.Open(filepath.Join(root, "manifests", "policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ours, err := policy.Parse(fmt.Appendf(nil, rules, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	want, _ := shipped.Policy().Rule("node-not-ready")
	got, _ := ours.Rule("node-not-ready")
	breaker := *shipped.Policy().Breaker
	breaker.MaxNodes = ours.Breaker.MaxNodes
	if fmt.Sprint(got.Status, got.Repair, got.RestartJobs, got.Taint, got.HandOff) != fmt.Sprint(want.Status, want.Repair, want.RestartJobs, want.Taint, want.HandOff) ||
		ours.Budget != shipped.Policy().Budget || *ours.Breaker != breaker {
		t.Errorf("%+v\n%+v", got, want)
	}
}
