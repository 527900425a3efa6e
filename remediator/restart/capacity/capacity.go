// Package capacity searches room for the ranks of a job that cannot stay on their nodes.
package capacity

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/go-logr/logr" //nolint:depguard // the scheduler's functions take a logger; they get one that discards
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/resource"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const (
	// Retry is how often room is searched again.
	Retry = 10 * time.Second
	// maxSearched bounds the nodes whose pods are read in one search; the next search goes on behind them.
	maxSearched = 200
	// maxClaims bounds the kinds of ranks of one job that are counted apart.
	maxClaims = 16
	// maxCost bounds one search, in requirements of ranks that are compared with a node, which take some microseconds each. Whoever may
	// create pods may write thousands into one, and the restarts of others wait meanwhile. The next search goes on elsewhere.
	maxCost = 400_000
	// maxRequirements bounds those of a rank of another job. With more it counts like the first of this job.
	maxRequirements = 32
)

var onePod = *quantity.NewQuantity(1, quantity.DecimalSI)

// Search searches room: could each rank that cannot stay be scheduled elsewhere now, while the others keep their places?
// It knows resource requests, priorities, taints, node selectors, required node affinity, cordons and Ready. It does not know quotas,
// volumes, pod affinity, spread, host ports, an autoscaler that would add nodes, nor pods that wait for the same room; of those it counts
// the ranks of other restarts that have to move. Nor does it know what is free for resource claims, which is no objection.
//
//	for node := range search.Nodes() { search.Place(node, its pods) }
type Search struct {
	// Moving is how many ranks of the job have to move.
	Moving int

	nodes  []corev1.Node
	bad    string // the node that takes no rank; empty: none
	first  int
	moving sets.Set[types.NamespacedName]
	own    []corev1.Pod // ranks that have to move
	left   []corev1.Pod // those without room so far
	others []Claim      // the same of other jobs
	// claimed is how many ranks others have at the beginning.
	claimed  int
	searched int
	cost     int
}

// Claim is the room that the restart of another job needs.
type Claim struct {
	// Ranks is how many have to move.
	Ranks int
	// Like is one of them; nil: what they need is not known, and they count like the first of this job.
	Like *corev1.Pod
}

// New begins a search for the ranks of a job; others are what other jobs need, too. In a large cluster it begins at another node every
// Retry.
func New(t restart.Trigger, ranks []corev1.Pod, nodes []corev1.Node, others []Claim, now time.Time) *Search {
	s := &Search{
		nodes: nodes, moving: sets.New[types.NamespacedName](),
		first: int(now.Unix()/int64(Retry/time.Second)) * maxSearched,
	}
	if t.IsNode() { // what the caller knows of the node may be older than the taint
		s.bad = t.Node
	}
	s.own = s.podsToMove(ranks)
	s.left, s.Moving = s.own, len(s.own)
	for i := range s.own {
		s.moving.Insert(keyOf(&s.own[i]))
	}
	s.claim(others)
	return s
}

// claim keeps those claims that are for nodes that take the first rank, too, if any has to move.
func (s *Search) claim(others []Claim) {
	if s.Moving == 0 || len(others) == 0 {
		return
	}
	first := &s.own[0]
	takes := slices.DeleteFunc(slices.Clone(s.nodes), func(n corev1.Node) bool { return n.Name == s.bad || !s.takes(&n, first) })
	for _, c := range others {
		switch {
		case c.Like == nil, requirements(c.Like) > maxRequirements:
			s.others = append(s.others, Claim{c.Ranks, first})
		case slices.ContainsFunc(takes, func(n corev1.Node) bool { return schedulable(&n, c.Like) }):
			s.others = append(s.others, c)
		}
	}
	s.claimed = count(s.others)
}

func count(claims []Claim) (ranks int) {
	for _, c := range claims {
		ranks += c.Ranks
	}
	return ranks
}

// Claims is what the job itself needs: its ranks, by what they request. Whoever writes jobs could have many small ranks count like a large
// one of another job.
func (s *Search) Claims() (claims []Claim) {
	for i := range s.own {
		p := &s.own[i]
		is := func(c Claim) bool { return equality.Semantic.DeepEqual(needs(c.Like), needs(p)) }
		switch at := slices.IndexFunc(claims, is); {
		case at >= 0:
			claims[at].Ranks++
		case len(claims) < maxClaims:
			claims = append(claims, Claim{1, &corev1.Pod{
				Spec: p.Spec, Status: corev1.PodStatus{ExtendedResourceClaimStatus: p.Status.ExtendedResourceClaimStatus},
			}})
		default:
			claims[0].Ranks++
		}
	}
	return claims
}

func keyOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// Nodes are those whose pods have to be known, until there is room for all or enough nodes were searched.
func (s *Search) Nodes() iter.Seq[*corev1.Node] {
	return func(yield func(*corev1.Node) bool) {
		for i := range s.nodes {
			if s.found() || s.searched == maxSearched+s.Moving || s.cost > maxCost {
				return
			}
			node := &s.nodes[(s.first+i)%len(s.nodes)]
			takes := func(p corev1.Pod) bool { return s.takes(node, &p) }
			claims := func(c Claim) bool { return c.Ranks > 0 && schedulable(node, c.Like) }
			if node.Name == s.bad || !slices.ContainsFunc(s.left, takes) && !slices.ContainsFunc(s.others, claims) {
				continue
			}
			s.searched++
			if !yield(node) {
				return
			}
		}
	}
}

// Place puts those ranks on a node for which it has room beside the pods that are there.
func (s *Search) Place(node *corev1.Node, there []corev1.Pod) {
	staying := slices.DeleteFunc(slices.Clone(there), func(p corev1.Pod) bool { return s.moving.Has(keyOf(&p)) })
	s.left, s.others = s.place(s.left, &s.own[0], s.others, node, staying)
}

// takes reports whether the scheduler would let a rank of the job onto the node, were there room, and false if the search is too long.
func (s *Search) takes(n *corev1.Node, rank *corev1.Pod) bool {
	if s.cost > maxCost {
		return false
	}
	s.cost += requirements(rank)
	return schedulable(n, rank)
}

// requirements is how much of a pod is compared with a node; at least 1.
func requirements(p *corev1.Pod) int {
	n := 1 + len(p.Spec.NodeSelector) + len(p.Spec.Tolerations)
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			n++
			for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
				n += 1 + len(r.Values)
			}
		}
	}
	return n
}

// found reports whether all have room. Who moves nothing needs none, whatever others claim.
func (s *Search) found() bool {
	return s.Moving == 0 || len(s.left) == 0 && count(s.others) == 0
}

// Result is the precondition that there is room for all.
func (s *Search) Result() restart.Precondition {
	if s.found() {
		return restart.Precondition{Name: restart.Capacity, Passed: true}
	}
	text := fmt.Sprintf("%d of its ranks must move; found room for %d on the %d nodes where they can be scheduled",
		s.Moving, s.Moving-len(s.left), s.searched)
	if s.claimed > 0 {
		text += fmt.Sprintf(", where the restarts of other jobs need room for %d and found it for %d", s.claimed, s.claimed-count(s.others))
	}
	if s.cost > maxCost {
		text += "; they require too much of nodes to be compared with more of them at once"
	}
	return restart.Precondition{Name: restart.Capacity, Reason: "Capacity", Text: text, RetryAfter: Retry}
}

// podsToMove returns the pods that could not start again where they are, because the node is gone, bad or no longer takes them.
func (s *Search) podsToMove(pods []corev1.Pod) []corev1.Pod {
	at := map[string]*corev1.Node{}
	for i := range pods {
		at[pods[i].Spec.NodeName] = nil
	}
	for i := range s.nodes {
		n := &s.nodes[i]
		if _, used := at[n.Name]; used && n.Name != s.bad {
			at[n.Name] = n
		}
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
		node := at[p.Spec.NodeName]
		return node != nil && s.takes(node, &p)
	})
}

// schedulable reports whether the scheduler would let the pod onto the node, were there room.
func schedulable(n *corev1.Node, pod *corev1.Pod) bool {
	if n.Spec.Unschedulable || n.DeletionTimestamp != nil || !node.IsReady(n) {
		return false
	}
	if match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(n); err != nil || !match {
		return false
	}
	return !keptOut(n, pod)
}

// keptOut reports whether a taint keeps the pod from being scheduled to the node.
func keptOut(node *corev1.Node, pod *corev1.Pod) bool {
	_, found := scheduling.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, true)
	return found
}

// Fits reports whether the scheduler would let the pod onto the node if it were empty.
func Fits(node *corev1.Node, pod *corev1.Pod) bool {
	return schedulable(node, pod) && fits(needs(pod), node.Status.Allocatable)
}

// place takes those of the wanted pods away for which a node, with the pods that are there, has room, and then those of the claims. first
// is one of the job, which may preempt others.
func (s *Search) place(wanted []corev1.Pod, first *corev1.Pod, claims []Claim, n *corev1.Node, there []corev1.Pod) ([]corev1.Pod, []Claim) {
	free := n.Status.Allocatable.DeepCopy()
	for i := range there {
		if p := &there[i]; !node.PodFinished(p) && !preempts(first, p) {
			take(free, needs(p))
		}
	}
	placed := func(p *corev1.Pod) bool {
		need := needs(p)
		forgetClaimed(need, p, n)
		if !fits(need, free) {
			return false
		}
		take(free, need)
		return true
	}
	left := slices.DeleteFunc(slices.Clone(wanted), func(p corev1.Pod) bool { return s.takes(n, &p) && placed(&p) })
	claims = slices.Clone(claims)
	for i := range claims {
		takes := schedulable(n, claims[i].Like)
		for takes && claims[i].Ranks > 0 && placed(claims[i].Like) {
			claims[i].Ranks--
		}
	}
	return left, claims
}

// forgetClaimed removes from what a pod needs the extended resources that it has got by a resource claim, unless the node has them without.
func forgetClaimed(need corev1.ResourceList, pod *corev1.Pod, node *corev1.Node) {
	if by := pod.Status.ExtendedResourceClaimStatus; by != nil {
		for _, of := range by.RequestMappings {
			if name := corev1.ResourceName(of.ResourceName); node.Status.Allocatable.Name(name, quantity.DecimalSI).IsZero() {
				delete(need, name)
			}
		}
	}
}

// preempts reports whether the scheduler would make room for a pod at the cost of another one.
func preempts(pod, other *corev1.Pod) bool {
	return scheduling.PodPriority(other) < scheduling.PodPriority(pod) &&
		ptr.Deref(pod.Spec.PreemptionPolicy, corev1.PreemptLowerPriority) != corev1.PreemptNever
}

// needs is what a pod takes of a node, itself included.
func needs(p *corev1.Pod) corev1.ResourceList {
	need := resource.PodRequests(p, resource.PodResourcesOptions{})
	need[corev1.ResourcePods] = onePod
	return need
}

func fits(need, free corev1.ResourceList) bool {
	for name, amount := range need {
		if left := free[name]; left.Cmp(amount) < 0 {
			return false
		}
	}
	return true
}

func take(free, need corev1.ResourceList) {
	for name, amount := range need {
		left := free[name]
		left.Sub(amount)
		free[name] = left
	}
}
