package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

// look is what came of looking at one ConfigMap. Reports are immutable, so one look is enough while the pod's word
// stands; a pod that has vouched for its report may go.
type look struct {
	filing filing
	ok     bool
	// orphan: the pod was gone when we looked.
	orphan bool
}

// errTooMany ends a look for the moment: the namespace has had its share.
var errTooMany = errors.New("too many new reports")

// look returns the reports that count. over tells that pods of the run are gone that we never saw.
func (c *Controller) look(ctx context.Context, key types.NamespacedName, list []corev1.ConfigMap) (filings []filing, over bool, err error) {
	// The oldest ones: a flood of later ones cannot displace them.
	slices.SortFunc(list, func(a, b corev1.ConfigMap) int { return older(&a, &b) })
	known := c.known[key]
	seen := map[types.UID]look{}
	for i := range list {
		cm := &list[i]
		l, ok := known[cm.UID]
		switch {
		case ok:
		case i >= maxCandidates:
			f, _ := readFiling(cm)
			c.refuse(ctx, key.Namespace, f, fmt.Sprintf("the run has %d reports already", maxCandidates))
		default:
			if c.limitsOf(key.Namespace).looks.TryAccept() {
				l, err = c.first(ctx, cm)
			} else {
				err = errTooMany
			}
			if err != nil {
				maps.Copy(seen, known) // the next look goes on from here
				c.known[key] = seen
				return nil, false, err
			}
		}
		seen[cm.UID] = l
		over = over || l.orphan
		if l.ok {
			filings = append(filings, l.filing)
		}
	}
	for uid := range known {
		if _, ok := seen[uid]; !ok {
			delete(c.told, uid)
			delete(c.written, uid)
		}
	}
	if c.known[key] = seen; len(seen) == 0 {
		delete(c.known, key)
	}
	return filings, over, nil
}

// first reads a ConfigMap and asks its pod. Only errors of the API server are errors.
func (c *Controller) first(ctx context.Context, cm *corev1.ConfigMap) (look, error) {
	f, err := readFiling(cm)
	if err != nil {
		c.refuse(ctx, cm.Namespace, f, err.Error())
		return look{}, nil
	}
	if before, err := c.before(ctx, cm); err != nil {
		return look{}, err
	} else if before >= maxPerPod {
		c.refuse(ctx, cm.Namespace, f, fmt.Sprintf("pod %s has filed %d reports already", f.pod, maxPerPod))
		return look{}, nil
	}
	var pod corev1.Pod
	err = c.live.Get(ctx, client.ObjectKey{Namespace: cm.Namespace, Name: f.pod}, &pod)
	if apierrors.IsNotFound(err) {
		c.refuse(ctx, cm.Namespace, f, fmt.Sprintf("pod %s is gone and cannot vouch for it", f.pod))
		return look{orphan: true}, nil
	}
	if err != nil {
		return look{}, fmt.Errorf("get the pod of report %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	if err := f.boundTo(&pod); err != nil {
		c.refuse(ctx, cm.Namespace, f, err.Error())
		return look{}, nil
	}
	if f.root, err = c.root(ctx, cm.Namespace, f.owner); err != nil {
		return look{}, err
	}
	return look{filing: f, ok: true}, nil
}

// before counts the older reports of the same pod.
func (c *Controller) before(ctx context.Context, cm *corev1.ConfigMap) (int, error) {
	var list corev1.ConfigMapList
	if err := c.reports.List(ctx, &list, client.InNamespace(cm.Namespace), client.MatchingFields{indexPod: podOf(cm)[0]}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list the reports of the pod of %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	n := 0
	for i := range list.Items {
		if older(&list.Items[i], cm) < 0 {
			n++
		}
	}
	return n, nil
}

// older orders ConfigMaps by age; the UID decides within a second.
func older(a, b *corev1.ConfigMap) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
}

// root is the controller of a Job that belongs to something larger, a JobSet for instance, whose Jobs run together.
func (c *Controller) root(ctx context.Context, namespace string, owner metav1.OwnerReference) (types.UID, error) {
	if owner.Kind != "Job" || owner.APIVersion != batchv1.SchemeGroupVersion.String() {
		return owner.UID, nil
	}
	job := metav1.PartialObjectMetadata{}
	job.SetGroupVersionKind(batchv1.SchemeGroupVersion.WithKind("Job"))
	err := c.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, &job)
	if apierrors.IsNotFound(err) {
		return owner.UID, nil
	}
	if err != nil {
		return "", fmt.Errorf("get job %s/%s: %w", namespace, owner.Name, err)
	}
	if controller := metav1.GetControllerOf(&job); controller != nil && job.UID == owner.UID {
		return controller.UID, nil
	}
	return owner.UID, nil
}

// refuse says once why a report does not count. Old ones were said by an earlier process.
func (c *Controller) refuse(ctx context.Context, namespace string, f filing, why string) {
	if c.told[f.uid] == why {
		return
	}
	if c.Now().Sub(f.created) > c.Timeout {
		c.told[f.uid] = why
		return
	}
	if !c.limitsOf(namespace).words.TryAccept() {
		return
	}
	c.told[f.uid] = why
	ctrl.LoggerFrom(ctx).Info("Refused a preflight report", "configMap", f.name, "pod", f.pod, "why", why)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: f.name, UID: f.uid}}
	c.Events.Eventf(cm, nil, corev1.EventTypeWarning, Refused, "Collect", "report of pod %s in run %s refused: %s", f.pod, f.run, why)
	c.annotate(ctx, namespace, f, reportconfigmap.RefusedPrefix+why)
}
