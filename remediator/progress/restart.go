package progress

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

const (
	// sharedNamespaces is in how many other namespaces jobs have to make no progress since about the same time, so that what they share
	// is suspected: those that have stalled, and those that may be quiet for longer, but never were. Namespaces count and not jobs, and
	// they have to be one in sharedPart of the others with followed jobs: a tenant with a namespace or two whose jobs stall on
	// purpose must not hold up the restarts of others.
	sharedNamespaces, sharedPart = 3, 4
	// sharedWindow is how far apart these times may be.
	sharedWindow = 10 * time.Minute
)

// saidShared is the report that a job is not restarted for what it shares with others.
const saidShared = "Shared"

// restart asks for the restart of a job that has been reported as stalled, if the policy wants that. It is asked for at every look, because
// what holds it up may end.
func (f *follower) restart(ctx context.Context, req request, object *metav1.PartialObjectMetadata, known *followed, v stall.Verdict) error {
	if f.Policy.Policy().Restart.Stalls.Mode != policy.StallsRestart {
		return nil
	}
	if n, shared := f.sharedBy(req.Namespace, v.Since); shared {
		if !known.said.Has(saidShared) {
			known.said.Insert(saidShared)
			f.Recorder.Eventf(object, nil, corev1.EventTypeWarning, eventStalled, "Shared", "%s", fmt.Sprintf(
				"not restarted: jobs of %d other namespaces make no progress since about the same time, so the cause may be what they share, such as "+
					"storage or the network", n))
		}
		return nil
	}
	known.said.Delete(saidShared)
	kind, ok := kinds.Get(f.Jobs.Kinds(), req.Kind)
	if !ok {
		return nil
	}
	return f.Jobs.RestartStalled(ctx, jobs.Stall{Kind: kind, NamespacedName: req.NamespacedName, UID: known.uid,
		Pods: known.job.Incarnation(), Since: v.Since})
}

// sharedBy returns in how many other namespaces jobs make no progress since about a time, and reports whether what they share is suspected.
func (f *follower) sharedBy(namespace string, since time.Time) (n int, suspected bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	quiet := sets.New[string]()
	for req, at := range f.quiet {
		if at.Sub(since).Abs() <= sharedWindow {
			quiet.Insert(req.Namespace)
		}
	}
	quiet.Delete(namespace)
	others := len(f.places)
	if _, itself := f.places[namespace]; itself {
		others--
	}
	return quiet.Len(), quiet.Len() >= sharedNamespaces && quiet.Len()*sharedPart >= others
}
