package nodes

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// lookLate is how soon the jobs of a node are looked at again at the latest when it is reconciled, though nothing has changed that they
// depend on: each look lists the pods of the node.
const lookLate = 5 * time.Minute

// looks are the last looks at the jobs of quarantined nodes.
type looks struct {
	mu     sync.Mutex
	byNode map[string]look
}

// look is a look at the jobs of a node that has succeeded.
type look struct {
	// at is the quarantine, and the policy by which it restarts jobs.
	at lookAt
	// next is when it is due again, asked when a job has asked for it; zero: none has.
	next, asked time.Time
}

type lookAt struct {
	id, rule string
	since    time.Time
	// tainted is false if the node had no taint before: pods may have come.
	tainted bool
	policy  *policy.Policy
}

// pending is how long a look may wait; false: it is due. Unless after is zero, it is to be made after that time.
func (l *looks) pending(node string, at lookAt, now time.Time) (after time.Duration, waits bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known := l.byNode[node]
	if !known || last.at != at || !now.Before(last.next) || last.next.Sub(now) > lookLate { // the clock was put back
		return 0, false
	}
	if !last.asked.IsZero() {
		after = last.asked.Sub(now)
	}
	return after, true
}

// done notes that a look has succeeded.
func (l *looks) done(node string, last look) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byNode[node] = last
}

func (l *looks) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byNode, node)
}

// restartJobs has the jobs of the node restarted, if the decision asks for it. It is repeated on purpose, when the decision says so: a
// pod that the scheduler bound before it saw the taint only shows later. Unless after is zero, a job waits for that time.
func (c *Controller) restartJobs(ctx context.Context, n *corev1.Node, d quarantine.Decision) (after time.Duration, err error) {
	if !d.RestartJobs || c.dryRun {
		c.looks.forget(n.Name)
		return 0, nil
	}
	p, now := c.policy.Policy(), c.clock.Now()
	rule, _ := p.Rule(d.RestartRule)
	q := d.State.Record.JobRestart(n, rule, d.Devices)
	tainted := q.Devices != nil || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&q.Taint) })
	at := lookAt{q.ID, rule.Name, q.Since, tainted, p}
	if after, waits := c.looks.pending(n.Name, at, now); waits {
		return after, nil
	}
	c.looks.forget(n.Name) // the last one is out of date, whatever becomes of this one
	if after, err = c.jobs.RestartJobsOnNode(ctx, q); err != nil {
		return after, fmt.Errorf("restart the jobs of node %s: %w", n.Name, err)
	}
	last := look{at: at, next: quarantine.NextPodCheck(q.Since, now, lookLate)}
	if after > 0 {
		if last.asked = now.Add(after); last.asked.Before(last.next) {
			last.next = last.asked
		}
	}
	c.looks.done(n.Name, last)
	return after, nil
}
