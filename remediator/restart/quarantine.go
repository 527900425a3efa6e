package restart

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
)

// Quarantine is why jobs are restarted: a node that was taken out of service, as recorded on the Node, or, without
// a Taint, a pod that failed or a job that stands still.
type Quarantine struct {
	// ID is unique to this quarantine; a job is restarted at most once for it.
	ID string
	// Node and NodeUID are the node under the ranks. They are empty if a job stands still.
	Node    string
	NodeUID types.UID
	// Reason is the fault, for people.
	Reason string
	// Taint keeps the ranks from coming back. It is zero if a pod failed, which is no reason to keep away from its node.
	Taint corev1.Taint
	// Devices are those that Taint is on, of a node that stays in service; nil: it is on the node.
	Devices []devices.Device
	// Since is when the node was quarantined, the pod failed, or the job began to stand still.
	Since time.Time
	// CheckpointGrace is how long a job may save its state before it is stopped.
	CheckpointGrace time.Duration
	// Stalled: the job itself stands still. A restart that is under way is left to itself.
	Stalled bool
}
