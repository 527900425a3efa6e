package job

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/outlook"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/permit"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/room"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/ratelimit"
)

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
	// remaining are, while the job is being stopped, the pods that have to end before it is started again.
	remaining []corev1.Pod
	// running is how many of its pods run, while it is under restart.
	running int
	// step is what the remediator does next with the restart under way; zero without one.
	step restart.Step
	// others are the restarts of other jobs that are under way, as far as the user may list them: othersErr is that they may not all
	// be listed.
	others    []ratelimit.Other
	othersErr error
	nodes     []nodeFacts
	// capacity answers whether there is room for ranks; nil: the policy does not ask.
	capacity func(q restart.Trigger, ranks []corev1.Pod) (restart.Precondition, error)
}

// nodeFacts are a node with active pods of the job.
type nodeFacts struct {
	row  status.Row
	pods []corev1.Pod
	// record is that of its quarantine; nil if the node is not quarantined.
	record *causes.Record
	// quarantine is what the remediator's controller of jobs gets to know of it.
	quarantine restart.Trigger
	// noRestarts is why the jobs on the node are left alone; empty: they are not.
	noRestarts string
}

func (n nodeFacts) quarantined() bool { return n.record != nil }

// Describe answers why a job was not restarted, and what happens next.
func Describe(ctx context.Context, c *cli.Target, out io.Writer, api client.Client, resource, name, namespace, policyFile string) error {
	gvk, err := c.KindFor(api, resource)
	if err != nil {
		return err
	}
	named := &metav1.PartialObjectMetadata{}
	named.SetGroupVersionKind(gvk)
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, named); err != nil {
		return fmt.Errorf("get %s %s/%s: %w", gvk.Kind, namespace, name, err)
	}
	named.SetGroupVersionKind(gvk)
	f, err := readJob(ctx, c, api, named, policyFile)
	if err != nil {
		return err
	}
	if f.workload.Job == nil {
		f.printUnsupported(out)
		return nil
	}
	a, err := f.answer()
	if err != nil {
		return err
	}
	return f.print(out, a)
}

// readJob reads all that an answer about an object is made from. Its workload has no Job if the object is none, and below none.
func readJob(
	ctx context.Context, c *cli.Target, api client.Client, named *metav1.PartialObjectMetadata, policyFile string,
) (*jobFacts, error) {
	f := &jobFacts{now: c.Now().UTC(), named: named}
	var err error
	if f.policy, f.policyFrom, err = c.PolicyInForce(ctx, api, policyFile); err != nil {
		return nil, err
	}
	if f.paused, err = pause.Reason(ctx, api, c.Namespace); err != nil {
		return nil, err
	}
	supported := f.supported()
	resolver := kinds.NewOwnerResolver(api, supported)
	if err := f.findWorkload(ctx, api, resolver, supported); err != nil || f.workload.Job == nil {
		return f, err
	}
	return f, f.observe(ctx, c, api, resolver, supported)
}

// supported are the kinds of jobs that the remediator restarts.
func (f *jobFacts) supported() []kinds.Kind {
	if f.policy != nil {
		return kinds.All(f.policy.JobKinds)
	}
	return kinds.BuiltIn()
}

// findWorkload finds the object that counts for the named one, as the remediator does: the topmost job of a known kind.
func (f *jobFacts) findWorkload(ctx context.Context, api client.Client, resolver kinds.OwnerResolver, supported []kinds.Kind) (err error) {
	gvk := f.named.GroupVersionKind()
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
		return fmt.Errorf("find the owners of %s: %w", cli.JobName(f.named), err)
	}
	return nil
}

// observe reads what surrounds the job.
func (f *jobFacts) observe(
	ctx context.Context, c *cli.Target, api client.Client, resolver kinds.OwnerResolver, supported []kinds.Kind,
) error {
	job := f.workload.Job
	f.record, f.recordErr = restart.ReadRecord(job.Object)
	f.record = f.record.InKnownPhase(*job)
	// Those too that the job's selector does not find: the remediator does not only go by that.
	var inNamespace corev1.PodList
	if err := api.List(ctx, &inNamespace, client.InNamespace(f.workload.Namespace)); err != nil {
		return fmt.Errorf("list the pods of namespace %s: %w", f.workload.Namespace, err)
	}
	for _, pod := range inNamespace.Items {
		if f.selects(&pod) {
			f.pods = append(f.pods, pod)
		}
	}
	if err := f.readOptIn(ctx, api); err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := api.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	stored, err := outlook.Stored(ctx, c, api)
	if err != nil {
		return err
	}
	f.observeNodes(ctx, resolver, inNamespace.Items, nodes.Items, stored)
	if f.record.Current != nil {
		f.observeRestart(inNamespace.Items, nodes.Items)
	}
	if f.policy == nil {
		return nil
	}
	f.others, f.othersErr = restartsOfOthers(ctx, api, supported, *job)
	if f.othersErr != nil && !apierrors.IsForbidden(f.othersErr) {
		return f.othersErr
	}
	if f.policy.Restart.CheckCapacity {
		f.capacity = func(q restart.Trigger, ranks []corev1.Pod) (restart.Precondition, error) {
			search, err := room.Search(ctx, api, q, ranks, nodes.Items, ratelimit.Claims(q, f.others), f.now)
			if err != nil {
				return restart.Precondition{}, err
			}
			return search.Result(), nil
		}
	}
	return nil
}

// selects reports whether the job's selector finds a pod.
func (f *jobFacts) selects(pod *corev1.Pod) bool {
	return f.workload.Job.Pods.Matches(labels.Set(pod.Labels))
}

// held reports whether the job may not be stopped now because of the nodes of these pods, as far as the policy is known.
func held(f *jobFacts, affected []corev1.Pod, nodes []corev1.Node) bool {
	mayStop := slices.ContainsFunc(affected, func(pod corev1.Pod) bool {
		i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == pod.Spec.NodeName })
		return i < 0 || f.policy == nil || permit.MayStop(f.policy, &nodes[i], f.now)
	})
	return f.paused != "" || !mayStop
}

// observeRestart asks the remediator's own state machine for the next step of the restart under way.
func (f *jobFacts) observeRestart(inNamespace []corev1.Pod, nodes []corev1.Node) {
	job, cur := *f.workload.Job, *f.record.Current
	var facts restart.Facts
	for _, c := range cur.Quarantines {
		var node *corev1.Node
		if i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == c.Node }); i >= 0 {
			node = &nodes[i]
		}
		for _, pod := range f.pods {
			if c.Stands(node) && pod.Spec.NodeName == c.Node && activeOn(&pod, node) {
				facts.Affected = append(facts.Affected, pod)
			}
		}
	}
	facts.Held = held(f, facts.Affected, nodes)
	for _, pod := range inNamespace {
		mine, finished := f.selects(&pod), node.PodFinished(&pod)
		metadata := metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta}
		switch {
		case job.MustEnd(cur, &pod) && (!finished || mine && pod.DeletionTimestamp != nil):
			f.remaining = append(f.remaining, pod)
			facts.Remaining = append(facts.Remaining, metadata)
		case mine && finished && job.MustBeDeleted(&pod):
			facts.Terminal = append(facts.Terminal, metadata)
		}
		if mine && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			facts.Running++
		}
	}
	timeouts := restart.PhaseTimeouts{Stop: restart.DefaultStopTimeout, Start: restart.DefaultStartTimeout}
	f.running, f.step = facts.Running, restart.Next(f.record, job, facts, timeouts, f.now)
}

// activeOn reports whether a pod has a node and counts as one on it, see [restart.ActiveOn].
func activeOn(pod *corev1.Pod, node *corev1.Node) bool {
	return pod.Spec.NodeName != "" && restart.ActiveOn(pod, node)
}

// podsByNode are the active pods of the job, by their node.
func (f *jobFacts) podsByNode(
	ctx context.Context, resolver kinds.OwnerResolver, inNamespace []corev1.Pod, byName map[string]*corev1.Node,
	quarantines map[string]*causes.Record,
) map[string][]corev1.Pod {
	onNode := map[string][]corev1.Pod{}
	for _, pod := range inNamespace {
		if !activeOn(&pod, byName[pod.Spec.NodeName]) {
			continue
		}
		mine := f.selects(&pod)
		if quarantines[pod.Spec.NodeName] != nil { // here the remediator goes by the owners
			if w, err := resolver.OfPod(ctx, &pod); err == nil {
				mine = w.UID() == f.workload.UID() && w.Owns(&pod)
			}
		}
		if mine {
			onNode[pod.Spec.NodeName] = append(onNode[pod.Spec.NodeName], pod)
		}
	}
	return onNode
}

// observeNodes finds out about each node with active pods of the job whether it is quarantined, and restarts jobs.
func (f *jobFacts) observeNodes(
	ctx context.Context, resolver kinds.OwnerResolver, inNamespace []corev1.Pod, all []corev1.Node, stored simulate.Stored,
) {
	byName, quarantines := map[string]*corev1.Node{}, map[string]*causes.Record{}
	for i := range all {
		byName[all[i].Name] = &all[i]
		// An unreadable record is in the row.
		if record, err := causes.RecordOf(&all[i]); err == nil && record != nil && record.Phase == causes.Quarantined {
			quarantines[all[i].Name] = record
		}
	}
	onNode := f.podsByNode(ctx, resolver, inNamespace, byName, quarantines)
	restarts := map[string]string{} // the rule that restarts the jobs of a node
	if f.policy != nil {
		for _, o := range simulate.Run(f.policy, all, "", stored, f.now) {
			restarts[o.Before.Name] = o.RestartRule
		}
	}
	for _, name := range slices.Sorted(maps.Keys(onNode)) {
		n := byName[name]
		if n == nil {
			gone := status.Row{Node: name, Status: status.Unknown, Cause: "the node does not exist any more"}
			f.nodes = append(f.nodes, nodeFacts{row: gone, pods: onNode[name]})
			continue
		}
		facts := nodeFacts{row: status.RowOf(n, f.now), pods: onNode[name], record: quarantines[name]}
		if facts.record != nil {
			var rule policy.Rule
			if f.policy != nil {
				rule, _ = f.policy.Rule(cmp.Or(restarts[name], facts.record.Taint.Rule))
			}
			facts.quarantine = facts.record.JobRestart(n, rule, nil)
			if restarts[name] == "" {
				facts.noRestarts = f.noRestarts(n, facts.record)
			}
			if facts.noRestarts == "" && facts.record.IsIsolated() {
				facts.noRestarts = "only the jobs whose claims hold a device of " + facts.record.Isolation.String() + " are restarted"
			}
			if facts.noRestarts == "" && f.policy != nil && restarts[name] == "" {
				facts.noRestarts = "the remediator restarts no jobs of the node now: `kubectl pitcrew describe " + name + "` shows why"
			}
		}
		f.nodes = append(f.nodes, facts)
	}
}

// restartsOfOthers are the restarts of other jobs that are under way.
func restartsOfOthers(ctx context.Context, api client.Client, supported []kinds.Kind, self restart.Job) ([]ratelimit.Other, error) {
	var others []ratelimit.Other
	underWay, err := cli.Restarting(ctx, api, cli.GvksOf(supported))
	for _, job := range underWay {
		// The remediator drops the label of a job whose record does not parse.
		if rec, err := restart.ReadRecord(job); err == nil && rec.Current != nil && job.UID != self.Object.GetUID() {
			others = append(others, ratelimit.OtherOf(*rec.Current, job.Namespace))
		}
	}
	return others, err
}

// readOptIn reads which label opts the job in or out, and explains labels that only seem to.
func (f *jobFacts) readOptIn(ctx context.Context, api client.Client) (err error) {
	if f.optIn, err = kinds.ReadOptIn(ctx, api, f.workload); err != nil {
		return fmt.Errorf("read the opt-in: %w", err)
	}
	job := f.workload.Job.Object
	top := nameOf(f.workload.Job)
	f.hints = append(f.hints, kinds.Mistakes(job, top)...)
	if f.optIn.By == "" {
		namespace := &metav1.PartialObjectMetadata{}
		namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
		if err := api.Get(ctx, client.ObjectKey{Name: f.workload.Namespace}, namespace); err != nil {
			return fmt.Errorf("get namespace %s: %w", f.workload.Namespace, err)
		}
		f.hints = append(f.hints, kinds.Mistakes(namespace, "namespace "+f.workload.Namespace)...)
	}
	if _, found := f.named.Labels[conditions.LabelRestartOnNodeFault]; found && f.named.UID != job.GetUID() {
		f.hints = append(f.hints, fmt.Sprintf("the label on %s is not read: label %s", cli.JobName(f.named), top))
		return nil
	}
	labelled := func(p corev1.Pod) bool { return p.Labels[conditions.LabelRestartOnNodeFault] != "" }
	if i := slices.IndexFunc(f.pods, labelled); i >= 0 && !f.optIn.In {
		f.hints = append(f.hints, fmt.Sprintf("the label on pod %s is not read: label %s itself", f.pods[i].Name, top))
	}
	return nil
}

// noRestarts returns why the quarantine of a node restarts no job; empty if it does, or if the policy is unknown.
func (f *jobFacts) noRestarts(n *corev1.Node, record *causes.Record) string {
	switch {
	case record.Taint.Rule == policy.ByHand:
		return "a user quarantined the node; jobs on it are left alone"
	case n.Labels[conditions.LabelSkip] == "true":
		return "label " + conditions.LabelSkip + "=true: the remediator leaves the node alone"
	case node.Maintained(n, f.now):
		return "the node is under maintenance (taint " + conditions.TaintMaintenance + ", or an upgrade of the GPU operator)"
	case f.policy == nil:
		return ""
	}
	rule, found := f.policy.Rule(record.Taint.Rule)
	switch {
	case !found:
		return fmt.Sprintf("rule %s is not in the policy any more", record.Taint.Rule)
	case rule.Observe:
		return fmt.Sprintf("rule %s is in observe mode: no job is restarted", rule.Name)
	case !rule.RestartJobs:
		return fmt.Sprintf("rule %s does not set restartJobs", rule.Name)
	}
	return ""
}

func nameOf(job *restart.Job) string {
	return fmt.Sprintf("%s %s/%s", job.GVK.Kind, job.Object.GetNamespace(), job.Object.GetName())
}
