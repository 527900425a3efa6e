// Package job makes the Job of an attempt, and reads what became of it. It is pure.
package job

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// StartTimeout is how long a Job may take until a container of it runs.
const StartTimeout = 5 * time.Minute

// bootVariable stands for the boot that an action ends. A template or a policy that passes it to the program reboots the node.
const bootVariable, nodeVariable, gpusVariable = "$(BOOT_ID)", "$(NODE)", "$(GPUS)"

// Reboots reports whether a Job ends the boot: its arguments name the boot to end.
func Reboots(t *corev1.PodTemplate, check policy.Check) bool {
	return slices.ContainsFunc(unexpanded(t, check), func(arg string) bool { return strings.Contains(arg, bootVariable) })
}

// NeedsGPUs reports whether an action is about GPUs that its arguments name. With -all the program resets all of them where none is named.
func NeedsGPUs(t *corev1.PodTemplate, check policy.Check) bool {
	args := unexpanded(t, check)
	return slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, gpusVariable) }) &&
		!slices.Contains(args, "-all") && !slices.Contains(args, "--all")
}

// unexpanded are the arguments of the first container.
func unexpanded(t *corev1.PodTemplate, check policy.Check) []string {
	var args []string
	if containers := t.Template.Spec.Containers; len(containers) > 0 {
		args = containers[0].Args
	}
	return append(slices.Clone(args), check.Args...)
}

// Arguments returns the arguments of the first container, with the node, the boot of the attempt and the GPUs in the place of variables.
func Arguments(t *corev1.PodTemplate, check policy.Check, n *corev1.Node, v *visit.Visit, gpus string) []string {
	args := unexpanded(t, check)
	replacer := strings.NewReplacer(nodeVariable, n.Name, bootVariable, v.BootID, gpusVariable, gpus)
	for i := range args {
		args[i] = replacer.Replace(args[i])
	}
	return args
}

// gpuList is what stands for [gpusVariable]: which GPUs have a fault may change between two steps, what they are called does not.
const gpuList = `[0-9A-Za-z:.,-]*`

// AskedFor reports whether the policy of now asks for the Job of an attempt: its arguments and whether it reboots are those of the template
// and a check of the policy. The record is input, and a container of the template is root on the node.
func AskedFor(p *policy.Policy, t *corev1.PodTemplate, n *corev1.Node, v *visit.Visit) bool {
	for _, check := range Checks(p) {
		if check.Template != v.Template || Reboots(t, check) != v.Reboots {
			continue
		}
		args := Arguments(t, check, n, v, gpusVariable)
		if slices.EqualFunc(args, v.Args, func(want, got string) bool {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(want), regexp.QuoteMeta(gpusVariable), gpuList)
			matches, err := regexp.MatchString("^(?s:"+pattern+")$", got)
			return err == nil && matches
		}) {
			return true
		}
	}
	return false
}

// Checks returns all Jobs that a policy asks for.
func Checks(p *policy.Policy) []policy.Check {
	var checks []policy.Check
	if r := p.Repair; r != nil {
		checks = slices.Concat(r.Actions.ResetGPU, r.Actions.Reboot)
		if r.Validate != nil {
			checks = append(checks, *r.Validate)
		}
	}
	for _, s := range p.Sweeps {
		checks = append(checks, s.Check)
	}
	if p.FirstCheck != nil {
		checks = append(checks, p.FirstCheck.Check)
	}
	return checks
}

// Templates names the PodTemplates that the next step of a node may need. r is the record of its visits, which may be nil.
func Templates(p *policy.Policy, r *visit.Record) []string {
	var names []string
	if r != nil && r.Current != nil && r.Current.Template != "" {
		names = append(names, r.Current.Template)
	}
	for _, check := range Checks(p) {
		if check.Template != "" {
			names = append(names, check.Template)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// New returns the Job of an attempt.
func New(t *corev1.PodTemplate, n *corev1.Node, v *visit.Visit, namespace string) *batchv1.Job {
	labels := map[string]string{conditions.LabelTemplate: v.Template, conditions.LabelVisit: v.ID}
	return OnNode(t, n.Name, metav1.ObjectMeta{Namespace: namespace, Name: v.JobName(n), Labels: labels}, v.Args,
		v.Deadline.Sub(v.PhaseSince)-StartTimeout)
}

// OnNode returns the Job of a template on a node, which runs once, with arguments, for at most so long. An admission policy compares it
// with the template: nothing else may be added.
func OnNode(t *corev1.PodTemplate, node string, meta metav1.ObjectMeta, args []string, limit time.Duration) *batchv1.Job {
	one, none := int32(1), int32(0)
	seconds := max(1, int64(limit.Seconds()))
	spec := *t.Template.Spec.DeepCopy()
	spec.NodeName = node
	spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	spec.RestartPolicy = corev1.RestartPolicyNever
	if len(spec.Containers) > 0 {
		spec.Containers[0].Args = slices.Clone(args)
	}
	meta.Annotations = map[string]string{conditions.AnnotationNode: node}
	return &batchv1.Job{
		ObjectMeta: meta,
		Spec: batchv1.JobSpec{
			Parallelism: &one, Completions: &one, BackoffLimit: &none, ActiveDeadlineSeconds: &seconds,
			Template: corev1.PodTemplateSpec{ObjectMeta: *t.Template.ObjectMeta.DeepCopy(), Spec: spec},
		},
	}
}

// State is what is known about the Job of an attempt.
type State struct {
	// Missing: there is none.
	Missing, Started, Ended bool
	// Rejected: it has ended, and no container of it ever ran.
	Rejected bool
	// Waiting is why no container of it runs.
	Waiting string
	// exit is the exit code of the first container, -1 if it is not known.
	exit int32
	// result is what the program reports; nil: nothing that can be read.
	result *repairresult.Result
	// Message is a sentence about the end.
	Message string
}

// Succeeded reports whether the program has ended with exit code 0.
func (s State) Succeeded() bool { return s.exit == 0 }

// Refused reports whether the program has found a precondition missing and done nothing.
func (s State) Refused() bool { return s.exit == int32(repairresult.Refused.ExitCode()) }

// Says reports whether the program has left a result of a kind, with the exit code that belongs to it.
func (s State) Says(kind repairresult.Kind) bool {
	return s.result != nil && s.result.Result == kind && s.exit == int32(kind.ExitCode())
}

// Why returns why the Job has failed.
func (s State) Why() string {
	if s.exit == 0 && s.result == nil {
		return "its Job has left no result: " + s.Message
	}
	return s.Message
}

// Read reads the Job of an attempt. job is nil if there is none; pods are those of the Job.
func Read(job *batchv1.Job, pods []corev1.Pod, v *visit.Visit, now time.Time) State {
	s := State{exit: -1}
	if job == nil {
		s.Missing = true
		if v.JobUID != "" { // a Job that was seen is not created again
			s.Ended, s.Message = true, "its Job was deleted by others"
		}
		return s
	}
	s.Started = job.Status.Ready != nil && *job.Status.Ready > 0
	if end, ok := EndOf(job); ok {
		s.Ended, s.Message = true, strings.TrimSpace(end.Reason+" "+end.Message)
	}
	if job.DeletionTimestamp != nil && !s.Ended {
		s.Ended, s.Message = true, "its Job was deleted by others"
		return s
	}
	if !s.Ended && (s.Started || now.Before(v.PhaseSince.Add(StartTimeout))) {
		return s
	}
	s.Waiting = "the Job has no pod"
	for i := range pods {
		s.readPod(&pods[i])
	}
	return s
}

// EndOf returns the condition with which a Job has ended; false: it has not.
func EndOf(job *batchv1.Job) (batchv1.JobCondition, bool) {
	i := slices.IndexFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
	})
	if i < 0 {
		return batchv1.JobCondition{}, false
	}
	return job.Status.Conditions[i], true
}

// readPod reads what the pod of the Job reports. Its termination message is input.
func (s *State) readPod(pod *corev1.Pod) {
	s.Waiting = "its pod is " + string(pod.Status.Phase)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			s.Waiting = c.Message
		}
	}
	if pod.Status.Message != "" {
		s.Message = causes.Clip(pod.Status.Message, conditions.MaxMessage)
	}
	statuses := pod.Status.ContainerStatuses
	for _, c := range append(slices.Clone(pod.Status.InitContainerStatuses), statuses...) {
		if w := c.State.Waiting; w != nil {
			s.Waiting = causes.Clip(strings.TrimSpace(fmt.Sprintf("container %s waits: %s %s", c.Name, w.Reason, w.Message)), conditions.MaxMessage)
		}
		if c.State.Running != nil || c.State.Terminated != nil {
			s.Started = true
		}
	}
	if pod.Status.Phase == corev1.PodFailed && !s.Started {
		s.Rejected, s.Waiting = s.Ended, causes.Clip(
			strings.TrimSpace("the kubelet refused its pod: "+pod.Status.Reason+" "+pod.Status.Message), conditions.MaxMessage)
	}
	if len(pod.Spec.Containers) == 0 {
		return
	}
	i := slices.IndexFunc(statuses, func(c corev1.ContainerStatus) bool { return c.Name == pod.Spec.Containers[0].Name })
	if i < 0 || statuses[i].State.Terminated == nil {
		return
	}
	end := statuses[i].State.Terminated
	s.exit = end.ExitCode
	s.Message = fmt.Sprintf("exit %d %s", end.ExitCode, causes.Clip(end.Reason, record.Name))
	if result, err := repairresult.Parse(end.Message); err == nil {
		s.result, s.Message = &result, causes.Clip(result.Message, conditions.MaxMessage)
	}
}
