package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

const (
	// maxCandidates bounds the ConfigMaps that are validated for one run id in one namespace.
	maxCandidates = 2 * report.MaxRanks
	// maxPerPod bounds the runs in which one pod can report, one for each start of its init container. Each of them may end
	// with a list of the namespace's pods and an Event.
	maxPerPod = 30
	// maxReason is the longest reason of a refusal, in characters. Some quote the report. An Event may have 1 KiB.
	maxReason = 300
)

// validation is the result of validating one ConfigMap. Reports are immutable, so one validation is enough, and the pod may
// be deleted afterwards.
type validation struct {
	submission submission
	valid      bool
	// podGone: the pod did not exist when the report was validated.
	podGone bool
}

// errRateLimited ends a validation for now, because the namespace has used up its rate limit.
var errRateLimited = errors.New("too many new reports")

// validate returns the reports that count. podsGone tells that pods of the run were deleted before their reports could be
// validated. An error is errRateLimited or one of the API server; the next call continues after the last report that was
// validated.
func (c *Controller) validate(
	ctx context.Context, run types.NamespacedName, list []corev1.ConfigMap,
) (valid []submission, podsGone bool, err error) {
	c.forgetDeleted(run, list)
	if len(list) == 0 {
		return nil, false, nil
	}
	done := c.validations[run]
	if done == nil {
		done = map[types.UID]validation{}
		c.validations[run] = done
	}
	// The oldest ones count, so that a flood of later ones cannot displace them.
	slices.SortFunc(list, func(a, b corev1.ConfigMap) int { return compareAge(&a, &b) })
	for i := range list {
		cm := &list[i]
		v, ok := done[cm.UID]
		switch {
		case ok:
		case i >= maxCandidates:
			s, _ := readSubmission(cm)
			c.refuse(ctx, run.Namespace, s, fmt.Sprintf("the run has %d reports already", maxCandidates))
		case !c.rateLimitsOf(run.Namespace).validations.TryAccept():
			return nil, false, errRateLimited
		default:
			if v, err = c.validateOne(ctx, cm); err != nil {
				return nil, false, err
			}
		}
		done[cm.UID] = v
		podsGone = podsGone || v.podGone
		if v.valid {
			valid = append(valid, v.submission)
		}
	}
	return valid, podsGone, nil
}

// forgetDeleted removes what is stored about ConfigMaps that the run no longer has.
func (c *Controller) forgetDeleted(run types.NamespacedName, list []corev1.ConfigMap) {
	exists := make(map[types.UID]bool, len(list))
	for i := range list {
		exists[list[i].UID] = true
	}
	done := c.validations[run]
	for uid := range done {
		if !exists[uid] {
			delete(done, uid)
			delete(c.lastEvent, uid)
			delete(c.lastAnnotation, uid)
		}
	}
	if len(done) == 0 {
		delete(c.validations, run)
	}
}

// validateOne reads a ConfigMap and compares it with its pod. A report that does not count is refused; only errors of the API
// server are returned.
func (c *Controller) validateOne(ctx context.Context, cm *corev1.ConfigMap) (validation, error) {
	s, err := readSubmission(cm)
	if err != nil {
		c.refuse(ctx, cm.Namespace, s, err.Error())
		return validation{}, nil
	}
	if older, err := c.countOlderOfPod(ctx, cm); err != nil {
		return validation{}, err
	} else if older >= maxPerPod {
		c.refuse(ctx, cm.Namespace, s, fmt.Sprintf("pod %s has already submitted %d reports", s.pod, maxPerPod))
		return validation{}, nil
	}
	var pod corev1.Pod
	err = c.apiReader.Get(ctx, client.ObjectKey{Namespace: cm.Namespace, Name: s.pod}, &pod)
	if apierrors.IsNotFound(err) {
		c.refuse(ctx, cm.Namespace, s, fmt.Sprintf("pod %s no longer exists, so it cannot be validated", s.pod))
		return validation{podGone: true}, nil
	}
	if err != nil {
		return validation{}, fmt.Errorf("get the pod of report %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	if err := s.checkPod(&pod); err != nil {
		c.refuse(ctx, cm.Namespace, s, err.Error())
		return validation{}, nil
	}
	if s.workload, err = c.workloadOf(ctx, cm.Namespace, s.owner); err != nil {
		return validation{}, err
	}
	return validation{submission: s, valid: true}, nil
}

// countOlderOfPod counts the older reports of the same pod.
func (c *Controller) countOlderOfPod(ctx context.Context, cm *corev1.ConfigMap) (int, error) {
	var list corev1.ConfigMapList
	if err := c.reports.List(ctx, &list, client.InNamespace(cm.Namespace), client.MatchingFields{indexPod: podOf(cm)[0]},
		client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list the reports of the pod of %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	n := 0
	for i := range list.Items {
		if compareAge(&list.Items[i], cm) < 0 {
			n++
		}
	}
	return n, nil
}

// compareAge orders ConfigMaps by age, the oldest first. Creation times have a resolution of one second; within a second the
// UID decides.
func compareAge(a, b *corev1.ConfigMap) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
}

// partOf are the kinds whose objects may be a part of something larger: a Job of a JobSet, and of a LeaderWorkerSet the StatefulSets of its
// leaders and of the workers of a leader, which that leader's pod controls.
var partOf = []schema.GroupVersionKind{
	batchv1.SchemeGroupVersion.WithKind("Job"), appsv1.SchemeGroupVersion.WithKind("StatefulSet"), corev1.SchemeGroupVersion.WithKind("Pod"),
}

// maxOwners is more than the owners between the worker of a LeaderWorkerSet and the LeaderWorkerSet.
const maxOwners = 5

// workloadOf is the UID of the object whose pods run together: the owner itself, or what it is a part of.
func (c *Controller) workloadOf(ctx context.Context, namespace string, owner metav1.OwnerReference) (types.UID, error) {
	for range maxOwners {
		kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
		isName := len(content.IsPathSegmentName(owner.Name)) == 0 // the API server does not check the names of owners
		if !slices.Contains(partOf, kind) || !isName {
			break
		}
		var object metav1.PartialObjectMetadata
		object.SetGroupVersionKind(kind)
		err := c.apiReader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, &object)
		if apierrors.IsNotFound(err) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("get %s %s/%s: %w", owner.Kind, namespace, owner.Name, err)
		}
		if object.UID != owner.UID {
			break
		}
		controller := metav1.GetControllerOf(&object)
		if controller == nil {
			break
		}
		owner = *controller
	}
	return owner.UID, nil
}

// refuse reports once why a report does not count. An earlier process has reported the old ones.
func (c *Controller) refuse(ctx context.Context, namespace string, s submission, reason string) {
	reason = fmt.Sprintf("%.*s", maxReason, reason)
	if c.lastEvent[s.uid] == reason {
		return
	}
	if c.clock.Since(s.created) > c.timeout {
		c.lastEvent[s.uid] = reason
		return
	}
	if !c.rateLimitsOf(namespace).refusals.TryAccept() {
		return
	}
	c.lastEvent[s.uid] = reason
	ctrl.LoggerFrom(ctx).Info("Refused a preflight report", "configMap", s.name, "pod", s.pod, "reason", reason)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.name, UID: s.uid}}
	whose := "report"
	if s.pod != "" {
		whose += fmt.Sprintf(" of pod %.253s", s.pod)
	}
	c.recorder.Eventf(cm, nil, corev1.EventTypeWarning, Refused, "Collect", "%s in run %s refused: %s", whose, s.run, reason)
	if s.notKept {
		return // the answer to the patch would be the whole ConfigMap
	}
	c.annotate(ctx, namespace, s, reportconfigmap.RefusedPrefix+reason)
}
