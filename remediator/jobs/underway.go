package jobs

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/capacity"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/ratelimit"
)

// This file has what counts of the restarts of other jobs: which are under way, by the cache and by what this process knows beside it, and
// which of them take a place of maxConcurrent and claim room.

// underWay is a restart under way, as the record of its job says, and the UID of that job.
type underWay struct {
	job types.UID
	restart.Restart
}

// underRestart returns the restarts under way that the cache shows. An error means that some may be missing, because a kind cannot be
// listed: a new leader that took those for none would restart too many jobs. They are waited for as long as one begun before may last.
func (w *watcher) underRestart(ctx context.Context, longest time.Duration) (map[request]underWay, error) {
	if !w.tried.Load() || w.Unread() != nil {
		w.watchAll(ctx)
	}
	objects, err := w.Objects(ctx, longest)
	if err != nil {
		return nil, fmt.Errorf("restarts under way may not be known yet: %w", err)
	}
	all := map[request]underWay{}
	for req, object := range objects {
		// A record that does not parse is dropped by the restart's own controller.
		if rec, err := restart.ReadRecord(&object); err == nil && rec.Current != nil {
			all[req] = underWay{object.UID, *rec.Current}
		}
	}
	return all, nil
}

// others are the restarts of other jobs that are under way and take a place: of those that the cache shows, and those that this
// process has started and the cache may not show yet.
func (a *admission) others(ctx context.Context, self request) ([]ratelimit.Other, error) {
	all, err := a.watcher.underRestart(ctx, a.longest())
	if err != nil {
		return nil, err
	}
	a.memory.complete(all)
	delete(all, self)
	now := a.clock.Now()
	var others []ratelimit.Other
	for req, cur := range all {
		taken := a.memory.of(req).place
		if taken == nil || taken.job != cur.job {
			confirmed, nodeFault, err := a.causes.AnyNodeFault(ctx, cur.Summary().Quarantines)
			if err != nil {
				return nil, err
			}
			if !confirmed {
				continue
			}
			taken = &place{cur.job, now, a.movable(ctx, req, cur), nil, nodeFault}
			a.memory.take(req, *taken)
		}
		if now.Sub(taken.since) > a.longest() {
			continue
		}
		cur.Moving = min(max(cur.Moving, 0), taken.moving)
		others = append(others, ratelimit.Other{Restart: cur.Restart, Namespace: req.Namespace, NodeFault: taken.nodeFault, Claims: taken.claims})
	}
	return others, nil
}

// longest is how long a restart may take at most, the three phases together.
func (a *admission) longest() time.Duration {
	grace := a.settings.longestGrace()
	if grace == unlimited {
		return unlimited
	}
	return grace + a.timeouts.Stop + a.timeouts.Start
}

// movable bounds what the record of another process's restart says about ranks that have to move: by the active pods that the job
// has. It is asked once for each restart. A job that cannot be read moves none; its owner may have made it so.
func (a *admission) movable(ctx context.Context, req request, cur underWay) int {
	if cur.Moving <= 0 {
		return 0
	}
	kind, err := a.memory.kindOf(req)
	if err != nil {
		return 0
	}
	job, err := kind.Read(ctx, a.apiReader, req.NamespacedName)
	if err == nil {
		var pods int
		if pods, err = a.pods.CountActive(ctx, job); err == nil {
			return min(cur.Moving, pods)
		}
	}
	log.FromContext(ctx).Error(err, "the ranks of another restart claim no room", "kind", req.Kind.Kind, "job", req.NamespacedName)
	return 0
}

// memory is what this process knows of restarts under way, its own and those of others, by job.
type memory struct {
	settings *settings

	mu   sync.Mutex
	jobs map[request]remembered
}

// remembered is what is known of the restart of one job.
type remembered struct {
	// kind is the definition of its kind by which it was stopped. A reload of the policy may drop or change a kind of job in the middle of
	// a restart, and what was stopped has to be started by the same field. nil: not known.
	kind *kinds.Kind
	// written is the restart as this process has written it, and the cache may not show it yet; nil: it has written none, or has closed it.
	written *underWay
	// place is what it takes, which holds up others; nil: nothing.
	place *place
}

// place counts against maxConcurrent, and its moving ranks need room. The rule is in the comment of the package.
type place struct {
	job types.UID
	// since is when this process first knew of the restart. No record can change that.
	since time.Time
	// moving bounds [restart.Restart.Moving]. claims are what these ranks need; nil: this process has not begun the restart.
	moving int
	claims []capacity.Claim
	// nodeFault is [ratelimit.Other.NodeFault].
	nodeFault bool
}

func newMemory(s *settings) *memory { return &memory{settings: s, jobs: map[request]remembered{}} }

// of returns what is known of a job.
func (m *memory) of(req request) remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.jobs[req]
}

// change changes what is known of a job.
func (m *memory) change(req request, change func(*remembered)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.jobs[req]
	change(&known)
	m.set(req, known)
}

func (m *memory) set(req request, known remembered) {
	if known == (remembered{}) {
		delete(m.jobs, req)
	} else {
		m.jobs[req] = known
	}
}

// take has the restart of a job take a place.
func (m *memory) take(req request, p place) {
	m.change(req, func(known *remembered) { known.place = &p })
}

// wrote keeps a restart as it was written; nil: it was closed.
func (m *memory) wrote(req request, cur *underWay) {
	m.change(req, func(known *remembered) { known.written = cur })
}

// rememberKind keeps the kind of a job until [memory.forget]. The first one counts.
func (m *memory) rememberKind(req request, kind kinds.Kind) {
	m.change(req, func(known *remembered) {
		if known.kind == nil {
			known.kind = &kind
		}
	})
}

// forget drops what is known of a job that is no longer under restart.
func (m *memory) forget(req request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.jobs, req)
}

// complete adds to the restarts that the cache shows those that this process has written, and frees the places of all jobs but these.
func (m *memory) complete(all map[request]underWay) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for req, known := range m.jobs {
		_, shown := all[req]
		switch {
		case shown:
		case known.written != nil:
			all[req] = *known.written
		default:
			known.place = nil
			m.set(req, known)
		}
	}
}

// kindOf returns the kind of a job that is, or was, under restart. An error means that no policy that this process has seen during the
// restart names it.
func (m *memory) kindOf(req request) (kinds.Kind, error) {
	if known := m.of(req).kind; known != nil {
		return *known, nil
	}
	kind, known := kinds.Get(m.settings.kinds(), req.Kind)
	if !known {
		return kind, fmt.Errorf("%s %s is under restart, but its kind is no longer configured", req.Kind.Kind, req.NamespacedName)
	}
	return kind, nil
}
