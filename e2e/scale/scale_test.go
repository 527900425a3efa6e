// Package scale holds what the remediator costs on large clusters, as far as it can be counted: requests, reconciles and bytes. Package
// bench/scale measures times.
package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/fleet"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{APIOnly: true, Audit: true}) }

const (
	patience = 3 * time.Minute
	// account is the user of the remediator in the audit log.
	account = "system:serviceaccount:pitcrew:pitcrew-remediator"
	// policy has all limits that look at other nodes, and none is reached.
	policy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxPercent: 90}
  breaker: {maxNodes: 10000, window: 10m, coolDown: 30m, pace: 5m}
  correlated: {maxPercent: 90, minNodes: 4, window: 2m, scopes: [topology.kubernetes.io/rack]}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [Reboot]}, restartJobs: true}
    after-65s: {match: {condition: GPUMemoryError, repair: [Reboot]}, for: 65s}
    after-30s: {match: {condition: NVLinkDown, repair: [Reboot]}, for: 30s}
`
)

// world is a fleet with a remediator.
type world struct {
	*testing.T
	*cluster.Cluster
	fleet   *fleet.Fleet
	metrics string
	pid     int
}

func (w world) Context() context.Context { return w.T.Context() }

func start(t *testing.T, nodes, pods int) world {
	t.Helper()
	return startWith(t, policy, nodes, pods)
}

func startWith(t *testing.T, policy string, nodes, pods int, args ...string) world {
	t.Helper()
	w := world{T: t, Cluster: clustertest.Get(t), metrics: clustertest.FreeAddress(t)}
	var err error
	if w.fleet, err = fleet.New(t.Context(), w.Cluster, nodes, pods); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := w.StartRemediator(t.Context(), append([]string{"-policy", path, "-leader-elect=false", "-metrics-bind-address", w.metrics}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	w.pid = p.PID()
	t.Cleanup(func() {
		p.Stop(10 * time.Second)
		if t.Failed() {
			t.Logf("log of the remediator:\n%s", p.Log())
		}
		if err := w.Client.DeleteAllOf(context.Background(), &corev1.Node{}); err != nil {
			t.Error(err)
		}
	})
	clustertest.Until(t, patience, "all nodes were decided about", func() error {
		if n := w.metric("controller_runtime_reconcile_total", "node"); n < float64(nodes) {
			return fmt.Errorf("%g of %d", n, nodes)
		}
		return nil
	})
	return w
}

// metric is the sum of a counter of the remediator over all labels, those of one controller only unless controller is empty. It is zero
// while the remediator does not answer yet.
func (w world) metric(name, controller string) (sum float64) {
	w.Helper()
	text, err := cluster.Scrape(w.Context(), w.metrics)
	if err != nil {
		return 0 // its caches are not filled yet
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		w.Fatal(err)
	}
	for _, m := range families[name].GetMetric() {
		of := controller
		for _, label := range m.GetLabel() {
			if label.GetName() == "controller" {
				of = label.GetValue()
			}
		}
		if of == controller {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}

// requests are those of the remediator so far, except watches.
func (w world) requests() []string {
	w.Helper()
	log, err := w.AuditLog()
	if err != nil {
		w.Fatal(err)
	}
	var all []string
	for _, a := range log {
		if a.User.Username == account && a.Verb != "watch" {
			all = append(all, a.Verb+" "+a.RequestURI)
		}
	}
	return all
}

// quarantine makes nodes faulty and waits until they are tainted.
func (w world) quarantine(names ...string) {
	w.Helper()
	w.quarantineFor(conditions.GPUXidError, names...)
}

func (w world) quarantineFor(condition corev1.NodeConditionType, names ...string) {
	w.Helper()
	ctx, cancel := context.WithTimeoutCause(w.Context(), patience, errors.New("it takes too long"))
	defer cancel()
	if err := w.fleet.Each(ctx, names, func(ctx context.Context, name string) error {
		return w.fleet.Report(ctx, name, condition, corev1.ConditionTrue, fleet.Fault)
	}); err != nil {
		w.Fatal(err)
	}
	if _, _, err := w.fleet.UntilTainted(ctx, names); err != nil {
		w.Fatal(err)
	}
}

func TestHeartbeatsAndStandingFaultsCostNoRequests(t *testing.T) {
	const nodes, faults = 320, 64
	w := start(t, nodes, 10*nodes)
	// The first fault also makes what is made once.
	w.quarantine(w.fleet.Names[nodes-1])
	begun, decided := w.requests(), w.metric("controller_runtime_reconcile_total", "node")
	if err := w.fleet.Each(t.Context(), w.fleet.Names, w.fleet.Beat); err != nil {
		t.Fatal(err)
	}
	w.quarantine(w.fleet.Names[nodes-2]) // after all heartbeats were seen
	quiet := w.requests()[len(begun):]
	if len(quiet) > 2*mostRequests {
		t.Errorf("%d heartbeats and a fault cost %d requests:\n%s", 2*nodes, len(quiet), strings.Join(quiet, "\n"))
	}
	if n := w.metric("controller_runtime_reconcile_total", "node") - decided; n > 20 {
		t.Errorf("%d heartbeats and a fault caused %g reconciles", 2*nodes, n)
	}

	before := len(w.requests())
	w.quarantine(w.fleet.Spread(faults)...)
	burst := w.requests()[before:]
	written, discovery := 0, 0
	for _, request := range burst {
		switch {
		case strings.HasPrefix(request, "patch /api/v1/nodes/"):
			written++
		case strings.HasPrefix(request, "get /apis/") && strings.Count(request, "/") == 3:
			discovery++
		}
	}
	if len(burst) > mostRequests*faults || written > faults || discovery > faults/2 {
		t.Errorf("%d faults at once cost %d requests, %d of them to write nodes and %d to find out which kinds exist:\n%s",
			faults, len(burst), written, discovery, strings.Join(burst, "\n"))
	}

	// The remediator itself says when 65 s are over, and with them the last look at the pods of a new quarantine, and then 30 s more.
	w.quarantineFor(conditions.GPUMemoryError, w.fleet.Names[1])
	before = len(w.requests())
	w.quarantineFor(conditions.NVLinkDown, w.fleet.Names[2])
	if standing := w.requests()[before:]; len(standing) > faults/2 {
		t.Errorf("%d faults that stand for half a minute cost %d requests, more than one a minute each:\n%s", faults, len(standing), strings.Join(standing, "\n"))
	}
}

// mostRequests is how many requests a fault may cost before it only stands: its patch, an Event on the node and one on the job, its evidence, and
// four looks at the jobs of the node, because a scheduler may not have seen the taint. Each lists the pods, and reads a job and its namespace.
const mostRequests = 16

func TestADecisionCostsTheSameOnALargerCluster(t *testing.T) {
	const faults = 32
	bytes := func(nodes int) (perFault float64) {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			w := start(t, nodes, 0)
			w.quarantine(w.fleet.Names[nodes-1])
			// A scrape makes a series for each node, and so allocates more on a larger cluster: the second one is counted out.
			first := w.metric("go_memstats_alloc_bytes_total", "")
			scrape := w.metric("go_memstats_alloc_bytes_total", "") - first
			before := w.metric("go_memstats_alloc_bytes_total", "")
			w.quarantine(w.fleet.Spread(faults)...)
			perFault = (w.metric("go_memstats_alloc_bytes_total", "") - before - scrape) / faults
			t.Logf("%.0f KB for a fault", perFault/1024)
		})
		return perFault
	}
	small, large := bytes(160), bytes(3200)
	if large > small*3/2 {
		t.Errorf("a fault costs %.0f KB among 160 nodes and %.0f KB among 3200", small/1024, large/1024)
	}
}
