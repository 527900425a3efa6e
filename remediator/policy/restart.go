package policy

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Restart limits the restarts of jobs. The zero value limits none and deletes nothing.
type Restart struct {
	// Settle is how long after a fault the job is left alone, so that the other nodes of a wave of faults are stopped for at
	// once. A fault that comes later, while the job stops or starts, joins the restart anyway.
	Settle time.Duration
	// MaxPerDay bounds the restarts of a job within 24 hours, MaxPerJob those of its whole life; 0: unbounded.
	MaxPerDay, MaxPerJob int
	// BackOff is how long a job is left alone after a restart.
	BackOff BackOff
	// MaxConcurrent bounds the jobs under restart in the cluster; 0: unbounded. Those whose stop is held do not count.
	MaxConcurrent int
	// CheckCapacity holds a restart until there is room for the ranks that have to move.
	CheckCapacity bool
	// ForceDelete says which pods that do not end are deleted without waiting for their kubelet, and ForceDeleteAfter how
	// long after their grace period.
	ForceDelete      ForceDelete
	ForceDeleteAfter time.Duration
	// PodFailures restarts jobs without any fault of a node.
	PodFailures PodFailures
}

// BackOff makes the pause after a restart First, twice as long after each further one, and at most Max. A job that ran for
// longer than Max begins anew. Zero: no pause.
type BackOff struct{ First, Max time.Duration }

// ForceDelete says which pods of a job that is being stopped may be deleted without the word of their kubelet that their
// processes are gone.
type ForceDelete string

// The values of [ForceDelete]. Each includes those before it; a pod on a node that is deleted counts as on an unreachable one.
const (
	ForceNever       ForceDelete = "never"
	ForceUnreachable ForceDelete = "unreachable" // its node is unreachable: Ready is Unknown
	ForceQuarantined ForceDelete = "quarantined" // its node is one that the job is restarted for
)

// PodFailures restarts an opted-in job as a whole when one of its ranks fails and its owner would replace only that one.
type PodFailures struct {
	Enabled bool
	// Pods selects the pods that are watched.
	Pods labels.Selector
}

// MaxPerDayLimit is the largest [Restart.MaxPerDay]: as many restarts of the last day as a job's record remembers.
const MaxPerDayLimit = 100

const (
	defaultBackOffMax       = 30 * time.Minute
	defaultForceDeleteAfter = 5 * time.Minute
)

type restart struct {
	Settle           string      `yaml:"settle"`
	MaxPerDay        int         `yaml:"maxPerDay"`
	MaxPerJob        int         `yaml:"maxPerJob"`
	BackOff          backOff     `yaml:"backOff"`
	MaxConcurrent    int         `yaml:"maxConcurrent"`
	CheckCapacity    bool        `yaml:"checkCapacity"`
	ForceDelete      string      `yaml:"forceDelete"`
	ForceDeleteAfter string      `yaml:"forceDeleteAfter"`
	PodFailures      podFailures `yaml:"podFailures"`
}

type backOff struct {
	First string `yaml:"first"`
	Max   string `yaml:"max"`
}

type podFailures struct {
	Enabled     bool              `yaml:"enabled"`
	PodSelector map[string]string `yaml:"podSelector"`
}

func (c *checker) restart(at *field.Path, r restart) Restart {
	out := Restart{
		Settle:    c.duration(at.Child("settle"), r.Settle, 0),
		MaxPerDay: c.atLeast(at.Child("maxPerDay"), 0, r.MaxPerDay),
		MaxPerJob: c.atLeast(at.Child("maxPerJob"), 0, r.MaxPerJob),
		BackOff: BackOff{
			First: c.duration(at.Child("backOff", "first"), r.BackOff.First, 0),
			Max:   c.duration(at.Child("backOff", "max"), r.BackOff.Max, defaultBackOffMax),
		},
		MaxConcurrent:    c.atLeast(at.Child("maxConcurrent"), 0, r.MaxConcurrent),
		CheckCapacity:    r.CheckCapacity,
		ForceDelete:      ForceDelete(cmp.Or(r.ForceDelete, string(ForceNever))),
		ForceDeleteAfter: c.duration(at.Child("forceDeleteAfter"), r.ForceDeleteAfter, defaultForceDeleteAfter),
		PodFailures: PodFailures{
			Enabled: r.PodFailures.Enabled,
			Pods:    c.selector(at.Child("podFailures", "podSelector"), r.PodFailures.PodSelector),
		},
	}
	if r.MaxPerDay > MaxPerDayLimit {
		c.invalid(at.Child("maxPerDay"), r.MaxPerDay, fmt.Sprintf("must be at most %d: a job remembers no more restarts", MaxPerDayLimit))
	}
	if out.BackOff.Max < out.BackOff.First {
		c.invalid(at.Child("backOff", "max"), out.BackOff.Max.String(), "must not be shorter than first")
	}
	switch out.ForceDelete {
	case ForceNever, ForceUnreachable, ForceQuarantined:
	default:
		c.errs = append(c.errs, field.NotSupported(at.Child("forceDelete"), r.ForceDelete, []ForceDelete{ForceNever, ForceUnreachable, ForceQuarantined}))
	}
	if r.PodFailures.Enabled && len(r.PodFailures.PodSelector) == 0 {
		// Without it every pod of the cluster would be watched and kept.
		c.errs = append(c.errs, field.Required(at.Child("podFailures", "podSelector"), "the labels of the pods to watch"))
	}
	return out
}
