package quarantine

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
)

// ControllerName is the remediator's name in Events, in managed fields and in the labels of its objects.
const ControllerName = handoff.FieldManager

// The record of a quarantine, and what is said about it: those of package causes.
type (
	Blocked      = causes.Blocked
	Boot         = causes.Boot
	Cause        = causes.Cause
	DeviceRules  = causes.DeviceRules
	Event        = causes.Event
	IsolatedGPU  = causes.IsolatedGPU
	Isolation    = causes.Isolation
	Link         = causes.Link
	Phase        = causes.Phase
	Quarantine   = causes.Quarantine
	Record       = causes.Record
	RepairRecord = causes.RepairRecord
	Taint        = causes.Taint
)

// The phases of a quarantine, and the values of [Quarantine.ReleasedBy].
const (
	Suspect     = causes.Suspect
	Quarantined = causes.Quarantined
	Released    = causes.Released
	ByPitcrew   = causes.ByPitcrew
	ByPerson    = causes.ByPerson
)

// The reasons of Events.
const (
	BreakerClosed      = causes.BreakerClosed
	BreakerOpen        = causes.BreakerOpen
	DetectorSuspect    = causes.DetectorSuspect
	DeviceIsolated     = causes.DeviceIsolated
	DeviceReleased     = causes.DeviceReleased
	DriverUpgradeStale = causes.DriverUpgradeStale
	NodeQuarantined    = causes.NodeQuarantined
	NodeReleased       = causes.NodeReleased
	PolicyInvalid      = causes.PolicyInvalid
	PolicyWarning      = causes.PolicyWarning
	QuarantineBlocked  = causes.QuarantineBlocked
	QuarantineUpgraded = causes.QuarantineUpgraded
	ReleaseByHand      = causes.ReleaseByHand
	TaintRestored      = causes.TaintRestored
	UncordonedByHand   = causes.UncordonedByHand
	WouldQuarantine    = causes.WouldQuarantine
)

// The values of [Blocked.Reason].
const (
	BlockedByBreaker          = causes.BlockedByBreaker
	BlockedByBudget           = causes.BlockedByBudget
	BlockedByDetectorSuspect  = causes.BlockedByDetectorSuspect
	BlockedByDevices          = causes.BlockedByDevices
	BlockedByManualRelease    = causes.BlockedByManualRelease
	BlockedByMissingRule      = causes.BlockedByMissingRule
	BlockedByObserve          = causes.BlockedByObserve
	BlockedByOrigin           = causes.BlockedByOrigin
	BlockedByPause            = causes.BlockedByPause
	BlockedByStale            = causes.BlockedByStale
	BlockedByUnconfirmed      = causes.BlockedByUnconfirmed
	BlockedByUnreadableRecord = causes.BlockedByUnreadableRecord
	BlockedByValidation       = causes.BlockedByValidation
)

// RecordOf is that of package causes, as are the following.
func RecordOf(n *corev1.Node) (*Record, error) { return causes.RecordOf(n) }

// ParseRecord reads the annotation.
func ParseRecord(text string) (*Record, error) { return causes.ParseRecord(text) }

// Clip cuts a text to a number of bytes.
func Clip(text string, maxBytes int) string { return causes.Clip(text, maxBytes) }

// FromFuture reports whether a time is further ahead than clocks differ.
func FromFuture(at, now time.Time) bool { return causes.FromFuture(at, now) }

// PeerOf sums up a node for the limits of others.
func PeerOf(p *policy.Policy, n *corev1.Node) limits.Peer { return peers.Of(p, n) }

// DomainOf is the domain of a node.
func DomainOf(p *policy.Policy, n *corev1.Node, remembered limits.Domain) limits.Domain {
	return causes.DomainOf(p, n, remembered)
}

// DescribeNotReady says since when a node is not Ready.
func DescribeNotReady(c corev1.NodeCondition) string { return causes.DescribeNotReady(c) }

// IsVerdict reports whether the remediator writes a condition itself.
func IsVerdict(t corev1.NodeConditionType) bool { return causes.IsVerdict(t) }

// NeedsPeers reports whether [Decide] needs the peers of a node.
func NeedsPeers(p *policy.Policy, n *corev1.Node, r *Record, breaker *limits.BreakerState) bool {
	return peers.AreNeeded(p, n, r, breaker)
}
