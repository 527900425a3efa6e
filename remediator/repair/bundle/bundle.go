// Package bundle is the Job that writes a bundle of evidence on a node, or prints one. It belongs to no visit, so it has no label of one.
// It is pure. See docs/evidence.md.
package bundle

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const (
	// Template and PrintTemplate are the PodTemplates that the chart ships.
	Template, PrintTemplate = "collect", "print-bundle"
	// Kept is how long a Job that has ended is kept, with the name of the bundle.
	Kept = 24 * time.Hour
	// ending is how long the program may take to end in order once the time of its Job is over.
	ending = 30 * time.Second
	// freshFor is how long after its beginning a quarantine is collected for.
	freshFor = time.Hour
)

// nodeVariable stands for the node in the arguments of a template.
const nodeVariable = "$(NODE)"

// namePattern is that of a bundle.
var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?-[0-9]{8}T[0-9]{6}Z\.tar\.gz$`)

// IsName reports whether a text, which a program on a node wrote, is the name of a bundle of a node.
func IsName(text, host string) bool {
	return len(text) <= 300 && namePattern.MatchString(text) && strings.HasPrefix(text, host+"-")
}

// NewJob is the Job of a template on a node, which may take as long as limit, with further arguments.
func NewJob(t *corev1.PodTemplate, host, name string, limit time.Duration, args ...string) *batchv1.Job {
	var all []string
	if containers := t.Template.Spec.Containers; len(containers) > 0 {
		all = append(slices.Clone(containers[0].Args), args...)
	}
	for i := range all {
		all[i] = strings.ReplaceAll(all[i], nodeVariable, host)
	}
	meta := metav1.ObjectMeta{Namespace: t.Namespace, Name: name, Labels: map[string]string{conditions.LabelTemplate: t.Name}}
	made := job.OnNode(t, host, meta, all, limit-ending)
	kept := int32(Kept.Seconds())
	made.Spec.TTLSecondsAfterFinished = &kept
	return made
}

// HasEnded reports whether a Job has ended, or ends because its time is over.
func HasEnded(job *batchv1.Job) bool {
	return job.DeletionTimestamp != nil || slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		ends := []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet}
		return c.Status == corev1.ConditionTrue && slices.Contains(ends, c.Type)
	})
}

// IsPod reports whether a pod in the namespace of the Jobs writes or prints a bundle. It is in the way of no action.
func IsPod(pod *corev1.Pod, namespace string) bool {
	name := pod.Labels[batchv1.JobNameLabel]
	return pod.Namespace == namespace && (strings.HasPrefix(name, Template+"-") || strings.HasPrefix(name, PrintTemplate+"-"))
}

// WrittenBy returns the bundle that a pod has written; empty: none. What the pod reports is input.
func WrittenBy(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Terminated == nil {
			continue
		}
		if r, err := repairresult.Parse(s.State.Terminated.Message); err == nil && IsName(r.Bundle, pod.Spec.NodeName) {
			return r.Bundle
		}
	}
	return ""
}

// OfVisit returns the bundle that was written for the visit under way, by the pods on the node; empty: none yet.
func OfVisit(pods []corev1.Pod, n *corev1.Node, r *visit.Record, namespace string) string {
	if r == nil || r.Current == nil {
		return ""
	}
	for i := range pods {
		if pods[i].Namespace == namespace && pods[i].Labels[batchv1.JobNameLabel] == jobName(n, r.Current.ID) {
			return WrittenBy(&pods[i])
		}
	}
	return ""
}

// ForVisit returns the name of the Job that collects before the action that a visit begins; empty: nothing is to be waited for.
func ForVisit(p *policy.Policy, n *corev1.Node, v *visit.Visit, now time.Time) string {
	if p.Repair == nil || p.Repair.Collect == nil || v == nil || v.Kind != visit.Repair || v.Phase != visit.Working || v.Attempt > 1 ||
		!now.Before(v.PhaseSince.Add(p.Repair.Collect.Timeout)) {
		return ""
	}
	return jobName(n, v.ID)
}

// ForHandOff returns the name of the Job that collects because others repair the node; empty: none is due. Its program is root on the node,
// so it begins only where the present policy acts, and while no one else works there.
func ForHandOff(p *policy.Policy, n *corev1.Node, q *causes.Record, paused string, now time.Time) string {
	if paused != "" || node.Excluded(n) || node.Maintained(n, now) || len(node.HoldingClaims(n, now)) > 0 {
		return ""
	}
	if p.Repair == nil || p.Repair.Collect == nil || !p.Repair.Collect.HandOff || q == nil || q.NodeUID != n.UID ||
		q.Phase != causes.Quarantined || q.Taint == nil || now.Sub(q.Taint.Since) > freshFor || !othersRepair(p, q) {
		return ""
	}
	return jobName(n, q.ID)
}

func jobName(n *corev1.Node, id string) string {
	return Template + "-" + visit.ShortHash(string(n.UID), id)
}

// othersRepair reports whether no action of the policy is for a cause of the quarantine, or its rule hands the node off. A rule that is
// gone or only observes does nothing.
func othersRepair(p *policy.Policy, q *causes.Record) bool {
	return slices.ContainsFunc(q.Causes, func(c causes.Cause) bool {
		rule, there := p.Rule(c.Rule)
		marks := maps.Clone(rule.HandOff.Annotations)
		maps.DeleteFunc(marks, func(key, _ string) bool { return policy.KeepNode[key] != "" }) // these start no other repairer
		handsOff := len(rule.HandOff.Labels)+len(marks)+len(rule.HandOff.Taints) > 0
		repaired := c.Repair == conditions.ResetGPU && len(p.Repair.Actions.ResetGPU) > 0 ||
			c.Repair == conditions.Reboot && len(p.Repair.Actions.Reboot) > 0
		return c.Due && there && !rule.Observe && (handsOff || !repaired || p.Repair.Mode == policy.RepairOff)
	})
}
