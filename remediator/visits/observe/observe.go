// Package observe reads what the next step of a node depends on: the whole of it, as few nodes have a visit. The remediator and
// kubectl-pitcrew read with it, so that what the plugin predicts is what happens.
package observe

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/bundle"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/visits/failures"
)

// Reader reads from a cluster.
type Reader struct {
	// Cache may lag behind. Live must not, and its lists of pods must have an upper size, as those of package slim have.
	Cache, Live client.Reader
	// Namespace has the ConfigMaps of the pause and of the breaker, Jobs the PodTemplates and the Jobs.
	Namespace, Jobs string
	Failures        *failures.Store
	Clock           clock.PassiveClock
}

// Facts returns what costs no request where the cache has it. A Job and a pause that the cache lacks are looked for once more if live: that
// there is none must be known for sure before a Job is created. With an error, what was read before it is returned, too.
func (r Reader) Facts(ctx context.Context, n *corev1.Node, live bool) (repair.Facts, error) {
	f := repair.Facts{Node: n, Namespace: r.Jobs}
	f.Record, f.RecordErr = visit.RecordOf(n)
	f.Quarantine, f.QuarantineErr = causes.RecordOf(n)
	var err error
	readers := []client.Reader{r.Cache}
	if live {
		readers = append(readers, r.Live)
	}
	if f.Paused, err = pause.ReasonOf(ctx, r.Namespace, readers...); err != nil {
		return f, err
	}
	name := f.Record.JobName(n)
	if name == "" {
		return f, nil
	}
	var job batchv1.Job
	key := client.ObjectKey{Namespace: r.Jobs, Name: name}
	err = r.Cache.Get(ctx, key, &job)
	if apierrors.IsNotFound(err) && live {
		err = r.Live.Get(ctx, key, &job)
	}
	switch {
	case err == nil:
		f.Job = &job
	case !apierrors.IsNotFound(err):
		return f, fmt.Errorf("get Job %s: %w", key, err)
	}
	return f, nil
}

// Read returns what is only known by requests. Its peers are left to the caller.
func (r Reader) Read(ctx context.Context, p *policy.Policy, f repair.Facts) (*repair.Live, error) {
	var pods corev1.PodList
	if err := r.Live.List(ctx, &pods, client.MatchingFields{"spec.nodeName": f.Node.Name}); err != nil {
		return nil, fmt.Errorf("list the pods on node %s: %w", f.Node.Name, err)
	}
	isPod := func(pod corev1.Pod) bool { return bundle.IsPod(&pod, r.Jobs) }
	live := &repair.Live{Bundle: bundle.OfVisit(pods.Items, f.Node, f.Record, r.Jobs)}
	live.Pods = slices.DeleteFunc(pods.Items, isPod)
	for _, pod := range live.Pods { // the Job names the node of its pod
		if f.Job != nil && pod.Namespace == r.Jobs && pod.Labels[batchv1.ControllerUidLabel] == string(f.Job.UID) {
			live.JobPods = append(live.JobPods, pod)
		}
	}
	if !f.MayStart() {
		return live, nil
	}
	live.Templates, live.TemplateProblems = map[string]*corev1.PodTemplate{}, map[string]string{}
	for _, name := range job.Templates(p, f.Record) {
		var template corev1.PodTemplate
		key := client.ObjectKey{Namespace: r.Jobs, Name: name}
		switch err := r.Live.Get(ctx, key, &template); {
		case err == nil:
			live.Templates[name] = &template
		case apierrors.IsForbidden(err):
			live.TemplateProblems[name] = err.Error()
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("get PodTemplate %s: %w", key, err)
		}
	}
	var stored corev1.ConfigMap
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: conditions.BreakerConfigMap}, &stored)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the breaker: %w", err)
	}
	live.BreakerOpen = limits.ParseBreaker(stored.Data[limits.BreakerKey], r.Clock.Now()) != nil
	live.Held, err = r.Failures.HeldIn(ctx, stored.Data[breaker.Key])
	return live, err
}
