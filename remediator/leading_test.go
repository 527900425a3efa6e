package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
	"github.com/pitcrew-dev/pitcrew/remediator/switchtest"
)

// everything switches on all that can act.
const everything = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  output: {aws: true, soperator: true, maintenance: true}
  restart: {podFailures: {enabled: true, podSelector: {team: a}}, stalls: {mode: restart}}
  repair: {mode: auto, validate: {template: check}}
  sweeps: {often: {every: 1h, template: check, maxNodes: 1}}
  firstCheck: {conditions: [GPUXidError], template: check}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}, isolate: device, restartJobs: true}
`

// runnables keeps what is added to a manager.
type runnables struct {
	ctrl.Manager
	added []manager.Runnable
}

func (r *runnables) Add(one manager.Runnable) error {
	r.added = append(r.added, one)
	return r.Manager.Add(one)
}

// Whatever acts runs only with the lease. Beside the caches, that is all but what reads the policy file.
func TestWhatLeadershipDoesToEachAction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(everything), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := policy.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	o := options{namespace: "pitcrew", repair: "pitcrew-repair", healthAddress: "0", metricsAddress: "0", leaderElect: true, leaseDuration: 5 * time.Second}
	o.preflight.Namespaces, o.rejections.Pods, o.rejections.Window = []string{"ml"}, 10, 10*time.Minute
	settings := managerOptions(o)
	settings.Controller.SkipNameValidation = ptr.To(true) // the test may run twice in a process
	settings.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
		mapper := meta.NewDefaultRESTMapper(nil)
		for kind := range clientgoscheme.Scheme.AllKnownTypes() {
			mapper.Add(kind, meta.RESTScopeNamespace)
		}
		return mapper, nil
	}
	registered := metrics.Registry
	metrics.Registry = prometheus.NewRegistry()
	defer func() { metrics.Registry = registered }()
	inside, err := ctrl.NewManager(&rest.Config{Host: "https://127.0.0.1:1"}, settings)
	if err != nil {
		t.Fatal(err)
	}
	slimmed, err := slim.NewManager(inside)
	if err != nil {
		t.Fatal(err)
	}
	mgr := &runnables{Manager: slimmed}
	if err := setup(t.Context(), mgr, o, p); err != nil {
		t.Fatal(err)
	}
	does := switchtest.Effect{Next: switchtest.Waits, UnderWay: switchtest.GoesOn}
	acting, reads := 0, false
	for _, one := range mgr.added {
		_, isCache := one.(cache.Cache)
		elected, says := one.(manager.LeaderElectionRunnable)
		switch kind := fmt.Sprintf("%T", one); {
		case !says || elected.NeedLeaderElection():
			acting++
		case kind == "*nodes.reloader":
			reads = true
		case !isCache:
			t.Errorf("%s runs without the lease", kind)
			does.Next = switchtest.Begins
		}
	}
	if acting < 15 || !reads {
		t.Errorf("of %d only %d need the lease; the policy file is read: %t", len(mgr.added), acting, reads)
	}
	switchtest.CheckRow(t, switchtest.Leads, does)
}

// A standby sees a fault, and changes nothing in the cluster as long as another replica has the lease.
func TestAReplicaThatDoesNotLeadWritesNothing(t *testing.T) {
	tm := newTeam(t, "standby", 1, nil)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: quarantine.ControllerName}}
	if err := tm.InstallRemediator(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tm.Client.Delete(t.Context(), lease.DeepCopy()); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	held := lease.DeepCopy()
	now := metav1.NowMicro()
	held.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To("another"), LeaseDurationSeconds: ptr.To[int32](3600), AcquireTime: &now, RenewTime: &now, LeaseTransitions: ptr.To[int32](0),
	}
	if err := tm.Client.Create(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	looks, writes := 0, []string(nil)
	proxy, err := tm.StartProxyThrough(func(next http.RoundTripper) http.RoundTripper {
		return cluster.RoundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			switch {
			case strings.Contains(r.URL.Path, "/leases/") && r.Method == http.MethodGet:
				looks++
			case r.Method != http.MethodGet:
				writes = append(writes, r.Method+" "+r.URL.Path)
			}
			mu.Unlock()
			return next.RoundTrip(r)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	tm.report(tm.nodes[0], "True", lost)
	standby, err := tm.RunRemediator(t.Context(), proxy, "-policy", tm.policy(1, "restartJobs: true"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Stop(10 * time.Second) })
	tm.until("the standby has looked at the lease for some time", func() error {
		mu.Lock()
		defer mu.Unlock()
		if looks < 5 {
			return fmt.Errorf("%d times", looks)
		}
		return nil
	})
	mu.Lock()
	if len(writes) > 0 {
		t.Errorf("it has written: %q", writes)
	}
	mu.Unlock()
	if err := tm.Client.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	tm.becomes(tm.nodes[0], causes.Quarantined)
	if got := taints(tm.get(tm.nodes[0])); got != ourTaint {
		t.Errorf("taints %q", got)
	}
}
