// Package jobs restarts training jobs whole and once when a node under one of their ranks is quarantined.
//
// A level, not an edge: while a quarantine stands, no opted-in job may have an active pod on the node. The node
// controller calls [Controller.RestartJobsOnNode] after it has written the taint, again 2 s, 15 s and 60 s later, because a
// pod may have been bound by a scheduler that had not seen the taint, and then when it reconciles the node: five minutes
// after the last call or later, and at once if the quarantine, its taint or the policy has changed. A call starts the
// restart of each such job, or says when to call again if the limits of the policy hold it. A controller of its own drives
// the restarts that are under way: observe, [restart.Next], act. Failed pods may start a restart, too, see [podFailures].
//
// What is decided is in package restart, what differs between the kinds of jobs in package kinds. This package reads, writes
// and reports:
//
//	discover.go     which jobs have pods on the node, and what becomes of each
//	admission.go    may a new restart start now?
//	reconcile.go    the next step of a restart under way
//	stop.go         the writes that change its phase
//	outofband.go    what those writes cannot contain: the Workload of Kueue, a Command to Volcano, the deletion of a pod
//
// Whoever may write a job can write its record, or create pods that name the job as their owner. So no record and no pod may hold up
// the restarts of other jobs, nor a job that is not its own:
//
//   - A restart under way counts against maxConcurrent, and its ranks claim room, only if this process began it or if the record of a
//     Node has one of its causes; for as long as its phases may last, counted from when this process first knew of it; and for no more
//     ranks than the job has active pods. A restart for a failed pod counts in the process that began it.
//   - Only such a cause stops a job that saves its state, and only about such a cause an Event is written on the Node, on a few nodes
//     for each step. A deadline ends by the longest checkpointGrace of the policy after the start of the restart.
//   - One look at a job reads a number of objects that does not depend on its record.
//   - A pod counts if an object of the job controls it and would recognize it, see [restart.Job.Owns].
//
// All state is in the annotation and the label of the job, guarded by the resourceVersion and written in the same patch
// as the suspend field. What cannot be in that patch is done after it, and done again after a crash. A concurrent writer
// causes a re-read, and a person who changes the suspend field wins.
//
// A kind whose CRD is missing is looked for every minute.
//
// RBAC that this package needs: nodes get, list; pods get, list, watch, delete; namespaces get; events.k8s.io/events
// create, patch; the ConfigMap of the pause get; and what each kind needs, see [kinds.Kind].
package jobs

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/permit"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/report"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Options configure a [Controller].
type Options struct {
	// Policy names further kinds of jobs and limits the restarts; nil: neither.
	Policy *policy.File
	// Namespace has the ConfigMap that pauses everything; pitcrew by default.
	Namespace string
	// DryRun restarts nothing.
	DryRun   bool
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// StopTimeout is how long a stop may take before it is reported; it is held, not given up. [restart.DefaultStopTimeout]
	// by default.
	StopTimeout time.Duration
	// StartTimeout is how long a start may take before the restart is closed as failed. [restart.DefaultStartTimeout] by
	// default.
	StartTimeout time.Duration
}

// Controller restarts the jobs that have pods on quarantined nodes. Make it with [SetupWithManager].
type Controller struct {
	dryRun bool
	// apiReader must be live: what a cache holds of pods that are gone proves nothing.
	apiReader   client.Reader
	settings    *settings
	reporter    *report.Reporter
	admission   *admission
	reconciler  *reconciler
	podFailures *podFailures
}

// SetupWithManager makes the controller, registers its metrics and adds to the manager what drives the restarts under way.
// Its cache holds the metadata of the jobs labelled pitcrew.dev/restarting=true and nothing else. An error means that the
// manager or the registry refuses a part.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, registry prometheus.Registerer, o Options) (*Controller, error) {
	c := newController(mgr.GetClient(), mgr.GetAPIReader(), o)
	for _, m := range c.reporter.All(mgr.GetClient()) {
		if err := registry.Register(m); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	if o.DryRun {
		return c, nil
	}
	if err := c.reconciler.watcher.setup(mgr, c.reconciler); err != nil {
		return nil, err
	}
	if !c.settings.known() {
		return c, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return c.watchPodFailuresLater(ctx, mgr) }))
	}
	return c, c.watchPodFailures(mgr)
}

// watchPodFailures watches for failing ranks if the policy asks for it.
func (c *Controller) watchPodFailures(mgr ctrl.Manager) error {
	watch := c.settings.restartPolicy().PodFailures
	if !watch.Enabled {
		return nil
	}
	return c.podFailures.setup(mgr, watch.Pods)
}

// watchPodFailuresLater does the same as soon as there is a policy.
func (c *Controller) watchPodFailuresLater(ctx context.Context, mgr ctrl.Manager) error {
	const often = time.Second // it only looks at memory
	err := wait.PollUntilContextCancel(ctx, often, true, func(context.Context) (bool, error) { return c.settings.known(), nil })
	if err != nil {
		return nil //nolint:nilerr // the context has ended
	}
	return c.watchPodFailures(mgr)
}

// newController ties the parts of a controller together.
func newController(api client.Client, apiReader client.Reader, o Options) *Controller {
	s := &settings{file: o.Policy, clock: o.Clock}
	reporter := report.New(o.Recorder, o.Clock)
	pods := podreader.Reader{API: apiReader, Kinds: s.kinds}
	known := newMemory(s)
	store := &store{client: api, reporter: reporter, memory: known}
	watch := &watcher{settings: s}
	gate := permit.Gate{Cached: api, Live: apiReader, Namespace: cmp.Or(o.Namespace, "pitcrew"), Policy: o.Policy}
	change := transitions{
		store: store, memory: known, pods: pods, reporter: reporter, watcher: watch, settings: s, clock: o.Clock, gate: gate,
	}
	confirmed := causes.New(api)
	reporter.Causes = confirmed
	timeouts := restart.PhaseTimeouts{
		Stop:  cmp.Or(o.StopTimeout, restart.DefaultStopTimeout),
		Start: cmp.Or(o.StartTimeout, restart.DefaultStartTimeout),
	}
	admit := &admission{client: api, apiReader: apiReader, transitions: change, causes: confirmed, timeouts: timeouts}
	return &Controller{
		dryRun:    o.DryRun,
		apiReader: apiReader,
		settings:  s,
		admission: admit,
		reporter:  reporter,
		reconciler: &reconciler{
			client: api, apiReader: apiReader, transitions: change, timeouts: timeouts, causes: confirmed,
		},
		podFailures: newPodFailures(api, apiReader, admit),
	}
}

// settings are what the policy file asks for at the moment.
type settings struct {
	file  *policy.File
	clock clock.PassiveClock
}

// known reports whether there is a policy. Until then restarts under way go on without its limits, and no new one begins: no node is
// quarantined, and no failing rank is watched for.
func (s *settings) known() bool { return s.file == nil || s.file.Known() }

// restartPolicy limits the restarts.
func (s *settings) restartPolicy() policy.Restart {
	if s.file == nil {
		return policy.Restart{}
	}
	return s.file.Policy().Restart
}

// unlimited is the longest checkpointGrace of no policy.
const unlimited time.Duration = math.MaxInt64

// longestGrace is the longest time that a rule of the policy gives a job to save its state.
func (s *settings) longestGrace() time.Duration {
	if s.file == nil || !s.known() {
		return unlimited
	}
	longest := time.Duration(0)
	for _, rule := range s.file.Policy().Rules {
		longest = max(longest, rule.CheckpointGrace)
	}
	return longest
}

// kinds are the kinds that can be restarted; what is built in comes first.
func (s *settings) kinds() []kinds.Kind {
	if s.file == nil {
		return kinds.BuiltIn()
	}
	return kinds.All(s.file.Policy().JobKinds)
}
