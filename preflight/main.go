// Preflight is the init container that finds bad nodes before a job starts. It runs local checks first, then tests pairs of
// nodes, round by round. It writes one report per rank, and the remediator judges the run.
//
// It exits with 0 when the job may start, with 1 when this node is bad, and with 2 when the result is unknown. What follows
// from 1 and 2 is up to the job, e.g. to its podFailurePolicy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/gang"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/schedule"
	"github.com/pitcrew-dev/pitcrew/internal/version"
)

// The exit codes.
const (
	exitOK      = 0
	exitNodeBad = 1
	exitUnknown = 2
)

type options struct {
	// env is the environment. connect returns a client of the cluster in which this pod runs.
	env     func(string) string
	connect func() (kubernetes.Interface, error)

	group group
	node  string
	leaf  string
	port  int
	// meetTimeout is how long rank 0 waits for the other ranks, and they for it. A check that takes longer is of no use to them.
	meetTimeout      time.Duration
	rounds, adaptive int
	// threshold is the lowest acceptable bandwidth in GiB/s; 0: none.
	threshold float64

	checks  []string
	storage string
	figures []figure
	// figurePattern finds the figure in a command's output; its first group is the number.
	figurePattern *regexp.Regexp

	pair tester
	// send is the folder with kcover's report, and runID what it lacks; empty: this is no sidecar of kcover.
	out, send, runID string
	// fromPod: the group is not in the flags, see [options.locate].
	fromPod bool
	// pod is the UID of this pod; empty without -from-pod.
	pod types.UID
	// bestEffort: a result that is unknown does not keep the job from starting.
	bestEffort bool
	version    bool
}

// group is the position of this rank in its run.
type group struct {
	rank, size int
	// leader is the host:port of rank 0.
	leader string
}

func main() { os.Exit(start()) }

func start() int {
	o, err := parse(os.Args[1:], os.Getenv)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "preflight:", err)
		return o.exitCode(exitUnknown)
	}
	if o.version {
		fmt.Println(version.String())
		return exitOK
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := run(ctx, o)
	if err != nil {
		slog.Error("Preflight ended early", "err", err)
	}
	return o.exitCode(code)
}

// exitCode is that of a result: one that is unknown lets the job start if that is wanted.
func (o options) exitCode(code int) int {
	if code == exitUnknown && o.bestEffort {
		slog.Warn("The result is unknown, and the job may start: -best-effort")
		return exitOK
	}
	return code
}

// texts are the values of flags that are read when all are known.
type texts struct {
	rank, size, leader, pattern, figurePattern, unit string
	peers                                            []string
}

// parse reads the flags. The environment variables that LeaderWorkerSet, Kubeflow and indexed Jobs set are their defaults.
func parse(args []string, env func(string) string) (options, error) {
	o := options{env: env, connect: inCluster}
	var t texts
	f := flags.NewSet("preflight")
	f.SetOutput(io.Discard) // the caller prints the error; Parse prints the usage for -h and for a bad flag alike
	o.groupFlags(f, &t)
	o.testFlags(f, &t)
	f.BoolVar(&o.bestEffort, "best-effort", false, "exit 0 also when the result is unknown")
	f.IntVar(&o.port, "port", 29400, "`port` on which rank 0 listens for the other ranks", 1, 65535)
	f.DurationVar(&o.meetTimeout, "meet-timeout", 5*time.Minute,
		"how long rank 0 waits for the other ranks, and they for rank 0; also the time limit of one -check", 10*time.Millisecond, flags.Day)
	o.fileFlags(f)
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		f.SetOutput(os.Stdout)
		fmt.Println("preflight finds bad nodes before a job starts: it checks this node, then tests pairs of nodes.\n" +
			"exit 0 the job may start, 1 this node is bad, 2 cannot tell")
		f.PrintDefaults()
		return o, err
	} else if err != nil || o.version {
		return o, err
	}
	if err := o.completeTests(t); err != nil {
		return o, err
	}
	return o, o.complete(t)
}

// groupFlags are the flags that say which rank this is, and on which node.
func (o *options) groupFlags(f *flags.Set, t *texts) {
	f.StringVar(&t.rank, "rank", gang.First(o.env, gang.Rank), "`number` of this rank, from 0")
	f.StringVar(&t.size, "size", gang.First(o.env, gang.Size), "`number` of ranks")
	f.StringVar(&t.leader, "leader", gang.First(o.env, gang.Leader),
		"`host` of rank 0, e.g. train-0.train for Job train with a headless Service of the same name")
	flags.List(f.FlagSet, &t.peers, "peers", "comma-separated `hosts` in the order of ranks, instead of -size and -leader", nil)
	f.BoolVar(&o.fromPod, "from-pod", false,
		"find rank, size and rank 0 by this pod, POD_NAME in POD_NAMESPACE, and by its Job, instead of by -rank, -size and -leader")
	f.StringVar(&o.node, "node", o.env("NODE_NAME"), "`name` of this node")
	f.StringVar(&o.leaf, "leaf", o.env("TOPOLOGY"), "`name` of this node's rack or leaf switch")
}

// testFlags are the flags that say what is tested.
func (o *options) testFlags(f *flags.Set, t *texts) {
	f.IntVar(&o.rounds, "rounds", schedule.MaxRounds, "rounds of pair tests, at most 5", 0, schedule.MaxRounds)
	f.IntVar(&o.adaptive, "adaptive-rounds", 2, "further rounds for suspects, at most 2", 0, 2)
	f.Float64Var(&o.threshold, "threshold", 0, "lowest acceptable bandwidth in `GiB/s`; 0 compares the nodes only with each other", 0, 1e6)
	f.Func("check", "`command` of a local check, e.g. a plugin: exit 1 means that this node is bad; may be repeated", func(s string) error {
		o.checks = append(o.checks, s)
		return nil
	})
	f.Func("figure", "`name=command`: a figure of this node that is compared with those of the other nodes, e.g. gemm=...; "+
		"more is better; may be repeated", func(s string) error {
		name, command, ok := strings.Cut(s, "=")
		if !ok || !report.FigureName.MatchString(name) || command == "" {
			return fmt.Errorf("%q is not name=command with a name of small letters, digits and -", s)
		}
		o.figures = append(o.figures, figure{name, command})
		return nil
	})
	f.StringVar(&t.figurePattern, "figure-pattern", `([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\s*$`,
		"`regexp` whose first group is a -figure; the default is the last number. What ends with the output counts as cut off")
	f.StringVar(&o.storage, "storage", "", "`folder` on the job's storage in which a file is written, read back and compared")
	f.StringVar(&o.pair.command, "command", "",
		"`shell command` that tests a pair, run on both ends with PREFLIGHT_PEER, PREFLIGHT_SELF, PREFLIGHT_SERVER (true at one end) and "+
			"PREFLIGHT_ROUND; empty: TCP")
	f.StringVar(&t.pattern, "bandwidth", `Avg bus bandwidth\s*:\s*([0-9.]+)`,
		"`regexp` whose first group is the command's figure; the default is that of nccl-tests. What ends with the output counts as cut off")
	f.StringVar(&t.unit, "unit", "GB/s", "`unit` of the command's figure: GiB/s, GB/s or Gb/s")
	f.DurationVar(&o.pair.timeout, "pair-timeout", time.Minute, "time limit of one pair test and of one -figure",
		10*time.Millisecond, flags.Day)
	f.DurationVar(&o.pair.duration, "tcp-duration", 2*time.Second, "how long the TCP test sends in each direction",
		time.Millisecond, time.Hour)
}

// completeTests checks the values of the tests and of the node.
func (o *options) completeTests(t texts) (err error) {
	if o.pair.pattern, err = regexp.Compile(t.pattern); err != nil || o.pair.pattern.NumSubexp() < 1 {
		return fmt.Errorf("-bandwidth %q is not a regexp with a group", t.pattern)
	}
	if o.figurePattern, err = regexp.Compile(t.figurePattern); err != nil || o.figurePattern.NumSubexp() < 1 {
		return fmt.Errorf("-figure-pattern %q is not a regexp with a group", t.figurePattern)
	}
	scale, ok := map[string]float64{"GiB/s": 1, "GB/s": 1e9 / (1 << 30), "Gb/s": 1e9 / 8 / (1 << 30)}[t.unit]
	if !ok {
		return fmt.Errorf("-unit %q is not GiB/s, GB/s or Gb/s", t.unit)
	}
	o.pair.scale = scale
	if o.node == "" {
		return errors.New("-node, or NODE_NAME, must name this node")
	}
	return nil
}

// complete sets the group by the values of the flags, unless the pod's place is looked up later.
func (o *options) complete(t texts) error {
	if len(t.peers) > 0 {
		t.leader, t.size = t.peers[0], strconv.Itoa(len(t.peers))
	}
	switch {
	case o.send != "":
		return o.forSend(t.rank)
	case o.fromPod:
		return nil
	}
	var err error
	if o.group.rank, err = strconv.Atoi(t.rank); err != nil {
		return fmt.Errorf("-rank %q is not a number", t.rank)
	}
	if o.group.size, err = strconv.Atoi(t.size); err != nil || o.group.size < 1 || o.group.size > report.MaxRanks {
		return fmt.Errorf("-size %q is not from 1 to %d", t.size, report.MaxRanks)
	}
	switch {
	case o.group.rank < 0 || o.group.rank >= o.group.size:
		return fmt.Errorf("-rank %d of -size %d", o.group.rank, o.group.size)
	case t.leader == "":
		return errors.New("-leader or -peers must name the host of rank 0")
	}
	o.group.leader = o.address(t.leader)
	return nil
}

// address is the host:port of rank 0 on a host.
func (o options) address(host string) string { return net.JoinHostPort(host, strconv.Itoa(o.port)) }

func run(ctx context.Context, o options) (int, error) {
	if o.send != "" {
		if err := sendReport(ctx, o); err != nil {
			return exitUnknown, err
		}
		return exitOK, nil
	}
	r := report.Report{Node: o.node, Threshold: o.threshold}
	r.GPU = runChecks(ctx, o.checks, o.meetTimeout)
	r.Storage = checkStorage(o.storage)
	r.Figures = o.measureFigures(ctx)
	slow, err := compare(ctx, o, &r)
	switch {
	// Whatever else has failed: no job may start on this node.
	case r.FailFast() || slow || errors.Is(err, errBad):
		return exitNodeBad, err
	case err != nil:
		return exitUnknown, err
	}
	return exitOK, nil
}

// compare finds the other ranks, takes part in their run and writes the report.
func compare(ctx context.Context, o options, r *report.Report) (slow bool, err error) {
	leader := at(o.group.leader)
	if o.fromPod {
		if leader, err = o.locate(ctx); err != nil {
			return false, fmt.Errorf("find this pod's rank: %w", err)
		}
	}
	r.Rank, r.Size = o.group.rank, o.group.size
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	led := make(chan error, 1)
	if o.group.rank == 0 {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+strconv.Itoa(o.port))
		if err != nil {
			return false, fmt.Errorf("wait for the other ranks: %w", err)
		}
		go func() { led <- lead(ctx, l, o) }()
	} else {
		led <- nil
	}
	slow, err = follow(ctx, o, leader, r)
	if err == nil {
		// Rank 0 runs until it has sent the result to the last rank.
		err = <-led
	}
	if r.RunID != "" {
		err = errors.Join(err, writeReport(ctx, o, *r))
	}
	return slow, err
}
