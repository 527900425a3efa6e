package restart

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
)

// TriggerKind is what happened.
type TriggerKind string

// The kinds of triggers.
const (
	NodeQuarantined TriggerKind = "NodeQuarantined" // a node was taken out of service, or devices of it, as recorded on the Node
	PodFailed       TriggerKind = "PodFailed"       // a rank failed, which is no reason to keep away from its node
	JobStalled      TriggerKind = "JobStalled"      // no rank of the job makes progress, and no node is the cause
)

// Trigger is why jobs are restarted.
type Trigger struct {
	Kind TriggerKind
	// ID is unique to this trigger; a job is restarted at most once for it.
	ID string
	// Node and NodeUID are the node under the ranks. They are empty if a job is stalled.
	Node    string
	NodeUID types.UID
	// Reason is the fault, for people.
	Reason string
	// Taint keeps the ranks from coming back to a quarantined node.
	Taint corev1.Taint
	// Devices are those that Taint is on, of a node that stays in service; nil: it is on the node.
	Devices []devices.Device
	// Since is when the node was quarantined, the pod failed, or the job made progress last.
	Since time.Time
	// CheckpointGrace is how long a job may save its state before it is stopped.
	CheckpointGrace time.Duration
}

// IsNode reports whether the whole node was quarantined, so that no rank may come back to it.
func (t Trigger) IsNode() bool { return t.Kind == NodeQuarantined && t.Devices == nil }

// IsHeldBy reports whether a claim holds a device of the trigger. A monitor, which has adminAccess, uses none, and a claim that
// tolerates the taint keeps what it has.
func (t Trigger) IsHeldBy(claim *resourceapi.ResourceClaim) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return slices.Contains(t.Devices, devices.Device{Driver: r.Driver, Pool: r.Pool, Name: r.Device}) &&
			!ptr.Deref(r.AdminAccess, false) && !slices.ContainsFunc(r.Tolerations, t.isTolerated)
	})
}

// isTolerated reports whether a toleration is for the taint of the devices, permanently.
func (t Trigger) isTolerated(by resourceapi.DeviceToleration) bool {
	switch {
	case by.TolerationSeconds != nil, by.Effect != "" && string(by.Effect) != string(t.Taint.Effect):
		return false
	case by.Operator == resourceapi.DeviceTolerationOpExists:
		return by.Key == "" || by.Key == t.Taint.Key
	}
	return by.Key == t.Taint.Key && by.Value == t.Taint.Value
}

// Kind is that of the trigger of which the record keeps the cause: only a quarantine has a taint, and only a stalled job no node.
func (c Cause) Kind() TriggerKind {
	switch {
	case c.Node == "":
		return JobStalled
	case c.Taint.Key == "":
		return PodFailed
	}
	return NodeQuarantined
}

// IsNodeFault reports whether the cause is the quarantine of a node or of its devices.
func (c Cause) IsNodeFault() bool { return c.Kind() == NodeQuarantined }
