package preflight

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

// origin is where a verdict comes from.
type origin struct {
	namespace, run string
	// trusted: the namespace belongs to the cluster's admins, not to a tenant.
	trusted bool
	// decided is the condition's heartbeat.
	decided time.Time
}

func (o origin) String() string { return o.namespace + "/" + o.run }

// The first word after the subject is what the policy goes by: a node that one tenant's reports call slow is only
// avoided; it is quarantined when a second, independent run or an admin's own run says so.
const (
	suspected = "suspected slow"
	confirmed = "confirmed slow"
)

var byRun = regexp.MustCompile(`^Inspect node: (?:suspected slow|confirmed slow|\S+(?: and \S+)? check failed) by run ([^/ ]+)/`)

// slowCondition is what a conviction makes of a node's condition; false when it says nothing new: the verdict was
// reached before, or a newer one stands.
func slowCondition(n *corev1.Node, s verdict.Slow, from origin) (corev1.NodeCondition, bool) {
	before, stands := condition(n, conditions.SlowNode)
	if stands && !before.LastHeartbeatTime.Time.Before(from.decided) {
		return before, false
	}
	word := suspected
	if from.trusted || stands && before.Status == corev1.ConditionTrue && (isConfirmed(before) || namespaceOf(before) != from.namespace) {
		word = confirmed
	}
	return asserted(before, fmt.Sprintf("%s by run %s, drop %.2f, seen by %d partners", word, from, s.Drop, s.Partners), from.decided), true
}

// belowMedian tells a verdict by figures from one by pairs.
const belowMedian = "below the median of"

// figureCondition is what a figure of a node far below the others makes of its condition. A node's word about itself only
// makes it a suspect, and only in a run of the admins; any verdict by pairs outweighs it.
func figureCondition(n *corev1.Node, f verdict.Figure, b verdict.Below, from origin) (corev1.NodeCondition, bool) {
	before, stands := condition(n, conditions.SlowNode)
	byPairs := before.Status == corev1.ConditionTrue && !strings.Contains(before.Message, belowMedian)
	if stands && (byPairs || !before.LastHeartbeatTime.Time.Before(from.decided)) {
		return before, false
	}
	return asserted(before, fmt.Sprintf("%s by run %s, %s %.2f %s %d nodes", suspected, from, f.Name, b.Drop, belowMedian, f.Nodes), from.decided), true
}

// failedCondition is the same for a failed local check.
func failedCondition(n *corev1.Node, checks string, from origin) (corev1.NodeCondition, bool) {
	before, stands := condition(n, conditions.PreflightFailed)
	if stands && !before.LastHeartbeatTime.Time.Before(from.decided) {
		return before, false
	}
	return asserted(before, fmt.Sprintf("%s check failed by run %s", checks, from), from.decided), true
}

// clearedCondition is what a clean run makes of a condition that stands. A tenant's run clears only what the same
// tenant's run has said, and nothing that was confirmed.
func clearedCondition(n *corev1.Node, conditionType string, from origin) (corev1.NodeCondition, bool) {
	before, stands := condition(n, conditionType)
	if !stands || before.Status != corev1.ConditionTrue || !before.LastHeartbeatTime.Time.Before(from.decided) {
		return before, false
	}
	if !from.trusted && (isConfirmed(before) || namespaceOf(before) != from.namespace) {
		return before, false
	}
	return acquitted(before, "clean in run "+from.String(), from.decided), true
}

// expiredCondition drops a verdict that nobody has repeated for longer than ttl.
func expiredCondition(n *corev1.Node, conditionType string, ttl time.Duration, now time.Time) (corev1.NodeCondition, bool) {
	before, stands := condition(n, conditionType)
	if !stands || before.Status != corev1.ConditionTrue || now.Before(before.LastHeartbeatTime.Add(ttl)) {
		return before, false
	}
	return acquitted(before, "the last verdict has expired", now), true
}

func condition(n *corev1.Node, conditionType string) (corev1.NodeCondition, bool) {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return string(c.Type) == conditionType })
	if i < 0 {
		return corev1.NodeCondition{Type: corev1.NodeConditionType(conditionType)}, false
	}
	return n.Status.Conditions[i], true
}

func isConfirmed(c corev1.NodeCondition) bool {
	m, err := conditions.ParseMessage(c.Message)
	return err == nil && len(m.Parts) > 0 && len(m.Parts[0].Text) >= len(confirmed) && m.Parts[0].Text[:len(confirmed)] == confirmed
}

// namespaceOf is the namespace of the run that a condition names; empty when it names none.
func namespaceOf(c corev1.NodeCondition) string {
	m := byRun.FindStringSubmatch(c.Message)
	if m == nil {
		return ""
	}
	return m[1]
}

func asserted(before corev1.NodeCondition, text string, at time.Time) corev1.NodeCondition {
	message := conditions.Summarize([]conditions.Finding{{Repair: conditions.Inspect, Subject: "node", Text: text}})
	return changed(before, corev1.ConditionTrue, reasons(before).Problem, message.String(), at)
}

func acquitted(before corev1.NodeCondition, text string, at time.Time) corev1.NodeCondition {
	return changed(before, corev1.ConditionFalse, reasons(before).Healthy, text, at)
}

// reasons of a verdict's condition.
func reasons(c corev1.NodeCondition) conditions.Condition {
	i := slices.IndexFunc(conditions.Verdicts, func(v conditions.Condition) bool { return v.Type == string(c.Type) })
	return conditions.Verdicts[i]
}

func changed(before corev1.NodeCondition, status corev1.ConditionStatus, reason, message string, at time.Time) corev1.NodeCondition {
	after := before
	after.Status, after.Reason, after.Message = status, reason, message
	after.LastHeartbeatTime = metav1.NewTime(at)
	if before.Status != status {
		after.LastTransitionTime = metav1.NewTime(at)
	}
	return after
}
