package causes

import (
	"fmt"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// Reasons of Events on Nodes and, from DetectorSuspect on, on our namespace.
const (
	NodeQuarantined    = "NodeQuarantined"
	QuarantineUpgraded = "QuarantineUpgraded"
	QuarantineBlocked  = "QuarantineBlocked"
	WouldQuarantine    = "WouldQuarantine"
	TaintRestored      = "TaintRestored"
	NodeReleased       = "NodeReleased"
	ReleaseByHand      = "ReleaseByHand"
	UncordonedByHand   = "UncordonedByHand"
	DeviceIsolated     = "DeviceIsolated"
	DeviceReleased     = "DeviceReleased"
	DriverUpgradeStale = "DriverUpgradeStale"
	DetectorSuspect    = "DetectorSuspect"
	BreakerOpen        = "BreakerOpen"
	BreakerClosed      = "BreakerClosed"
	PolicyInvalid      = "PolicyInvalid"
	PolicyWarning      = "PolicyWarning"
)

// What blocks a decision; the values of [Blocked.Reason] and of the metric's label.
const (
	BlockedByObserve          = "observe-only"
	BlockedByBudget           = limits.ByBudget
	BlockedByBreaker          = limits.ByBreaker
	BlockedByDetectorSuspect  = limits.BySuspect
	BlockedByStale            = "stale"
	BlockedByPause            = "paused"
	BlockedByManualRelease    = "released-by-hand"
	BlockedByUnreadableRecord = "record-unreadable"
	BlockedByMissingRule      = "rule-gone"
	BlockedByUnconfirmed      = "record-unconfirmed"
	BlockedByValidation       = "awaits-validation"
	BlockedByOrigin           = limits.ByOrigin
	BlockedByDevices          = "devices-unknown"
	BlockedByTooLarge         = "too-large"
)

// Event is a Kubernetes Event on the node.
type Event struct {
	// Type is [corev1.EventTypeNormal] or [corev1.EventTypeWarning].
	Type, Reason, Message string
}

// Blocked is a decision that was held back.
type Blocked struct {
	// Rule is the rule of the policy that would have acted; empty when it is about all of them.
	Rule string
	// Reason is one of the BlockedBy constants; Message explains it.
	Reason, Message string
}

func NewBlocked(rule, reason, format string, args ...any) *Blocked {
	return &Blocked{rule, reason, fmt.Sprintf(format, args...)}
}

// Needs names what a class asks for, as the end of "the node needs".
func Needs(class conditions.Repair) string { return needs[class] }

var needs = map[conditions.Repair]string{
	conditions.Monitor:    "monitoring",
	conditions.RestartApp: "a restart of its workload",
	conditions.Inspect:    "inspection",
	conditions.ResetGPU:   "a GPU reset",
	conditions.Reboot:     "a reboot",
	conditions.Replace:    "replacement",
}

func Describe(p Problem) string {
	c := p.Condition
	if p.IsReady() {
		return fmt.Sprintf("Ready is %s since %s (rule %s: %s)",
			c.Status, c.LastTransitionTime.UTC().Format(time.RFC3339), p.Rule.Name, Clip(c.Message, conditions.MaxMessage))
	}
	return fmt.Sprintf("%s needs %s (rule %s: %s)%s", c.Type, needs[p.Class], p.Rule.Name, Clip(c.Message, conditions.MaxMessage), p.Link)
}

// CauseNames names the conditions of the causes, but for that of a manual quarantine.
func CauseNames(r *Record) string {
	var names []string
	for _, c := range r.Causes {
		if c.Rule != policy.ByHand {
			names = append(names, string(c.Condition))
		}
	}
	return strings.Join(names, ", ")
}

// AndCordoned reports that the quarantine has cordoned the node, if it has.
func (q *Quarantine) AndCordoned() string {
	if q.HandOff != nil && q.HandOff.Cordon {
		return " and cordoned"
	}
	return ""
}

func AndRestart(r policy.Rule) string {
	if r.RestartJobs {
		return " and restart its jobs"
	}
	return ""
}

// IsolatedBy returns which devices are isolated, and how.
func (q *Quarantine) IsolatedBy() string {
	return fmt.Sprintf("isolated %s by device taint %s", Clip(q.Isolation.String(), conditions.MaxMessage), q.Taint)
}

// NotIsolated returns why a problem reaches the node although its rule isolates devices; empty otherwise.
func (p Problem) NotIsolated() string {
	if p.Reach.WhyNode == "" {
		return ""
	}
	return " (the whole node, because " + Clip(p.Reach.WhyNode, conditions.MaxMessage/2) + ")"
}

// WouldDo is what a rule that only observes would do.
func WouldDo(p Problem) string {
	if p.Reach.Extent != isolate.WholeNode {
		return fmt.Sprintf("isolate gpu %s by device taint %s", strings.Join(p.Gpus, ", "), p.Rule.Taint.ToString())
	}
	return "taint " + p.Rule.Taint.ToString() + p.NotIsolated()
}

// ManualOnly reports that only a person releases the node, if a quarantine for the problem is so.
func (q *Quarantine) ManualOnly(p Problem) string {
	if !q.ManualReleaseOnly {
		return ""
	}
	return fmt.Sprintf("; the fault came and went %d times within %s, so only `kubectl pitcrew release` releases the node",
		p.Rule.Flaps.Max, p.Rule.Flaps.Window)
}
