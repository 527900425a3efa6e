package repair

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Group is the place of a node in a group that a sweep checks together, see [policy.Pairwise].
type Group struct {
	// ID is that of the group; empty: the visit is for one node.
	ID string `json:"id"`
	// Rank is from 0 to Size-1.
	Rank int `json:"rank"`
	Size int `json:"size"`
	// Leader is the internal IP of the node with rank 0.
	Leader string `json:"leader"`
	// Result is what the Job on this node has found, healthy or problem; empty: it has not run yet.
	Result repairresult.Kind `json:"result,omitempty"`
}

const (
	// groupTimeout is how long the visits of a group may take to begin, and a node may be missing from it.
	groupTimeout = 2 * time.Minute
	// groupPoll is how often a visit looks whether its group is complete.
	groupPoll = 5 * time.Second
	// leaveTime is how long after the end of a Job it is known whether another node had left the group: records are read each 5 s.
	leaveTime = 10 * time.Second
	// verdictTime is how long after the end of the last Job the verdict on the reports is in the conditions.
	verdictTime = 30 * time.Second
	// maxPairWatch is how many nodes are watched at most for groups: so many that no gap is longer than maxGap.
	maxPairWatch = policy.MaxGroup
)

// In the arguments of the Jobs of a group.
const rankVariable, sizeVariable, leaderVariable, roundsVariable = "$(RANK)", "$(SIZE)", "$(LEADER)", "$(ROUNDS)"

// addVariables adds what stands for the place in the group.
func (v *Visit) addVariables(values map[string]string, p *policy.Policy) {
	s := v.pairwise(p)
	if v.Group.ID == "" || s == nil {
		return
	}
	values[rankVariable], values[sizeVariable] = strconv.Itoa(v.Group.Rank), strconv.Itoa(v.Group.Size)
	values[leaderVariable], values[roundsVariable] = v.Group.Leader, strconv.Itoa(s.Pairwise.Rounds)
}

// group checks the place in a group. The record is input, and the Job connects to the leader.
func (b *bounds) group(v *Visit) {
	g := v.Group
	if g == (Group{}) {
		return
	}
	if g.ID == "" || len(validation.IsValidLabelValue(g.ID)) > 0 || v.Kind != Sweep {
		b.fail("%.40s %q has the group %.80q", v.Kind, v.ID, g.ID)
	}
	if g.Size < policy.MinGroup || g.Size > policy.MaxGroup || g.Rank < 0 || g.Rank >= g.Size {
		b.fail("visit %.40q has rank %d of %d", v.ID, g.Rank, g.Size)
	}
	if !CanLead(g.Leader) {
		b.fail("visit %.40q has the leader %.80q, which is no IP address", v.ID, g.Leader)
	}
	if !slices.Contains([]repairresult.Kind{"", repairresult.Healthy, repairresult.Problem}, g.Result) {
		b.fail("visit %.40q has the result %.40q", v.ID, g.Result)
	}
}

// CanLead tells whether an address of a node is an IP address without a zone, as [Group.Leader] has to be.
func CanLead(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.Zone() == ""
}

// Member is what the record of a node says about the group.
type Member struct {
	Node  string
	Phase Phase
	// Since is when it entered the phase.
	Since time.Time
	// Result is that of [Group.Result].
	Result  repairresult.Kind
	Outcome string
}

// Groups are the nodes of each group, by its id.
type Groups map[string][]Member

// Add adds what the record of a node says. It may be nil. It is not changed.
func (g Groups) Add(node string, r *Record) {
	if r == nil {
		return
	}
	add := func(v *Visit) {
		if v.Group.ID != "" {
			g[v.Group.ID] = append(g[v.Group.ID], Member{node, v.Phase, v.PhaseSince, v.Group.Result, v.Outcome})
		}
	}
	if r.Current != nil {
		add(r.Current)
	}
	for i := range r.Last {
		add(&r.Last[i])
	}
}

// Compare orders members by the names of their nodes, and by time.
func (m Member) Compare(other Member) int {
	return cmp.Or(cmp.Compare(m.Node, other.Node), m.Since.Compare(other.Since))
}

// IsOpen tells whether the visit of a member is under way.
func (m Member) IsOpen() bool { return !m.Phase.Closed() }

// hasLeft tells whether a member has ended, or is ending, without a check.
func (m Member) hasLeft() bool {
	if m.Phase == Ending {
		return true
	}
	return !m.IsOpen() && m.Phase != Passed && (m.Phase != Failed || m.Result != repairresult.Problem)
}

// others are the other nodes of the group.
func (d *decider) others() []Member {
	return slices.DeleteFunc(slices.Clone(d.facts.Members), func(m Member) bool { return m.Node == d.facts.Node.Name })
}

// leftGroup ends the visit if its group has ended: a node has left it, or is missing for too long. The tests of the others would say
// nothing about them.
func (d *decider) leftGroup(v *Visit) bool {
	if v.Group.ID == "" || d.facts.Members == nil {
		return false
	}
	others := d.others()
	if i := slices.IndexFunc(others, Member.hasLeft); i >= 0 {
		d.leaveGroup(v, fmt.Sprintf("node %s has left the group: %s", others[i].Node, cmp.Or(others[i].Outcome, string(others[i].Phase))))
		return true
	}
	limit := v.PhaseSince.Add(groupTimeout)
	if len(others) >= v.Group.Size-1 {
		return false
	}
	if d.now.Before(limit) {
		d.requeueAt(limit)
		return false
	}
	d.leaveGroup(v, fmt.Sprintf("%d of the %d nodes of the group are there", len(others)+1, v.Group.Size))
	return true
}

// leaveGroup ends a visit whose group cannot go on, which is no result. The others follow.
func (d *decider) leaveGroup(v *Visit, why string) {
	d.event(corev1.EventTypeNormal, SweepYielded, "%s: the group has ended: %s", v.name(), why)
	d.result(v, ResultYielded)
	d.close(Yielded, "the group has ended: %s", why)
}

// mayLeaveGroup tells whether a Job may have ended without a result because another node has left the group, which is not known yet.
func (d *decider) mayLeaveGroup(v *Visit) bool {
	if v.Group.ID == "" {
		return false
	}
	if v.JobEndedAt.IsZero() {
		v.JobEndedAt = d.now
	}
	known := v.JobEndedAt.Add(leaveTime)
	d.requeueAt(known)
	return d.now.Before(known)
}

// openGroup begins the visit of a node of a group. Its Job begins when the visits of all have begun. What may be in the way for long
// keeps the visit from beginning: the node is then not chosen again for an hour.
func (d *decider) openGroup(s *Selection, check policy.Check) {
	var b bounds
	if b.group(&Visit{Kind: Sweep, Group: s.Group}); b.err != nil { // no record with it could be read
		d.waits("group", "%s waits: %v", Sweep, b.err)
		return
	}
	if d.mayOpen(Sweep, check) {
		d.open(Visit{Kind: Sweep, Sweep: s.Sweep, Group: s.Group, Outcome: "waits for the other nodes of its group"})
	}
}

// pairwise is the sweep of a visit in a policy; nil: it is not there, or not pairwise.
func (v *Visit) pairwise(p *policy.Policy) *policy.Sweep {
	i := slices.IndexFunc(p.Sweeps, func(s policy.Sweep) bool { return s.Name == v.Sweep && s.Pairwise != nil })
	if i < 0 {
		return nil
	}
	return &p.Sweeps[i]
}

// gather waits until the visits of all nodes of the group have begun, and then begins the Job.
func (d *decider) gather(v *Visit) {
	d.requeue(groupPoll)
	s := v.pairwise(d.policy)
	if s == nil {
		d.leaveGroup(v, "the policy does not ask for it any more")
		return
	}
	if why := unavailable(d.policy, d.facts.Node, d.record, d.facts.Quarantine, d.now); why != "" {
		d.leaveGroup(v, why)
		return
	}
	if d.facts.Awaited != "" {
		d.yield(v, "pod %s could run on the node", d.facts.Awaited)
		return
	}
	if d.leftGroup(v) {
		return
	}
	held := d.held()
	if d.step.Needs.Any() {
		return
	}
	if held != "" {
		d.leaveGroup(v, held)
		return
	}
	if len(d.others()) < v.Group.Size-1 {
		return
	}
	check := s.Check
	if d.needs(Needs{Pods: true, Template: check.Template}) {
		return
	}
	if d.facts.Template == nil {
		d.leaveGroup(v, d.noTemplate())
		return
	}
	if pods := d.inTheWay(false); len(pods) > 0 {
		d.leaveGroup(v, podNames(pods, "has not ended", "have not ended"))
		return
	}
	d.begun(v, check, false)
	if d.requested(RequestCheck) {
		d.record.Request = nil
	}
	d.event(corev1.EventTypeNormal, SweepStarted, "%s: %s, rank %d of %d nodes", v.name(), strings.Join(append([]string{check.Template}, check.Args...), " "),
		v.Group.Rank, v.Group.Size)
}

// proveGroup closes a visit once the Jobs of all nodes of the group have run and the verdict on their reports is out. Until then the
// Job stays, which owns the report. It waits no longer than the Jobs of the others may take.
func (d *decider) proveGroup(v *Visit) {
	if d.facts.Members == nil || d.leftGroup(v) {
		return
	}
	others := d.others()
	if len(others) < v.Group.Size-1 {
		return
	}
	last, limit := v.PhaseSince, v.PhaseSince.Add(StartTimeout+groupTimeout)
	if s := v.pairwise(d.policy); s != nil {
		limit = limit.Add(s.Timeout)
	}
	for _, m := range others {
		switch {
		case m.Phase == Proving:
			last = later(last, m.Since) // the record of another node is input: it may lie ahead
		case m.IsOpen():
			last = d.now
		}
	}
	if out := last.Add(verdictTime); d.now.Before(out) {
		if d.requeueAt(out); !d.now.Before(limit) {
			d.leaveGroup(v, "not all Jobs have ended in time")
		}
		return
	}
	for _, c := range conditions.Verdicts {
		if condition, ok := node.ConditionOf(d.facts.Node, corev1.NodeConditionType(c.Type)); ok && condition.Status == corev1.ConditionTrue {
			v.Group.Result = repairresult.Problem // whatever its Job said: the others have been tested with the node
			d.problem(v, c.Type+" is a fault")
			return
		}
	}
	if v.Group.Result == repairresult.Problem {
		d.failed(v, "its Job has found a problem, and there is no verdict; see whether the reports of namespace "+d.facts.Namespace+" count: "+v.Outcome)
		return
	}
	d.healthy(v)
}

// SweepGroup are the nodes of a group that may begin, in the order of their ranks.
type SweepGroup struct {
	Sweep *policy.Sweep
	Nodes []string
	// Urgent: the check of one of them is, see [SweepStart].
	Urgent bool
}

// GroupID names a group.
func GroupID(at time.Time, nodes []string) string {
	return shortHash(append([]string{at.Format(time.RFC3339Nano)}, nodes...)...)
}

// addGroups adds the groups that may begin, and the nodes to look at for them, at most as many as for all other sweeps.
func (p *SweepPlan) addGroups(sweeps []policy.Sweep, nodes []SweepNode, taken map[string]bool, awaited func(string) time.Time, now time.Time) {
	count := 0
	for i := range sweeps {
		if sweeps[i].Pairwise != nil {
			count++
		}
	}
	var look []queued
	for i := range sweeps {
		if sweeps[i].Pairwise == nil {
			continue
		}
		watched, group := planGroup(&sweeps[i], nodes, taken, maxPairWatch/count, awaited, now)
		for _, q := range watched {
			if !slices.Contains(p.Look, q.Name) && !slices.ContainsFunc(look, func(l queued) bool { return l.Name == q.Name }) {
				look = append(look, q)
			}
		}
		if group != nil {
			p.Groups = append(p.Groups, *group)
			for _, name := range group.Nodes {
				taken[name] = true
			}
		}
	}
	slices.SortStableFunc(look, func(a, b queued) int { return a.Idle.LookedAt.Compare(b.Idle.LookedAt) })
	for _, q := range look[:min(len(look), maxLooks)] {
		p.Look = append(p.Look, q.Name)
	}
}

// planGroup decides which nodes are looked at for a sweep that is pairwise, and which are its next group; nil: there is none yet.
//
// A group begins when a node is due and minNodes are idle. All idle nodes join it whose last check is longer ago than half of
// [policy.Sweep.Every], the longest unchecked first. Others fill it up to minNodes: without partners nothing is found.
func planGroup(s *policy.Sweep, nodes []SweepNode, taken map[string]bool, most int, awaited func(string) time.Time, now time.Time) (look []queued, group *SweepGroup) {
	queue, underWay, _ := queueOf(s, nodes, now)
	if underWay > 0 {
		return nil, nil
	}
	isDue := func(q queued) bool { return q.rank < 2 || !now.Before(q.checked.Add(period(s))) }
	joins := func(q queued) bool { return isDue(q) || !now.Before(q.checked.Add(s.Every/2)) }
	var idle []queued
	var due *queued // the first that is idle
	joining, waiting, watched, busy := 0, 0, 0, 0
	for i := range queue { // those that are due come first
		q := &queue[i]
		if !isDue(*q) && due == nil || watched == min(most, max(s.Pairwise.MaxNodes, s.Pairwise.MinNodes)) {
			break
		}
		if taken[q.Name] {
			continue
		}
		if q.wasBusy() { // awaited compares a node with every pod that waits
			if busy < busyLooks && now.Sub(q.Idle.LookedAt) >= max(q.idleFor/2, LookEvery) {
				busy++
				look = append(look, *q)
			}
			continue
		}
		since := awaited(q.Name)
		if !since.IsZero() && !q.urgent(s, now) {
			continue
		}
		watched++
		if now.After(q.Idle.LookedAt) {
			look = append(look, *q)
		}
		if q.isIdle(now) && (since.IsZero() || now.Sub(later(since, q.Idle.Since)) >= AwaitedIdle) {
			idle = append(idle, *q)
			if isDue(*q) && due == nil {
				due = q
			}
			if joins(*q) {
				joining++
			}
		} else if since.IsZero() && joins(*q) {
			waiting++
		}
	}
	size := min(max(joining, s.Pairwise.MinNodes), s.Pairwise.MaxNodes, len(idle))
	// Nodes that were looked at one after the other begin together.
	late := due != nil && now.Sub(due.Idle.Since) >= due.idleFor+maxGap
	if due == nil || size < s.Pairwise.MinNodes || waiting > 0 && joining < s.Pairwise.MaxNodes && !late {
		return look, nil
	}
	group = &SweepGroup{Sweep: s}
	for _, q := range idle[:size] {
		group.Nodes = append(group.Nodes, q.Name)
		group.Urgent = group.Urgent || q.urgent(s, now)
	}
	return look, group
}

// isIdle tells whether the node was idle for long enough, in a look that counts: a visit may have ended because of a pod since.
func (q queued) isIdle(now time.Time) bool {
	ended := time.Time{}
	if q.Record != nil && len(q.Record.Last) > 0 {
		ended = q.Record.Last[0].EndedAt
	}
	return !q.Idle.Since.IsZero() && now.Sub(q.Idle.Since) >= q.idleFor && now.Sub(q.Idle.LookedAt) <= maxGap && q.Idle.LookedAt.After(ended)
}
