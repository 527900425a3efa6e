// Package units finds out from the conditions of nodes which of them may have failed as one: by one broken link, or with the part that they
// share. It is pure, and knows no record. Package limits asks for one place for each such unit.
package units

import (
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// Link is the role of a cause in a broken link of the node's domain; the zero value is none.
type Link struct {
	Role limits.LinkRole `json:"role"`
	// Since is when the faults began in that role by the clock of the node, Seen when we saw them first. A later message, or a later
	// transition of the condition, moves neither. A version before this one did not keep Seen.
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen,omitzero"`
	// Origin is the node with the broken link, SwitchSide is set where there are several victims and no origin. Either stays for as long
	// as the cause, whatever becomes of the other nodes. A victim without either has yet to find out.
	Origin     string `json:"origin,omitempty"`
	SwitchSide bool   `json:"switchSide,omitempty"`
}

// IsOpen reports of a victim that nothing is found yet.
func (l Link) IsOpen() bool { return l.Role == limits.Victim && !l.IsFound() }

// IsFound reports whether it is found out whose faults those of a victim are.
func (l Link) IsFound() bool { return l.Origin != "" || l.SwitchSide }

// String is what was found, as the end of a sentence; empty: nothing.
func (l Link) String() string {
	switch {
	case l.Origin != "":
		return "; taken for a consequence of the broken link of node " + l.Origin
	case l.SwitchSide:
		return "; there are several such faults and no broken link of a GPU, so the switches are suspect and no GPU is to be reset"
	}
	return ""
}

// The faults of a broken NVLink (real incident: marin-community/marin#8934; NVIDIA's catalogue of Xids). The texts are those of package
// internal/xid.
var (
	// brokenLink is an Xid 149, or another NVLink error that calls a link fatal. An Xid 145 is about the remote end of a link.
	brokenLink = regexp.MustCompile(`^Xid (149 |(144|146|147|148|150) .*\b(?i:fatal) on link [0-9])`)
	// notFatal takes out what only seems to match: the word of the line for an error without consequence.
	notFatal = regexp.MustCompile(`(?i)\bnon-?fatal\b`)
	// causedByLink is an error at the remote end of a link, or the end of a channel for one.
	causedByLink = regexp.MustCompile(`^Xid (145 |45 .*, caused by Xid (145|149)\b)`)
)

// RoleOf is the role of the faults that a condition reports. One that breaks a link makes an origin, and only a node all of whose
// faults may be consequences is a victim.
func RoleOf(c corev1.NodeCondition) limits.LinkRole {
	if c.Type != conditions.GPUXidError {
		return ""
	}
	m, err := conditions.ParseMessage(c.Message)
	if err != nil {
		return ""
	}
	isOrigin := func(p conditions.Part) bool { return brokenLink.MatchString(p.Text) && !notFatal.MatchString(p.Text) }
	isConsequence := func(p conditions.Part) bool { return causedByLink.MatchString(p.Text) }
	switch {
	case slices.ContainsFunc(m.Parts, isOrigin):
		return limits.Origin
	case slices.ContainsFunc(m.Parts, func(p conditions.Part) bool { return !isConsequence(p) }):
		return ""
	}
	return limits.Victim
}

// Subjects counts what a message of ours names.
func Subjects(message string) int {
	m, err := conditions.ParseMessage(message)
	if err != nil {
		return 0
	}
	names := map[string]bool{}
	for _, part := range m.Parts {
		names[part.Subject] = true
	}
	return len(names)
}

// closest is when the first and when the last of two witnesses began to report a fault, of the pair within the window that began closest
// together: one of ports, and one of others. The zero value: there is no such pair.
func closest(ports, others []time.Time, window time.Duration) (found limits.Span) {
	for _, a := range ports {
		for _, b := range others {
			pair := limits.Span{From: a, Until: b}
			if b.Before(a) {
				pair = limits.Span{From: b, Until: a}
			}
			if apart := pair.Until.Sub(pair.From); apart <= window && (found.From.IsZero() || apart < found.Until.Sub(found.From)) {
				found = pair
			}
		}
	}
	return found
}

// FailedSince is when two independent witnesses on a node, the fabric ports and one more, have begun to say that the node has
// failed; the zero value: they do not. Of several such pairs it is the one whose conditions began closest together. isCurrent reports
// whether a condition that matches a rule counts now.
//
// A driver, a rollout of it or its detector can be wrong about many nodes at once, and makes conditions of many types. A rollout that
// restarts the nodes makes them not Ready, too. Neither takes down the ports of the fabric, so these must have failed.
func FailedSince(
	p *policy.Policy, n *corev1.Node, window time.Duration, isCurrent func(corev1.NodeCondition, policy.Rule) bool,
) limits.Span {
	var ports, others []time.Time
	for _, c := range n.Status.Conditions {
		witness := conditions.WitnessOf(string(c.Type))
		rule, _, matches := p.Match(n.Labels, c)
		switch acts := matches && !rule.AlertOnly && !rule.Observe && isCurrent(c, rule); {
		case c.Type == corev1.NodeReady:
			if _, notReady := node.NotReady(n); notReady && (acts || !matches) && !node.NeverReady(n, c) {
				others = append(others, c.LastTransitionTime.UTC())
			}
		case !acts:
		case witness == conditions.FabricPorts:
			ports = append(ports, c.LastTransitionTime.UTC())
		case witness != "":
			others = append(others, c.LastTransitionTime.UTC())
		}
	}
	return closest(ports, others, window)
}
