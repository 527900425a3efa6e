// The remediator turns NodeConditions into quarantined nodes and restarted training jobs, as its policy file says.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/plain"
	"github.com/pitcrew-dev/pitcrew/internal/version"
	"github.com/pitcrew-dev/pitcrew/remediator/catchup"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/preflight"
	"github.com/pitcrew-dev/pitcrew/remediator/progress"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/rejections"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
	"github.com/pitcrew-dev/pitcrew/remediator/visits"
	"github.com/pitcrew-dev/pitcrew/remediator/watchguard"
)

// gcPercent is how much the heap may grow between two garbage collections, unless GOGC is set. Most of it is the cache of nodes, which
// stays: Go's default would have the remediator of a large cluster use twice its size.
//
// In a burst of faults that costs a third of the remediator's CPU, so that it may then grow by [burstGCPercent].
const gcPercent, burstGCPercent = 30, 100

type options struct {
	policy, namespace, evidence, repair, healthAddress, metricsAddress string
	dryRun, leaderElect                                                bool
	leaseDuration                                                      time.Duration
	preflight                                                          preflight.Options
	rejections                                                         rejections.Options
	log                                                                logOptions
}

func main() {
	var o options
	flag.StringVar(&o.policy, "policy", "", "`file` with the RemediationPolicy")
	flag.StringVar(&o.namespace, "namespace", "pitcrew", "namespace of the leader election lease and of ConfigMap "+conditions.PauseConfigMap)
	flag.StringVar(&o.evidence, "evidence-namespace", conditions.EvidenceNamespace,
		"`namespace` of the ConfigMaps with the conditions of quarantined nodes")
	flag.StringVar(&o.repair, "repair-namespace", "",
		"`namespace` of the PodTemplates and Jobs of repairs, validations, sweeps and first checks, "+conditions.RepairNamespace+" as a rule; "+
			"empty: nothing of the kind is done")
	flag.StringVar(&o.healthAddress, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz; 0 disables them")
	flag.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "`address` of /metrics; 0 disables it")
	flag.BoolVar(&o.dryRun, "dry-run", false,
		"decide, and write log, Events and metrics, but change no node and no job; it takes the lease like any other replica, so add "+
			"-leader-elect=false to run it beside a remediator that acts; while it leads, restarts that were begun before do not go on")
	flag.BoolVar(&o.leaderElect, "leader-elect", true,
		"act only while holding the lease, so that several replicas can run; without it, an outage of the API server is not noticed, after "+
			"which nodes get time to report again before a rule on condition Ready acts")
	flag.DurationVar(&o.leaseDuration, "lease-duration", 5*time.Second,
		"how long the lease counts after its last renewal, in whole seconds from 3s, the same for all replicas: a dead leader is replaced "+
			"within about one and a half times as long, and a leader to which the API server gives no answer ends before it has expired")
	o.preflightFlags(flag.CommandLine)
	flag.IntVar(&o.rejections.Pods, "rejected-pods", 0,
		"`number` of GPU pods of two namespaces or more that a kubelet rejects (UnexpectedAdmissionError) within -rejected-within until "+
			"its node has condition "+conditions.GPUPodsRejected+", 10 for example; 0: the pods that fail are not watched")
	flag.DurationVar(&o.rejections.Window, "rejected-within", 10*time.Minute,
		"the time for -rejected-pods, 1m to 1h; the condition ends when no pod was rejected for as long")
	validate := flag.Bool("validate", false, "check the policy file and exit")
	showVersion := flag.Bool("version", false, "print the version and exit")
	o.log.addFlags(flag.CommandLine)
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(),
			"remediator taints faulty nodes and restarts the jobs on them, by the conditions of the nodes and a policy file.\n"+
				"exit 0 ended by a signal, or the policy is valid, 1 error, 2 bad flag")
		flag.PrintDefaults()
	}
	// Not package flag's own way: a bad flag is one line, not a hundred.
	flag.CommandLine.Init("remediator", flag.ContinueOnError)
	flag.CommandLine.SetOutput(io.Discard)
	if err := flag.CommandLine.Parse(os.Args[1:]); errors.Is(err, flag.ErrHelp) {
		flag.CommandLine.SetOutput(os.Stdout)
		flag.Usage()
		return
	} else if err != nil {
		fmt.Fprintf(os.Stderr, "remediator: %v; -h lists the flags\n", err)
		os.Exit(2)
	}

	if *showVersion {
		fmt.Println(version.String())
		return
	}
	o.log.setLogger(os.Stderr)
	collectGarbage(false)
	if err := run(ctrl.SetupSignalHandler(), o, *validate); err != nil {
		fmt.Fprintln(os.Stderr, "remediator:", plain.Lines(err.Error()))
		os.Exit(1)
	}
}

// preflightFlags are the flags about the reports of preflight.
func (o *options) preflightFlags(f *flag.FlagSet) {
	flags.List(f, &o.preflight.Namespaces, "preflight-namespaces",
		"comma-separated `namespaces` whose preflight reports count; each needs the Role of manifests/preflight", checkNamespace)
	flags.List(f, &o.preflight.Trusted, "preflight-trusted-namespaces",
		"the same, for `namespaces` in which only admins run pods: one run there confirms a verdict", checkNamespace)
	f.DurationVar(&o.preflight.Timeout, "preflight-report-collection-timeout", 10*time.Minute,
		"how long a preflight run is collected after its first report")
	f.DurationVar(&o.preflight.TTL, "preflight-verdict-ttl", 7*24*time.Hour,
		"how long a preflight verdict stays if no run repeats it; unknownAfter of its rules should be as long")
	f.StringVar(&o.preflight.LeafLabel, "topology-label", "topology.kubernetes.io/rack",
		"node `label` that names the rack or leaf switch; if most nodes of one are slow, the switch is reported instead of them")
}

// collectGarbage sets how often garbage is collected, unless GOGC does.
func collectGarbage(inBurst bool) {
	percent := gcPercent
	if inBurst {
		percent = burstGCPercent
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

func run(ctx context.Context, o options, validate bool) error {
	if err := o.check(); err != nil {
		return err
	}
	p, invalid := policy.Follow(o.policy)
	switch {
	case invalid != nil && validate:
		return invalid
	case validate:
		for _, w := range p.Policy().Warnings {
			fmt.Fprintf(os.Stderr, "warning: %s: %s\n", o.policy, plain.Line(w))
		}
		fmt.Printf("%s: ok, %d rules\n", o.policy, len(p.Policy().Rules))
		return nil
	case invalid != nil:
		// Jobs may be suspended: they must run again whatever became of the policy.
		ctrl.Log.Error(invalid,
			"Started without a policy: no node is quarantined or released until it is valid; restarts of jobs under way are finished")
	}
	mgr, err := waitForManager(ctx, o, clock.RealClock{})
	if err != nil {
		return err
	}
	if err := setup(ctx, mgr, o, p); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

// check returns an error for a flag with a value that is none.
func (o options) check() error {
	if o.policy == "" || flag.NArg() > 0 {
		return errors.New("usage: remediator -policy FILE [flags], see -h")
	}
	if o.repair != "" {
		if err := checkNamespace(o.repair); err != nil {
			return fmt.Errorf("-repair-namespace: %w", err)
		}
	}
	if err := o.rejections.Check(); err != nil {
		return err
	}
	if o.leaseDuration < 3*time.Second || o.leaseDuration%time.Second != 0 {
		return fmt.Errorf("-lease-duration %s: not a whole number of seconds from 3s", o.leaseDuration) // a Lease holds seconds
	}
	return nil
}

// setup adds the controllers and the checks of health to the manager.
func setup(ctx context.Context, mgr ctrl.Manager, o options, p *policy.File) error {
	recorder, now := plainEvents{mgr.GetEventRecorder(quarantine.ControllerName)}, clock.RealClock{}
	restarter, err := jobs.SetupWithManager(ctx, mgr, metrics.Registry, jobs.Options{
		Policy: p, Namespace: o.namespace, DryRun: o.dryRun, Recorder: recorder, Clock: now,
	})
	if err != nil {
		return err
	}
	cache, live := mgr.GetClient(), mgr.GetAPIReader()
	if err := nodes.SetupWithManager(ctx, mgr, metrics.Registry, nodes.Options{
		Policy: p, Namespace: o.namespace, EvidenceNamespace: o.evidence, DryRun: o.dryRun, Visits: o.repair != "", Recorder: recorder,
		Jobs: restarter, Clock: now, OnBigBurst: collectGarbage, CatchUp: catchup.New(cache, live, catchup.Quarantines),
	}); err != nil {
		return err
	}
	if err := progress.SetupWithManager(mgr, metrics.Registry, progress.Options{
		Policy: p, Jobs: restarter, DryRun: o.dryRun, Recorder: recorder, Clock: now,
	}); err != nil {
		return err
	}
	if err := visits.SetupWithManager(ctx, mgr, metrics.Registry, visits.Options{
		Policy: p, Namespace: o.namespace, RepairNamespace: o.repair, DryRun: o.dryRun, Recorder: recorder, Clock: now,
		CatchUp: catchup.New(cache, live),
	}); err != nil {
		return err
	}
	o.preflight.DryRun, o.preflight.Recorder, o.preflight.Clock = o.dryRun, recorder, now
	if err := preflight.SetupWithManager(ctx, mgr, metrics.Registry, o.preflight); err != nil {
		return err
	}
	o.rejections.DryRun, o.rejections.Clock = o.dryRun, now
	if err := rejections.SetupWithManager(mgr, o.rejections); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("add the health check: %w", err)
	}
	if err := mgr.AddReadyzCheck("policy", func(*http.Request) error { return checkKnown(p) }); err != nil {
		return fmt.Errorf("add the readiness check: %w", err)
	}
	return nil
}

// checkKnown fails until a valid policy was read once, so that a rollout replaces no pod that has one by a pod that has none. A policy
// that becomes invalid later makes no pod unready: the last good one stays in force.
func checkKnown(p *policy.File) error {
	if p.Known() {
		return nil
	}
	return fmt.Errorf("policy %s is invalid, and no valid one was read since the start", p.Path())
}

func newManager(o options, guard *watchguard.Guard) (ctrl.Manager, error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return nil, fmt.Errorf("find a cluster: %w", err)
	}
	// The API server's own fairness limits us. A client-side limit of a few requests per second would delay the taints
	// of exactly the day on which many nodes fail.
	config.QPS = -1
	// To unpack what the API server packs costs more than the network does, as for the controllers of Kubernetes.
	config.DisableCompression = true
	config.Wrap(newEventQueue)
	config.Wrap(guard.Wrap)
	mgr, err := ctrl.NewManager(config, managerOptions(o))
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return slim.NewManager(mgr)
}

func managerOptions(o options) ctrl.Options {
	renewDeadline, retryPeriod := election(o.leaseDuration)
	m := ctrl.Options{
		Scheme:         clientgoscheme.Scheme,
		MapperProvider: newKindMapper,
		Cache: cache.Options{
			// A read that was not planned must not quietly cache a whole cluster's objects.
			ReaderFailOnMissingInformer: true,
			NewInformer:                 slim.Informer(nodes.Slim),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Node{}: {Transform: nodes.Slim},
				&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
					o.namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", conditions.PauseConfigMap)},
				}},
			},
		},
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              quarantine.ControllerName,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true, // safe: the process ends when the manager does
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &renewDeadline,
		RetryPeriod:                   &retryPeriod,
		HealthProbeBindAddress:        o.healthAddress,
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
	}
	m.Controller.EnableWarmup = ptr.To(true) // a standby watches all that the leader watches, so that it can decide as soon as it leads
	if o.repair != "" {
		m.Cache.ByObject[&batchv1.Job{}] = cache.ByObject{Namespaces: map[string]cache.Config{o.repair: {}}}
	}
	return m
}

// election is how long a leader tries to renew a lease of some duration before it ends, and how often replicas renew it or look at it.
//
// A standby looks at least every 2.2 periods (client-go's JitterFactor), once to see the last renewal and once to see that the lease has
// expired. A period of a tenth has it lead within 1.44 durations of the leader's death.
//
// A leader that gets no answer stops a period, the deadline and one request after its last renewal: client-go tries to release the lease
// before it reports that the leader has lost it, and controller-runtime has a request wait for half the deadline, or for a second. All that
// is less than a lease of 3 s or more, so it has stopped before a standby may lead. A process that was stopped, or answers that come
// late, can still make two leaders overlap: a write is then refused if its object has changed, but the budgets may be used twice.
func election(leaseDuration time.Duration) (renewDeadline, retryPeriod time.Duration) {
	return leaseDuration * 55 / 100, leaseDuration / 10
}

// checkNamespace finds names that no namespace can have, two that a space separates among them.
func checkNamespace(name string) error {
	if reasons := validation.IsDNS1123Label(name); len(reasons) > 0 {
		return fmt.Errorf("namespace %q: %s", name, strings.Join(reasons, ", "))
	}
	return nil
}
