// Command restart measures how long a training job stands still after a fault: from the NodeCondition of one of its
// nodes until all ranks of a new incarnation run on other nodes. It compares the remediator, with its defaults, with the least
// that keeps two incarnations apart (cordon, suspend, wait for the last pod, resume), and with cordoning the node and deleting
// the job's pods by label. That is kcover's flow, simulated here without any delay of its own. KWOK simulates the nodes and
// kubelets. It prints a Markdown table.
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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

const (
	pool = "bench"
	// death is how long a rank takes to end after SIGTERM.
	death    = time.Second
	patience = 10 * time.Minute

	policy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxPercent: 100}
  rules: {gpu: {match: {condition: GPUXidError, repair: [Reboot]}, restartJobs: true}}
`
)

func main() {
	limit := flag.Duration("limit", 3*time.Minute, "how long to wait for a job")
	sizes := flag.String("ranks", "64,512", "how many ranks a job has")
	only := flag.String("only", "", "measure only the rows whose kind and method match this regular expression")
	rounds := flag.Int("rounds", 1, "how many faults of each kind")
	flag.Parse()
	chosen, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "restart: -only:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = run(ctx, strings.Split(*sizes, ","), chosen, *rounds, *limit, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "restart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, sizes []string, only *regexp.Regexp, rounds int, limit time.Duration, out, progress io.Writer) (err error) {
	log.SetLogger(logr.Discard())
	var rows []row
	most := 0
	for _, size := range sizes {
		ranks, err := strconv.Atoi(size)
		if err != nil {
			return fmt.Errorf("-ranks: %w", err)
		}
		most = max(most, ranks)
		for _, k := range kinds {
			for _, m := range k.methods {
				if only.MatchString(k.name + " " + m.name) {
					rows = append(rows, row{kind: k, ranks: ranks, method: m})
				}
			}
		}
	}
	c, err := cluster.Start(ctx, cluster.Options{JobSet: true, Progress: progress})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := c.With(ctx)
	defer cancel(nil)

	if err := c.StartTrainingOperator(ctx); err != nil {
		return err
	}
	// Every fault removes a node permanently.
	if _, err := c.AddNodes(ctx, pool, most+rounds*len(rows), nil); err != nil {
		return err
	}
	path := filepath.Join(c.Dir, "policy.yaml")
	if err := os.WriteFile(path, []byte(policy), 0o644); err != nil {
		return err
	}
	if _, err := c.StartRemediator(ctx, "-policy", path, "-leader-elect=false"); err != nil {
		return err
	}
	for round := range rounds {
		for i := range rows {
			r := &rows[i]
			o, err := measure(ctx, c, fmt.Sprintf("bench-%d-%d", round, i), *r, limit)
			if err != nil {
				return fmt.Errorf("%s of %d ranks, %s: %w", r.kind.name, r.ranks, r.method.name, err)
			}
			r.outcomes = append(r.outcomes, o)
			fmt.Fprintf(progress, "%s of %d ranks, %s: %s\n", r.kind.name, r.ranks, r.method.name, o)
		}
	}
	return write(out, rows)
}

// row is one line of the table.
type row struct {
	kind     kind
	ranks    int
	method   method
	outcomes []outcome
}

func write(out io.Writer, rows []row) error {
	var table strings.Builder
	table.WriteString("| job | ranks | how | fault to all ranks running elsewhere, median (range) | to the last old rank gone, median | new ranks beside old ones, at most | failures counted |\n|---|--:|---|--:|--:|--:|--:|\n")
	for _, r := range rows {
		var took, gone []time.Duration
		var ends []string
		beside, failures := 0, 0
		for _, o := range r.outcomes {
			if o.end == "" {
				took, gone = append(took, o.took), append(gone, o.gone)
			} else {
				ends = append(ends, o.end)
			}
			beside, failures = max(beside, o.beside), max(failures, o.failures)
		}
		slices.Sort(took)
		slices.Sort(gone)
		old := ""
		if len(took) > 0 {
			old = seconds(gone[len(gone)/2])
			text := seconds(took[len(took)/2])
			if len(took) > 1 {
				text += fmt.Sprintf(" (%s to %s)", seconds(took[0]), seconds(took[len(took)-1]))
			}
			ends = append([]string{text}, ends...)
		}
		fmt.Fprintf(&table, "| %s | %d | %s | %s | %s | %d | %d |\n", r.kind.name, r.ranks, r.method.name, strings.Join(ends, "; "), old, beside, failures)
	}
	_, err := io.WriteString(out, table.String())
	return err
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
