package preflight

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

// verdictSource is the run that a verdict comes from.
type verdictSource struct {
	namespace, run string
	// trusted: the namespace belongs to the cluster's admins, not to a tenant.
	trusted bool
	// decidedAt becomes the condition's heartbeat.
	decidedAt time.Time
}

func (s verdictSource) String() string { return s.namespace + "/" + s.run }

// The policy matches the first word after the subject. A verdict that rests on the runs of one tenant is suspected: by default
// its node is only avoided. It is confirmed when the run of a second namespace, or of the admins, has the same verdict.
const (
	suspected = "suspected"
	confirmed = "confirmed"
)

// byRun matches the message of an asserted condition; its group is the namespace of the run. A message of PreflightFailed
// without a certainty is one of a release that had none.
var byRun = regexp.MustCompile(`^Inspect node: ` +
	`(?:(?:suspected|confirmed) (?:slow|failure of \S+(?: and \S+)? check)|\S+(?: and \S+)? check failed) by run ([^/ ]+)/`)

// certainty is that of a verdict which asserts a condition, after the condition before it.
func certainty(before corev1.NodeCondition, from verdictSource) string {
	second := before.Status == corev1.ConditionTrue && namespaceOf(before) != "" && namespaceOf(before) != from.namespace
	if from.trusted || second {
		return confirmed
	}
	return suspected
}

// isFinal reports whether a condition stays as it is after a verdict that asserts it, because it has this verdict or a newer
// one. Two more rules keep tenants from making the verdict of others their own:
//   - A tenant's run does not renew what is confirmed.
//   - The admins' run confirms a suspicion also if that is newer, for instance because both are of the same second, unless the
//     node was healthy in between.
func isFinal(before corev1.NodeCondition, from verdictSource) bool {
	if before.Status == corev1.ConditionTrue {
		switch confirmed := isConfirmed(before); {
		case confirmed && !from.trusted:
			return true
		case !confirmed && from.trusted && !from.decidedAt.Before(before.LastTransitionTime.Time):
			return false
		}
	}
	return !before.LastHeartbeatTime.Time.Before(from.decidedAt)
}

// slowCondition is the condition SlowNode after a verdict that asserts it. It is false when the condition stays as it is.
func slowCondition(n *corev1.Node, s verdict.Slow, from verdictSource) (corev1.NodeCondition, bool) {
	before, found := condition(n, conditions.SlowNode)
	if found && isFinal(before, from) {
		return before, false
	}
	return asserted(before, fmt.Sprintf("%s slow by run %s, drop %.2f, seen by %d partners",
		certainty(before, from), from, s.Drop, s.Partners), from.decidedAt), true
}

// figureCondition is the condition SlowNode after a verdict in which a figure of the node is far below the others. What a
// node reports about itself makes it only a suspect, and only in a run of the admins. A confirmed verdict by pair tests
// outweighs it. A suspicion of a tenant does not: that tenant could clear it.
func figureCondition(n *corev1.Node, f verdict.Figure, b verdict.Below, from verdictSource) (corev1.NodeCondition, bool) {
	before, found := condition(n, conditions.SlowNode)
	outweighed := before.Status == corev1.ConditionTrue && isConfirmed(before)
	if found && (outweighed || !before.LastHeartbeatTime.Time.Before(from.decidedAt)) {
		return before, false
	}
	return asserted(before, fmt.Sprintf("%s slow by run %s, %s %.2f below the median of %d nodes", suspected, from, f.Name, b.Drop, f.Nodes),
		from.decidedAt), true
}

// failedCondition is the condition PreflightFailed after a verdict that asserts it, see [slowCondition].
func failedCondition(n *corev1.Node, checks string, from verdictSource) (corev1.NodeCondition, bool) {
	before, found := condition(n, conditions.PreflightFailed)
	if found && isFinal(before, from) {
		return before, false
	}
	return asserted(before, fmt.Sprintf("%s failure of %s check by run %s", certainty(before, from), checks, from), from.decidedAt), true
}

// clearedCondition is a condition after a run in which the node was healthy; false when it stays as it is. A tenant's run
// clears only a suspicion that rests on the same tenant's runs.
func clearedCondition(n *corev1.Node, conditionType string, from verdictSource) (corev1.NodeCondition, bool) {
	before, found := condition(n, conditionType)
	if !found || before.Status != corev1.ConditionTrue || !before.LastHeartbeatTime.Time.Before(from.decidedAt) {
		return before, false
	}
	if !from.trusted && (isConfirmed(before) || namespaceOf(before) != from.namespace) {
		return before, false
	}
	return cleared(before, "clean in run "+from.String(), from.decidedAt), true
}

// expiredCondition is a condition whose verdict no run has repeated for ttl; false when it stays as it is.
func expiredCondition(n *corev1.Node, conditionType string, ttl time.Duration, now time.Time) (corev1.NodeCondition, bool) {
	before, found := condition(n, conditionType)
	if !found || before.Status != corev1.ConditionTrue || now.Before(before.LastHeartbeatTime.Add(ttl)) {
		return before, false
	}
	return cleared(before, "the last verdict has expired", now), true
}

// condition returns a condition of the node. If the node has none of the type, it is empty apart from the type.
func condition(n *corev1.Node, conditionType string) (corev1.NodeCondition, bool) {
	c, found := node.ConditionOf(n, corev1.NodeConditionType(conditionType))
	c.Type = corev1.NodeConditionType(conditionType)
	return c, found
}

func isConfirmed(c corev1.NodeCondition) bool {
	m, err := conditions.ParseMessage(c.Message)
	return err == nil && len(m.Parts) > 0 && strings.HasPrefix(m.Parts[0].Text, confirmed+" ")
}

// namespaceOf is the namespace of the run in a condition's message; empty when the message names no run.
func namespaceOf(c corev1.NodeCondition) string {
	m := byRun.FindStringSubmatch(c.Message)
	if m == nil {
		return ""
	}
	return m[1]
}

func asserted(before corev1.NodeCondition, text string, at time.Time) corev1.NodeCondition {
	if before.Status == corev1.ConditionTrue && at.Before(before.LastHeartbeatTime.Time) {
		at = before.LastHeartbeatTime.Time
	}
	message := conditions.Summarize([]conditions.Finding{{Repair: conditions.Inspect, Subject: "node", Text: text}})
	return updated(before, corev1.ConditionTrue, conditions.Verdict(string(before.Type)).Problem, message.String(), at)
}

func cleared(before corev1.NodeCondition, text string, at time.Time) corev1.NodeCondition {
	return updated(before, corev1.ConditionFalse, conditions.Verdict(string(before.Type)).Healthy, text, at)
}

func updated(before corev1.NodeCondition, status corev1.ConditionStatus, reason, message string, at time.Time) corev1.NodeCondition {
	after := before
	after.Status, after.Reason, after.Message = status, reason, message
	after.LastHeartbeatTime = metav1.NewTime(at)
	if before.Status != status {
		after.LastTransitionTime = metav1.NewTime(at)
	}
	return after
}
