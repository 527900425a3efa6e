package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const (
	cordons      = "handOff: {cordon: true}"
	reasonOfOurs = "Pitcrew: GPUXidError (rule gpu)"
)

func (tm team) kubectl(args ...string) {
	tm.Helper()
	if _, err := tm.Kubectl(tm.Context(), args...); err != nil {
		tm.Fatal(err)
	}
}

// states lists what a watch has seen of a node, each state once: cordoned, tainted, with the reason of the cordon, quarantined.
func (tm team) states(name string) func() []string {
	tm.Helper()
	w, err := tm.Client.Watch(tm.Context(), &corev1.NodeList{}, client.MatchingFields{"metadata.name": name})
	if err != nil {
		tm.Fatal(err)
	}
	tm.Cleanup(w.Stop)
	var seen []string
	return func() []string {
		// What is written after everything else is seen after everything else.
		tm.kubectl("annotate", "--overwrite", "node", name, fmt.Sprintf("example.com/last=%d", len(seen)+1))
		for e := range w.ResultChan() {
			n, ok := e.Object.(*corev1.Node)
			if !ok || e.Type == watch.Deleted {
				tm.Fatalf("%s %v", e.Type, e.Object)
			}
			r, err := causes.RecordOf(n)
			if err != nil {
				tm.Fatal(err)
			}
			state := "in service"
			if r != nil && r.Phase == causes.Quarantined {
				state = "quarantined"
			}
			if strings.Contains(taints(n), ourTaint) {
				state += ", tainted"
			}
			if n.Spec.Unschedulable {
				state += ", cordoned"
			}
			if reason := n.Annotations[policy.CordonReason]; reason != "" {
				state += ": " + reason
			}
			if len(seen) == 0 || seen[len(seen)-1] != state {
				seen = append(seen, state)
			}
			if n.Annotations["example.com/last"] != "" {
				tm.kubectl("annotate", "node", name, "example.com/last-")
				return seen
			}
		}
		return nil
	}
}

// The cordon is written with the taint and the record, and taken back with them: no reader sees one without the others.
func TestTheCordonComesAndGoesWithTheQuarantine(t *testing.T) {
	tm := newTeam(t, "cordon", 1, nil)
	name := tm.nodes[0]
	seen := tm.states(name)
	tm.start(tm.policy(1, "clearAfter: 1s", cordons), alone)
	tm.report(name, "True", ecc)
	n, r := tm.becomes(name, causes.Quarantined)
	if !r.HandOff.Cordon {
		t.Errorf("the record has %+v", r.HandOff)
	}
	tm.waitForEvent(n.UID, "tainted "+ourTaint+" and cordoned")
	tm.report(name, "False", "fine")
	tm.becomes(name, causes.Released)
	want := []string{"in service", "quarantined, tainted, cordoned: " + reasonOfOurs, "in service"}
	if diff := cmp.Diff(want, seen()); diff != "" {
		t.Error(diff)
	}
	tm.until("the node lifecycle controller removes its taint", func() error {
		if got := taints(tm.get(name)); got != "" {
			return errors.New(got)
		}
		return nil
	})
}

// kubectl cordons and uncordons as people do. What it has set outlives a quarantine, and what it has undone stays undone, also when
// no remediator runs.
func TestCordonsOfPeopleOutliveAQuarantine(t *testing.T) {
	tm := newTeam(t, "people-cordon", 4, nil)
	before, undone, away, again := tm.nodes[0], tm.nodes[1], tm.nodes[2], tm.nodes[3]
	path := tm.policy(4, "clearAfter: 1s", cordons)
	tm.kubectl("cordon", before)
	first := tm.start(path, alone)
	for _, name := range tm.nodes {
		tm.report(name, "True", ecc)
	}
	for _, name := range tm.nodes {
		if n, r := tm.becomes(name, causes.Quarantined); !n.Spec.Unschedulable || r.HandOff.Cordon == (name == before) {
			t.Errorf("%s: cordoned %v, the record has %+v", name, n.Spec.Unschedulable, r.HandOff)
		}
	}
	tm.kubectl("uncordon", undone)
	tm.waitForEvent(tm.get(undone).UID, "UncordonedByHand: the cordon was undone")
	first.Kill()
	tm.kubectl("uncordon", away)
	tm.kubectl("uncordon", again)
	tm.kubectl("cordon", again)
	tm.start(path, alone)
	for _, name := range []string{undone, away, again} {
		tm.until("the record of "+name+" says that the cordon is not ours", func() error {
			n, r := tm.becomes(name, causes.Quarantined)
			if !r.Uncordoned || r.HandOff.Cordon || n.Annotations[policy.CordonReason] != "" || !strings.Contains(taints(n), ourTaint) {
				return fmt.Errorf("record %s, annotations %v", r, n.Annotations)
			}
			return nil
		})
	}
	for name, want := range map[string]bool{before: true, undone: false, away: false, again: true} {
		if got := tm.get(name).Spec.Unschedulable; got != want {
			t.Errorf("during the quarantine %s is cordoned: %v", name, got)
		}
		tm.report(name, "False", "fine")
		if n, _ := tm.becomes(name, causes.Released); n.Spec.Unschedulable != want {
			t.Errorf("after the release %s is cordoned: %v", name, n.Spec.Unschedulable)
		}
	}
}

// A node that was cordoned by one policy is uncordoned under the next one, which has no cordon, by another process.
func TestACordonOfAnEarlierPolicyIsTakenBack(t *testing.T) {
	tm := newTeam(t, "earlier-cordon", 2, nil)
	ours, theirs := tm.nodes[0], tm.nodes[1]
	path := tm.policy(2, "clearAfter: 1s", cordons)
	first := tm.start(path, alone)
	tm.report(ours, "True", ecc)
	tm.becomes(ours, causes.Quarantined)
	tm.until("what the policy puts on nodes is stored", func() error {
		known := &corev1.ConfigMap{}
		if err := tm.Client.Get(t.Context(), client.ObjectKey{Namespace: "pitcrew", Name: conditions.KnownConfigMap}, known); err != nil || !strings.Contains(fmt.Sprint(known.Data), "cordon") {
			return fmt.Errorf("%v, %w", known.Data, errors.Join(err, errStill))
		}
		return nil
	})
	first.Kill()
	tm.rewrite(path, cordons, "priority: 0")
	tm.start(path, alone)
	tm.report(theirs, "True", ecc)
	if n, _ := tm.becomes(theirs, causes.Quarantined); n.Spec.Unschedulable {
		t.Error("a policy without a cordon cordons")
	}
	if !tm.get(ours).Spec.Unschedulable {
		t.Error("the change of the policy alone takes the cordon back")
	}
	tm.report(ours, "False", "fine")
	if n, _ := tm.becomes(ours, causes.Released); n.Spec.Unschedulable {
		t.Error("the node is still cordoned")
	}
}

// noJobs restarts nothing: the policy asks for no restart.
type noJobs struct{}

func (noJobs) RestartJobsOnNode(context.Context, restart.Trigger) (time.Duration, error) {
	return 0, errors.New("unexpected")
}

// mortalNodes runs the node controller as the remediator does, but for its jobs, until it has died. The returned function ends it.
func (tm team) mortalNodes(cfg *rest.Config, path string, m *clustertest.Mortal) (stop func()) {
	tm.Helper()
	o := managerOptions(options{namespace: "pitcrew", metricsAddress: "0", healthAddress: "0"})
	o.Controller.SkipNameValidation = ptr.To(true)
	o.NewClient = func(cfg *rest.Config, o client.Options) (client.Client, error) {
		through, err := client.NewWithWatch(cfg, o)
		if err != nil {
			return nil, err
		}
		return interceptor.NewClient(through, m.Funcs()), nil
	}
	p, err := policy.Follow(path)
	if err != nil {
		tm.Fatal(err)
	}
	mgr, err := ctrl.NewManager(cfg, o)
	if err != nil {
		tm.Fatal(err)
	}
	ctx, cancel := context.WithCancel(tm.Context())
	if err := nodes.SetupWithManager(ctx, mgr, prometheus.NewRegistry(), nodes.Options{
		Policy: p, Namespace: "pitcrew", Recorder: mgr.GetEventRecorder(quarantine.ControllerName), Clock: clock.RealClock{}, Jobs: noJobs{},
	}); err != nil {
		cancel()
		tm.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			tm.Errorf("the manager ended: %v", err)
		}
	})
	tm.Cleanup(stop)
	return stop
}

// Every process of the remediator dies after one write, until the node has all that a quarantine brings, and then until all of that is
// gone: taint, record and cordon in one write, the condition for soperator, the evidence, and what is remembered.
func TestTheHandOffSurvivesACrashAfterEveryWrite(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			tm := newTeam(t, fmt.Sprintf("crash-handoff-%v", late), 1, nil)
			name := tm.nodes[0]
			cfg := jobstest.Config(t, tm.Cluster)
			path := tm.policy(1, "clearAfter: 1s", cordons)
			tm.rewrite(path, "  rules:", "  output: {soperator: true}\n  rules:")
			seen := tm.states(name)

			// until lets processes live and die until the node is as it must be, and returns how many died.
			until := func(what string, done func(*corev1.Node) error) (deaths int) {
				t.Helper()
				for range 40 {
					m := clustertest.NewMortal(1, late)
					stop := tm.mortalNodes(cfg, path, m)
					clustertest.Until(t, patience, what+": a process dies, or there is nothing left to do", func() error {
						select {
						case <-m.Dead:
							return nil
						default:
							return done(tm.get(name))
						}
					})
					stop()
					if done(tm.get(name)) == nil {
						return deaths
					}
					deaths++
				}
				t.Fatalf("%s: still not after %d deaths", what, deaths)
				return 0
			}
			is := func(cordoned bool, condition string) func(*corev1.Node) error {
				return func(n *corev1.Node) error {
					if n.Spec.Unschedulable != cordoned || suspicion(n) != condition {
						return fmt.Errorf("cordoned %v, condition %q", n.Spec.Unschedulable, suspicion(n))
					}
					return nil
				}
			}
			tm.report(name, "True", ecc)
			if deaths := until("quarantined", is(true, "True QuarantinedByPitcrew")); deaths == 0 {
				t.Error("no process died between the writes")
			}
			tm.report(name, "False", "fine")
			if deaths := until("released", is(false, "False ReleasedByPitcrew")); deaths == 0 {
				t.Error("no process died between the writes")
			}
			want := []string{"in service", "quarantined, tainted, cordoned: " + reasonOfOurs, "in service"}
			if diff := cmp.Diff(want, seen()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// suspicion is the condition for soperator: its status and reason.
func suspicion(n *corev1.Node) string {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == policy.SoperatorCondition })
	if i < 0 {
		return ""
	}
	return string(n.Status.Conditions[i].Status) + " " + n.Status.Conditions[i].Reason
}

// The condition for soperator follows the quarantine, and is taken back when the output is switched off. What soperator suspects itself
// stays, and a node that is only avoided has none.
func TestTheConditionForSoperatorFollowsTheQuarantine(t *testing.T) {
	tm := newTeam(t, "soperator", 3, nil)
	ours, theirs, avoided := tm.nodes[0], tm.nodes[1], tm.nodes[2]
	const suspected = "True GPUHealthCheckFailed (Soperator)"
	tm.patchStatus(theirs, `{"status":{"conditions":[{"type":"HardwareIssuesSuspected","status":"True","reason":"GPUHealthCheckFailed (Soperator)"}]}}`)
	path := tm.policy(3, "clearAfter: 1s", tm.avoids())
	tm.rewrite(path, "  rules:", "  output: {soperator: true}\n  rules:")
	tm.start(path, alone)
	shows := func(name, want string) {
		t.Helper()
		tm.until(fmt.Sprintf("%s shows %q", name, want), func() error {
			if got := suspicion(tm.get(name)); got != want {
				return fmt.Errorf("it shows %q", got)
			}
			return nil
		})
	}
	tm.reportAs(avoided, conditions.SlowNode, "True", "Inspect node: slow")
	tm.becomes(avoided, causes.Quarantined)
	for _, name := range []string{ours, theirs} {
		tm.report(name, "True", ecc)
		tm.becomes(name, causes.Quarantined)
	}
	shows(ours, "True QuarantinedByPitcrew")
	for name, want := range map[string]string{theirs: suspected, avoided: ""} {
		if got := suspicion(tm.get(name)); got != want {
			t.Errorf("%s shows %q, want %q", name, got, want)
		}
	}
	tm.rewrite(path, "soperator: true", "soperator: false")
	shows(ours, "False ReleasedByPitcrew")
	tm.rewrite(path, "soperator: false", "soperator: true")
	shows(ours, "True QuarantinedByPitcrew")
	for _, name := range []string{ours, theirs} {
		tm.report(name, "False", "fine")
		tm.becomes(name, causes.Released)
	}
	shows(ours, "False ReleasedByPitcrew")
	if got := suspicion(tm.get(theirs)); got != suspected {
		t.Errorf("after the release soperator's own is %q", got)
	}
}
