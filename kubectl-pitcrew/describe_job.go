package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// maxListed is how many pods of a job are named one by one.
const maxListed = 5

// jobFacts are all that an answer about a job is made from.
type jobFacts struct {
	now time.Time
	// named is the object that the user asked about.
	named *metav1.PartialObjectMetadata
	// workload is what the remediator would restart for the pods of the named object.
	workload kinds.Workload
	optIn    kinds.OptIn
	// hints explain labels that do not opt in though they seem to.
	hints []string
	// policy is nil when it cannot be read; policyFrom says where it is from, or why it cannot be read.
	policy     *policy.Policy
	policyFrom string
	// paused is why everything is paused; empty: it is not.
	paused string
	// pods are all pods of the job, those that have ended included.
	pods      []corev1.Pod
	record    restart.Record
	recordErr error
	// others are the restarts of other jobs that are under way; nil with othersErr if they cannot be listed.
	others    []restart.Restart
	othersErr error
	nodes     []nodeFacts
	// capacity answers whether there is room, nil: the policy does not ask.
	capacity func(q restart.Quarantine, moving []corev1.Pod) (restart.Precondition, error)
}

// nodeFacts are a node with active pods of the job.
type nodeFacts struct {
	row    row
	pods   []corev1.Pod
	record *quarantine.Record
	// quarantine is what the jobs half of the remediator is told, zero if the node is not quarantined.
	quarantine restart.Quarantine
	// noRestarts is why the jobs on the node are left alone; empty: they are not.
	noRestarts string
}

func (n nodeFacts) quarantined() bool { return n.quarantine.ID != "" }

// describeJob answers why a job was not restarted, and what happens next.
func (c *target) describeJob(ctx context.Context, out io.Writer, api client.Client, resource, name, namespace, policyFile string) error {
	gvk, err := c.kindFor(api, resource)
	if err != nil {
		return err
	}
	named := &metav1.PartialObjectMetadata{}
	named.SetGroupVersionKind(gvk)
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, named); err != nil {
		return fmt.Errorf("get %s %s/%s: %w", gvk.Kind, namespace, name, err)
	}
	named.SetGroupVersionKind(gvk)
	f := jobFacts{now: c.now().UTC(), named: named}
	if f.policy, f.policyFrom, err = c.policyInForce(ctx, api, policyFile); err != nil {
		return err
	}
	if f.paused, err = pause.Reason(ctx, api, c.namespace); err != nil {
		return err
	}
	var supported []kinds.Kind
	if f.policy != nil {
		supported = kinds.All(f.policy.JobKinds)
	} else {
		supported = kinds.BuiltIn()
	}
	if err := f.findWorkload(ctx, api, supported); err != nil {
		return err
	}
	if f.workload.Job == nil {
		f.printUnsupported(out, supported)
		return nil
	}
	if err := f.observe(ctx, c, api, supported); err != nil {
		return err
	}
	return f.print(out)
}

// findWorkload finds the object that counts for the named one, as the remediator does: the topmost job of a known kind.
func (f *jobFacts) findWorkload(ctx context.Context, api client.Client, supported []kinds.Kind) (err error) {
	gvk := f.named.GroupVersionKind()
	resolver := kinds.NewOwnerResolver(api, supported)
	_, known := kinds.Find(supported, gvk.GroupVersion().String(), gvk.Kind)
	switch {
	case gvk == corev1.SchemeGroupVersion.WithKind("Pod"):
		var pod corev1.Pod
		if err := api.Get(ctx, client.ObjectKeyFromObject(f.named), &pod); err != nil {
			return fmt.Errorf("get pod %s/%s: %w", f.named.Namespace, f.named.Name, err)
		}
		f.workload, err = resolver.OfPod(ctx, &pod)
	case known:
		f.workload, err = resolver.OfOwner(ctx, f.named.Namespace, metav1.OwnerReference{
			APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: f.named.Name, UID: f.named.UID,
		})
	}
	if err != nil {
		return fmt.Errorf("find the owners of %s: %w", jobName(f.named), err)
	}
	return nil
}

// printUnsupported answers for an object that is no job, and below no job, of a kind that the remediator restarts.
func (f *jobFacts) printUnsupported(out io.Writer, supported []kinds.Kind) {
	why := "no kind of job that the remediator restarts"
	switch w := f.workload; {
	case w.BarePod != nil:
		why = "a pod without a controller: none would replace it"
	case w.Unsupported != nil:
		why = fmt.Sprintf("controlled by %s %s, which cannot be restarted as a whole", w.Unsupported.Kind, w.Unsupported.Name)
	}
	fmt.Fprintf(out, "Job:      %s\n", jobName(f.named))
	fmt.Fprintf(out, "Next:     nothing: it is %s\n", why)
	var names []string
	for _, k := range supported {
		names = append(names, k.GVK.Kind)
	}
	slices.Sort(names)
	fmt.Fprintf(out, "Kinds:    %s; more by jobKinds of the policy\n", strings.Join(slices.Compact(names), ", "))
}

// observe reads what surrounds the job.
func (f *jobFacts) observe(ctx context.Context, c *target, api client.Client, supported []kinds.Kind) error {
	job := f.workload.Job
	f.record, f.recordErr = restart.ReadRecord(job.Object)
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(f.workload.Namespace), client.MatchingLabelsSelector{Selector: job.Pods}); err != nil {
		return fmt.Errorf("list the pods of the job: %w", err)
	}
	f.pods = pods.Items
	if err := f.readOptIn(ctx, api); err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	breaker, err := c.read(ctx, api, conditions.BreakerConfigMap)
	if err != nil {
		return err
	}
	f.observeNodes(nodes.Items, breaker)
	if f.policy == nil {
		return nil
	}
	f.others, f.othersErr = restartsOfOthers(ctx, api, supported, *job)
	if f.othersErr != nil && !apierrors.IsForbidden(f.othersErr) {
		return f.othersErr
	}
	if f.policy.Restart.CheckCapacity {
		f.capacity = func(q restart.Quarantine, ranks []corev1.Pod) (restart.Precondition, error) {
			search := restart.NewSearch(q, ranks, nodes.Items, restart.ClaimedRanks(f.others), f.now)
			for n := range search.Nodes() {
				var there corev1.PodList
				if err := api.List(ctx, &there, client.MatchingFields{"spec.nodeName": n.Name}); err != nil {
					return restart.Precondition{}, fmt.Errorf("list the pods on node %s: %w", n.Name, err)
				}
				search.Place(n, there.Items)
			}
			return search.Result(), nil
		}
	}
	return nil
}

// restartsOfOthers are the restarts of other jobs that are under way.
func restartsOfOthers(ctx context.Context, api client.Client, supported []kinds.Kind, self restart.Job) ([]restart.Restart, error) {
	var others []restart.Restart
	underWay, err := restarting(ctx, api, gvksOf(supported))
	for _, job := range underWay {
		// The remediator drops the label of a job whose record does not parse.
		if rec, err := restart.ReadRecord(job); err == nil && rec.Current != nil && job.UID != self.Object.GetUID() {
			others = append(others, *rec.Current)
		}
	}
	return others, err
}

func gvksOf(all []kinds.Kind) []schema.GroupVersionKind {
	var gvks []schema.GroupVersionKind
	for _, k := range all {
		gvks = append(gvks, k.GVK)
	}
	return gvks
}

// readOptIn reads which label opts the job in or out, and explains labels that only seem to.
func (f *jobFacts) readOptIn(ctx context.Context, api client.Client) (err error) {
	if f.optIn, err = kinds.ReadOptIn(ctx, api, f.workload); err != nil {
		return fmt.Errorf("read the opt-in: %w", err)
	}
	job := f.workload.Job.Object
	top := f.jobName()
	f.hints = append(f.hints, misspelt(job, top)...)
	if f.optIn.By == "" {
		namespace := &metav1.PartialObjectMetadata{}
		namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
		if err := api.Get(ctx, client.ObjectKey{Name: f.workload.Namespace}, namespace); err != nil {
			return fmt.Errorf("get namespace %s: %w", f.workload.Namespace, err)
		}
		f.hints = append(f.hints, misspelt(namespace, "namespace "+f.workload.Namespace)...)
	}
	if _, found := f.named.Labels[conditions.LabelRestartOnNodeFault]; found && f.named.UID != job.GetUID() {
		f.hints = append(f.hints, fmt.Sprintf("the label on %s is not read: label %s", jobName(f.named), top))
	} else if i := slices.IndexFunc(f.pods, func(p corev1.Pod) bool { return p.Labels[conditions.LabelRestartOnNodeFault] != "" }); i >= 0 && !f.optIn.In {
		f.hints = append(f.hints, fmt.Sprintf("the label on pod %s is not read: label %s itself", f.pods[i].Name, top))
	}
	return nil
}

// misspelt explains opt-ins on an object that do not count.
func misspelt(object metav1.Object, name string) (hints []string) {
	key := conditions.LabelRestartOnNodeFault
	if value, found := object.GetLabels()[key]; found && value != "true" && value != "false" {
		hints = append(hints, fmt.Sprintf(`label %s=%s on %s does not count: the value must be "true" or "false"`, key, printable(value), name))
	}
	if value, found := object.GetLabels()[conditions.LabelKcoverRecovery]; found && value != "true" {
		hints = append(hints, fmt.Sprintf(`label %s=%s on %s does not count: the value must be "true"`, conditions.LabelKcoverRecovery, printable(value), name))
	}
	if _, found := object.GetAnnotations()[key]; found {
		hints = append(hints, fmt.Sprintf("annotation %s on %s does not count: it must be a label", key, name))
	}
	return hints
}

// observeNodes finds out about each node with active pods of the job whether it is quarantined, and restarts jobs.
func (f *jobFacts) observeNodes(all []corev1.Node, breaker *corev1.ConfigMap) {
	onNode := map[string][]corev1.Pod{}
	for _, pod := range f.pods {
		if pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil && !restart.PodFinished(&pod) {
			onNode[pod.Spec.NodeName] = append(onNode[pod.Spec.NodeName], pod)
		}
	}
	restarts := map[string]bool{}
	if f.policy != nil {
		for _, o := range simulate.Run(f.policy, all, "", breaker, f.now) {
			restarts[o.Before.Name] = o.RestartJobs
		}
	}
	for _, name := range slices.Sorted(maps.Keys(onNode)) {
		i := slices.IndexFunc(all, func(n corev1.Node) bool { return n.Name == name })
		if i < 0 {
			f.nodes = append(f.nodes, nodeFacts{row: row{Node: name, Status: isUnknown, Cause: "the node does not exist any more"}, pods: onNode[name]})
			continue
		}
		n := &all[i]
		facts := nodeFacts{row: rowOf(n, f.now), pods: onNode[name]}
		// An unreadable record is in the row.
		if record, err := quarantine.RecordOf(n); err == nil && record != nil && record.Phase == quarantine.Quarantined {
			facts.record = record
			facts.quarantine = restart.Quarantine{
				ID: record.ID, Node: n.Name, NodeUID: n.UID, Taint: record.Taint.NodeTaint(), Since: record.Taint.Since,
				Reason: fmt.Sprintf("%s: %s", record.Decisive().Condition, record.Decisive().Message),
			}
			facts.noRestarts = f.noRestarts(n, record)
			if rule, ok := f.rule(record.Taint.Rule); ok {
				facts.quarantine.CheckpointGrace = rule.CheckpointGrace
			}
			if facts.noRestarts == "" && f.policy != nil && !restarts[name] {
				facts.noRestarts = "the remediator restarts no jobs of the node now: `kubectl pitcrew describe " + name + "` shows why"
			}
		}
		f.nodes = append(f.nodes, facts)
	}
}

func (f *jobFacts) rule(name string) (policy.Rule, bool) {
	if f.policy == nil {
		return policy.Rule{}, false
	}
	return f.policy.Rule(name)
}

// noRestarts says why the quarantine of a node restarts no job; empty if it does, or if the policy is unknown.
func (f *jobFacts) noRestarts(n *corev1.Node, record *quarantine.Record) string {
	rule, found := f.rule(record.Taint.Rule)
	switch {
	case record.Taint.Rule == policy.ByHand:
		return "a user quarantined the node; jobs on it are left alone"
	case n.Labels[conditions.LabelSkip] == "true":
		return "label " + conditions.LabelSkip + "=true: the remediator leaves the node alone"
	case quarantine.Maintained(n):
		return "the node is under maintenance (taint " + conditions.TaintMaintenance + ", or an upgrade of the GPU operator)"
	case f.policy == nil:
		return ""
	case !found:
		return fmt.Sprintf("rule %s is not in the policy any more", record.Taint.Rule)
	case rule.Observe:
		return fmt.Sprintf("rule %s is in observe mode: no job is restarted", rule.Name)
	case !rule.RestartJobs:
		return fmt.Sprintf("rule %s does not set restartJobs", rule.Name)
	}
	return ""
}

// evaluation is the answer to whether a quarantine restarts the job.
type evaluation struct {
	verdict restart.Verdict
	list    []restart.Precondition
}

// evaluate asks the preconditions, the limits and the capacity, in the order of the remediator.
func (f *jobFacts) evaluate(q restart.Quarantine, onNode []corev1.Pod) (evaluation, error) {
	job := *f.workload.Job
	var e evaluation
	e.verdict, e.list = restart.Evaluate(q, job, f.record, f.optIn.In, onNode)
	if f.policy == nil {
		return e, nil
	}
	limits := restart.LimitsOf(job, f.policy.Restart)
	e.list = append(e.list, restart.RateLimits(q, f.record, f.others, limits, f.now)...)
	if f.capacity != nil {
		active := slices.DeleteFunc(slices.Clone(f.pods), func(p corev1.Pod) bool { return restart.PodFinished(&p) })
		together := job.SharesGang(onNode)
		ranks := slices.DeleteFunc(active, func(p corev1.Pod) bool { return !together(&p) })
		room, err := f.capacity(q, ranks)
		if err != nil && !apierrors.IsForbidden(err) {
			return e, err
		}
		if err == nil {
			e.list = append(e.list, room)
		}
	}
	return e, nil
}

// text says in one sentence what becomes of the job.
func (e evaluation) text(now time.Time) string {
	failed, blocked := restart.FirstFailed(e.list)
	switch {
	case e.verdict == restart.JoinRestart:
		return failed.Text
	case !blocked:
		return "the remediator restarts the job"
	case e.verdict == restart.StartRestart && failed.RetryAfter > 0:
		return fmt.Sprintf("the restart waits (%s): %s; next attempt at %s", failed.Reason, failed.Text, now.Add(failed.RetryAfter).Format(time.RFC3339))
	case failed.Reason != "":
		return fmt.Sprintf("not restarted (%s): %s", failed.Reason, failed.Text)
	}
	return "not restarted: " + failed.Text
}

// ifQuarantined is the quarantine of a node by the first rule that restarts jobs, as if it were quarantined for long.
func (f *jobFacts) ifQuarantined(name string) restart.Quarantine {
	q := restart.Quarantine{
		Node:  name,
		Taint: corev1.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule},
		Since: f.now.Add(-24 * time.Hour),
	}
	if f.policy != nil {
		if i := slices.IndexFunc(f.policy.Rules, func(r policy.Rule) bool { return r.RestartJobs && r.Taint.Key != "" }); i >= 0 {
			q.Taint = f.policy.Rules[i].Taint
		}
	}
	return q
}

func (f *jobFacts) jobName() string {
	job := f.workload.Job
	return fmt.Sprintf("%s %s/%s", job.GVK.Kind, job.Object.GetNamespace(), job.Object.GetName())
}

// print writes the answer, what happens next first.
func (f *jobFacts) print(out io.Writer) error {
	evaluations := map[string]evaluation{}
	asIf := ""
	for _, n := range f.nodes {
		if !n.quarantined() {
			continue
		}
		e, err := f.evaluate(n.quarantine, n.pods)
		if err != nil {
			return err
		}
		evaluations[n.row.Node] = e
	}
	if len(evaluations) == 0 {
		var onNode []corev1.Pod
		if len(f.nodes) > 0 {
			asIf, onNode = f.nodes[0].row.Node, f.nodes[0].pods
		}
		e, err := f.evaluate(f.ifQuarantined(asIf), onNode)
		if err != nil {
			return err
		}
		evaluations[asIf] = e
	}
	fmt.Fprintf(out, "Job:      %s\n", f.jobName())
	fmt.Fprintf(out, "Next:     %s\n", printable(f.next(evaluations, asIf)))
	f.printOptIn(out)
	f.printOwners(out)
	fmt.Fprintf(out, "Stop:     %s\n", f.stopText())
	f.printPolicy(out)
	f.printNodes(out)
	f.printRecord(out)
	f.printLimits(out)
	for _, name := range slices.Sorted(maps.Keys(evaluations)) {
		if err := f.printEvaluation(out, name, asIf, evaluations[name]); err != nil {
			return err
		}
	}
	return nil
}

// next says what happens next, or why nothing happens.
func (f *jobFacts) next(evaluations map[string]evaluation, asIf string) string {
	_, abort := f.workload.Job.Object.GetAnnotations()[conditions.AnnotationAbortRestart]
	switch {
	case f.workload.Unsupported != nil:
		return fmt.Sprintf("nothing: it is controlled by %s %s, which cannot be restarted as a whole (UnknownOwner)",
			f.workload.Unsupported.Kind, f.workload.Unsupported.Name)
	case f.recordErr != nil:
		return fmt.Sprintf("nothing: %v (RecordUnreadable); remove the annotation %s", f.recordErr, conditions.AnnotationRestart)
	case f.record.Current != nil && abort:
		return "the restart under way is aborted: " + f.waitsFor()
	case f.record.Current != nil:
		return "the restart under way goes on: " + f.waitsFor()
	case !f.optIn.In && f.optIn.By != "":
		return fmt.Sprintf("nothing: the job is opted out by label %s on %s", f.optIn.By, f.optInOn())
	case !f.optIn.In:
		job := f.workload.Job
		return fmt.Sprintf("nothing: the job is not opted in; to opt in: kubectl label -n %s %s/%s %s=true",
			job.Object.GetNamespace(), strings.ToLower(schema.GroupKind{Group: job.GVK.Group, Kind: job.GVK.Kind}.String()), job.Object.GetName(), conditions.LabelRestartOnNodeFault)
	}
	quarantined := slices.DeleteFunc(slices.Clone(f.nodes), func(n nodeFacts) bool { return !n.quarantined() })
	if len(quarantined) == 0 {
		text := "nothing: none of its pods is on a quarantined node"
		if asIf == "" {
			return text + ", and none is active"
		}
		if off := f.policyOff(); off != "" {
			return fmt.Sprintf("%s; %s", text, off)
		}
		return fmt.Sprintf("%s; if %s were quarantined by a rule with restartJobs: %s", text, asIf, evaluations[asIf].text(f.now))
	}
	var answers []string
	for _, n := range quarantined {
		switch {
		case n.noRestarts != "":
			answers = append(answers, fmt.Sprintf("node %s: %s", n.row.Node, n.noRestarts))
		case f.policy == nil:
			answers = append(answers, fmt.Sprintf("node %s: unknown: %s", n.row.Node, f.policyFrom))
		default:
			answers = append(answers, fmt.Sprintf("node %s: %s", n.row.Node, evaluations[n.row.Node].text(f.now)))
		}
	}
	text := strings.Join(answers, "; ")
	if f.paused != "" {
		text = fmt.Sprintf("nothing while everything is paused (%s); `kubectl pitcrew resume` ends the pause. Then: %s", f.paused, text)
	}
	if abort {
		text += fmt.Sprintf("; annotation %s aborts the restart before it begins", conditions.AnnotationAbortRestart)
	}
	return text
}

// policyOff says that the policy restarts no jobs at all; empty if it does, or if it is unknown.
func (f *jobFacts) policyOff() string {
	if f.policy == nil {
		return ""
	}
	restarts, observe := f.restartRules()
	switch restarts {
	case 0:
		return "no rule of the policy sets restartJobs"
	case observe:
		return "every rule that sets restartJobs is in observe mode: no job is restarted"
	}
	return ""
}

// restartRules counts the rules that restart jobs, and those of them that only observe.
func (f *jobFacts) restartRules() (restarts, observe int) {
	for _, r := range f.policy.Rules {
		if r.RestartJobs {
			restarts++
			if r.Observe {
				observe++
			}
		}
	}
	return restarts, observe
}

func (f *jobFacts) printOptIn(out io.Writer) {
	switch {
	case f.optIn.By == "":
		fmt.Fprintf(out, "Opt-in:   no: neither the job nor its namespace has the label %s\n", conditions.LabelRestartOnNodeFault)
	case f.optIn.In:
		fmt.Fprintf(out, "Opt-in:   yes: label %s on %s\n", f.optIn.By, f.optInOn())
	default:
		fmt.Fprintf(out, "Opt-in:   no: label %s on %s\n", f.optIn.By, f.optInOn())
	}
	for _, hint := range f.hints {
		fmt.Fprintf(out, "          %s\n", hint)
	}
}

// optInOn names the object with the label that decides.
func (f *jobFacts) optInOn() string {
	if f.optIn.Namespace {
		return "namespace " + f.workload.Namespace
	}
	return f.jobName()
}

func (f *jobFacts) printOwners(out io.Writer) {
	var chain []string
	if f.named.Kind == "Pod" {
		chain = append(chain, "Pod "+f.named.Name)
	}
	for _, owner := range f.workload.Owners {
		chain = append(chain, owner.Kind+" "+owner.Name)
	}
	text := strings.Join(chain, " < ")
	if len(chain) > 1 {
		text += "; " + f.jobName() + " counts: its labels opt in, and it is restarted as a whole"
	}
	fmt.Fprintf(out, "Owners:   %s\n", text)
}

// stopText says how the job is stopped and started.
func (f *jobFacts) stopText() string {
	job := f.workload.Job
	field := job.SuspendField
	switch {
	case field.Elsewhere != nil:
		return fmt.Sprintf("by %s of %s %s until all old pods are gone", field.Path, field.Elsewhere.GetKind(), field.Elsewhere.GetName())
	case field.Exists():
		return fmt.Sprintf("by %s until all old pods are gone", field.Path)
	case job.Gang != nil:
		return "its controller replaces the pods on the node and those that belong together with them; there is no suspend field"
	}
	return "its controller replaces all pods; there is no suspend field"
}

func (f *jobFacts) printPolicy(out io.Writer) {
	if f.policy == nil {
		fmt.Fprintf(out, "Policy:   unknown: %s\n", f.policyFrom)
	} else {
		restarts, observe := f.restartRules()
		fmt.Fprintf(out, "Policy:   %s: %d rules set restartJobs, %d of them in observe mode\n", f.policyFrom, restarts, observe)
	}
	if f.paused != "" {
		fmt.Fprintf(out, "Paused:   %s\n", printable(f.paused))
	}
}

func (f *jobFacts) printNodes(out io.Writer) {
	active, healthy := 0, 0
	for _, n := range f.nodes {
		active += len(n.pods)
		if n.row.Status == isHealthy || n.row.Status == isUnchecked {
			healthy++
		}
	}
	fmt.Fprintf(out, "Pods:     %d active on %d nodes, of which %d have no fault\n", active, len(f.nodes), healthy)
	for _, n := range f.nodes {
		switch {
		case n.noRestarts != "":
			fmt.Fprintf(out, "Node:     %s: %s; %s\n", n.row.Node, n.row.Status, n.noRestarts)
		case n.quarantined():
			fmt.Fprintf(out, "Node:     %s: %s by rule %s since %s: %s\n", n.row.Node, n.row.Status, n.record.Taint.Rule, f.ago(n.quarantine.Since), printable(n.row.Cause))
		case n.row.Status != isHealthy && n.row.Status != isUnchecked:
			fmt.Fprintf(out, "Node:     %s: %s, not quarantined (`kubectl pitcrew describe %s`): %s\n", n.row.Node, n.row.Status, n.row.Node, printable(n.row.Cause))
		}
	}
}

func (f *jobFacts) ago(t time.Time) string {
	return t.UTC().Format(time.RFC3339) + ", " + duration.HumanDuration(f.now.Sub(t)) + " ago"
}

func (f *jobFacts) printRecord(out io.Writer) {
	if f.recordErr != nil {
		fmt.Fprintf(out, "Record:   %v\n", f.recordErr)
		return
	}
	cur := f.record.Current
	if cur == nil && len(f.record.Last) == 0 {
		fmt.Fprintln(out, "Record:   none: the job was never restarted")
	}
	if cur != nil {
		fmt.Fprintf(out, "Restart:  %s since %s; %s\n", cur.Phase, f.ago(cur.PhaseSince), printable(f.waitsFor()))
		for _, cause := range cur.Quarantines {
			fmt.Fprintf(out, "          for node %s: %s\n", cause.Node, printable(cause.Reason))
		}
	}
	for _, past := range f.record.Last {
		var nodes []string
		for _, cause := range past.Quarantines {
			nodes = append(nodes, cause.Node)
		}
		fmt.Fprintf(out, "Before:   %s at %s, after %s, for node %s: %s\n", past.Phase, f.ago(past.EndedAt),
			duration.HumanDuration(past.EndedAt.Sub(past.StartedAt)), strings.Join(nodes, ", "), printable(past.Outcome))
	}
}

// waitsFor says what the restart under way waits for.
func (f *jobFacts) waitsFor() string {
	cur, job := f.record.Current, f.workload.Job
	switch cur.Phase {
	case restart.Checkpointing:
		text := fmt.Sprintf("waits until the job has saved its state (annotation %s=%s), at most until %s",
			conditions.AnnotationCheckpointed, cur.CheckpointDeadline(), cur.CheckpointDeadline())
		if f.paused != "" {
			text += fmt.Sprintf(", and for the end of the pause (%s)", f.paused)
		}
		return text
	case restart.Starting:
		running := 0
		for _, pod := range f.pods {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				running++
			}
		}
		return fmt.Sprintf("waits until all ranks run (%d/%d)", running, cmp.Or(job.Ranks, cur.Ranks))
	}
	left := f.remaining()
	var names []string
	for _, pod := range left[:min(len(left), maxListed)] {
		name := fmt.Sprintf("%s on node %s", pod.Name, pod.Spec.NodeName)
		if pod.DeletionTimestamp != nil {
			name += ", deleted " + duration.HumanDuration(f.now.Sub(pod.DeletionTimestamp.Time)) + " ago"
		}
		names = append(names, name)
	}
	if more := len(left) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	text := "waits for its controller to act on the stop"
	if len(left) > 0 {
		text = "waits for the end of its old pods: " + strings.Join(names, "; ")
	}
	if cur.Held != "" {
		text = fmt.Sprintf("held, because the stop takes too long: %s; %s (see `kubectl pitcrew explain JobRestart`)", cur.Held, text)
	}
	return text
}

// remaining are the pods that a stop waits for.
func (f *jobFacts) remaining() []corev1.Pod {
	cur := f.record.Current
	recorded := func(uid types.UID) bool { return slices.Contains(cur.Pods, uid) }
	return slices.DeleteFunc(slices.Clone(f.pods), func(p corev1.Pod) bool {
		ended := restart.PodFinished(&p) && p.DeletionTimestamp == nil
		return ended || !recorded(p.UID) && !f.workload.Job.SuspendField.Exists()
	})
}

// printLimits prints what the policy's limits have counted.
func (f *jobFacts) printLimits(out io.Writer) {
	if f.policy == nil {
		return
	}
	limits := restart.LimitsOf(*f.workload.Job, f.policy.Restart)
	var texts []string
	of := func(name string, n, most int) {
		if most > 0 {
			texts = append(texts, fmt.Sprintf("%s %d/%d", name, n, most))
		}
	}
	today := 0
	for _, began := range f.record.Recent {
		if f.now.Sub(began) < 24*time.Hour {
			today++
		}
	}
	of("maxPerDay", today, limits.MaxPerDay)
	of("maxPerJob", f.record.Total, limits.MaxPerJob)
	if limits.BackOff.First > 0 {
		texts = append(texts, fmt.Sprintf("backOff %s to %s", limits.BackOff.First, limits.BackOff.Max))
	}
	if f.othersErr == nil {
		of("maxConcurrent", len(f.others), limits.MaxConcurrent)
	} else if limits.MaxConcurrent > 0 {
		texts = append(texts, "maxConcurrent unknown: jobs of other namespaces cannot be listed")
	}
	if limits.Settle > 0 {
		texts = append(texts, fmt.Sprintf("settle %s", limits.Settle))
	}
	if limits.CheckCapacity {
		texts = append(texts, "checkCapacity")
	}
	if len(texts) == 0 {
		texts = []string{"none"}
	}
	fmt.Fprintf(out, "Limits:   %s\n", strings.Join(texts, ", "))
}

// printEvaluation prints the preconditions one by one.
func (f *jobFacts) printEvaluation(out io.Writer, name, asIf string, e evaluation) error {
	switch {
	case name != asIf:
		fmt.Fprintf(out, "\nFor node %s:\n", name)
	case name != "":
		fmt.Fprintf(out, "\nIf node %s were quarantined:\n", name)
	default:
		fmt.Fprint(out, "\nIf a node of the job were quarantined:\n")
	}
	lines := []line{{text: "PRECONDITION\tPASSED\tREASON\tWHY NOT"}}
	for _, p := range e.list {
		passed, status := "yes", ""
		if !p.Passed {
			passed, status = "no", isSuspect
		}
		lines = append(lines, line{fmt.Sprintf("%s\t%s\t%s\t%s", p.Name, passed, cmp.Or(p.Reason, "-"), cmp.Or(printable(p.Text), "-")), status})
	}
	return table(out, lines, isTerminal(out))
}
