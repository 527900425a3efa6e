// Command outage measures how long after an outage of the API server the next fault is tainted, and how many processes of the remediator end
// in it, by the length of the lease and the number of replicas. The processes are started again as a kubelet does. It prints a Markdown table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/outage"
)

const patience = 10 * time.Minute

func main() {
	aways := flag.String("away", "10s,1m", "how long the API server is away")
	leases := flag.String("leases", "5s,15s,30s", "the leases")
	rounds := flag.Int("rounds", 3, "how many outages of each kind")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *aways, *leases, *rounds, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "outage:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, aways, leases string, rounds int, out io.Writer) (err error) {
	log.SetLogger(logr.Discard())
	c, err := cluster.Start(ctx, cluster.Options{APIOnly: true, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	fmt.Fprintln(out, "| API server away | replicas | lease | its return to the next taint | processes that ended |\n|--:|--:|--:|--:|--:|")
	for away := range strings.SplitSeq(aways, ",") {
		for _, replicas := range []int{1, 2} {
			for lease := range strings.SplitSeq(leases, ",") {
				var took, ends []string
				for range rounds {
					t, n, err := measure(ctx, c, away, replicas, lease)
					if err != nil {
						return fmt.Errorf("away for %s, %d replicas, lease %s: %w", away, replicas, lease, err)
					}
					took, ends = append(took, fmt.Sprintf("%.1f s", t.Seconds())), append(ends, fmt.Sprint(n))
				}
				fmt.Fprintf(out, "| %s | %d | %s | %s | %s |\n", away, replicas, lease, strings.Join(took, ", "), strings.Join(ends, ", "))
			}
		}
	}
	return nil
}

// measure measures one outage in a new world.
func measure(ctx context.Context, c *cluster.Cluster, away string, replicas int, lease string) (took time.Duration, ends int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience+30*time.Minute)
	defer cancel()
	length, err := time.ParseDuration(away)
	if err != nil {
		return 0, 0, fmt.Errorf("-away: %w", err)
	}
	leaseDuration, err := time.ParseDuration(lease)
	if err != nil {
		return 0, 0, fmt.Errorf("-leases: %w", err)
	}
	w, err := outage.NewWorld(ctx, c, 9, 0)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		for _, n := range w.Stop() {
			ends += n
		}
		err = errors.Join(err, w.Clean(ctx))
	}()
	if err := w.Start(ctx, leaseDuration, make([]func(*rest.Config), replicas)...); err != nil {
		return 0, 0, err
	}
	if _, err := w.Fault(ctx); err != nil { // there is a leader
		return 0, 0, err
	}
	c.StopAPIServer()
	if err := errors.Join(cluster.Pause(ctx, length), c.StartAPIServer(ctx)); err != nil {
		return 0, 0, err
	}
	took, err = w.Fault(ctx)
	return took, 0, err
}
