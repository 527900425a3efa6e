package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/outlook"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
	"github.com/pitcrew-dev/pitcrew/remediator/visits/failures"
	"github.com/pitcrew-dev/pitcrew/remediator/visits/observe"
)

// visitor reads what the remediator reads before it decides about a visit to a node.
type visitor struct {
	*cli.Target
	reader observe.Reader
	policy *policy.Policy
	nodes  []corev1.Node
	facts  repair.Facts
	// starts are those of repairs that the remediator remembers, whatever has become of the nodes.
	starts starts.Ring
	// forbidden is what the user may not read; nil: nothing.
	forbidden error
}

func visitorTo(
	ctx context.Context, c *cli.Target, api client.Client, p *policy.Policy, nodes []corev1.Node, n *corev1.Node,
) (*visitor, error) {
	jobs, err := jobsNamespace(ctx, c, api, n)
	if err != nil {
		return nil, err
	}
	v := &visitor{Target: c, policy: p, nodes: nodes, reader: observe.Reader{
		Cache: api, Live: api, Namespace: c.Namespace, Jobs: jobs, Clock: clock.RealClock{},
		Failures: failures.New(api, api, c.Namespace, policy.Fixed(p), clock.RealClock{}),
	}}
	if v.facts, err = v.reader.Facts(ctx, n, false); err == nil {
		err = v.readStarts(ctx, api)
	}
	if apierrors.IsForbidden(err) {
		v.forbidden, err = err, nil
	}
	return v, err
}

// jobsNamespace returns where the remediator has its Jobs. Who may not read its flags sees each visit as the remediator that has begun it.
func jobsNamespace(ctx context.Context, c *cli.Target, api client.Client, n *corev1.Node) (string, error) {
	var i health.Installation
	if err := health.ReadInstallation(ctx, c, api, &i); err != nil {
		return "", err
	}
	namespace, _ := i.RepairNamespace()
	if r, err := visit.RecordOf(n); i.PodsErr != nil && err == nil && r != nil && r.Current != nil {
		namespace = r.Current.Namespace
	}
	return cmp.Or(namespace, conditions.RepairNamespace), nil
}

// next is what the remediator does about the node now. It is nil where the user may not read what that depends on.
func (v *visitor) next(ctx context.Context) (*repair.Step, error) {
	if v.forbidden != nil {
		return nil, nil //nolint:nilnil,nilerr // it is not known, and forbidden says why
	}
	step := repair.Next(v.policy, v.facts, v.Now().UTC())
	if step.NeedsLive {
		if err := v.read(ctx); err != nil || v.forbidden != nil {
			return nil, err
		}
		step = repair.Next(v.policy, v.facts, v.Now().UTC())
	}
	return &step, nil
}

// read adds live facts, unless they were read. What the user may not read stays missing, and forbidden says so.
func (v *visitor) read(ctx context.Context) error {
	if v.facts.Live != nil || v.forbidden != nil {
		return nil //nolint:nilerr // that it may not be read is the answer
	}
	live, err := v.reader.Read(ctx, v.policy, v.facts)
	if apierrors.IsForbidden(err) {
		v.forbidden, err = err, nil // which is the answer
	}
	if err != nil || v.forbidden != nil {
		return err
	}
	for _, problem := range live.TemplateProblems {
		v.forbidden = errors.New(problem)
		return nil
	}
	live.Peers = v.peers(v.Now().UTC())
	v.facts.Live = live
	return nil
}

// readStarts adds the repairs that only the ConfigMap of starts remembers: of a Node that was deleted and came back.
func (v *visitor) readStarts(ctx context.Context, api client.Client) error {
	stored, err := v.Read(ctx, api, conditions.KnownConfigMap)
	if stored == nil || err != nil {
		return err
	}
	if v.starts, err = starts.Parse(stored.Data[starts.Key], v.Now()); err != nil {
		return fmt.Errorf("key %s of ConfigMap %s: %w", starts.Key, conditions.KnownConfigMap, err)
	}
	v.facts.Earlier = v.starts.Unknown(v.facts.Node.Name, v.facts.Record.Repaired)
	return nil
}

// showRepair prints how a node would be repaired, and what that waits for.
func showRepair(ctx context.Context, c *cli.Target, out io.Writer, api client.Client, name, file string) error {
	nodes, n, err := cli.NodesWith(ctx, api, name)
	switch {
	case err != nil:
		return err
	case n == nil:
		return fmt.Errorf("there is no node %s", name)
	}
	p, from, err := c.PolicyInForce(ctx, api, file)
	if err != nil {
		return err
	}
	r := status.RowOf(n, c.Now())
	cli.Fprintf(out, "Node:     %s, %s%s\n", n.Name, r.Status, after(": ", r.Cause))
	if p == nil {
		cli.Fprintf(out, "Repair:   not known: %s\n", from)
		return describeVisits(ctx, out, api, n, c.Ago)
	}
	v, err := visitorTo(ctx, c, api, p, nodes, n)
	if err != nil {
		return err
	}
	if err := v.describeNext(ctx, out, from); err != nil {
		return err
	}
	if err := v.describeOutlook(ctx, out); err != nil {
		return err
	}
	return describeVisits(ctx, out, api, n, c.Ago)
}

// describeRepair prints what the remediator does about repairs and checks of a node, where it does any, and what it has done.
func describeRepair(
	ctx context.Context, c *cli.Target, out io.Writer, api client.Client, nodes []corev1.Node, n *corev1.Node, file string,
) error {
	if r, err := request.Of(n); err == nil && r.Waits() {
		cli.Fprintf(out, "Asked:    %s, %s; no remediator has answered\n", r.By().Note(string(r.Kind)), c.Ago(r.At))
	}
	p, from, err := c.PolicyInForce(ctx, api, file)
	if err != nil {
		return err
	}
	visits, err := visit.RecordOf(n)
	underWay := err == nil && visits != nil && visits.Current != nil
	if p != nil && cli.VisitsNodes(p) && !underWay {
		v, err := visitorTo(ctx, c, api, p, nodes, n)
		if err != nil {
			return err
		}
		if err := v.describeNext(ctx, out, from); err != nil {
			return err
		}
	}
	return describeVisits(ctx, out, api, n, c.Ago)
}

// describeNext prints what the remediator does about the node now, or why it does nothing.
func (v *visitor) describeNext(ctx context.Context, out io.Writer, from string) error {
	step, err := v.next(ctx)
	if err != nil {
		return err
	}
	text := ""
	switch {
	case step == nil:
		text = fmt.Sprintf("not known: %v", v.forbidden)
	case step.Waits != nil:
		text = step.Waits.Message
	default:
		text = v.does(step)
	}
	cli.Fprintf(out, "Repair:   %s (by %s)\n", text, from)
	return nil
}

// does describes a step that waits for nothing.
func (v *visitor) does(step *repair.Step) string {
	n, q, before, next := v.facts.Node, v.facts.Quarantine, v.facts.Record, step.Record
	if before == nil {
		before = &visit.Record{}
	}
	switch is, becomes := before.Current, next.Current; {
	case is == nil && becomes != nil:
		return fmt.Sprintf("%s begins", becomes.Kind)
	case is != nil && becomes != nil:
		return fmt.Sprintf("%s is under way", becomes.Kind)
	case is != nil:
		return fmt.Sprintf("%s has ended", is.Kind)
	case q == nil || q.Phase != causes.Quarantined:
		return "none: the node is not quarantined"
	case before.Request != nil && before.Request.Kind == visit.RequestStop:
		return "none in this quarantine: " + quarantine.Manual{User: before.Request.User, Reason: before.Request.Reason}.Note("stopped")
	case before.Stopped == q.ID:
		return "none in this quarantine: a person has stopped it; `kubectl pitcrew repair " + n.Name + " --approve` begins it again"
	case before.Validated(n, q, v.Now()):
		return "none: the node has passed its check"
	case v.policy.Repair == nil || v.policy.Repair.Mode == policy.RepairOff:
		return "none: the policy repairs no nodes"
	}
	return v.whyNone(before)
}

// whyNone returns why no repair of a quarantined node begins.
func (v *visitor) whyNone(before *visit.Record) string {
	for _, last := range before.Last {
		if last.Quarantine == v.facts.Quarantine.ID && last.Phase == visit.Failed {
			return fmt.Sprintf("none: %s, %s; `kubectl pitcrew repair %s --approve` tries again what is left",
				last.Kind, last.Outcome, v.facts.Node.Name)
		}
	}
	switch o := outlook.Of(v.policy, v.facts, v.Now().UTC()); {
	case o.Class == 0:
		return "none: " + o.Why
	case o.Lemon != "":
		return "none: " + o.Lemon
	case len(o.Left) == 0:
		return fmt.Sprintf("none: no action for class %s is left", o.Class)
	}
	return "none is due"
}

// describeOutlook prints the actions for a quarantined node, the limits, and the pods in the way.
func (v *visitor) describeOutlook(ctx context.Context, out io.Writer) error {
	q := v.facts.Quarantine
	if v.policy.Repair == nil || v.facts.RecordErr != nil || q == nil || q.Phase != causes.Quarantined {
		return nil //nolint:nilerr // what is wrong was printed
	}
	now := v.Now().UTC()
	o := outlook.Of(v.policy, v.facts, now)
	if o.Class == 0 {
		cli.Fprintf(out, "Actions:  none: %s\n", o.Why)
		return nil
	}
	var actions []string
	for _, a := range o.Left {
		actions = append(actions, fmt.Sprintf("%s (at most %s)", jobText(a.Template, a.Args), duration.HumanDuration(a.Timeout)))
	}
	switch {
	case len(actions) == 0:
		cli.Fprintf(out, "Actions:  none is left for class %s\n", o.Class)
		return nil
	case o.Lemon != "":
		cli.Fprintf(out, "Actions:  none: %s\n", o.Lemon)
		return nil
	}
	cli.Fprintf(out, "Actions:  %s for class %s\n", strings.Join(actions, ", then "), o.Class)
	checks, _ := request.Scope{Policy: v.policy, Visits: true}.ValidatesFirst(v.facts.Node, q, now)
	if c := v.policy.Repair.Validate; c != nil && checks {
		cli.Fprintf(out, "          then the check %s (at most %s)\n", jobText(c.Template, c.Args), duration.HumanDuration(c.Timeout))
	}
	cli.Fprintf(out, "Limits:   %s\n", v.limits(now))
	if err := v.read(ctx); err != nil {
		return err
	}
	if v.forbidden != nil {
		cli.Fprintf(out, "Pods:     not known: %s\n", v.forbidden.Error())
		return nil //nolint:nilerr // that it may not be read is the answer
	}
	if v.facts.Live.Templates[o.Left[0].Template] == nil {
		cli.Fprintf(out, "Pods:     not known: there is no PodTemplate %s in namespace %s\n", o.Left[0].Template, v.facts.Namespace)
		return nil
	}
	var pods []string
	for _, pod := range outlook.Of(v.policy, v.facts, now).InTheWay {
		pods = append(pods, pod.Namespace+"/"+pod.Name)
	}
	slices.Sort(pods)
	if len(pods) == 0 {
		pods = []string{"none is in the way"}
	} else {
		pods[0] = "in the way: " + pods[0]
	}
	cli.Fprintf(out, "Pods:     %s\n", strings.Join(pods, ", "))
	return nil
}

// peers returns what counts for the limits of repairs, as the remediator does: other nodes, and repairs of nodes that are gone.
func (v *visitor) peers(now time.Time) []peers.Peer {
	return peers.All(v.policy, v.facts.Node, v.facts.Record, v.nodes, visit.RecordOf, v.starts, now)
}

// limits returns how far the limits of repairs are used.
func (v *visitor) limits(now time.Time) string {
	r, n, within := v.policy.Repair, v.facts.Node, ""
	active, repairs := peers.Count(r, n, append(v.peers(now), peers.Of(v.policy, n, now)))
	if r.Scope != "" {
		within = fmt.Sprintf(", of those with %s=%s", r.Scope, n.Labels[r.Scope])
	}
	text := fmt.Sprintf("%d of %d nodes are repaired or validated now%s; %d repairs within 24 h", active, r.MaxConcurrent, within, repairs)
	if r.MaxPerDay > 0 {
		text += fmt.Sprintf(" of %d", r.MaxPerDay)
	}
	return text
}
