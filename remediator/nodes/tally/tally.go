// Package tally counts the quarantines of nodes: which began, how long each fault waited for its own, and how each ended.
package tally

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Held is for how long a repaired node must stay in service for its repair to have held.
const Held = 7 * 24 * time.Hour

// The ways in which a quarantine ends: by Pitcrew, or by a person whose reason begins with one of [Verdicts], or with none.
const (
	cleared  = "cleared"
	unstated = "unstated"
	repaired = "repaired"
)

// Verdicts are the words with which the reason of `kubectl pitcrew release` may begin.
var Verdicts = []string{"wrong", repaired, "other"}

// Quarantines compares the record of each node with the one that it saw before. What happens while no remediator leads is not counted.
type Quarantines struct {
	started, ended, relapsed *prometheus.CounterVec
	delay                    prometheus.Histogram

	mu    sync.Mutex
	nodes map[string]sight
	// filled is the policy whose series exist.
	filled *policy.Policy
}

// sight is what the node was when it was seen last. The text of its record is the one that the cache has, too.
type sight struct {
	uid    types.UID
	record string
	// open is the id of the quarantine that goes on; empty: none does.
	open string
}

// New returns a tally that has seen no node.
func New() *Quarantines {
	return &Quarantines{
		nodes: map[string]sight{},
		started: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_quarantines_total", Help: "Quarantines that began, by the condition that decided and the class of its repair.",
		}, []string{"condition", "repair"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_quarantines_ended_total",
			Help: "Quarantines that ended: cleared (released by Pitcrew), or released by a person whose reason begins with wrong, repaired " +
				"or other, or with none of these (unstated).",
		}, []string{"condition", "repair", "ended"}),
		relapsed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_repairs_relapsed_total",
			Help: "Quarantines for the condition of an earlier one of the node that had ended with a repair within 7 days before.",
		}, []string{"condition", "repair"}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "pitcrew_time_to_quarantine_seconds",
			Help:    "Time from the start of a fault, by its condition, to the taint, the rule's for included.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 14), // 1 s to 2 h
		}),
	}
}

// Collectors are to be registered.
func (q *Quarantines) Collectors() []prometheus.Collector {
	return []prometheus.Collector{q.started, q.ended, q.relapsed, q.delay}
}

// Forget forgets a node that is gone.
func (q *Quarantines) Forget(node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.nodes, node)
}

// See counts what has become of a node since it was seen last. The first sight of a node counts nothing.
func (q *Quarantines) See(p *policy.Policy, n *corev1.Node) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.fill(p)
	before, known := q.nodes[n.Name]
	known = known && before.uid == n.UID
	now := sight{uid: n.UID, record: n.Annotations[conditions.AnnotationQuarantine]}
	if known && before.record == now.record {
		return
	}
	r, err := causes.RecordOf(n)
	switch {
	case err != nil: // the next record that can be read says what has become of the quarantine
		if known {
			now.open = before.open
		}
	case r != nil && r.NodeUID == n.UID && r.Phase == causes.Quarantined:
		now.open = r.ID
	}
	q.nodes[n.Name] = now
	if !known || r == nil || err != nil {
		return
	}
	if before.open != "" && before.open != now.open {
		all := append([]causes.Quarantine{r.Quarantine}, r.Last...)
		if i := slices.IndexFunc(all, func(c causes.Quarantine) bool { return c.ID == before.open && c.Phase == causes.Released }); i >= 0 {
			condition, class := label(p, &all[i])
			q.ended.WithLabelValues(condition, class, endOf(&all[i])).Inc()
		}
	}
	if now.open != "" && before.open != now.open {
		q.begin(p, r)
	}
}

// begin counts a quarantine that is new, and the repair before it that did not hold.
func (q *Quarantines) begin(p *policy.Policy, r *causes.Record) {
	condition, class := label(p, &r.Quarantine)
	q.started.WithLabelValues(condition, class).Inc()
	c := decisive(&r.Quarantine)
	if c != nil && c.Rule != policy.ByHand {
		q.delay.Observe(max(0, r.QuarantinedAt.Sub(c.FirstSeen).Seconds()))
	}
	for i := range r.Last {
		last := &r.Last[i]
		before := decisive(last)
		if c == nil || before == nil || before.Condition != c.Condition || last.QuarantinedAt.IsZero() {
			continue
		}
		if wasRepaired(last, before) && r.QuarantinedAt.Sub(last.ReleasedAt) < Held {
			condition, class = label(p, last)
			q.relapsed.WithLabelValues(condition, class).Inc()
		}
		return // the latest counts
	}
}

// wasRepaired reports whether a quarantine has ended with a repair: its fault needed a reset or more and has cleared, or a person says so.
func wasRepaired(q *causes.Quarantine, c *causes.Cause) bool {
	switch endOf(q) {
	case repaired:
		return true
	case cleared:
		return c.Repair >= conditions.ResetGPU
	}
	return false
}

// endOf returns how a released quarantine has ended.
func endOf(q *causes.Quarantine) string {
	if q.ReleasedBy != causes.ByPerson {
		return cleared
	}
	verdict, _, _ := strings.Cut(q.ReleaseReason, ":")
	if verdict = strings.TrimSpace(verdict); slices.Contains(Verdicts, verdict) {
		return verdict
	}
	return unstated
}

// decisive returns the cause that made the quarantine: the worst one that is due, of the rule of the taint if there is one; nil: none is.
func decisive(q *causes.Quarantine) *causes.Cause {
	var found *causes.Cause
	better := func(a, b *causes.Cause) bool {
		if ofTaint := q.Taint != nil && a.Rule == q.Taint.Rule; q.Taint != nil && ofTaint != (b.Rule == q.Taint.Rule) {
			return ofTaint
		}
		return a.Repair > b.Repair
	}
	for i := range q.Causes {
		if c := &q.Causes[i]; c.Due && (found == nil || better(c, found)) {
			found = c
		}
	}
	return found
}

// other is what a record has that no policy can have made: whoever forges records must not make up labels of metrics.
const other = "other"

// label returns the condition and the class of a quarantine.
func label(p *policy.Policy, q *causes.Quarantine) (condition, class string) {
	c := decisive(q)
	if c == nil {
		return other, other
	}
	if _, err := conditions.ParseRepair(c.Repair.String()); err != nil {
		return other, other
	}
	if _, named := p.UnknownAfter(c.Condition); !named && c.Rule != policy.ByHand {
		return other, c.Repair.String()
	}
	return string(c.Condition), c.Repair.String()
}

// fill makes the series that the policy can count, at zero: a counter that starts at one shows no increase.
func (q *Quarantines) fill(p *policy.Policy) {
	if q.filled == p {
		return
	}
	q.filled = p
	for _, rule := range p.Rules {
		if rule.AlertOnly {
			continue
		}
		for _, class := range rule.Repair {
			q.zero(string(rule.Condition), class)
		}
	}
	q.zero("ByHand", conditions.Inspect)
}

func (q *Quarantines) zero(condition string, class conditions.Repair) {
	q.started.WithLabelValues(condition, class.String())
	q.relapsed.WithLabelValues(condition, class.String())
	for _, end := range append([]string{cleared, unstated}, Verdicts...) {
		q.ended.WithLabelValues(condition, class.String(), end)
	}
}
