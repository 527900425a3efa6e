// Package restart decides about the restart of a job. It is pure.
package restart

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Quarantine is what the restart of jobs needs to know about a quarantined node.
type Quarantine struct {
	// ID is unique to this quarantine; a job is restarted at most once for it.
	ID string
	// Node and NodeUID are the metadata.name and metadata.uid of the Node.
	Node    string
	NodeUID types.UID
	// Reason is the fault, for people.
	Reason string
	// Taint keeps the pods of the job from coming back to the node.
	Taint corev1.Taint
	// Since is when the remediator decided on Taint.
	Since time.Time
	// CheckpointGrace is how long a job may save its state before it is stopped; zero: it is not asked to.
	CheckpointGrace time.Duration
}
