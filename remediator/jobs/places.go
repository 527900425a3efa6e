package jobs

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// underWay is a restart under way, as the record of its job says, and the UID of that job.
type underWay struct {
	job types.UID
	restart.Restart
}

// places are the restarts under way that hold up others: that count against maxConcurrent, and whose moving ranks need room. The
// rule is in the comment of the package.
type places struct {
	mu    sync.Mutex
	taken map[request]place
}

// place is one of them.
type place struct {
	job types.UID
	// since is when this process first knew of the restart. No record can change that.
	since time.Time
	// moving bounds [restart.Restart.Moving].
	moving int
}

func newPlaces() *places { return &places{taken: map[request]place{}} }

// begin takes the place of a restart that this process begins.
func (p *places) begin(req request, job types.UID, moving int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[req] = place{job, now, moving}
}

// get returns the place of a restart, if it has one.
func (p *places) get(req request, job types.UID) (place, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, taken := p.taken[req]
	return found, taken && found.job == job
}

// keep drops the places of all jobs but these.
func (p *places) keep(all map[request]underWay) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for req := range p.taken {
		if _, found := all[req]; !found {
			delete(p.taken, req)
		}
	}
}

// others are the restarts of other jobs that are under way and take a place: of those that the cache shows, and those that this
// process has started and the cache may not show yet.
func (a *admission) others(ctx context.Context, self request) ([]restart.Restart, error) {
	all, err := a.watcher.underRestart(ctx)
	if err != nil {
		return nil, err
	}
	a.store.addActive(all)
	a.places.keep(all)
	delete(all, self)
	now := a.clock.Now()
	var others []restart.Restart
	for req, cur := range all {
		taken, found := a.places.get(req, cur.job)
		if !found {
			confirmed, err := a.anyConfirmed(ctx, cur.Quarantines)
			if err != nil {
				return nil, err
			}
			if !confirmed {
				continue
			}
			taken = place{cur.job, now, a.movable(ctx, req, cur)}
			a.places.begin(req, cur.job, taken.moving, now)
		}
		if now.Sub(taken.since) > a.longest() {
			continue
		}
		cur.Moving = min(max(cur.Moving, 0), taken.moving)
		others = append(others, cur.Restart)
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

// anyConfirmed reports whether one of the first causes is true. The first cause is the one for which a restart began.
func (a *admission) anyConfirmed(ctx context.Context, of []restart.Cause) (bool, error) {
	const first = 8
	for _, c := range of[:min(len(of), first)] {
		if confirmed, err := a.causes.confirm(ctx, c); confirmed || err != nil {
			return confirmed, err
		}
	}
	return false, nil
}

// movable bounds what the record of another process's restart says about ranks that have to move: by the active pods that the job
// has. It is asked once for each restart. A job that cannot be read moves none; its owner may have made it so.
func (a *admission) movable(ctx context.Context, req request, cur underWay) int {
	if cur.Moving <= 0 {
		return 0
	}
	kind, err := a.kinds.of(req)
	if err != nil {
		return 0
	}
	job, err := kind.Read(ctx, a.apiReader, req.NamespacedName)
	if err == nil {
		var pods int
		if pods, err = a.pods.countActive(ctx, job); err == nil {
			return min(cur.Moving, pods)
		}
	}
	log.FromContext(ctx).Error(err, "the ranks of another restart claim no room", "kind", req.kind.Kind, "job", req.NamespacedName)
	return 0
}

// causesOn are those of the causes that are true, in order.
func (k *causes) causesOn(ctx context.Context, all []restart.Cause) ([]restart.Cause, error) {
	var confirmed []restart.Cause
	for _, c := range all {
		ok, err := k.confirm(ctx, c)
		if err != nil {
			return nil, err
		}
		if ok {
			confirmed = append(confirmed, c)
		}
	}
	return slices.Clip(confirmed), nil
}
