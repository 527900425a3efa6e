// Command scale measures the remediator on clusters of thousands of nodes: while only heartbeats arrive, with faults that stand, in a
// burst of faults beside a bare client that writes the same patches, when a rack is lost, during an upgrade of the driver, and when the
// leader is killed. One machine runs etcd, the API server, the remediator and this program. It prints a Markdown table, with a
// column for each size.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/fleet"
)

// options are the flags.
type options struct {
	pods, faults, burst, rounds, failovers int
	quiet, standing                        time.Duration
	phases                                 []string
	leader                                 string
	wait                                   time.Duration
}

// phases in the order in which they run.
var phases = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"quiet", (*bench).quiet},
	{"standing", (*bench).standing},
	{"burst", (*bench).burst},
	{"rack", (*bench).rack},
	{"upgrade", (*bench).upgrade},
	{"failover", (*bench).failover},
}

func phaseNames() string {
	var all []string
	for _, p := range phases {
		all = append(all, p.name)
	}
	return strings.Join(all, ",")
}

func main() {
	var o options
	sizes := flag.String("nodes", "1000", "how many nodes; a `list` such as 1000,5000,10000 measures one after the other")
	flag.IntVar(&o.pods, "pods", 0, "how many pods; 0: ten on each node")
	list := flag.String("phases", phaseNames(), "`list` of what to measure")
	flag.DurationVar(&o.quiet, "quiet", 10*time.Minute, "how long only heartbeats come in")
	flag.IntVar(&o.faults, "faults", 500, "how many faults stand, at a cold start and afterwards")
	flag.DurationVar(&o.standing, "standing", 5*time.Minute, "how long they stand")
	flag.IntVar(&o.burst, "burst", 1000, "how many nodes become faulty at the same time, at most four fifths of all")
	flag.IntVar(&o.rounds, "rounds", 2, "how many bursts the remediator and the bare client answer in turn")
	flag.IntVar(&o.failovers, "failovers", 5, "how often the leader is killed")
	flag.StringVar(&o.leader, "leader-args", "-lease-duration=5s", "further `flags` of the remediators whose leader is killed; the default is the remediator's own")
	flag.DurationVar(&o.wait, "wait", 15*time.Minute, "how long to wait for anything")
	watch := flag.String("watch", "", "only cache the nodes of the cluster of a `kubeconfig`; the phase quiet starts it")
	flag.Parse()
	o.phases = strings.Split(*list, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := error(nil)
	if *watch != "" {
		err = watchNodes(ctx, *watch)
	} else {
		err = run(ctx, *sizes, o)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, sizes string, o options) error {
	log.SetLogger(logr.Discard())
	for _, name := range o.phases {
		if !strings.Contains(","+phaseNames()+",", ","+name+",") {
			return fmt.Errorf("no phase %q; there are %s", name, phaseNames())
		}
	}
	var t table
	for size := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(size)
		if err != nil || n < fleet.NodesPerRack {
			return fmt.Errorf("-nodes %q: not a number of at least %d nodes", size, fleet.NodesPerRack)
		}
		err = measure(ctx, n, o, &t)
		t.print(os.Stdout) // what was measured before an error counts
		if err != nil {
			return fmt.Errorf("%d nodes: %w", n, err)
		}
	}
	return nil
}

// measure makes one cluster and runs all phases in it.
func measure(ctx context.Context, n int, o options, t *table) (err error) {
	if o.pods == 0 {
		o.pods = 10 * n
	}
	o.faults, o.burst = min(o.faults, n*4/5), min(o.burst, n*4/5)
	c, err := cluster.Start(ctx, cluster.Options{APIOnly: true, Audit: true, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := c.With(ctx)
	defer cancel(nil)
	if err := c.InstallRemediator(ctx); err != nil {
		return err
	}
	begun := time.Now()
	f, err := fleet.New(ctx, c, n, o.pods)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d nodes and %d pods stored after %s\n", n, o.pods, time.Since(begun).Round(time.Second))
	b := &bench{Cluster: c, fleet: f, options: o, table: t, policy: "policy.yaml"}
	t.column(fmt.Sprintf("%d nodes, %d pods", n, o.pods))
	if b.policy, err = b.writePolicy(); err != nil {
		return err
	}
	for _, p := range phases {
		if !slices.Contains(o.phases, p.name) {
			continue
		}
		begun := time.Now()
		if err := p.run(b, ctx); err != nil {
			return fmt.Errorf("phase %s: %w", p.name, err)
		}
		fmt.Fprintf(os.Stderr, "phase %s took %s\n", p.name, time.Since(begun).Round(time.Second))
	}
	return nil
}
