package jobs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/latekinds"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// This file has what counts of the restarts of other jobs, in this order: which are under way, by the cache and by what it does not show yet;
// which of them take a place of maxConcurrent and claim room; whose causes are true; and which definition of its kind starts a job again.

// underWay is a restart under way, as the record of its job says, and the UID of that job.
type underWay struct {
	job types.UID
	restart.Restart
}

// underRestart returns the restarts under way that the cache shows. Before all kinds were tried it tries them, so that
// none is missing.
func (w *watcher) underRestart(ctx context.Context) (map[request]underWay, error) {
	w.mu.Lock()
	tried := w.triedAll
	w.mu.Unlock()
	if !tried {
		w.watchAll(ctx)
	}
	all := map[request]underWay{}
	for _, gvk := range w.Watched() { // of a kind that the policy has dropped, too
		list := kinds.Kind{GVK: gvk}.List()
		if err := w.Cache.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list the %ss under restart: %w", gvk.Kind, err)
		}
		for i := range list.Items {
			// A record that does not parse is dropped by the restart's own controller.
			if rec, err := restart.ReadRecord(&list.Items[i]); err == nil && rec.Current != nil {
				all[latekinds.RequestOf(gvk, &list.Items[i])] = underWay{list.Items[i].UID, *rec.Current}
			}
		}
	}
	return all, nil
}

// addActive adds the restarts that this process drives and the cache does not show yet.
func (s *store) addActive(all map[request]underWay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for req, cur := range s.active {
		if _, shown := all[req]; !shown {
			all[req] = cur
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
		if pods, err = a.pods.CountActive(ctx, job); err == nil {
			return min(cur.Moving, pods)
		}
	}
	log.FromContext(ctx).Error(err, "the ranks of another restart claim no room", "kind", req.Kind.Kind, "job", req.NamespacedName)
	return 0
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

// maxConfirmed bounds the memory of confirmed causes. Of more, the oldest are looked up again.
const maxConfirmed = 10_000

// causes confirms the causes that the records of jobs name. A cause is true if this process was called for it, by the node
// controller, for a failed pod or for a stalled job, or if the quarantine record of that Node has it. Whoever may write a job cannot write
// either.
type causes struct {
	// client has the cache of the nodes: to confirm a cause costs no request.
	client client.Reader

	mu        sync.Mutex
	confirmed *lru.Cache
}

// causeKey is what a cause has to have in common with the quarantine.
type causeKey struct {
	id, node string
	nodeUID  types.UID
}

func newCauses(cached client.Reader) *causes {
	return &causes{client: cached, confirmed: lru.New(maxConfirmed)}
}

// remember keeps a cause that this process was called for.
func (k *causes) remember(c restart.Cause) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.confirmed.Add(causeKey{c.ID, c.Node, c.NodeUID}, nil)
}

// confirm reports whether a cause is true.
func (k *causes) confirm(ctx context.Context, c restart.Cause) (bool, error) {
	k.mu.Lock()
	_, known := k.confirmed.Get(causeKey{c.ID, c.Node, c.NodeUID})
	k.mu.Unlock()
	if known || c.ID == "" || c.Kind() == restart.JobStalled {
		return known, nil
	}
	var node corev1.Node
	if err := k.client.Get(ctx, client.ObjectKey{Name: c.Node}, &node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return false, nil
		}
		return false, fmt.Errorf("get node %s: %w", c.Node, err)
	}
	if !hasCause(&node, c) {
		return false, nil
	}
	k.remember(c)
	return true, nil
}

// hasCause reports whether the Node's own record has the quarantine, or had it lately.
func hasCause(node *corev1.Node, c restart.Cause) bool {
	rec, err := quarantine.RecordOf(node)
	if err != nil || rec == nil || rec.NodeUID != node.UID || c.NodeUID != node.UID {
		return false
	}
	return slices.ContainsFunc(append([]quarantine.Quarantine{rec.Quarantine}, rec.Last...), func(q quarantine.Quarantine) bool {
		return q.ID == c.ID && q.Taint != nil
	})
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

// kindsUnderRestart remembers for each job under restart by which definition of its kind it was stopped. A reload of the policy may
// drop or change a kind of job in the middle of a restart, and what was stopped has to be started by the same field.
type kindsUnderRestart struct {
	settings *settings

	mu    sync.Mutex
	known map[request]kinds.Kind
}

func newKindsUnderRestart(s *settings) *kindsUnderRestart {
	return &kindsUnderRestart{settings: s, known: map[request]kinds.Kind{}}
}

// remember keeps the kind of a job until [kindsUnderRestart.forget].
func (k *kindsUnderRestart) remember(req request, kind kinds.Kind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.known[req]; !known {
		k.known[req] = kind
	}
}

func (k *kindsUnderRestart) forget(req request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, req)
}

// of is the kind of a job that is, or was, under restart. An error means that no policy that this process has seen during the restart
// names it.
func (k *kindsUnderRestart) of(req request) (kinds.Kind, error) {
	k.mu.Lock()
	kind, known := k.known[req]
	k.mu.Unlock()
	if known {
		return kind, nil
	}
	if kind, known = kinds.Get(k.settings.kinds(), req.Kind); !known {
		return kind, fmt.Errorf("%s %s is under restart, but its kind is no longer configured", req.Kind.Kind, req.NamespacedName)
	}
	return kind, nil
}
