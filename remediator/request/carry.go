package request

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// Scope is what a request is carried out by.
type Scope struct {
	// Policy is nil while none is known: nothing depends on it then.
	Policy *policy.Policy
	// Visits is set if the remediator repairs and checks nodes.
	Visits bool
	// Known is what quarantines put on nodes, by all policies that are known; nil: that is not known, and a person agrees to what goes.
	Known *handoff.Known
}

// Outcome is what a request makes of a node.
type Outcome struct {
	Node *corev1.Node
	// Event is the reason of the Event about it, Done what the Event and the answer say.
	Event, Done string
}

// Reasons of Events about what is carried out later, by the controller of visits.
const (
	RepairRequested     = "RepairRequested"
	RepairStopRequested = "RepairStopRequested"
	CheckRequested      = "CheckRequested"
	ReleaseRequested    = "ReleaseRequested"
)

// Carry returns what a request makes of a node, without its answer. An error says why it is refused.
func Carry(s Scope, n *corev1.Node, r *Request, now time.Time) (o Outcome, err error) {
	q, err := causes.RecordOf(n)
	if err != nil {
		return o, fmt.Errorf("node %s: %w", n.Name, err)
	}
	if r.Kind != Quarantine && r.Kind != Stop && r.About != about(q) {
		return o, fmt.Errorf("node %s: the quarantine has ended or another one has begun since this was asked for", n.Name)
	}
	switch r.Kind {
	case Quarantine:
		o.Event, o.Done = causes.NodeQuarantined, "quarantined manually"
		o.Node, err = quarantine.QuarantineManually(n, r.By(), now)
		return o, err
	case ReleaseNow:
		return s.release(n, r, now)
	case Release:
		switch checks, err := s.ValidatesFirst(n, q, now); {
		case err != nil:
			return o, err
		case !checks:
			return s.release(n, r, now)
		}
		return visitFor(n, r, q, visit.RequestRelease, ReleaseRequested, now)
	case Repair:
		if err := s.mayRepair(q); err != nil {
			return o, fmt.Errorf("node %s %w", n.Name, err)
		}
		return visitFor(n, r, q, visit.RequestRepair, RepairRequested, now)
	case Stop:
		return visitFor(n, r, q, visit.RequestStop, RepairStopRequested, now)
	case Check:
		if err := s.mayCheck(n, q); err != nil {
			return o, fmt.Errorf("node %s %w", n.Name, err)
		}
		return visitFor(n, r, q, visit.RequestCheck, CheckRequested, now)
	}
	return o, fmt.Errorf("a request of kind %.40q is of a later version of Pitcrew", r.Kind)
}

func (s Scope) release(n *corev1.Node, r *Request, now time.Time) (o Outcome, err error) {
	o.Event, o.Done = causes.ReleaseByHand, "released manually"
	o.Node, err = quarantine.ReleaseManually(n, r.By(), s.Known, now)
	return o, err
}

// ValidatesFirst reports whether a release has the node checked under load first: a rule of its quarantine asks for it, and the node has
// not passed that check.
func (s Scope) ValidatesFirst(n *corev1.Node, q *causes.Record, now time.Time) (bool, error) {
	if s.Policy == nil || !s.Visits || about(q) == "" || !quarantine.NeedsValidation(s.Policy, &q.Quarantine) {
		return false, nil
	}
	visits, err := visit.RecordOf(n)
	if err != nil {
		return false, fmt.Errorf("node %s: %w", n.Name, err)
	}
	return !visits.Validated(n, q, now), nil
}

// visitFor returns the node with what the controller of visits is asked for.
func visitFor(n *corev1.Node, r *Request, q *causes.Record, kind, event string, now time.Time) (o Outcome, err error) {
	visits, err := visit.RecordOf(n)
	if err != nil {
		return o, fmt.Errorf("node %s: %w", n.Name, err)
	}
	id := about(q)
	if visits == nil {
		visits = &visit.Record{}
	}
	switch v := visits.Current; {
	case kind == visit.RequestCheck && v != nil:
		return o, fmt.Errorf("node %s is being visited already (%s)", n.Name, v.Kind)
	case kind == visit.RequestStop && v != nil:
		id = v.Quarantine // a sweep is for none, also when a fault has come meanwhile
	case kind == visit.RequestStop && id == "" && visits.Request == nil:
		return o, fmt.Errorf("node %s is not quarantined, and nothing is done to it: there is nothing to stop", n.Name)
	}
	if a := visits.Request; a != nil && a.Kind == kind && a.Quarantine == id {
		return o, fmt.Errorf("node %s: %s has asked for this already, at %s", n.Name, cmp.Or(a.User, quarantine.UnknownUser),
			a.At.UTC().Format(time.RFC3339))
	}
	o.Event, o.Done = event, kind+" requested"
	o.Node, err = visit.Ask(n, kind, id, r.By(), now)
	return o, err
}

var errNoVisits = errors.New("is not visited: the remediator repairs and checks no nodes, for it runs without -repair-namespace")

// mayRepair returns why a repair makes no sense now.
func (s Scope) mayRepair(q *causes.Record) error {
	switch {
	case about(q) == "":
		return errors.New("is not quarantined")
	case s.Policy == nil:
		return nil
	case !s.Visits:
		return errNoVisits
	case s.Policy.Repair == nil || s.Policy.Repair.Mode == policy.RepairOff:
		return errors.New("is not repaired: the policy repairs no nodes; spec.repair.mode has to be approve or auto")
	}
	return nil
}

// mayCheck returns why a check makes no sense now.
func (s Scope) mayCheck(n *corev1.Node, q *causes.Record) error {
	covers := func(p policy.Sweep) bool { return p.Nodes.Matches(labels.Set(n.Labels)) }
	switch {
	case about(q) != "":
		return errors.New("is quarantined: `kubectl pitcrew repair` shows how it is repaired and checked")
	case s.Policy == nil:
		return nil
	case !s.Visits:
		return errNoVisits
	case !slices.ContainsFunc(s.Policy.Sweeps, covers) && !firstcheck.Waits(s.Policy, n):
		return errors.New("cannot be checked: no sweep of the policy is for it (spec.sweeps)")
	}
	return nil
}

// Answered returns the node with the answer to a request in its place: what the request has made of the node, or the node as it is.
func Answered(n *corev1.Node, r Request, o Outcome, err error, now time.Time) *corev1.Node {
	after := n.DeepCopy()
	r.Answer = &Answer{At: now.UTC().Truncate(time.Second)}
	if err != nil {
		r.Answer.Text = causes.Clip(err.Error(), 2*conditions.MaxMessage)
	} else {
		after = o.Node.DeepCopy()
		r.Answer.Done, r.Answer.Text = true, o.Done
	}
	r.Put(after)
	return after
}
