package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/fleet"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	alone = "-leader-elect=false"
	// grace is how long a remediator may take to end.
	grace = 10 * time.Second
)

// bench is one cluster with its nodes.
type bench struct {
	*cluster.Cluster
	fleet *fleet.Fleet
	options
	*table
	policy string
}

// writePolicy writes the shipped policy, with limits that are asked about each decision and never reached.
func (b *bench) writePolicy() (string, error) {
	shipped, err := b.ShippedPolicy(10 * time.Minute)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(shipped)
	if err != nil {
		return "", fmt.Errorf("read the policy: %w", err)
	}
	for from, to := range map[string]string{
		"budget: {maxNodes: 3, maxPercent: 10}": "budget: {maxPercent: 95}",
		"breaker: {maxNodes: 10,":               "breaker: {maxNodes: 100000,",
		"    maxPercent: 50\n":                  "    maxPercent: 95\n",
		"    for: 2m\n":                         "    for: 20s\n",
	} {
		if !strings.Contains(string(text), from) {
			return "", fmt.Errorf("the shipped policy has no %q", from)
		}
		text = []byte(strings.Replace(string(text), from, to, 1))
	}
	path := filepath.Join(b.Dir, "scale-policy.yaml")
	return path, os.WriteFile(path, text, 0o644)
}

// start resets the nodes, some of them to a fault, and starts a remediator.
func (b *bench) start(ctx context.Context, faulty []string, args ...string) (*cluster.Process, error) {
	if err := b.fleet.Reset(ctx, faulty); err != nil {
		return nil, err
	}
	return b.remediator(ctx, args...)
}

func (b *bench) remediator(ctx context.Context, args ...string) (*cluster.Process, error) {
	return b.RunRemediator(ctx, nil, append([]string{"-policy", b.policy}, args...)...)
}

// What a remediator logs when it starts to act, and when another one leads.
const acts, standsBy, leads = "Starting workers", "ttempting to acquire leader lease", "uccessfully acquired lease"

// idle waits until a remediator has logged a text and has done what its start asks for: it uses less than a tenth of a core for three
// seconds.
func (b *bench) idle(ctx context.Context, p *cluster.Process, text string) error {
	if err := b.logged(ctx, p, text); err != nil {
		return err
	}
	last, err := cluster.UsageOf(p.PID())
	if err != nil {
		return err
	}
	for calm := 0; calm < 3; {
		if err := cluster.Pause(ctx, time.Second); err != nil {
			return fmt.Errorf("wait until the remediator is idle: %w", err)
		}
		now, err := cluster.UsageOf(p.PID())
		if err != nil {
			return err
		}
		if calm++; now.CPU-last.CPU > 100*time.Millisecond {
			calm = 0
		}
		last = now
	}
	return nil
}

// during is what the remediator uses while do runs.
func (b *bench) during(p *cluster.Process, do func() error) (used sample, took time.Duration, err error) {
	before, err := b.sample(p)
	if err != nil {
		return used, 0, err
	}
	if err := do(); err != nil {
		return used, 0, err
	}
	after, err := b.sample(p)
	return after.since(before), after.At.Sub(before.At), err
}

// beat writes heartbeats for a time.
func (b *bench) beat(ctx context.Context, d time.Duration) (written int, err error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return b.fleet.Heartbeats(ctx)
}

// quiet has only heartbeats come in, at a remediator and at a bare cache.
func (b *bench) quiet(ctx context.Context) error {
	p, err := b.start(ctx, nil, alone)
	if err != nil {
		return err
	}
	defer p.Stop(grace)
	if err := b.idle(ctx, p, acts); err != nil {
		return err
	}
	bare, err := b.bareCache(ctx)
	if err != nil {
		return err
	}
	defer func() { _, _ = bare.Process.Kill(), bare.Wait() }()
	before, err := cluster.UsageOf(bare.Process.Pid)
	if err != nil {
		return err
	}
	var beats int
	used, took, err := b.during(p, func() (err error) {
		beats, err = b.beat(ctx, b.options.quiet)
		return err
	})
	if err != nil {
		return err
	}
	after, err := cluster.UsageOf(bare.Process.Pid)
	if err != nil {
		return err
	}
	b.set("quiet: heartbeats in a second", "%.0f", float64(beats)/took.Seconds())
	b.set("quiet: CPU, of a core", "%.2f %%", percent(used.CPU, took))
	b.set("quiet: CPU for a heartbeat", "%.2f ms", msPer(used.CPU, max(1, beats)))
	b.set("quiet: CPU of a bare cache of the nodes, for a heartbeat", "%.2f %%, %.2f ms", percent(after.CPU-before.CPU, took), msPer(after.CPU-before.CPU, max(1, beats)))
	b.set("quiet: requests in "+b.options.quiet.String(), "%s", used)
	b.set("quiet: memory (RSS), with its peak since the start", "%.0f MB, %.0f MB", used.RSS, used.Peak)
	b.set("quiet: memory (RSS) of a bare cache of the nodes, with its peak", "%.0f MB, %.0f MB", after.RSS, after.Peak)
	return nil
}

// standing starts a remediator while nodes are faulty, and lets them stand.
func (b *bench) standing(ctx context.Context) error {
	faulty := b.fleet.Spread(b.faults)
	if err := b.fleet.Reset(ctx, faulty); err != nil {
		return err
	}
	begun := time.Now()
	before, err := b.requests()
	if err != nil {
		return err
	}
	p, err := b.remediator(ctx, alone)
	if err != nil {
		return err
	}
	defer p.Stop(grace)
	ctx, cancel := context.WithTimeoutCause(ctx, b.wait+b.options.standing, errors.New("it takes too long"))
	defer cancel()
	first, last, err := b.fleet.UntilTainted(ctx, faulty)
	if err != nil {
		return err
	}
	cold, err := b.sample(p)
	if err != nil {
		return err
	}
	cold = cold.since(sample{requests: before})
	what := fmt.Sprintf("start with %d faults: ", len(faulty))
	b.set(what+"first taint, last taint", "%.1f s, %.1f s", first.Sub(begun).Seconds(), last.Sub(begun).Seconds())
	b.set(what+"CPU until then, for a fault", "%.1f s, %.1f ms", cold.CPU.Seconds(), msPer(cold.CPU, len(faulty)))
	b.set(what+"requests for a fault until then", "%.2f", float64(cold.total())/float64(len(faulty)))
	b.set(what+"requests until then", "%s", cold)
	b.set(what+"memory (RSS), with its peak", "%.0f MB, %.0f MB", cold.RSS, cold.Peak)
	// A new quarantine looks for jobs some more times within the first minute.
	if _, err := b.beat(ctx, 70*time.Second); err != nil {
		return err
	}
	settled, err := b.requests()
	if err != nil {
		return err
	}
	b.set(what+"requests for a fault, with its jobs and evidence, until 70 s later", "%.2f", float64(sample{requests: settled}.since(sample{requests: before}).total())/float64(len(faulty)))
	used, took, err := b.during(p, func() error {
		_, err := b.beat(ctx, b.options.standing)
		return err
	})
	if err != nil {
		return err
	}
	faultMinutes := float64(len(faulty)) * took.Minutes()
	what = fmt.Sprintf("%d faults that stand, with heartbeats: ", len(faulty))
	b.set(what+"CPU, of a core", "%.2f %%", percent(used.CPU, took))
	b.set(what+"CPU for a fault in a minute", "%.2f ms", float64(used.CPU)/float64(time.Millisecond)/faultMinutes)
	b.set(what+"requests for a fault in a minute", "%.3f", float64(used.total())/faultMinutes)
	b.set(what+"requests in "+b.options.standing.String(), "%s", used)
	b.set(what+"memory (RSS)", "%.0f MB", used.RSS)
	return nil
}

// burst makes many nodes faulty at the same time. Then it does so again, and a bare client that watches the nodes answers each fault
// with the same patch as the remediator did. Both take turns: the first burst of a cluster finds an API server that is not warm.
func (b *bench) burst(ctx context.Context) error {
	names := b.fleet.Spread(b.options.burst)
	what := fmt.Sprintf("%d faults at once: ", len(names))
	var ours, theirs, wrote []string
	var sums [2]time.Duration
	for range b.rounds {
		used, conditions, tainted, err := b.ourBurst(ctx, names)
		if err != nil {
			return err
		}
		bare, err := b.bare(ctx, names, b.fleet.Node(names[0]))
		if err != nil {
			return err
		}
		wrote, ours, theirs = append(wrote, seconds(conditions)), append(ours, seconds(tainted)), append(theirs, seconds(bare))
		sums[0], sums[1] = sums[0]+tainted, sums[1]+bare
		b.set(what+"CPU for a fault", "%.1f ms", msPer(used.CPU, len(names)))
		b.set(what+"requests for a fault until then", "%.2f", float64(used.total())/float64(len(names)))
		b.set(what+"requests until then", "%s", used)
		b.set(what+"memory (RSS), with its peak", "%.0f MB, %.0f MB", used.RSS, used.Peak)
	}
	b.set(what+"conditions written", "%s", strings.Join(wrote, ", "))
	b.set(what+"last taint", "%s", strings.Join(ours, ", "))
	b.set(what+"last taint by a bare client with the same patches", "%s", strings.Join(theirs, ", "))
	b.set(what+"ratio", "%.2f", sums[0].Seconds()/sums[1].Seconds())
	return nil
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// ourBurst is a burst that a remediator answers.
func (b *bench) ourBurst(ctx context.Context, names []string) (used sample, wrote, tainted time.Duration, err error) {
	p, err := b.start(ctx, nil, alone)
	if err != nil {
		return used, 0, 0, err
	}
	defer p.Stop(grace)
	if err := b.idle(ctx, p, acts); err != nil {
		return used, 0, 0, err
	}
	used, _, err = b.during(p, func() (err error) {
		wrote, tainted, err = b.breakAll(ctx, names)
		return err
	})
	return used, wrote, tainted, err
}

// breakAll makes nodes faulty and waits for the last taint.
func (b *bench) breakAll(ctx context.Context, names []string) (wrote, tainted time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.wait, errors.New("it takes too long"))
	defer cancel()
	begun := time.Now()
	if err := b.fleet.Each(ctx, names, b.breakOne); err != nil {
		return 0, 0, err
	}
	wrote = time.Since(begun)
	_, last, err := b.fleet.UntilTainted(ctx, names)
	return wrote, last.Sub(begun), err
}

func (b *bench) breakOne(ctx context.Context, name string) error {
	return b.fleet.Report(ctx, name, conditions.GPUXidError, corev1.ConditionTrue, fleet.Fault)
}

// bare is a burst in which a client that decides nothing writes the taints: it has as many workers as the remediator. It writes them for what
// the watch of this program shows, which is there in both bursts; the watch that any such client needs is that of a bare cache beside it.
func (b *bench) bare(ctx context.Context, names []string, example *corev1.Node) (time.Duration, error) {
	if err := b.fleet.Reset(ctx, nil); err != nil {
		return 0, err
	}
	cache, err := b.bareCache(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _, _ = cache.Process.Kill(), cache.Wait() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	faults := make(chan *corev1.Node, len(b.fleet.Names))
	b.fleet.OnChange(func(n *corev1.Node) {
		if !fleet.Tainted(n) && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == conditions.GPUXidError && c.Status == corev1.ConditionTrue
		}) {
			faults <- n
		}
	})
	defer b.fleet.OnChange(nil)
	const workers = 16
	for range workers {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case n := <-faults:
					if err := b.patchLike(ctx, n, example); err != nil {
						cancel(err)
					}
				}
			}
		}()
	}
	_, tainted, err := b.breakAll(ctx, names)
	return tainted, err
}

// patchLike gives a node what another one has of the remediator.
func (b *bench) patchLike(ctx context.Context, n, example *corev1.Node) error {
	ours := func(all map[string]string) map[string]string {
		kept := map[string]string{}
		for key, value := range all {
			if strings.HasPrefix(key, conditions.Domain) {
				kept[key] = value
			}
		}
		return kept
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion, "labels": ours(example.Labels), "annotations": ours(example.Annotations)},
		"spec":     map[string]any{"taints": example.Spec.Taints},
	})
	if err != nil {
		return err
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	if err := b.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("taint %s: %w", n.Name, err)
	}
	return nil
}

// rack has all nodes of a rack lose contact, and return.
func (b *bench) rack(ctx context.Context) error {
	p, err := b.start(ctx, nil, alone)
	if err != nil {
		return err
	}
	defer p.Stop(grace)
	if err := b.idle(ctx, p, acts); err != nil {
		return err
	}
	lost := b.fleet.Names[:fleet.NodesPerRack]
	quarantined := 0
	used, _, err := b.during(p, func() error {
		for _, status := range []corev1.ConditionStatus{corev1.ConditionUnknown, corev1.ConditionTrue} {
			if err := b.fleet.Each(ctx, lost, func(ctx context.Context, name string) error {
				return b.fleet.Report(ctx, name, corev1.NodeReady, status, "Kubelet stopped posting node status.")
			}); err != nil {
				return err
			}
			if err := cluster.Pause(ctx, time.Minute); err != nil {
				return err
			}
			quarantined = max(quarantined, len(b.fleet.Since()))
		}
		return nil
	})
	if err != nil {
		return err
	}
	what := fmt.Sprintf("a rack of %d nodes lost for a minute: ", len(lost))
	b.set(what+"nodes quarantined", "%d", quarantined)
	b.set(what+"CPU for a node", "%.1f ms", msPer(used.CPU, len(lost)))
	b.set(what+"requests", "%s", used)
	return nil
}

// upgradeSteps are the values of the GPU operator's label, in their order.
var upgradeSteps = []string{
	"upgrade-required", "cordon-required", "wait-for-jobs-required", "pod-deletion-required", "pod-restart-required",
	"validation-required", "uncordon-required", "upgrade-done",
}

// upgrade has the GPU operator upgrade the driver of every 20th node, some at a time. While a node has no driver, its checks answer
// Unknown.
func (b *bench) upgrade(ctx context.Context) error {
	p, err := b.start(ctx, nil, alone)
	if err != nil {
		return err
	}
	defer p.Stop(grace)
	if err := b.idle(ctx, p, acts); err != nil {
		return err
	}
	names := b.fleet.Spread(max(fleet.NodesPerRack, len(b.fleet.Names)/20))
	used, took, err := b.during(p, func() error { return b.fleet.Each(ctx, names, b.upgradeOne) })
	if err != nil {
		return err
	}
	what := "driver upgrade of 5 % of the nodes, 16 at a time: "
	b.set(what+"nodes, time", "%d, %.0f s", len(names), took.Seconds())
	b.set(what+"CPU for a node, which changes 12 times", "%.1f ms", msPer(used.CPU, len(names)))
	b.set(what+"requests", "%s", used)
	b.set(what+"nodes quarantined", "%d", len(b.fleet.Since()))
	return nil
}

func (b *bench) upgradeOne(ctx context.Context, name string) error {
	checks := []corev1.NodeConditionType{conditions.GPUMemoryError, conditions.NVLinkDown}
	for _, step := range upgradeSteps {
		cordoned := step != "upgrade-required" && step != "upgrade-done"
		patch := fmt.Sprintf(`{"metadata":{"labels":{"nvidia.com/gpu-driver-upgrade-state":%q}},"spec":{"unschedulable":%t}}`, step, cordoned)
		target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := b.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			return fmt.Errorf("upgrade %s: %w", name, err)
		}
		var status corev1.ConditionStatus
		switch step {
		case "pod-restart-required":
			status = corev1.ConditionUnknown
		case "uncordon-required":
			status = corev1.ConditionFalse
		default:
			continue
		}
		for _, check := range checks {
			if err := b.fleet.Report(ctx, name, check, status, "the driver is being upgraded"); err != nil {
				return err
			}
		}
	}
	return nil
}

// failover kills the leader while faults stand, and at once makes one more node faulty.
func (b *bench) failover(ctx context.Context) error {
	faulty := b.fleet.Spread(b.faults)
	args := strings.Fields(b.leader)
	leader, err := b.start(ctx, faulty, args...)
	if err != nil {
		return err
	}
	if _, _, err := b.fleet.UntilTainted(ctx, faulty); err != nil {
		return err
	}
	healthy := slices.DeleteFunc(slices.Clone(b.fleet.Names), func(name string) bool { return slices.Contains(faulty, name) })
	var elected, decided []time.Duration
	for i := range b.failovers {
		standby, err := b.remediator(ctx, args...)
		if err != nil {
			return err
		}
		if err := b.idle(ctx, standby, standsBy); err != nil {
			return err
		}
		killed := time.Now()
		leader.Kill()
		if err := b.breakOne(ctx, healthy[i]); err != nil {
			return err
		}
		if err := b.logged(ctx, standby, leads); err != nil {
			return err
		}
		elected = append(elected, time.Since(killed))
		waiting, cancel := context.WithTimeoutCause(ctx, b.wait, errors.New("it takes too long"))
		at, _, err := b.fleet.UntilTainted(waiting, healthy[i:i+1])
		cancel()
		if err != nil {
			return err
		}
		decided = append(decided, at.Sub(killed))
		leader = standby
		fmt.Fprintf(os.Stderr, "failover: elected after %s, decided after %s\n", elected[i].Round(time.Millisecond), decided[i].Round(time.Millisecond))
	}
	leader.Stop(grace)
	what := fmt.Sprintf("leader killed %d times, %d faults stand: ", b.failovers, len(faulty))
	b.set(what+"new leader elected, median (longest)", "%s", spread(elected))
	b.set(what+"taint for a new fault, median (longest)", "%s", spread(decided))
	return nil
}

func spread(all []time.Duration) string {
	slices.Sort(all)
	return fmt.Sprintf("%.1f s (%.1f s)", all[len(all)/2].Seconds(), all[len(all)-1].Seconds())
}

// logged waits until a process has logged a text.
func (b *bench) logged(ctx context.Context, p *cluster.Process, text string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.wait, fmt.Errorf("%s has not logged %q", p.Name, text))
	defer cancel()
	for !strings.Contains(p.Log(), text) {
		if err := cluster.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}
