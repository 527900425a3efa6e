package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// predicted is a node in one of the states that a repair or a quarantine can wait in, and what is decided about it in the first round.
type predicted struct {
	state func(n *corev1.Node, q *causes.Record, r *visit.Record)
	want  string
}

// quarantined states begin with a node that a rule has quarantined for a fault of class ResetGPU.
var quarantinedStates = map[string]predicted{
	"due":   {func(*corev1.Node, *causes.Record, *visit.Record) {}, "repair begins"},
	"asked": {func(_ *corev1.Node, q *causes.Record, r *visit.Record) { r.Request = asks(visit.RequestRepair, q) }, "repair begins"},
	"lemon": {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) { r.Repairs = tried("1", "2", "3") }, "none: repair.lemon reached"},
	"broken": {func(n *corev1.Node, _ *causes.Record, _ *visit.Record) {
		n.Annotations[conditions.AnnotationRepair] = "{"
	}, "cannot be read"},
	"stopped": {func(_ *corev1.Node, q *causes.Record, r *visit.Record) {
		r.Request, r.Stopped = asks(visit.RequestStop, q), q.ID
	}, "none in this quarantine: stopped"},
	"failed": {func(_ *corev1.Node, q *causes.Record, r *visit.Record) {
		r.Repairs = tried(q.ID)
		r.Last = []visit.Visit{{ID: "v", Kind: visit.Repair, Phase: visit.Failed, Quarantine: q.ID, StartedAt: earlier(), PhaseSince: earlier(), EndedAt: earlier(), Outcome: "given up"}}
	}, "none: repair, given up"},
	"tried": {func(_ *corev1.Node, q *causes.Record, r *visit.Record) {
		r.Repairs = tried(q.ID, q.ID)
		r.Repairs[1].Template = "reboot"
	},
		"none: no action for class ResetGPU is left"},
	"inspected": {func(_ *corev1.Node, q *causes.Record, _ *visit.Record) { q.Causes[0].Repair = conditions.Inspect }, "none: no cause of class"},
	"upgraded": {func(n *corev1.Node, _ *causes.Record, _ *visit.Record) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: conditions.TaintMaintenance, Value: "theirs", Effect: corev1.TaintEffectNoSchedule})
	}, "another repairer works on the node"},
	"claimed": {func(*corev1.Node, *causes.Record, *visit.Record) {}, "MaintenanceInProgress is True"},
	"foreign": {func(_ *corev1.Node, q *causes.Record, r *visit.Record) {
		r.Current = visiting(q, visit.Emptying, "reset-gpu")
		r.Current.Namespace = "pitcrew-b"
	}, "is of another installation"},
	"templated": {func(_ *corev1.Node, q *causes.Record, r *visit.Record) {
		q.Causes[0].Repair = conditions.Reboot
		r.Current = visiting(q, visit.Emptying, "")
	}, "there is no PodTemplate reboot"},
	"later": {func(_ *corev1.Node, q *causes.Record, r *visit.Record) {
		r.Current = visiting(q, "Dancing", "reset-gpu")
	}, "repair has ended"},
	"gone": {func(*corev1.Node, *causes.Record, *visit.Record) {}, "repair.lemon reached"}, // by what is remembered of a Node of this name
}

func asks(kind string, q *causes.Record) *visit.Request {
	return &visit.Request{Kind: kind, Quarantine: q.ID, At: earlier(), User: "ann", Reason: "night shift"}
}

func tried(quarantines ...string) (all []visit.Action) {
	for _, id := range quarantines {
		all = append(all, visit.Action{At: earlier(), Template: "reset-gpu", Quarantine: id})
	}
	return all
}

func visiting(q *causes.Record, phase visit.Phase, template string) *visit.Visit {
	return &visit.Visit{ID: "v", Kind: visit.Repair, Phase: phase, Quarantine: q.ID, Namespace: conditions.RepairNamespace, Template: template,
		StartedAt: earlier(), PhaseSince: earlier(), ActionSince: earlier(), BootID: q.Boot.ID}
}

// earlier is a little while ago: a record's times are bounded by the age of what they are about.
func earlier() time.Time { return time.Now().UTC().Add(-time.Minute).Truncate(time.Second) }

// What the plugin predicts is what a remediator decides: both read the same cluster, with nodes in each state, and what is different in
// each round is the cluster around them. The remediator decides in a dry run, so that nothing that it does changes the next answer.
func TestWhatIsPredictedIsDecided(t *testing.T) {
	p := NewPerson(t)
	policy := strings.Replace(strings.Replace(clitest.RepairPolicy, "mode: approve", "mode: auto\n    maxPerDay: 50\n    maxConcurrent: 9", 1),
		"  sweeps:\n    weekly: {every: 168h, nodeSelector: {pool: gpu}, template: check, args: [-level, \"2\"]}\n", "", 1)
	policy = strings.Replace(policy, "budget: {maxNodes: 9}", "budget: {maxNodes: 40}\n  breaker: {maxNodes: 30, window: 1m, coolDown: 30m, pace: 1m}", 1)
	policy = strings.Replace(policy, "{condition: GPUXidError, repair: [Reboot]}", "{condition: GPUXidError, repair: [ResetGPU, Reboot, Inspect]}", 1)
	names := p.inEachState()
	p.mayVisit("reset-gpu", "check")

	rounds := []struct {
		name, policy string
		around       client.Object
		wants        []string // each is said of a node
	}{
		{"as they are", policy, nil, []string{"first-check waits", "NodeQuarantined: "}},
		{"approval", strings.Replace(policy, "mode: auto", "mode: approve", 1), nil, []string{"it waits for `kubectl pitcrew repair"}},
		{"observe", strings.Replace(policy, "mode: enforce", "mode: observe", 1), nil, []string{"blocked by observe"}},
		{"no repairs", strings.Replace(policy, "mode: auto", "mode: off", 1), nil, []string{"none: the policy repairs no nodes"}},
		{"at once", strings.Replace(policy, "maxConcurrent: 9", "maxConcurrent: 1", 1), nil, []string{"repair.maxConcurrent is 1"}},
		{"in a day", strings.Replace(policy, "maxPerDay: 50", "maxPerDay: 9", 1), nil, []string{"repair.maxPerDay is 9"}},
		{"budget", strings.Replace(policy, "budget: {maxNodes: 40}", "budget: {maxNodes: 1}", 1), nil, []string{"blocked by budget"}},
		{"breaker", policy, stored(conditions.BreakerConfigMap, limits.BreakerKey, (&limits.BreakerState{OpenedAt: time.Now()}).String()),
			[]string{"the breaker is open", "blocked by breaker"}},
		{"breaker of repairs", policy, stored(conditions.BreakerConfigMap, breaker.Key, failedOnThree()), []string{"has failed on 3 nodes in a row"}},
		{"pause", policy, stored(conditions.PauseConfigMap, "reason", "network work"), []string{"repair waits: paused (network work)", "blocked by pause"}},
	}
	for _, round := range rounds {
		t.Run(round.name, func(t *testing.T) {
			p := person{t, p.Cluster, p.kubeconfig}
			if round.around != nil {
				if err := p.Client.Create(t.Context(), round.around); err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := p.Client.Delete(t.Context(), round.around); err != nil {
						t.Error(err)
					}
				}()
			}
			said := p.compare(clitest.PolicyFile(t, round.policy), names)
			for _, want := range round.wants {
				if !strings.Contains(said, want) {
					t.Errorf("of no node is said %q:\n%s", want, said)
				}
			}
			if round.name != rounds[0].name {
				return
			}
			for state, of := range quarantinedStates {
				if !strings.Contains(cut(said, "odd-"+state+"|"), of.want) {
					t.Errorf("of %s: %s, want %q", state, cut(said, "odd-"+state+"|"), of.want)
				}
			}
		})
	}
}

// cut is the line that begins with a text.
func cut(text, prefix string) string {
	_, line, _ := strings.Cut(text, prefix)
	line, _, _ = strings.Cut(line, "\n")
	return line
}

func stored(name, key, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: name}, Data: map[string]string{key: text}}
}

func failedOnThree() string {
	state := &breaker.State{}
	for _, node := range []types.UID{"a", "b", "c"} {
		state.Note(breaker.Action{Template: "reset-gpu", Condition: "GPUXidError"}, breaker.Node{UID: node}, breaker.Failed, earlier())
	}
	return state.String()
}

// inEachState adds a node for each state, and what the remediator remembers of nodes that are gone.
func (p person) inEachState() (names []string) {
	p.Helper()
	p.namespace()
	for state := range quarantinedStates {
		names = append(names, p.inState(state))
	}
	for _, state := range []string{"healthy", "faulty", "skipped", "new"} {
		names = append(names, p.inState(state))
	}
	p.Cleanup(func() {
		if err := p.DeleteNodes(p.Cluster.Context(), names...); err != nil {
			p.Error(err)
		}
	})
	var ring starts.Ring
	for i := range 3 { // for the limit of a day and for that of a node
		ring = ring.With(starts.Of(nil, clitest.NodeNamed("odd-gone"), fmt.Sprint("q", i), "reboot", earlier()), nil, earlier())
		ring = ring.With(starts.Of(nil, clitest.NodeNamed("absent"), fmt.Sprint("q", i), "reboot", earlier()), nil, earlier())
	}
	known := stored(conditions.KnownConfigMap, starts.Key, ring.String())
	if err := p.Client.Delete(p.Context(), known.DeepCopy()); client.IgnoreNotFound(err) != nil { // of an earlier test
		p.Fatal(err)
	}
	if err := p.Client.Create(p.Context(), known); err != nil {
		p.Fatal(err)
	}
	p.gone(known)
	return names
}

// inState adds a node and puts it into a state, with a pod that is in the way of a repair.
func (p person) inState(state string) string {
	p.Helper()
	name := "odd-" + state
	_, err := p.AddNodes(p.Context(), name, 1, func(n *corev1.Node) {
		n.Name, n.Labels["pool"], n.Labels[corev1.LabelHostname] = name, "gpu", name
		switch state {
		case "skipped":
			n.Labels[conditions.LabelSkip] = "true"
		case "new":
			n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
		}
	})
	if err != nil && !strings.Contains(err.Error(), "wait for node") {
		p.Fatal(err)
	}
	if of, ok := quarantinedStates[state]; ok {
		n := p.get(name)
		before := n.DeepCopy()
		quarantined := clitest.QuarantinedBy(p.T, name, "gpu", conditions.ResetGPU)
		q, err := causes.RecordOf(quarantined)
		if err != nil {
			p.Fatal(err)
		}
		q.NodeUID, q.Boot = n.UID, causes.Boot{ID: n.Status.NodeInfo.BootID, Seen: earlier()}
		q.QuarantinedAt, q.Taint.Since = earlier(), earlier()
		q.Causes[0].FirstSeen, q.Causes[0].BootID, q.Causes[0].Message = earlier(), q.Boot.ID, eccFault
		n.Annotations[conditions.AnnotationRepair] = ""
		n.Spec.Taints = quarantined.Spec.Taints
		r := &visit.Record{}
		of.state(n, q, r)
		if n.Annotations[conditions.AnnotationRepair] == "" {
			if n = clitest.Visited(n, r); n.Annotations[conditions.AnnotationRepair] == "" {
				delete(n.Annotations, conditions.AnnotationRepair) // of an empty record nothing is written
			}
		}
		n.Annotations[conditions.AnnotationQuarantine] = q.String()
		if err := p.Client.Patch(p.Context(), n, client.MergeFrom(before)); err != nil {
			p.Fatal(err)
		}
	}
	switch message := eccFault; state {
	case "healthy", "new":
		p.reports(name, "False", "no fault")
	case "inspected":
		p.reports(name, "True", inspect)
	case "claimed":
		p.maintains(name)
		fallthrough
	default:
		p.reports(name, "True", message)
	}
	return name
}

// maintains has somebody say that they work on the node.
func (p person) maintains(name string) {
	p.Helper()
	n := p.get(name)
	before := n.DeepCopy()
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
		Type: corev1.NodeMaintenanceInProgress, Status: corev1.ConditionTrue, Reason: "Firmware",
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	})
	if err := p.Client.Status().Patch(p.Context(), n, client.StrategicMergeFrom(before)); err != nil {
		p.Fatal(err)
	}
}

// compare runs a remediator in a dry run, and fails unless it says of each node what the plugin has predicted before. It returns the
// predictions, one line for each node.
func (p person) compare(policy string, names []string) string {
	p.Helper()
	if err := p.Client.DeleteAllOf(p.Context(), &eventsv1.Event{}, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		p.Fatal(err)
	}
	var said []string
	repairs, next := map[string]string{}, map[string]string{}
	for _, name := range names {
		out := "\n" + p.run("describe", name, "-f", policy)
		next[name] = cut(out, "\nNext:     ")
		if repairs[name] = strings.TrimSuffix(cut(out, "\nRepair:   "), " (by "+policy+")"); repairs[name] == "" {
			out = "\n" + p.run("repair", name, "-f", policy)
			repairs[name] = strings.TrimSuffix(cut(out, "\nRepair:   "), " (by "+policy+")")
		}
		said = append(said, name+"|"+repairs[name]+"|"+next[name])
	}
	remediator, err := p.StartRemediator(p.Context(), "-policy", policy, "-leader-elect=false", "-dry-run", "-repair-namespace", conditions.RepairNamespace)
	if err != nil {
		p.Fatal(err)
	}
	defer remediator.Stop(10 * time.Second)
	p.until("the remediator decides what was predicted", func() error {
		decided := p.decisions()
		var errs []error
		for _, name := range names {
			if got, want := decided[name].repair, asDecided(repairs[name]); got != want {
				errs = append(errs, fmt.Errorf("node %s: the remediator says %q about a repair, and the plugin %q", name, got, repairs[name]))
			}
			quarantines := false
			for _, got := range decided[name].quarantine {
				if quarantines = true; !strings.Contains(next[name], got) {
					errs = append(errs, fmt.Errorf("node %s: the remediator says %q, and the plugin %q", name, got, next[name]))
				}
			}
			if predicts := strings.Contains(next[name], "NodeQuarantined: ") || strings.HasPrefix(next[name], "blocked by "); predicts != quarantines {
				errs = append(errs, fmt.Errorf("node %s: the remediator says %q, and the plugin %q", name, decided[name].quarantine, next[name]))
			}
		}
		return errors.Join(errs...)
	})
	return strings.Join(said, "\n")
}

// asDecided is the Event of a remediator in a dry run about what was predicted; empty: it writes none.
func asDecided(prediction string) string {
	kind, begins := strings.CutSuffix(prediction, " begins")
	switch {
	case begins:
		return "dry run, would begin a " + kind
	case strings.HasPrefix(prediction, "none"), strings.HasSuffix(prediction, " has ended"):
		return ""
	}
	return prediction
}

// decision is what Events say about a node.
type decision struct {
	repair     string
	quarantine []string
}

func (p person) decisions() map[string]decision {
	p.Helper()
	var events eventsv1.EventList
	if err := p.Client.List(p.Context(), &events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		p.Fatal(err)
	}
	all := map[string]decision{}
	for _, e := range events.Items {
		d := all[e.Regarding.Name]
		note := strings.TrimPrefix(e.Note, "dry run: ")
		switch {
		case e.Reason == repair.RepairWaiting:
			d.repair = note
		case e.Action == "Quarantine":
			d.quarantine = append(d.quarantine, note)
		}
		all[e.Regarding.Name] = d
	}
	return all
}
