package policy

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

// Restart limits the restarts of jobs. docs/runbooks/JobRestart.md explains each reason for which a restart is blocked.
//
//	spec:
//	  restart:
//	    settle: 10s
//	    maxPerDay: 10
//	    maxConcurrent: 20
//	    checkCapacity: true
//	    forceDelete: unreachable
//	    forceDeleteAfter: 5m
//
// The zero value limits no restart and deletes no pod.
type Restart struct {
	// settle is how long after a fault the job keeps running, so that one stop is enough for several nodes that fail together.
	// A node that fails later, while the job stops or starts, joins the restart in any case.
	Settle time.Duration `yaml:"settle"`
	// maxPerDay bounds the restarts of one job within 24 hours. 0 sets no bound. It is for jobs that restart as a whole, not for
	// Deployments, StatefulSets and LeaderWorkerSets.
	MaxPerDay int `yaml:"maxPerDay" unit:"restarts" min:"0" max:"100" why:"the record of a job keeps no more restarts"`
	// maxPerJob bounds the restarts of one job in its whole life. 0 sets no bound. It is for the same jobs as maxPerDay.
	MaxPerJob int `yaml:"maxPerJob" unit:"restarts" min:"0"`
	// backOff is how long a job is left alone after a restart. It is for the same jobs as maxPerDay.
	BackOff BackOff `yaml:"backOff"`
	// maxConcurrent bounds the jobs that stop or start at the same time; jobs whose stop is blocked do not count. 0 sets no bound. Restarts
	// for failed pods and stalls hold up none for the fault of a node, and those of one namespace take at most a quarter of it.
	MaxConcurrent int `yaml:"maxConcurrent" unit:"jobs" min:"0"`
	// checkCapacity blocks a restart until there is room for the ranks that have to move. Leave it off where an autoscaler adds
	// nodes for pending pods.
	CheckCapacity bool `yaml:"checkCapacity"`
	// forceDelete selects the pods of a stopping job that are deleted although nothing proves that their processes have ended.
	// `never`: none. `unreachable`: those on nodes that do not answer (Ready is Unknown). `quarantined`: also those on quarantined
	// nodes that do answer. The processes may still run and write. Pods on nodes that are proven dead are always deleted.
	ForceDelete ForceDelete `yaml:"forceDelete" values:"never unreachable quarantined"`
	// forceDeleteAfter is how long after its grace period, and after its node stopped to answer, such a pod is deleted.
	ForceDeleteAfter time.Duration `yaml:"forceDeleteAfter"`
	// podFailures restarts jobs when a rank fails without any fault of a node.
	PodFailures PodFailures `yaml:"podFailures"`
	// stalls is what is done about a stalled job, of which all pods run.
	Stalls Stalls `yaml:"stalls"`
}

// BackOff is the pause after a restart of a job. It doubles after each further restart, up to max.
//
//	spec:
//	  restart:
//	    backOff: {first: 30s, max: 30m}
type BackOff struct {
	// first is the pause after the first restart. 0s sets no pause.
	First time.Duration `yaml:"first"`
	// max is the longest pause. A job that ran for longer starts again with first. It is not shorter than first, and is set only
	// together with first.
	Max time.Duration `yaml:"max"`
}

// ForceDelete selects the pods of a stopping job that may be deleted before their kubelet confirms that their processes have ended.
type ForceDelete string

// The values of [ForceDelete]. Each includes those before it. A pod on a node that is deleted counts as on an unreachable one.
const (
	ForceNever       ForceDelete = "never"
	ForceUnreachable ForceDelete = "unreachable" // its node is unreachable: Ready is Unknown
	ForceQuarantined ForceDelete = "quarantined" // its node is one of those that the job is restarted for
)

// PodFailures restarts an opted-in job as a whole when one of its ranks fails and its owner would replace only that rank, as
// Jobs and the Kubeflow jobs do. A failure that the leader first looks at an hour later, or that a pause keeps waiting so long,
// restarts nothing.
//
//	spec:
//	  restart:
//	    podFailures: {enabled: true, podSelector: {team: research}}
type PodFailures struct {
	// enabled turns this on. It is read when the remediator starts.
	Enabled bool `yaml:"enabled"`
	// podSelector lists the labels of the pods to watch. It must not be empty when enabled is true: every pod of the cluster
	// would be watched. It is read when the remediator starts.
	Pods labels.Selector `yaml:"podSelector"`
}

// Stalls finds stalled jobs, of which all pods run, by what their ranks print. Only jobs with the annotation
// `pitcrew.dev/progress`, on the job or its namespace, are followed: see [stalled jobs](progress.md).
//
//	spec:
//	  restart:
//	    stalls: {mode: observe}
type Stalls struct {
	// mode is what is done about such a job. `off`: no log is read. `observe`: the Event JobStalled and a ConfigMap with the
	// evidence. `restart`: then the job is restarted as a whole, if it has opted in to restarts and as far as the limits of
	// spec.restart allow it, at most three times in 24 hours. Whether it is `off` is read when the remediator starts.
	Mode StallsMode `yaml:"mode" values:"off observe restart"`
}

// StallsMode is what is done about stalled jobs.
type StallsMode string

// The values of [StallsMode].
const (
	StallsOff     StallsMode = "off"
	StallsObserve StallsMode = "observe" // it is reported
	StallsRestart StallsMode = "restart" // it is reported, and restarted
)

// MaxPerDayLimit is the largest [Restart.MaxPerDay]: the record of a job keeps that many restarts of the last day.
const MaxPerDayLimit = 100

const (
	defaultBackOffMax       = 30 * time.Minute
	defaultForceDeleteAfter = 5 * time.Minute
)

func (r *Restart) SetDefaults() {
	r.BackOff.Max = defaultBackOffMax
	r.ForceDelete = ForceNever
	r.ForceDeleteAfter = defaultForceDeleteAfter
	r.PodFailures.Pods = labels.Everything()
	r.Stalls.Mode = StallsOff
}

func (r *Restart) check(d *strict.Decoder, at *field.Path) {
	if r.BackOff.Max < r.BackOff.First {
		d.Invalid(at.Child("backOff", "max"), r.BackOff.Max.String(), "must not be shorter than first")
	}
	if r.BackOff.First == 0 && r.BackOff.Max != defaultBackOffMax {
		d.Invalid(at.Child("backOff", "max"), r.BackOff.Max.String(), "has no effect without first: 0s sets no pause")
	}
	if selector := at.Child("podFailures", "podSelector"); r.PodFailures.Enabled && r.PodFailures.Pods.Empty() {
		// Without it every pod of the cluster would be watched and kept in the cache.
		d.Add(field.Required(selector, "the labels of the pods to watch"))
	}
}
