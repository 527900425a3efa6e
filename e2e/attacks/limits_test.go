package attacks

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

const (
	suspected = "Inspect node: suspected slow in 1 run"
)

// says has the kubelet of a node write a condition of the node. Verdicts it may not write: an admin does, as if the admission
// policies were switched off.
func (s *scene) says(node, condition string, status corev1.ConditionStatus, message string) {
	s.Helper()
	now := metav1.Now().Format(time.RFC3339)
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"x","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`,
		condition, status, message, now, now)
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	by := s.kubelet(node)
	if condition == conditions.SlowNode {
		by = s.admin
	}
	if err := by.Status().Patch(s.Context(), target, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
		s.Fatal(err)
	}
}

// event waits for an Event about a node that has the text.
func (s *scene) event(n *corev1.Node, text string) {
	s.Helper()
	s.until("an Event with "+text, func() error {
		var list eventsv1.EventList
		if err := s.admin.List(s.Context(), &list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		var notes []string
		for _, e := range list.Items {
			if e.Regarding.UID != n.UID {
				continue
			}
			if notes = append(notes, e.Reason+": "+e.Note); strings.Contains(notes[len(notes)-1], text) {
				return nil
			}
		}
		return fmt.Errorf("got %q", notes)
	})
}

// quarantined names the nodes that have a taint of ours with an effect.
func (s *scene) quarantined(effect corev1.TaintEffect, nodes ...string) (names []string) {
	s.Helper()
	for _, name := range nodes {
		for _, t := range s.get(name).Spec.Taints {
			if t.Key == conditions.TaintUnhealthy && t.Effect == effect {
				names = append(names, name)
			}
		}
	}
	return names
}

// breaker is the ConfigMap of the breaker; nil when there is none.
func (s *scene) breaker() map[string]string {
	s.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.BreakerConfigMap}}
	if err := client.IgnoreNotFound(s.admin.Get(s.Context(), client.ObjectKeyFromObject(object), object)); err != nil {
		s.Fatal(err)
	}
	return object.Data
}

// forgedStarts is a record of a node that claims 13 quarantines, six hours ahead or of the last minute.
func forgedStarts(n *corev1.Node, ahead time.Duration) string {
	at := time.Now().UTC().Add(ahead)
	q := func(i int, phase causes.Phase) causes.Quarantine {
		began := at.Add(-time.Duration(i+1) * time.Second)
		return causes.Quarantine{
			ID: fmt.Sprintf("%012d", i), Phase: phase, QuarantinedAt: began, ReleasedAt: began.Add(time.Second), ReleasedBy: causes.ByPitcrew,
			Causes: []causes.Cause{{Condition: conditions.GPUXidError, Rule: "xid", Repair: conditions.Reboot, Message: lost, FirstSeen: began, Due: true, BootID: "b"}},
			Taint:  &causes.Taint{Key: conditions.TaintUnhealthy, Value: conditions.GPUXidError, Effect: corev1.TaintEffectNoSchedule, Rule: "xid", Repair: conditions.Reboot, Since: began},
		}
	}
	r := causes.Record{V: 1, NodeUID: n.UID, Quarantine: q(0, causes.Released)}
	for i := range 12 {
		r.Last = append(r.Last, q(i+1, causes.Released))
	}
	return r.String()
}

// Attack 2: a node claims 13 quarantines, another one 13 of the future. The breaker counts at most one of each.
func TestAttack02ForgedQuarantinesOpenNoBreaker(t *testing.T) {
	s := newScene(t, "starts", 4, nil)
	forger, ahead, first, second := s.nodes[0], s.nodes[1], s.nodes[2], s.nodes[3]
	for name, by := range map[string]time.Duration{forger: 0, ahead: 40 * 24 * time.Hour} {
		patch := client.RawPatch(types.MergePatchType, annotate(t, conditions.AnnotationQuarantine, forgedStarts(s.get(name), by)))
		target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.denied(s.kubelet(name).Patch(t.Context(), target, patch), "pitcrew-node-records", "a kubelet forges quarantines")
		if err := s.admin.Patch(t.Context(), target, patch); err != nil {
			t.Fatal(err)
		}
	}
	s.remediator(s.policy(`
  budget: {maxNodes: 100}
  breaker: {maxNodes: 4, window: 1h, coolDown: 1h, pace: 1m}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot], POOL}}
`))
	// One of each forger and that of the first node are three, so that the second node is the fourth that the breaker allows.
	for _, name := range []string{first, second} {
		s.says(name, conditions.GPUXidError, corev1.ConditionTrue, lost)
		s.becomes(name, causes.Quarantined)
	}
	if state := s.breaker()[limits.BreakerKey]; state != "" {
		t.Errorf("the breaker is %s", state)
	}
}

func annotate(t *testing.T, key, value string) []byte {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	if err != nil {
		t.Fatal(err)
	}
	return patch
}

// Attack 4: what a tenant's run says about nodes blocks no quarantine for a fault, and gives way to one.
func TestAttack04SuspectedSlowNodesTakeNoPlaceOfAFault(t *testing.T) {
	s := newScene(t, "suspected", 6, nil)
	s.remediator(s.policy(`
  budget: {maxNodes: 3}
  breaker: {maxNodes: 4, window: 1h, coolDown: 1h, pace: 1h}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot], POOL}}
    slow: {match: {condition: SlowNode, repair: [Inspect], POOL}, taint: {effect: PreferNoSchedule}, clearAfter: 1s}
`))
	slow, alternating, faulty := s.nodes[:3], s.nodes[3], s.nodes[4]
	// Verdicts that come and go are no wave of quarantines. Each round is a quarantine and a release.
	for range 5 {
		s.says(alternating, conditions.SlowNode, corev1.ConditionTrue, suspected)
		s.becomes(alternating, causes.Quarantined)
		s.says(alternating, conditions.SlowNode, corev1.ConditionFalse, "not slow")
		s.becomes(alternating, causes.Released)
	}
	for _, name := range slow {
		s.says(name, conditions.SlowNode, corev1.ConditionTrue, suspected)
		s.becomes(name, causes.Quarantined)
	}
	// They have a budget of their own.
	s.says(alternating, conditions.SlowNode, corev1.ConditionTrue, suspected)
	n, _ := s.becomes(alternating, causes.Suspect)
	s.event(n, "3 nodes are to be avoided and the budget of nodes to be avoided is 3: "+slow[0]+" (quarantined)")

	s.says(faulty, conditions.GPUXidError, corev1.ConditionTrue, lost)
	s.becomes(faulty, causes.Quarantined)
	// A worse class takes over.
	s.says(slow[0], conditions.GPUXidError, corev1.ConditionTrue, lost)
	s.until("the fault takes over from the suspicion", func() error {
		if got := s.quarantined(corev1.TaintEffectNoSchedule, slow...); len(got) != 1 || got[0] != slow[0] {
			return fmt.Errorf("out of service: %v", got)
		}
		return nil
	})
	if state := s.breaker()[limits.BreakerKey]; state != "" {
		t.Errorf("the breaker is %s", state)
	}
}

// Attack 6: nodes that are quarantined and replaced use up the budget all the same, also for a remediator that starts anew.
func TestAttack06ReplacingNodesResetsNoLimit(t *testing.T) {
	s := newScene(t, "replaced", 1, nil)
	policy := s.policy(`
  budget: {maxNodes: 3}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot], POOL}}
`)
	running := s.remediator(policy)
	node := s.nodes[0]
	var gone []string
	for i := range 3 {
		s.says(node, conditions.GPUXidError, corev1.ConditionTrue, lost)
		n, _ := s.becomes(node, causes.Quarantined)
		s.until("the start is stored", func() error {
			if starts := s.breaker()[limits.StartsKey]; !strings.Contains(starts, string(n.UID)) {
				return fmt.Errorf("starts %q", starts)
			}
			return nil
		})
		// An autoscaler replaces the node. The first has its name again, the others have new names.
		if err := s.admin.Delete(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if gone = append(gone, node); i == 1 {
			running.Kill()
			running = s.remediator(policy)
		}
		node = s.join(fmt.Sprintf("replaced-by-%d", i))
	}
	s.says(node, conditions.GPUXidError, corev1.ConditionTrue, lost)
	n, _ := s.becomes(node, causes.Suspect)
	s.event(n, fmt.Sprintf("3 nodes are out of service and the budget is 3: %s (gone), %s (gone), %s (gone)", gone[0], gone[1], gone[2]))
}

// join adds a node to the scene.
func (s *scene) join(pool string) string {
	s.Helper()
	names, err := s.cluster.AddNodes(s.Context(), pool, 1, func(n *corev1.Node) { n.Labels[cluster.LabelPool] = s.pool })
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := s.cluster.DeleteNodes(s.cluster.Context(), names...); err != nil {
			s.Error(err)
		}
	})
	return names[0]
}

// badNetwork passes requests on to the API server until a node is patched for the first time. It breaks the connection instead
// of passing on the answers to patches of that node, and watches of nodes show nothing more until the test ends.
type badNetwork struct {
	*httptest.Server
	lost    atomic.Int32  // answers
	stalled atomic.Bool   // set once the node is patched
	end     chan struct{} // closed when the test ends
}

func (s *scene) badNetwork(node string) *badNetwork {
	s.Helper()
	target, err := url.Parse(s.cluster.Admin.Host)
	if err != nil {
		s.Fatal(err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(s.cluster.Admin))
	if err != nil {
		s.Fatal(err)
	}
	n := &badNetwork{end: make(chan struct{})}
	patches := func(r *http.Request) bool { return r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/"+node }
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1}
	proxy.Rewrite = func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		if patches(r.In) {
			n.stalled.Store(true) // before the API server sees the patch, and shows it in a watch
		}
	}
	proxy.ModifyResponse = func(r *http.Response) error {
		if patches(r.Request) {
			n.lost.Add(1)
			return errors.New("the answer is lost")
		}
		if r.Request.URL.Path == "/api/v1/nodes" && r.Request.URL.Query().Get("watch") != "" {
			r.Body = &stallingBody{r.Body, n}
		}
		return nil
	}
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	n.Server = httptest.NewTLSServer(proxy) // without TLS no client sends its token
	s.Cleanup(func() {
		close(n.end)
		n.Close()
	})
	return n
}

// stallingBody shows nothing more once the network stalls.
type stallingBody struct {
	io.ReadCloser
	network *badNetwork
}

func (b *stallingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.network.stalled.Load() {
		<-b.network.end
	}
	return n, err
}

// Attack 9: the network between the remediator and the API server loses the answers to its patches of a node, and is slow to
// show them. The node is tainted, and keeps its place under the budget while others become due.
func TestAttack09LostAnswersFreeNoPlace(t *testing.T) {
	s := newScene(t, "unanswered", 4, nil)
	first, others := s.nodes[0], s.nodes[1:]
	network := s.badNetwork(first)
	policy := s.policy(`
  budget: {maxNodes: 1}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}}
    later: {match: {condition: GPUXidError, repair: [ResetGPU], POOL}, for: 1h}
`)
	s.remediatorAt(network.Server, policy)
	for _, name := range others {
		s.says(name, conditions.GPUXidError, corev1.ConditionTrue, ecc)
	}
	for _, name := range others {
		s.becomes(name, causes.Suspect)
	}
	s.says(first, conditions.GPUXidError, corev1.ConditionTrue, lost)
	s.becomes(first, causes.Quarantined)
	s.change(policy, "for: 1h", "for: 1s")
	for _, name := range others {
		s.event(s.get(name), "1 nodes are out of service and the budget is 1: "+first+" (quarantined)")
	}
	if got := s.quarantined(corev1.TaintEffectNoSchedule, s.nodes...); len(got) != 1 || network.lost.Load() == 0 {
		t.Errorf("%v are tainted, %d answers were lost", got, network.lost.Load())
	}
}

// remediatorAt runs the built remediator with the token of its service account against a proxy.
func (s *scene) remediatorAt(proxy *httptest.Server, policy string) {
	s.Helper()
	cfg, err := s.cluster.ServiceAccountConfig(s.Context(), "pitcrew", "pitcrew-remediator")
	if err != nil {
		s.Fatal(err)
	}
	kubeconfig, err := s.cluster.WriteKubeconfig("deaf", &rest.Config{
		Host: proxy.URL, BearerToken: cfg.BearerToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw})},
	})
	if err != nil {
		s.Fatal(err)
	}
	s.remediator(policy, "-kubeconfig", kubeconfig)
}

// Attack 11: nodes that are quarantined for little under a wide budget turn worse together. The rule for the worse class has a
// budget of one, and an upgrade asks it.
func TestAttack11UpgradesAskTheBudget(t *testing.T) {
	s := newScene(t, "upgraded", 6, nil)
	s.remediator(s.policy(`
  budget: {maxNodes: 100}
  rules:
    mild: {match: {condition: GPUXidError, repair: [ResetGPU], POOL}}
    bad: {match: {condition: GPUXidError, repair: [Reboot], POOL}, taint: {effect: NoExecute}, budget: {maxNodes: 1}}
`))
	for _, name := range s.nodes {
		s.says(name, conditions.GPUXidError, corev1.ConditionTrue, ecc)
	}
	for _, name := range s.nodes {
		s.becomes(name, causes.Quarantined)
	}
	for _, name := range s.nodes {
		s.says(name, conditions.GPUXidError, corev1.ConditionTrue, lost)
	}
	var worse []string
	s.until("one node is upgraded", func() error {
		if worse = s.quarantined(corev1.TaintEffectNoExecute, s.nodes...); len(worse) == 0 {
			return errors.New("none is")
		}
		return nil
	})
	for _, name := range s.nodes {
		if name != worse[0] {
			s.event(s.get(name), "1 nodes are out of service and the budget of rule bad is 1: "+worse[0]+" (quarantined); the node keeps taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule")
		}
	}
	mild := s.quarantined(corev1.TaintEffectNoSchedule, s.nodes...)
	if worse = s.quarantined(corev1.TaintEffectNoExecute, s.nodes...); len(worse) != 1 || len(mild) != len(s.nodes)-1 {
		t.Errorf("upgraded %v, not upgraded %v", worse, mild)
	}
}

// Attack 25: a large fleet always has nodes that somebody cordoned. Those that nothing checks, and those that were parked, use
// up no budget, and `kubectl pitcrew status` names the ones that do.
func TestAttack25ParkedNodesUseUpNoBudget(t *testing.T) {
	s := newScene(t, "parked", 8, nil)
	unchecked, parked, healthy := s.nodes[:3], s.nodes[3:6], s.nodes[6:]
	cordon := func(value bool, nodes ...string) {
		for _, name := range nodes {
			target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			patch := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, value))
			if err := s.admin.Patch(t.Context(), target, patch); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range append(parked, healthy...) {
		s.says(name, conditions.GPUXidError, corev1.ConditionFalse, "no fault")
	}
	cordon(true, append(unchecked, parked...)...)
	const spec = `
  budget: {maxNodes: 3, parkedAfter: AFTER}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot], POOL}}
`
	recent := s.policy(strings.Replace(spec, "AFTER", "1h", 1))
	s.remediator(recent)
	s.says(healthy[0], conditions.GPUXidError, corev1.ConditionTrue, lost)
	n, _ := s.becomes(healthy[0], causes.Suspect)
	s.event(n, fmt.Sprintf("3 nodes are out of service and the budget is 3: %s (cordoned), %s (cordoned), %s (cordoned)", parked[0], parked[1], parked[2]))
	if got, want := s.status(recent), fmt.Sprintf("BUDGET      policy: 3/3 nodes: %s (cordoned), %s (cordoned), %s (cordoned)", parked[0], parked[1], parked[2]); !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
	// After parkedAfter the cordoned nodes are parked: the same policy with a shorter time.
	s.change(recent, "parkedAfter: 1h", "parkedAfter: 1s")
	s.becomes(healthy[0], causes.Quarantined)
	if got, want := s.status(recent), fmt.Sprintf("BUDGET      policy: 1/3 nodes: %s (quarantined)", healthy[0]); !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
}

// status is what `kubectl pitcrew status` prints under a policy.
func (s *scene) status(policy string) string {
	s.Helper()
	if err := components.BuildOurs(s.Context(), s.cluster.Root, "./kubectl-pitcrew"); err != nil {
		s.Fatal(err)
	}
	cfg, err := s.cluster.Config("person", "system:masters")
	if err != nil {
		s.Fatal(err)
	}
	kubeconfig, err := s.cluster.WriteKubeconfig("person", cfg)
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.Context(), filepath.Join(s.cluster.Root, "bin", "kubectl-pitcrew"), "--kubeconfig", kubeconfig, "status", "-f", policy)
	out, err := cmd.CombinedOutput()
	if err != nil && !notInstalled(err) {
		s.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// notInstalled reports whether status ended with 2, as it must here: the remediator of a test is no Deployment.
func notInstalled(err error) bool {
	var ended *exec.ExitError
	return errors.As(err, &ended) && ended.ExitCode() == 2
}
