package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
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
	"unready":  {func(*corev1.Node, *causes.Record, *visit.Record) {}, "repair waits: the node is not Ready"},
	"occupied": {emptying, "pod default/odd-occupied has not ended"},
	"drained":  {emptying, "pod default/odd-drained-"},
	"gone":     {func(*corev1.Node, *causes.Record, *visit.Record) {}, "repair.lemon reached"}, // by what is remembered of a Node of this name
}

// deadStates are nodes whose kubelet has not reported for longer than the rule allows.
var deadStates = []string{"unready", "dead", "suspect"}

// emptying is a repair that waits until no pod on the node has an accelerator.
func emptying(_ *corev1.Node, q *causes.Record, r *visit.Record) {
	r.Current = visiting(q, visit.Emptying, "")
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
	policy = strings.Replace(policy, "  rules:\n", "  correlated: {maxPercent: 90, minNodes: 40, window: 2m}\n  rules:\n"+
		"    dead: {match: {condition: Ready, status: [Unknown, \"False\"], repair: [Inspect]}, for: 5s}\n", 1)
	names := p.inEachState()
	p.mayVisit("reset-gpu", "check")

	rounds := []struct {
		name, policy string
		around       client.Object
		wants        []string // each is said of a node
	}{
		{"as they are", policy, nil, []string{"first-check waits", "NodeQuarantined: Ready is Unknown", "if the node is not Ready until then and the limits allow it: add taint"}},
		{"evict", strings.Replace(policy, "mode: auto", "mode: auto\n    drain: {mode: evict}", 1), nil, []string{"repair is under way"}},
		{"a first check under load", strings.Replace(policy, "firstCheck: {}", "firstCheck: {conditions: [GPUXidError], template: check}", 1), nil,
			[]string{"first-check waits: pod default/odd-crowded has not ended"}},
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
	kubelets, err := p.StartKubelets(p.Context(), "mortal")
	if err != nil {
		p.Fatal(err)
	}
	for state := range quarantinedStates {
		names = append(names, p.inState(state, kubelets))
	}
	for _, state := range []string{"healthy", "faulty", "skipped", "new", "crowded", "dead", "suspect"} {
		names = append(names, p.inState(state, kubelets))
	}
	kubelets.Kill()
	for _, state := range deadStates {
		p.dies("odd-" + state)
	}
	for state, owned := range map[string]bool{"occupied": false, "drained": true, "crowded": false} {
		p.occupies("odd-"+state, owned)
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

// inState adds a node and puts it into a state. One that is to die has one of the kubelets.
func (p person) inState(state string, kubelets *cluster.Kubelets) string {
	p.Helper()
	name := "odd-" + state
	_, err := p.AddNodes(p.Context(), name, 1, func(n *corev1.Node) {
		n.Name, n.Labels["pool"], n.Labels[corev1.LabelHostname] = name, "gpu", name
		if slices.Contains(deadStates, state) {
			kubelets.Own(n)
		}
		switch state {
		case "skipped":
			n.Labels[conditions.LabelSkip] = "true"
		case "new", "crowded":
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
	if state == "suspect" {
		p.suspects(name)
	}
	switch message := eccFault; state {
	case "healthy", "new", "crowded", "dead", "suspect":
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

// suspects has the node carry that it has not been Ready for longer than the rule allows.
func (p person) suspects(name string) {
	p.Helper()
	n := p.get(name)
	before := n.DeepCopy()
	record := &causes.Record{V: 1, NodeUID: n.UID, Boot: causes.Boot{ID: n.Status.NodeInfo.BootID, Seen: earlier()}, Quarantine: causes.Quarantine{
		ID: "q1", Phase: causes.Suspect, Causes: []causes.Cause{{
			Condition: corev1.NodeReady, Rule: "dead", Repair: conditions.Inspect, Message: "Kubelet stopped posting node status.",
			FirstSeen: earlier(), BootID: n.Status.NodeInfo.BootID,
		}},
	}}
	n.Annotations[conditions.AnnotationQuarantine] = record.String()
	if err := p.Client.Patch(p.Context(), n, client.MergeFrom(before)); err != nil {
		p.Fatal(err)
	}
}

// dies has the node controller know that the kubelet of a node does not report any more.
func (p person) dies(name string) {
	p.Helper()
	const why = "Kubelet stopped posting node status."
	if err := p.Report(p.Context(), name, corev1.NodeReady, corev1.ConditionUnknown, why, earlier()); err != nil {
		p.Fatal(err)
	}
}

// occupies starts a pod that holds all GPUs of a node, of a ReplicaSet if it is owned: only such a pod may be evicted.
func (p person) occupies(name string, owned bool) {
	p.Helper()
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{"app": name}}
	spec := corev1.PodSpec{NodeName: name, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, Containers: []corev1.Container{{
		Name: "main", Image: "none",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}},
	}}}
	var object client.Object = &corev1.Pod{ObjectMeta: meta, Spec: spec}
	if owned {
		object = &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: meta.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: meta.Labels}, Spec: spec},
		}}
	}
	if err := p.Client.Create(p.Context(), object); err != nil {
		p.Fatal(err)
	}
	p.gone(object)
	p.until("the pod of "+name+" runs", func() error {
		var pods corev1.PodList
		if err := p.Client.List(p.Context(), &pods, client.InNamespace(meta.Namespace), client.MatchingLabels(meta.Labels)); err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pods %v", pods.Items)
		}
		return nil
	})
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
	p.begunEarlier(names)
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
	defer func() {
		remediator.Stop(10 * time.Second)
		if p.Failed() {
			p.Log(remediator.Log())
		}
	}()
	p.until("the remediator decides what was predicted", func() error {
		decided := p.decisions()
		var errs []error
		for _, name := range names {
			if got, want := decided[name].repair, asDecided(repairs[name]); got != want {
				errs = append(errs, fmt.Errorf("node %s: the remediator says %q about a repair, and the plugin %q", name, got, repairs[name]))
			}
			quarantines := false
			_, foretold, later := strings.Cut(next[name], " until then")
			_, taint, _ := strings.Cut(foretold, "add taint ")
			taint, _, _ = strings.Cut(taint, " ")
			for _, got := range decided[name].quarantine {
				// Whether the limits allow it then is not foretold.
				asForetold := later && (strings.HasPrefix(got, "Ready is Unknown") && strings.Contains(got, "), but ") ||
					strings.Contains(got, taint) && strings.Contains(got, "would taint") == strings.Contains(foretold, "would add"))
				if quarantines = true; !strings.Contains(next[name], got) && !asForetold {
					errs = append(errs, fmt.Errorf("node %s: the remediator says %q, and the plugin %q", name, got, next[name]))
				}
			}
			if predicts := later || strings.Contains(next[name], "NodeQuarantined: ") || strings.HasPrefix(next[name], "blocked by "); predicts != quarantines {
				errs = append(errs, fmt.Errorf("node %s: the remediator says %q, and the plugin %q", name, decided[name].quarantine, next[name]))
			}
		}
		return errors.Join(errs...)
	})
	return strings.Join(said, "\n")
}

// begunEarlier has the visits under way have begun a little while ago. A remediator gives some of them up after 5 minutes, which all rounds
// together may take, so that it would decide after that what was predicted before.
func (p person) begunEarlier(names []string) {
	p.Helper()
	for _, name := range names {
		n := p.get(name)
		r, err := visit.RecordOf(n)
		if err != nil || r == nil || r.Current == nil { // of one of them the record cannot be read
			continue
		}
		before := n.DeepCopy()
		r.Current.StartedAt, r.Current.PhaseSince, r.Current.ActionSince = earlier(), earlier(), earlier()
		n.Annotations[conditions.AnnotationRepair] = r.String()
		if err := p.Client.Patch(p.Context(), n, client.MergeFrom(before)); err != nil {
			p.Fatal(err)
		}
	}
}

// asDecided is the Event of a remediator in a dry run about what was predicted; empty: it writes none.
func asDecided(prediction string) string {
	kind, begins := strings.CutSuffix(prediction, " begins")
	under, goesOn := strings.CutSuffix(prediction, " is under way")
	switch {
	case begins:
		return "dry run, would begin a " + kind
	case goesOn:
		return "dry run, would go on with a " + under
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
