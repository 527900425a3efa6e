package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// What is checked here is about the order of writes alone, never about time. A joined version is taken as it is and never judged:
// nobody knows when it became so.

// violation is what must not be.
type violation struct {
	what string
	// history is of the object that it is about, the oldest first, from when it was last well.
	history []string
}

func (v violation) String() string {
	return v.what + "\n\t" + strings.Join(v.history, "\n\t")
}

// nodeState is a version of a Node, read.
type nodeState struct {
	version[*corev1.Node]
	record *causes.Record // nil: none, or that of another node
	visits *visit.Record  // nil: none, or that of another node
	before *nodeState     // the version before it; nil for the first
}

// visit is the one under way; nil: there is none.
func (s *nodeState) visit() *visit.Visit {
	if s == nil || s.gone || s.visits == nil {
		return nil
	}
	return s.visits.Current
}

// isWorkedOn tells whether a visit owns the node: it has the taint, and there may be a Job.
func (s *nodeState) isWorkedOn() bool {
	v := s.visit()
	return v != nil && (v.Phase == visit.Working || v.Phase == visit.Ending) && s.hasTaint(conditions.TaintMaintenance)
}

func (s *nodeState) hasTaint(key string) bool {
	return slices.ContainsFunc(s.object.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

func (s *nodeState) isQuarantined() bool {
	return s != nil && !s.gone && s.record != nil && s.record.Phase == causes.Quarantined
}

// statesOf reads versions, which are in order.
func statesOf(versions []version[*corev1.Node]) []*nodeState {
	last := map[types.UID]*nodeState{}
	var all []*nodeState
	for _, v := range versions {
		s := &nodeState{version: v, before: last[v.object.UID]}
		if r, err := causes.RecordOf(v.object); err == nil && r != nil && r.NodeUID == v.object.UID {
			s.record = r
		}
		if r, err := visit.RecordOf(v.object); err == nil {
			s.visits = r
		}
		last[v.object.UID] = s
		all = append(all, s)
	}
	return all
}

func (s *nodeState) String() string {
	text := fmt.Sprintf("%d %s", s.at, s.object.Name)
	if s.joined {
		text += " (joined)"
	}
	return text + ": " + s.describe()
}

// describe is all but when it was.
func (s *nodeState) describe() string {
	if s.gone {
		return "deleted"
	}
	var parts []string
	for _, c := range s.object.Status.Conditions {
		if isFaulty(c) {
			parts = append(parts, fmt.Sprintf("%s=%s %.30q", c.Type, c.Status, c.Message))
		}
	}
	for _, t := range s.object.Spec.Taints {
		parts = append(parts, "taint "+t.ToString())
	}
	for key := range s.object.Labels {
		if strings.HasPrefix(key, foreign) || key == conditions.LabelSkip {
			parts = append(parts, "label "+key)
		}
	}
	if s.object.Spec.Unschedulable {
		parts = append(parts, "cordoned")
	}
	parts = append(parts, "boot "+s.object.Status.NodeInfo.BootID[:4])
	if r := s.record; r != nil {
		parts = append(parts, fmt.Sprintf("record %s %s", r.Phase, r.ID))
		if r.Taint != nil {
			parts = append(parts, r.Taint.String()+" by "+r.Taint.Rule)
		}
		for _, c := range r.Causes {
			parts = append(parts, fmt.Sprintf("cause %s %s", c.Condition, c.Repair))
		}
		if r.ReleasedBy != "" {
			parts = append(parts, "released by "+r.ReleasedBy)
		}
	}
	if v := s.visit(); v != nil {
		parts = append(parts, fmt.Sprintf("visit %s %s %s, attempt %d %s", v.Kind, v.ID, v.Phase, v.Attempt, v.Template))
	}
	return strings.Join(parts, ", ")
}

func isFaulty(c corev1.NodeCondition) bool {
	switch c.Type {
	case corev1.NodeReady:
		return c.Status != corev1.ConditionTrue
	case conditions.GPUXidError, conditions.GPUMemoryError, conditions.HCAPortDown:
		return c.Status == corev1.ConditionTrue
	}
	return false
}

// isActedUpon tells whether a rule that is enforced quarantines a node for a fault. One that only observes or alerts keeps no quarantine.
func isActedUpon(c corev1.NodeCondition) bool {
	alerts := c.Type == conditions.GPUXidError && strings.HasPrefix(c.Message, conditions.Inspect.String()+" ")
	return isFaulty(c) && !alerts && c.Type != conditions.HCAPortDown
}

// breaks makes a violation at a state, with the node's history since it was last in service without a record that is open.
func (s *nodeState) breaks(format string, args ...any) violation {
	var lines []string
	for at, shown := s, 0; at != nil && shown < 40; at = at.before {
		if at == s || at.before == nil || at.describe() != at.before.describe() {
			lines = append(lines, at.String())
			shown++
		}
		if at != s && (at.record == nil || at.record.Phase == causes.Released) && !slices.ContainsFunc(at.object.Status.Conditions, isFaulty) {
			break
		}
	}
	slices.Reverse(lines)
	return violation{fmt.Sprintf("%d: node %s: ", s.at, s.object.Name) + fmt.Sprintf(format, args...), lines}
}

// leadership tells who held the lease at a revision.
type leadership struct {
	leases []version[*coordinationv1.Lease]
	// identities are those that each process has written into the lease.
	wrote func(process, identity string) bool
	// writers are the processes that have sent a record, and jobWriters a Job.
	writers, jobWriters func(string) []string
}

// holds tells whether the processes that have sent something held the lease when the API server took it. Whoever does not has lost the
// lease, and cannot know what its successor has written meanwhile: no lock of Kubernetes can keep its last writes from coming late.
func (l leadership) holds(at uint64, senders []string) bool {
	holder := ""
	for _, lease := range l.leases {
		if lease.at >= at {
			break
		}
		holder = ptr.Deref(lease.object.Spec.HolderIdentity, "")
	}
	if holder == "" {
		return false
	}
	return len(senders) > 0 && !slices.ContainsFunc(senders, func(process string) bool { return !l.wrote(process, holder) })
}

// changesUntil tells who has held the lease.
func (l leadership) changesUntil(at uint64) (all []string) {
	last := ""
	for _, lease := range l.leases {
		if holder := ptr.Deref(lease.object.Spec.HolderIdentity, ""); holder != last && lease.at < at {
			all, last = append(all, fmt.Sprintf("%d the lease is held by %q", lease.at, holder)), holder
		}
	}
	return all[max(0, len(all)-5):]
}

// took tells whether a leader has written the record in an annotation of a state.
func (l leadership) took(s *nodeState, annotation string) bool {
	return l.holds(s.at, l.writers(s.object.Annotations[annotation]))
}

// place is a budget: how many nodes may be quarantined as has says.
type place struct {
	name  string
	limit int
	has   func(*causes.Record) bool
}

var places = []place{
	{"the policy", maxNodes, func(r *causes.Record) bool { return !limits.IsSoft(r.Taint.Effect) }},
	{"rule gpu-memory", maxMemory, func(r *causes.Record) bool { return r.Taint.Rule == "gpu-memory" }},
}

// checkBudget: no leader takes a place under a budget that is used up, but for a person, whose order takes one without asking, also while the
// write of a decision is under way. What a process writes that has lost the lease uses up none.
func checkBudget(states []*nodeState, leaders leadership, p place) (found []violation) {
	counted := map[types.UID]*nodeState{}
	late := map[types.UID]bool{}
	for _, s := range states {
		uid := s.object.UID
		if !s.isQuarantined() || !p.has(s.record) {
			delete(counted, uid)
			delete(late, uid)
			continue
		}
		if counted[uid] != nil && !s.record.IsIsolated() && !s.hasTaint(s.record.Taint.Key) {
			// Somebody has removed it. A leader that has seen it puts it back. One that has not takes the record for forged, and the place is free.
			delete(counted, uid)
			late[uid] = true
		}
		if counted[uid] != nil || late[uid] {
			continue
		}
		switch {
		case s.joined:
			counted[uid] = s
		case !leaders.took(s, conditions.AnnotationQuarantine):
			late[uid] = true
		default:
			counted[uid] = s
			taken := 0
			for _, other := range counted {
				if other.record.Taint.Rule != policy.ByHand || other.record.QuarantinedAt.Before(s.record.QuarantinedAt) {
					taken++
				}
			}
			if taken > p.limit && s.record.Taint.Rule != policy.ByHand {
				v := s.breaks("%d nodes are quarantined, the budget of %s is %d", len(counted), p.name, p.limit)
				for _, other := range counted {
					v.history = append(v.history, fmt.Sprintf("%s, written by %v", other, leaders.writers(other.object.Annotations[conditions.AnnotationQuarantine])))
				}
				v.history = append(v.history, leaders.changesUntil(s.at)...)
				found = append(found, v)
			}
		}
	}
	return found
}

// checkCauses: a quarantine begins only on a node with the fault that it names, by a rule that is enforced, and a taint of a quarantine is
// there only with the record that explains it, unless somebody else has put it there.
func checkCauses(states []*nodeState, putBack map[string]bool) (found []violation) {
	unexplained := func(s *nodeState) string {
		if s == nil {
			return ""
		}
		for _, t := range s.object.Spec.Taints {
			explained := s.isQuarantined() && s.record.Taint.NodeTaint() == t
			if t.Key == conditions.TaintUnhealthy && !explained {
				return t.ToString()
			}
		}
		return ""
	}
	for _, s := range states {
		if s.gone || s.joined {
			continue
		}
		if text := unexplained(s); text != "" && unexplained(s.before) != text && !putBack[s.object.Name] {
			found = append(found, s.breaks("taint %s has no record that explains it", text))
		}
		if !s.isQuarantined() || s.before.isQuarantined() {
			continue
		}
		if s.record.Taint.Rule == policy.ByHand {
			continue
		}
		cause := s.record.Decisive()
		has := slices.ContainsFunc(s.object.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == cause.Condition && isActedUpon(c) })
		if !has || s.record.Taint.Rule == observedRule {
			found = append(found, s.breaks("quarantined for %s by rule %s without that fault, or by a rule that observes", cause.Condition, s.record.Taint.Rule))
		}
	}
	return found
}

// checkReleases: nobody but a person releases a node that still has a fault, has not booted as its fault requires, needs a new part, was
// quarantined by a person, or was not validated where its rule wants that, and not while a visit works on it. observed reports whether the
// policy may have been one that observes: it leaves a validation out (docs/security-switches.md).
func checkReleases(states []*nodeState, observed func(time.Time) bool) (found []violation) {
	for _, s := range states {
		r := s.record
		if s.gone || s.joined || !s.before.isQuarantined() || r == nil || r.Phase != causes.Released || r.ID != s.before.record.ID || r.ReleasedBy != causes.ByPitcrew {
			continue
		}
		for _, cause := range r.Causes {
			stands := slices.ContainsFunc(s.object.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == cause.Condition && isActedUpon(c) })
			unrepaired := cause.Repair == conditions.Reboot && cause.BootID == s.object.Status.NodeInfo.BootID || cause.Repair == conditions.Replace
			if stands || unrepaired || cause.Rule == policy.ByHand {
				found = append(found, s.breaks("released although %s (%s) stands or is not repaired", cause.Condition, cause.Repair))
			}
			// One that is in service, because somebody has removed the taint, cannot be validated.
			validated := s.visits != nil && s.visits.ValidatedFor(r.ID, s.object.Status.NodeInfo.BootID) || observed(r.ReleasedAt)
			if s.before.hasTaint(s.before.record.Taint.Key) && cause.Due && cause.Rule == validatedRule && !validated {
				found = append(found, s.breaks("released although no check of this boot has passed, which rule %s wants", cause.Rule))
			}
		}
		if s.before.isWorkedOn() {
			found = append(found, s.breaks("released while visit %s works on it", s.before.visit().ID))
		}
	}
	return found
}

// isOrdered reports whether this version has a quarantine that a person ordered and the one before has not, or a person has ended one. The
// label that has a node left alone keeps no order from being carried out.
func (s *nodeState) isOrdered() bool {
	begins := s.isQuarantined() && s.record.Taint.Rule == policy.ByHand && (!s.before.isQuarantined() || s.before.record.ID != s.record.ID)
	ends := s.before.isQuarantined() && !s.isQuarantined() && s.record != nil && s.record.ReleasedBy == causes.ByPerson
	return begins || ends
}

// checkManualReleases: what a person has released is not quarantined again for the same fault before that has cleared, unless the node
// has booted since.
func checkManualReleases(states []*nodeState) (found []violation) {
	for _, s := range states {
		again := s.before.isQuarantined() && s.isQuarantined() && s.before.record.ID != s.record.ID // released in the same write
		if s.gone || s.joined || !s.isQuarantined() || s.before.isQuarantined() && !again || s.record.Taint.Rule == policy.ByHand {
			continue
		}
		cause := s.record.Decisive()
		covers := func(q causes.Quarantine) bool {
			return q.ReleasedBy == causes.ByPerson && slices.ContainsFunc(q.Causes, func(c causes.Cause) bool {
				return c.Due && c.Condition == cause.Condition && c.Message == cause.Message
			})
		}
		stands := func(p *nodeState) bool {
			return !p.joined && p.object.Status.NodeInfo.BootID == s.object.Status.NodeInfo.BootID &&
				slices.ContainsFunc(p.object.Status.Conditions, func(c corev1.NodeCondition) bool {
					return c.Type == cause.Condition && c.Status == corev1.ConditionTrue && c.Message == cause.Message
				})
		}
		breaks := again && stands(s.before) && len(s.record.Last) > 0 && covers(s.record.Last[0])
		for p := s.before; !again && p != nil && stands(p); p = p.before {
			if p.before.isQuarantined() && !p.isQuarantined() && p.record != nil && p.record.ReleasedBy == causes.ByPerson {
				breaks = covers(p.record.Quarantine)
				break
			}
		}
		if breaks {
			found = append(found, s.breaks("quarantined again for %s, of which a person has released it and which has not cleared since", cause.Condition))
		}
	}
	return found
}

// checkBreaker: after as many quarantines as the breaker allows within its window, the next one waits for its pace at least. The times
// are those of the records, by which it counts.
func checkBreaker(states []*nodeState, leaders leadership, b *policy.Breaker) (found []violation) {
	began := map[string]time.Time{} // by node
	for _, s := range states {
		if s.gone || !s.isQuarantined() || s.before.isQuarantined() || s.joined || limits.IsSoft(s.record.Taint.Effect) ||
			slices.Contains([]string{policy.ByHand, "node-not-ready"}, s.record.Taint.Rule) ||
			!leaders.took(s, conditions.AnnotationQuarantine) {
			continue
		}
		at := s.record.QuarantinedAt
		var latest time.Time
		within := 0
		for node, t := range began {
			if node != s.object.Name && t.Before(at) && at.Sub(t) < b.Window {
				within++
				if t.After(latest) {
					latest = t
				}
			}
		}
		if within >= b.MaxNodes && at.Sub(latest) < b.Pace {
			found = append(found, s.breaks("quarantined %s after another node, although %d were within %s", at.Sub(latest), within, b.Window))
		}
		began[s.object.Name] = at
	}
	return found
}

// checkVisits: not more nodes are repaired or validated at the same time than the policy allows, a Job begins on a node only where no pod
// has a GPU that was there before the node was taken, and each action is done once in a quarantine.
func checkVisits(states []*nodeState, leaders leadership, repairs []jobVersion, pods []version[*corev1.Pod]) (found []violation, actions int) {
	active := map[types.UID]*nodeState{}
	untainted := map[string]bool{} // visits whose taints somebody has removed, which frees their places
	for _, s := range states {
		uid, v := s.object.UID, s.visit()
		if v == nil || v.Kind != visit.Repair && v.Kind != visit.Validation {
			delete(active, uid)
			continue
		}
		if !s.isWorkedOn() && (!s.isQuarantined() || !s.hasTaint(s.record.Taint.Key)) {
			untainted[v.ID] = true
		}
		if untainted[v.ID] {
			delete(active, uid)
			continue
		}
		active[uid] = s
		begins := s.before.visit() == nil || s.before.visit().ID != v.ID
		if begins && !s.joined && len(active) > maxVisits && leaders.took(s, conditions.AnnotationRepair) {
			both := s.breaks("%d nodes are visited, the policy allows %d", len(active), maxVisits)
			for node, o := range active {
				if node != uid {
					both.history = append(both.history, o.breaks("").history...)
				}
			}
			found = append(found, both)
		}
	}
	type life struct {
		pod         *corev1.Pod
		bound, gone uint64
	}
	lives := map[types.UID]*life{}
	for _, v := range pods {
		l := lives[v.object.UID]
		if l == nil {
			l = &life{}
			lives[v.object.UID] = l
		}
		l.pod = v.object
		if l.bound == 0 && v.object.Spec.NodeName != "" && !v.joined {
			l.bound = v.at
		}
		if l.gone == 0 && (v.gone || v.object.Status.Phase == corev1.PodSucceeded || v.object.Status.Phase == corev1.PodFailed) {
			if l.gone = v.at; v.joined {
				l.gone = 1 // at an unknown time, so early enough
			}
		}
	}
	seen := map[types.UID]bool{}
	done := map[string]string{}
	for _, job := range repairs {
		o := job.object
		if seen[o.UID] {
			continue
		}
		if seen[o.UID] = true; job.joined || !leaders.holds(job.at, leaders.jobWriters(o.Name)) {
			continue
		}
		var s *nodeState // the node as it was when the Job was created
		for _, state := range states {
			if state.at < job.at && state.object.Name == o.Annotations[conditions.AnnotationNode] {
				s = state
			}
		}
		if s == nil {
			continue
		}
		actions++
		if s.visit() == nil || s.visit().ID != o.Labels[conditions.LabelVisit] {
			found = append(found, s.breaks("Job %s of visit %s is created at %d, which the record does not name", o.Name, o.Labels[conditions.LabelVisit], job.at))
			continue
		}
		attempt, taken := s.visit().Attempt, s
		for taken.before.isWorkedOn() && taken.before.visit().ID == s.visit().ID && taken.before.visit().Attempt == attempt {
			taken = taken.before
		}
		for _, l := range lives {
			if l.pod.Spec.NodeName == s.object.Name && l.bound != 0 && l.bound < taken.at && (l.gone == 0 || l.gone > job.at) {
				v := s.breaks("Job %s of %s begins at %d while pod %s has GPUs, bound at %d and ended at %d", o.Name, s.visit().Template, job.at, l.pod.Name, l.bound, l.gone)
				found = append(found, v)
			}
		}
		if template := s.visit().Template; s.visit().Kind == visit.Repair {
			action := s.visit().Quarantine + " " + template
			if done[action] != "" {
				found = append(found, s.breaks("action %s is done again by Job %s at %d, after %s", template, o.Name, job.at, done[action]))
			}
			done[action] = o.Name
		}
	}
	return found, actions
}

// foreign is the domain of all that users of the world put on nodes.
const foreign = "chaos.example.com/"

// marks are what others have put on a node.
func marks(n *corev1.Node) map[string]bool {
	all := map[string]bool{}
	for _, t := range n.Spec.Taints {
		all["taint "+t.ToString()] = strings.HasPrefix(t.Key, foreign)
	}
	for key, value := range n.Labels {
		all["label "+key+"="+value] = strings.HasPrefix(key, foreign)
	}
	for key, value := range n.Annotations {
		all["annotation "+key+"="+value] = strings.HasPrefix(key, foreign)
	}
	maps.DeleteFunc(all, func(_ string, theirs bool) bool { return !theirs })
	return all
}

// checkForeign: what others have put on a node stays until they ask for its removal, a cordon, too, and nothing is done about a node
// that is skipped, but by a person. removed are the marks that somebody has asked to remove, before the request was sent; uncordoned counts
// these requests. writers are the processes that have sent a record.
func checkForeign(states []*nodeState, writers func(record string) []string, removed map[string]bool, cordoned, uncordoned map[types.UID]int) (found []violation) {
	cordons, uncordons := map[types.UID]int{}, map[types.UID]int{}
	for _, s := range states {
		if s.gone || s.before == nil {
			continue
		}
		before, now := marks(s.before.object), marks(s.object)
		for mark := range before {
			if !now[mark] && !removed[mark] {
				found = append(found, s.breaks("lost %s, which is not Pitcrew's", mark))
			}
		}
		uid := s.object.UID
		switch was, is := s.before.object.Spec.Unschedulable, s.object.Spec.Unschedulable; {
		case !was && is:
			cordons[uid]++
		case was && !is:
			uncordons[uid]++
		}
		if cordons[uid] > cordoned[uid] || uncordons[uid] > uncordoned[uid] {
			found = append(found, s.breaks("cordoned %d times and uncordoned %d times, others did %d and %d times", cordons[uid], uncordons[uid], cordoned[uid], uncordoned[uid]))
			cordons[uid], uncordons[uid] = 0, 0
		}
		const key = conditions.AnnotationQuarantine
		record := s.object.Annotations[key]
		byPerson := record != "" && len(writers(record)) == 0
		if !s.joined && s.before.object.Labels[conditions.LabelSkip] == "true" && s.before.object.Annotations[key] != record && !byPerson && !s.isOrdered() {
			found = append(found, s.breaks("has label %s and another record", conditions.LabelSkip))
		}
	}
	return found
}

// jobVersion is the metadata of a job.
type jobVersion = version[*metav1.PartialObjectMetadata]

func describeJob(v jobVersion) string {
	text := fmt.Sprintf("%d %s", v.at, v.object.GetName())
	if v.joined {
		text += " (joined)"
	}
	return text + ": " + describeRestarts(v)
}

// describeRestarts is all but when it was.
func describeRestarts(v jobVersion) string {
	rec, err := restart.ReadRecord(v.object)
	if err != nil {
		return err.Error()
	}
	text := ""
	if v.gone {
		text = "deleted, "
	}
	describe := func(r restart.Restart) string {
		var causes []string
		for _, c := range r.Quarantines {
			causes = append(causes, c.Node+" "+c.ID)
		}
		return fmt.Sprintf("%s %s for %s, pods %v %s", r.ID, r.Phase, strings.Join(causes, " and "), r.Pods, r.Outcome)
	}
	if rec.Current != nil {
		text += describe(*rec.Current)
	}
	for _, r := range rec.Last {
		text += "; before: " + describe(r)
	}
	return text
}

// checkRestarts: a job that is stopped as a whole is stopped at most once for each quarantine. A stop may have several causes, and one of
// them must be new. Of the others pods that were bound late are replaced once more.
func checkRestarts(versions []jobVersion, whole bool) (found []violation, stops int) {
	type job struct {
		stops, causes map[string]bool
		last          string
		lines         []string
	}
	jobs := map[types.UID]*job{}
	for _, v := range versions {
		rec, err := restart.ReadRecord(v.object)
		if err != nil {
			found = append(found, violation{what: err.Error(), history: []string{describeJob(v)}})
			continue
		}
		j := jobs[v.object.GetUID()]
		if j == nil {
			j = &job{stops: map[string]bool{}, causes: map[string]bool{}}
			jobs[v.object.GetUID()] = j
		}
		all := slices.Clone(rec.Last)
		slices.Reverse(all)
		if rec.Current != nil {
			all = append(all, *rec.Current)
		}
		if text := describeRestarts(v); text != j.last {
			j.last, j.lines = text, append(j.lines, describeJob(v))
		}
		for _, r := range all {
			if r.ID == "" || r.Phase == restart.Checkpointing {
				continue
			}
			fresh := slices.ContainsFunc(r.Quarantines, func(c restart.Cause) bool { return !j.causes[c.ID] })
			if !j.stops[r.ID] {
				stops++
				if !fresh && whole {
					found = append(found, violation{fmt.Sprintf("%d: job %s: stop %s has no cause for which the job was not stopped before", v.at, v.object.GetName(), r.ID), slices.Clone(j.lines)})
				}
			}
			j.stops[r.ID] = true
			for _, c := range r.Quarantines {
				j.causes[c.ID] = true
			}
		}
	}
	return found, stops
}

// checkIncarnations: when a job is started again, no pod that it had before still runs. whole tells whether all pods of a job are stopped
// together; of the others only the recorded ones have to be gone, and none if a person aborts the restart.
func checkIncarnations(
	jobs []jobVersion, pods []version[*corev1.Pod], states []*nodeState, whole func(*metav1.PartialObjectMetadata) bool,
) (found []violation, starts int) {
	type life struct {
		pod           *corev1.Pod
		created, gone uint64
		joined        bool
		versions      []version[*corev1.Pod]
	}
	lives := map[types.UID]*life{}
	for _, v := range pods {
		l := lives[v.object.UID]
		if l == nil {
			l = &life{created: v.at, joined: v.joined}
			lives[v.object.UID] = l
		}
		l.pod, l.versions = v.object, append(l.versions, v)
		ended := v.gone || v.object.Status.Phase == corev1.PodSucceeded || v.object.Status.Phase == corev1.PodFailed
		if ended && l.gone == 0 {
			if l.gone = v.at; v.joined {
				l.gone = 1 // at an unknown time, so early enough
			}
		}
	}
	stopping := map[types.UID]*restart.Restart{}
	for _, v := range jobs {
		uid := v.object.GetUID()
		rec, err := restart.ReadRecord(v.object)
		if err != nil {
			continue
		}
		before := stopping[uid]
		if stopping[uid] = rec.Current; before == nil || v.gone || v.joined || before.Phase != restart.Stopping ||
			rec.Current == nil || rec.Current.Phase != restart.Starting || rec.Current.ID != before.ID {
			continue
		}
		starts++
		_, aborted := v.object.Annotations[conditions.AnnotationAbortRestart]
		for podUID, l := range lives {
			recorded := slices.Contains(before.Pods, podUID) && (whole(v.object) || !aborted)
			own := whole(v.object) && !l.joined && l.created < v.at && l.pod.Labels[onlyWaits] == "" &&
				l.pod.Labels[incarnation] != "" && l.pod.Labels[incarnation] == v.object.Labels[incarnation]
			if (recorded || own) && (l.gone == 0 || l.gone > v.at) {
				lines := []string{fmt.Sprintf("pod %s is recorded: %v, an abort is asked for: %v", podUID, recorded, aborted)}
				for _, j := range jobs {
					if j.object.GetUID() == uid && j.at > l.created && j.at <= v.at {
						lines = append(lines, describeJob(j))
					}
				}
				for _, p := range l.versions {
					lines = append(lines, describePod(p))
				}
				lines = append(lines, livesOf(l.pod.Spec.NodeName, states, l.created, max(l.gone, v.at))...)
				found = append(found, violation{fmt.Sprintf("%d: job %s is started again while pod %s of its former incarnation is there, created at %d and ended at %d",
					v.at, v.object.GetName(), l.pod.Name, l.created, l.gone), lines})
			}
		}
	}
	return found, starts
}

func describePod(v version[*corev1.Pod]) string {
	text := fmt.Sprintf("%d pod %s on %s: %s", v.at, v.object.Name, v.object.Spec.NodeName, v.object.Status.Phase)
	if t := v.object.DeletionTimestamp; t != nil {
		text += " to be deleted at " + t.UTC().Format(time.TimeOnly)
	}
	if v.joined {
		text += " (joined)"
	}
	if v.gone {
		text += ", gone"
	}
	return text
}

// livesOf tells what the nodes of a name were, as far as it proves pods gone: which node, whether it answered, and how it was tainted.
func livesOf(name string, states []*nodeState, from, until uint64) (lines []string) {
	last := ""
	for _, s := range states {
		if s.object.Name != name || s.at > until {
			continue
		}
		text := fmt.Sprintf("node %s %s: %s", name, s.object.UID, s.describe())
		if text == last {
			continue
		}
		if last = text; s.at < from && len(lines) > 0 {
			lines = lines[:0] // of those before only the last one
		}
		lines = append(lines, fmt.Sprintf("%d %s", s.at, text))
	}
	return lines
}
