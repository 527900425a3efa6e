// Command latency measures how long an Xid takes from the kernel log to the exit of our plugin, to the Event, to the
// NodeCondition and to the taint, on the real node-problem-detector, and compares it with NPD's own log monitor, which
// the same NPD runs on the same kernel records with an equivalent rule. It prints a Markdown table.
//
// It needs root, because NPD's log monitor reads only the kernel log.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/kernellog"
	"github.com/pitcrew-dev/pitcrew/e2e/timeline"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	node         = "this-machine"
	byLogMonitor = "GPUXidErrorByLogMonitor"
	// faultsPerNPD is how many faults one NPD process sees. Of Warnings with one source its Event client lets 25
	// pass and then one every five minutes (client-go tools/record, EventSourceObjectSpamFilter).
	faultsPerNPD = 20
	// patience is much longer than any step takes.
	patience = 30 * time.Second
)

func main() {
	faults := flag.Int("faults", 50, "how many faults to measure")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *faults, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "latency:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, faults int, out, progress io.Writer) (err error) {
	c, err := cluster.Start(ctx, cluster.Options{Progress: progress})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := c.With(ctx)
	defer cancel(nil)

	log, err := kernellog.OpenNFT()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	// A tmpfs, as /run/pitcrew is on a node.
	stateDir, err := os.MkdirTemp("/dev/shm", "pitcrew-latency-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(stateDir)) }()
	b := &bench{Cluster: c, log: log, stateDir: stateDir, progress: progress}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	for first := 1; first <= faults; first += faultsPerNPD {
		if err := b.batch(ctx, first, min(faults, first+faultsPerNPD-1)); err != nil {
			return err
		}
	}
	return write(out, b.rows())
}

// bench is one run.
type bench struct {
	*cluster.Cluster
	log      *kernellog.Log
	stateDir string
	progress io.Writer
	timeline *timeline.Timeline

	witness *witness

	readable, exit, event, condition, taint []time.Duration // from the write to the record and to ours
	theirEvent, theirCondition              []time.Duration // from the write to the log monitor's
	eventDifference, conditionDifference    []time.Duration // ours less theirs, fault by fault
	toTaint                                 []time.Duration // from our condition to the taint
}

func (b *bench) prepare(ctx context.Context) (err error) {
	if b.witness, err = newWitness(); err != nil {
		return err
	}
	if err := b.AddThisMachine(ctx, node); err != nil {
		return err
	}
	policy, err := b.ShippedPolicy(0)
	if err != nil {
		return err
	}
	if _, err := b.StartRemediator(ctx, "-policy", policy); err != nil {
		return err
	}
	b.timeline, err = timeline.New(ctx, b.Client,
		timeline.Source{List: &corev1.NodeList{}}, timeline.Source{List: &corev1.EventList{}})
	return err
}

// batch measures the faults from first to last with one NPD.
func (b *bench) batch(ctx context.Context, first, last int) error {
	npd, err := b.StartNPD(ctx, cluster.NPD{
		Node: node,
		Monitors: []cluster.Monitor{{
			File: filepath.Join(b.Root, "monitors", conditions.GPUXidError+".json"),
			Args: append(slices.Clone(b.log.Args), "-state-dir", b.stateDir),
		}},
		LogMonitors: []string{filepath.Join(b.Root, "bench", "latency", "logmonitor.json")},
		Args:        []string{"-v=2"}, // it logs each run of a plugin
	})
	if err != nil {
		return err
	}
	defer npd.Kill()
	if err := b.heal(ctx); err != nil {
		return err
	}
	if err := b.follow(ctx, time.Now(), []*timeline.Step{
		timeline.ConditionIs(node, byLogMonitor, corev1.ConditionFalse, ""),
	}); err != nil {
		return err
	}
	for i := first; i <= last; i++ {
		if err := b.fault(ctx, npd, i); err != nil {
			return fmt.Errorf("fault %d: %w", i, err)
		}
		if err := b.heal(ctx); err != nil {
			return fmt.Errorf("after fault %d: %w", i, err)
		}
	}
	return nil
}

// fault writes one Xid and measures its consequences.
func (b *bench) fault(ctx context.Context, npd *cluster.Process, i int) error {
	// NPD writes conditions once a second. The faults must not be synchronous with it.
	select {
	case <-time.After(rand.N(time.Second)):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	gpu := fmt.Sprintf("%04x:%02x:00", i>>8, i&0xff)
	// The log monitor never clears its condition and does not report a second fault with the same reason, so the
	// reasons take turns.
	rank := i % 2
	if err := b.witness.drain(); err != nil {
		return err
	}
	type sight struct {
		at  time.Time
		err error
	}
	readable := make(chan sight, 1)
	seeing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	go func() {
		at, err := b.witness.await(seeing, gpu)
		readable <- sight{at, err}
	}()
	written, err := b.log.Write(ctx, fmt.Sprintf("NVRM: Xid (PCI:%s): 119, pid=1234, name=rank%d, Timeout after 6s of waiting for RPC response from GPU0 GSP!", gpu, rank))
	if err != nil {
		return err
	}
	reason := fmt.Sprintf("XidOfRank%d", rank)
	event := timeline.EventIs("Node", node, "GPUXidSeen", gpu)
	condition := timeline.ConditionIs(node, conditions.GPUXidError, corev1.ConditionTrue, gpu)
	taint := timeline.Tainted(node)
	theirEvent := timeline.EventIs("Node", node, reason, gpu)
	theirCondition := timeline.ConditionIs(node, byLogMonitor, corev1.ConditionTrue, reason)
	if err := b.follow(ctx, written, []*timeline.Step{event}, []*timeline.Step{condition, taint},
		[]*timeline.Step{theirEvent}, []*timeline.Step{theirCondition}); err != nil {
		return err
	}
	exit, err := pluginExit(npd.Log(), gpu)
	if err != nil {
		return err
	}
	first := <-readable
	if first.err != nil {
		return first.err
	}
	b.readable = append(b.readable, first.at.Sub(written))
	b.exit = append(b.exit, exit.Sub(written))
	b.event = append(b.event, event.After)
	b.condition = append(b.condition, condition.After)
	b.taint = append(b.taint, taint.After)
	b.theirEvent = append(b.theirEvent, theirEvent.After)
	b.theirCondition = append(b.theirCondition, theirCondition.After)
	b.eventDifference = append(b.eventDifference, event.After-theirEvent.After)
	b.conditionDifference = append(b.conditionDifference, condition.After-theirCondition.After)
	b.toTaint = append(b.toTaint, taint.After-condition.After)
	fmt.Fprintf(b.progress, "%d: exit %s, Event %s (log monitor %s), condition %s (log monitor %s), taint %s\n", i, ms(exit.Sub(written)),
		ms(event.After), ms(theirEvent.After), ms(condition.After), ms(theirCondition.After), ms(taint.After))
	return nil
}

// heal clears the faults and waits until the node is released.
func (b *bench) heal(ctx context.Context) error {
	if _, err := b.RunPlugin(ctx, "xid", "-state-dir", b.stateDir, "-clear"); err != nil {
		return err
	}
	return b.follow(ctx, time.Now(), []*timeline.Step{
		timeline.ConditionIs(node, conditions.GPUXidError, corev1.ConditionFalse, ""), timeline.Released(node),
	})
}

func (b *bench) follow(ctx context.Context, begun time.Time, chains ...[]*timeline.Step) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return b.timeline.Follow(ctx, io.Discard, begun, chains...)
}

func (b *bench) rows() []row {
	return []row{
		{"write to record readable (the kernel's share)", b.readable, 0},
		{"write to exit of the plugin", b.exit, 10 * time.Millisecond},
		{"write to Event seen in a watch", b.event, 0},
		{"write to Event, NPD's log monitor", b.theirEvent, 0},
		{"Event: ours less NPD's log monitor's, paired", b.eventDifference, 0},
		{"write to condition seen in a watch", b.condition, 0},
		{"write to condition, NPD's log monitor", b.theirCondition, 0},
		{"condition: ours less NPD's log monitor's, paired", b.conditionDifference, 50 * time.Millisecond},
		{"write to taint seen in a watch", b.taint, 0},
		{"condition to taint", b.toTaint, 50 * time.Millisecond},
	}
}
