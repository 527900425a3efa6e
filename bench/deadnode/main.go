// Command deadnode measures how long a training job stands still after the power-off of the node of one of its ranks: from the end
// of the kubelet until all ranks run on other nodes. It compares Kubernetes alone with the remediator and its shipped rule, by what
// proves that the node is off. The operators are real; KWOK simulates the nodes, and the power-off is the end of the KWOK that plays
// their kubelets. Jobs of all kinds run side by side in one cluster. It prints a Markdown table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// flags are how long things take. Zero means what Kubernetes or the shipped policy has.
type flags struct {
	grace, due time.Duration
	limit      time.Duration
	hold       time.Duration
	kinds      string
	force      string
}

func main() {
	var f flags
	flag.DurationVar(&f.grace, "grace", 0, "after which silence of a kubelet the node controller sets Ready to Unknown; 0: the default of Kubernetes")
	flag.DurationVar(&f.due, "for", 0, "the field for of the shipped rule; 0: as shipped")
	flag.DurationVar(&f.limit, "limit", 12*time.Minute, "how long to wait for a job to run again")
	flag.DurationVar(&f.hold, "hold", 7*time.Minute, "how long to watch a job that waits for a proof")
	flag.StringVar(&f.kinds, "kinds", "", "the kinds of jobs, separated by commas; all if empty")
	flag.StringVar(&f.force, "force", "1m,5m", "the values of forceDeleteAfter to measure with forceDelete: unreachable")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, f, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "deadnode:", err)
		os.Exit(1)
	}
}

// setting is a way in which a job gets away from a dead node: a column of the table.
type setting struct {
	name string
	// alone: Kubernetes alone. The job is not opted in, and the remediator leaves its nodes alone.
	alone bool
	// help is done about the dead node as soon as the job's Event names it as what the job waits for; nil: nothing.
	help func(context.Context, *cluster.Cluster, string) error
	// limit is how long to wait.
	limit time.Duration
}

// phase are settings that one policy has.
type phase struct {
	force    policy.ForceDelete
	after    time.Duration
	settings []setting
}

func phases(f flags) ([]phase, error) {
	all := []phase{{force: policy.ForceNever, settings: []setting{
		{name: "Kubernetes alone", alone: true, limit: f.limit},
		{name: "Pitcrew, no proof", limit: f.hold},
		{name: "taint out-of-service", help: outOfService, limit: f.hold},
		{name: "Node deleted", help: deleteNode, limit: f.hold},
	}}}
	for value := range strings.FieldsFuncSeq(f.force, func(r rune) bool { return r == ',' }) {
		after, err := time.ParseDuration(value)
		if err != nil {
			return nil, fmt.Errorf("-force: %w", err)
		}
		all = append(all, phase{policy.ForceUnreachable, after, []setting{
			{name: fmt.Sprintf("forced after %s", value), limit: f.limit},
		}})
	}
	return all, nil
}

func outOfService(ctx context.Context, c *cluster.Cluster, node string) error {
	_, err := c.Kubectl(ctx, "taint", "node", node, corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
	return err
}

func deleteNode(ctx context.Context, c *cluster.Cluster, node string) error {
	_, err := c.Kubectl(ctx, "delete", "node", node)
	return err
}

func run(ctx context.Context, f flags, out, progress io.Writer) (err error) {
	log.SetLogger(logr.Discard())
	phases, err := phases(f)
	if err != nil {
		return err
	}
	kinds := slices.DeleteFunc(slices.Clone(allKinds), func(k kind) bool {
		return f.kinds != "" && !slices.Contains(strings.Split(f.kinds, ","), k.name)
	})
	if len(kinds) == 0 {
		return fmt.Errorf("-kinds: none of %s is known", f.kinds)
	}
	// Each job stands for a cluster in which one node dies: no node waits for the eviction from another.
	c, err := cluster.Start(ctx, cluster.Options{JobSet: true, NodeGrace: f.grace, NodeEvictionRate: 1000, Progress: progress})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := c.With(ctx)
	defer cancel(nil)

	for _, k := range kinds {
		if k.operator == nil || k.operator.started {
			continue
		}
		if err := k.operator.start(c, ctx); err != nil {
			return fmt.Errorf("start the operator of %s: %w", k.name, err)
		}
		k.operator.started = true
	}
	b, err := newBench(ctx, c, f, progress)
	if err != nil {
		return err
	}
	rows := map[string]map[string]*cell{}
	all, ctx := errgroup.WithContext(ctx)
	for i, p := range phases {
		if err := b.remediator(ctx, p); err != nil {
			return err
		}
		cells, err := b.prepare(ctx, fmt.Sprintf("p%d", i), p, kinds)
		if err != nil {
			return err
		}
		var phase errgroup.Group
		for _, one := range cells {
			if rows[one.kind.name] == nil {
				rows[one.kind.name] = map[string]*cell{}
			}
			rows[one.kind.name][one.setting.name] = one
			if one.setting.alone { // beside the later phases: the remediator has no part in it
				all.Go(func() error { return b.measure(ctx, one) })
			} else {
				phase.Go(func() error { return b.measure(ctx, one) })
			}
		}
		if err := phase.Wait(); err != nil {
			return err
		}
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return write(out, kinds, phases, rows)
}

// policyFor writes the shipped policy, in mode enforce and without the limits that a run with tens of dead nodes would reach.
func (b *bench) policyFor(p phase) (string, error) {
	text, err := os.ReadFile(filepath.Join(b.c.Root, "manifests", "policy.yaml"))
	if err != nil {
		return "", err
	}
	var shipped struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       map[string]any `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &shipped); err != nil {
		return "", err
	}
	rules, _ := shipped.Spec["rules"].(map[string]any)
	rule, _ := rules["node-not-ready"].(map[string]any)
	restart, _ := shipped.Spec["restart"].(map[string]any)
	if rule == nil || restart == nil {
		return "", errors.New("the shipped policy has no rule node-not-ready, or no spec.restart")
	}
	if b.flags.due > 0 {
		rule["for"] = b.flags.due.String()
	}
	shipped.Spec["mode"] = "enforce"
	shipped.Spec["budget"] = map[string]any{"maxNodes": 10_000, "maxPercent": 100}
	delete(shipped.Spec, "breaker")
	restart["maxConcurrent"], restart["checkCapacity"] = 10_000, false // each job has its own spare node
	restart["forceDelete"] = string(p.force)
	if p.after > 0 {
		restart["forceDeleteAfter"] = p.after.String()
	}
	if text, err = yaml.Marshal(shipped); err != nil {
		return "", err
	}
	if _, err := policy.Parse(text); err != nil {
		return "", err // a remediator would run without a policy
	}
	path := filepath.Join(b.c.Dir, "policy.yaml")
	return path, os.WriteFile(path, text, 0o644)
}

func write(out io.Writer, kinds []kind, phases []phase, rows map[string]map[string]*cell) error {
	var table strings.Builder
	head, line := "| job |", "|---|"
	var asked []time.Duration
	for _, p := range phases {
		for _, s := range p.settings {
			head, line = head+" "+s.name+" |", line+"--:|"
		}
	}
	fmt.Fprintf(&table, "%s\n%s\n", head, line)
	for _, k := range kinds {
		fmt.Fprintf(&table, "| %s |", k.name)
		for _, p := range phases {
			for _, s := range p.settings {
				one := rows[k.name][s.name]
				fmt.Fprintf(&table, " %s |", one)
				if one.asked > 0 {
					asked = append(asked, one.asked)
				}
			}
		}
		table.WriteString("\n")
	}
	if len(asked) > 0 {
		slices.Sort(asked)
		fmt.Fprintf(&table, "\nThe Event that says what a job waits for came %s to %s after the power-off, in %d of the jobs.\n",
			short(asked[0]), short(asked[len(asked)-1]), len(asked))
	}
	_, err := io.WriteString(out, table.String())
	return err
}

func short(d time.Duration) string { return d.Round(time.Second).String() }
