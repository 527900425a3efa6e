package visits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

const (
	// yieldEvery is how often the pods that wait for a node are listed while a sweep is under way.
	yieldEvery = 5 * time.Second
	// selectionLasts is how long a node that was selected may take until its check begins.
	selectionLasts = time.Minute
	// unopenedRetry is how long a node waits for its next turn whose check did not begin.
	unopenedRetry = time.Hour
)

// sweeper selects nodes for sweeps, and finds pods to which a sweep has to yield. It makes no request while no sweep is due or
// under way. What it remembers is lost with the process: a new leader looks at the nodes again.
type sweeper struct {
	controller *Controller
	reconcile  func(ctx context.Context, node string)
	every      time.Duration
	// plannedAt and those up to the lock are used by one goroutine only.
	plannedAt time.Time
	idle      map[string]sweep.Idle
	// awaitedFor is since when pods wait that could run on a node, in looks as those of idle.
	awaitedFor map[string]sweep.Idle
	// unopened has when a check was selected that did not begin, by node.
	unopened map[string]time.Time
	// overruled are the pods to which a check does not yield, by node.
	overruled map[string]overruled
	// yields are the checks in a row that have yielded to pods of a namespace of which none came, by node and namespace.
	yields map[string]map[string]yields

	mu       sync.Mutex
	selected map[string]repair.Selection
	// awaited has a pod that waits, by the node on which it could run.
	awaited map[string]string
}

// maxYields is how many checks of a node in a row yield to pods of one namespace of which none comes.
const maxYields = 3

type overruled struct {
	pods       map[types.UID]bool
	namespaces map[string]bool
}

func (o overruled) has(pod *corev1.Pod) bool { return o.pods[pod.UID] || o.namespaces[pod.Namespace] }

type yields struct {
	count int
	// visit is the last of the checks.
	visit string
}

func newSweeper(c *Controller, reconcile func(ctx context.Context, node string), recheckEvery time.Duration) *sweeper {
	return &sweeper{
		controller: c, reconcile: reconcile, every: min(yieldEvery, cmp.Or(recheckEvery, yieldEvery)),
		idle: map[string]sweep.Idle{}, awaitedFor: map[string]sweep.Idle{}, unopened: map[string]time.Time{},
		overruled: map[string]overruled{}, yields: map[string]map[string]yields{},
		selected: map[string]repair.Selection{}, awaited: map[string]string{},
	}
}

// Start runs the sweeps until the context ends. It runs on the leader only.
func (s *sweeper) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.tick(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to plan sweeps; retrying")
		}
	}, s.every)
	return nil
}

// NeedLeaderElection has only the leader sweep.
func (*sweeper) NeedLeaderElection() bool { return true }

// facts are what a step has to know of sweeps.
func (s *sweeper) facts(node string, f *repair.Facts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if selection, ok := s.selected[node]; ok {
		f.Selected = &selection
	}
	f.Awaited = s.awaited[node]
}

func (s *sweeper) tick(ctx context.Context) error {
	c := s.controller
	now := c.clock.Now()
	p := c.policy.Policy()
	if p == nil || !c.policy.Known() {
		return nil
	}
	var list corev1.NodeList
	if err := c.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	nodes := map[string]*corev1.Node{}
	for i := range list.Items {
		nodes[list.Items[i].Name] = c.pending.Overlaid(&list.Items[i])
	}
	s.forget(nodes, now)
	if err := s.yieldToPods(ctx, nodes); err != nil {
		return err
	}
	if len(p.Sweeps) == 0 || now.Sub(s.plannedAt) < sweep.LookEvery {
		return nil
	}
	if paused, err := pause.Reason(ctx, c.client, c.namespace); err != nil || paused != "" {
		return err
	}
	s.plannedAt = now
	gone := func(name string, _ sweep.Idle) bool { return nodes[name] == nil }
	maps.DeleteFunc(s.idle, gone)
	maps.DeleteFunc(s.awaitedFor, gone)
	maps.DeleteFunc(s.yields, func(name string, _ map[string]yields) bool { return nodes[name] == nil })
	return s.selectNodes(ctx, p, nodes, now)
}

// yieldToPods ends sweeps on nodes for which a pod waits.
func (s *sweeper) yieldToPods(ctx context.Context, nodes map[string]*corev1.Node) error {
	swept := map[string]*corev1.Node{}
	for name, n := range nodes {
		for _, t := range n.Spec.Taints {
			if t.Key == conditions.TaintMaintenance && t.Value == string(visit.Sweep) {
				swept[name] = n
			}
		}
	}
	s.mu.Lock()
	maps.DeleteFunc(s.overruled, func(name string, _ overruled) bool {
		_, selected := s.selected[name]
		return !selected && swept[name] == nil
	})
	s.mu.Unlock()
	waiting, err := s.waiting(ctx, swept)
	s.mu.Lock()
	s.awaited = waiting
	s.mu.Unlock()
	for name := range waiting {
		s.reconcile(ctx, name)
	}
	return err
}

// waiting finds, for each of the nodes with a sweep, a pod that waits and could run there. Without nodes nothing is requested.
func (s *sweeper) waiting(ctx context.Context, nodes map[string]*corev1.Node) (map[string]string, error) {
	found := map[string]string{}
	if len(nodes) == 0 {
		return found, nil
	}
	pods, err := s.pending(ctx)
	for name, n := range nodes {
		for i := range pods {
			if !s.overruled[name].has(&pods[i]) && sweep.CouldRunOn(&pods[i], n) {
				found[name] = pods[i].Namespace + "/" + pods[i].Name
				s.countYield(n, pods[i].Namespace)
				break
			}
		}
	}
	return found, err
}

// countYield counts a check that yields.
func (s *sweeper) countYield(n *corev1.Node, namespace string) {
	r, err := s.controller.records.of(n)
	if err != nil || r == nil || r.Current == nil || r.Current.ID == s.yields[n.Name][namespace].visit {
		return
	}
	if s.yields[n.Name] == nil {
		s.yields[n.Name] = map[string]yields{}
	}
	s.yields[n.Name][namespace] = yields{s.yields[n.Name][namespace].count + 1, r.Current.ID}
}

// pending lists the pods that wait for a node and an accelerator.
func (s *sweeper) pending(ctx context.Context) ([]corev1.Pod, error) {
	var pods corev1.PodList
	leftOut, err := slim.ListPods(ctx, s.controller.apiReader, &pods,
		fields.SelectorFromSet(fields.Set{"spec.nodeName": "", "status.phase": string(corev1.PodPending)}),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}) // from the API server's cache
	if err != nil {
		return nil, fmt.Errorf("list the pods that wait for a node: %w", err)
	}
	if len(leftOut) > 0 {
		ctrl.LoggerFrom(ctx).Info("Sweeps do not yield to pods of these namespaces: too many or too large ones wait", "namespaces", leftOut)
	}
	now := s.controller.clock.Now()
	waits := func(pod corev1.Pod) bool { return sweep.HoldsAccelerator(&pod) && sweep.HasScheduler(&pod, now) }
	return slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return !waits(pod) }), nil
}

// selectNodes selects nodes for the sweeps of a policy.
func (s *sweeper) selectNodes(ctx context.Context, p *policy.Policy, nodes map[string]*corev1.Node, now time.Time) error {
	all := s.candidates(p, nodes, now)
	// The pods that wait are listed once a node has its turn, if one has.
	list := sync.OnceValues(func() ([]corev1.Pod, error) { return s.pending(ctx) })
	var failed error
	awaited := func(name string) time.Time {
		if !s.awaitedFor[name].LookedAt.Equal(now) {
			var pods []corev1.Pod
			pods, failed = list()
			is := slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return sweep.CouldRunOn(&pod, nodes[name]) })
			s.awaitedFor[name] = s.awaitedFor[name].Seen(!is, now)
		}
		return s.awaitedFor[name].Since
	}
	plan := sweep.Plan(p.Sweeps, all, awaited, now)
	if failed != nil || len(plan.Look) == 0 {
		return failed
	}
	for _, name := range plan.Look {
		busy, err := s.busy(ctx, name)
		if err != nil {
			return err
		}
		s.idle[name] = s.idle[name].Seen(busy, now)
		if busy {
			delete(s.yields, name)
		}
	}
	for i := range all {
		all[i].Idle = s.idle[all[i].Name]
	}
	plan = sweep.Plan(p.Sweeps, all, awaited, now)
	for _, start := range plan.Start {
		if start.Urgent {
			if err := s.overrule(ctx, start, nodes[start.Node], list); err != nil {
				return err
			}
		}
		s.mu.Lock()
		s.selected[start.Node] = repair.Selection{Sweep: start.Sweep.Name, At: now}
		s.mu.Unlock()
		s.reconcile(ctx, start.Node)
	}
	return nil
}

// candidates sums up the nodes.
func (s *sweeper) candidates(p *policy.Policy, nodes map[string]*corev1.Node, now time.Time) (all []sweep.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range nodes {
		r, err := s.controller.records.of(n)
		node := sweep.NodeOf(p, n, r, err, s.idle[name], now)
		if last := node.Record; last != nil && len(last.Last) > 0 && last.Last[0].Kind == visit.Sweep && last.Last[0].Phase != visit.Yielded {
			delete(s.yields, name)
		}
		if selection, ok := s.selected[name]; ok && node.Record != nil && node.Record.Current == nil {
			// It has its place until the check has begun.
			node.Record.Current = &visit.Visit{Kind: visit.Sweep, Sweep: selection.Sweep}
		}
		if at, ok := s.unopened[name]; ok && now.Sub(at) < unopenedRetry {
			node.Unavailable = "its last check did not begin"
		}
		all = append(all, node)
	}
	return all
}

// overrule notes which pods an urgent check does not yield to: those that could have run on the node while it was idle, and those of
// a namespace that earlier checks have yielded to in vain.
func (s *sweeper) overrule(ctx context.Context, start sweep.Start, n *corev1.Node, list func() ([]corev1.Pod, error)) error {
	pods, err := list()
	if err != nil {
		return err
	}
	o := overruled{map[types.UID]bool{}, map[string]bool{}}
	s.overruled[n.Name] = o
	for namespace, y := range s.yields[n.Name] {
		if y.count >= maxYields {
			ctrl.LoggerFrom(ctx).Info("Sweep will not yield to pods of this namespace: earlier yields were not used",
				"sweep", start.Sweep.Name, "node", n.Name, "namespace", namespace, "times", y.count)
			o.namespaces[namespace] = true
		}
	}
	for i := range pods {
		if sweep.CouldRunOn(&pods[i], n) {
			if len(o.pods) == 0 {
				ctrl.LoggerFrom(ctx).Info("A sweep begins although a pod waits that could have run on the idle node for an hour",
					"sweep", start.Sweep.Name, "node", n.Name, "namespace", pods[i].Namespace, "pod", pods[i].Name)
			}
			o.pods[pods[i].UID] = true
		}
	}
	return nil
}

// busy reports whether a pod on the node has an accelerator. A node whose pods are too many or too large to judge may have such a pod: it
// counts as busy, and holds up no check of other nodes.
func (s *sweeper) busy(ctx context.Context, node string) (bool, error) {
	var pods corev1.PodList
	err := s.controller.apiReader.List(ctx, &pods, client.MatchingFieldsSelector{Selector: podreader.ActiveOf(node)})
	if errors.Is(err, slim.ErrTooLarge) {
		ctrl.LoggerFrom(ctx).Error(err, "A node counts as busy for sweeps", "node", node)
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("list the pods on node %s: %w", node, err)
	}
	for i := range pods.Items {
		if sweep.HoldsAccelerator(&pods.Items[i]) {
			return true, nil
		}
	}
	return false, nil
}

// forget drops selections that are over, and notes those whose check has not begun.
func (s *sweeper) forget(nodes map[string]*corev1.Node, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.unopened, func(name string, at time.Time) bool { return nodes[name] == nil || now.Sub(at) >= unopenedRetry })
	maps.DeleteFunc(s.selected, func(name string, selection repair.Selection) bool {
		if now.Sub(selection.At) < selectionLasts {
			return false
		}
		if n := nodes[name]; n != nil && !opened(n, selection) {
			s.unopened[name] = selection.At
		}
		return true
	})
}

// opened reports whether a visit to the node has begun since it was selected.
func opened(n *corev1.Node, selection repair.Selection) bool {
	r, err := visit.RecordOf(n)
	return err == nil && r != nil && (r.Current != nil || len(r.Last) > 0 && !r.Last[0].StartedAt.Before(selection.At))
}
