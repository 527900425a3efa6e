package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// detectors looks whether the DaemonSets of the chart's pools have pods, and whether they are ready.
func (d *doctor) detectors(ctx context.Context) ([]cli.Finding, error) {
	var sets appsv1.DaemonSetList
	if err := d.api.List(ctx, &sets, client.InNamespace(d.Namespace), client.MatchingLabels{cli.LabelName: cli.OwnNPD}); err != nil {
		return nil, fmt.Errorf("list DaemonSets: %w", err)
	}
	if len(sets.Items) == 0 {
		checked := 0
		for i := range d.nodes {
			if isChecked(&d.nodes[i]) {
				checked++
			}
		}
		if checked == 0 && d.nodesErr == nil {
			return []cli.Finding{cli.Problem("", "name a pool: helm upgrade --reuse-values --set 'pools[0].name=gpu,pools[0].preset=nvidia'; "+
				"or add the plugins to an NPD that you run: manifests/README.md",
				"the chart has no pool in namespace %s, and no node has a condition of Pitcrew: nothing is checked", d.Namespace)}, nil
		}
		return []cli.Finding{cli.Good("", "no pool in namespace %s; another NPD checks %d nodes", d.Namespace, checked)}, nil
	}
	var found []cli.Finding
	for _, set := range sets.Items {
		s := set.Status
		pool := fmt.Sprintf("pool %s: %d of %d ready", set.Labels[cli.LabelPool], s.NumberReady, s.DesiredNumberScheduled)
		describe := fmt.Sprintf("kubectl describe daemonsets,pods -n %s -l %s=%s", set.Namespace, cli.LabelPool, set.Labels[cli.LabelPool])
		switch {
		case s.DesiredNumberScheduled == 0 && d.nodesErr == nil:
			found = append(found, cli.Problem("", "label the nodes, or give the pool a nodeSelector or matchExpressions: docs/install.md",
				"%s: no node matches: %s", pool, d.unmatched(&set.Spec.Template.Spec)))
		case s.DesiredNumberScheduled == 0:
			found = append(found, cli.Problem("", "label the nodes, or give the pool a nodeSelector or matchExpressions: docs/install.md",
				"%s: no node matches", pool))
		case s.NumberReady == 0:
			found = append(found, cli.Problem("", describe, "%s", pool))
		case s.NumberReady < s.DesiredNumberScheduled:
			found = append(found, cli.Warning("", describe, "%s", pool))
		default:
			found = append(found, cli.Good("", "%s", pool))
		}
	}
	return found, nil
}

// unmatched returns which requirement of a DaemonSet on its nodes no node meets or, if each has one, that no node meets them all.
func (d *doctor) unmatched(pod *corev1.PodSpec) string {
	var needs []labels.Requirement
	add := func(key string, is selection.Operator, values ...string) {
		if r, err := labels.NewRequirement(key, is, values); err == nil {
			needs = append(needs, *r)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(pod.NodeSelector)) {
		add(key, selection.In, pod.NodeSelector[key])
	}
	if a := pod.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				is := map[corev1.NodeSelectorOperator]selection.Operator{
					corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn, corev1.NodeSelectorOpExists: selection.Exists,
					corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan,
					corev1.NodeSelectorOpLt: selection.LessThan,
				}[e.Operator]
				add(e.Key, is, e.Values...)
			}
		}
	}
	var all, none []string
	for _, need := range needs {
		all = append(all, need.String())
		if !slices.ContainsFunc(d.nodes, func(n corev1.Node) bool { return need.Matches(labels.Set(n.Labels)) }) {
			none = append(none, need.String())
		}
	}
	if len(none) > 0 {
		return "no node has label " + strings.Join(none, ", nor ")
	}
	return "no node has all of " + strings.Join(all, ", ")
}

// isChecked reports whether a node has a condition of ours that a detector renews.
func isChecked(n *corev1.Node) bool { return slices.ContainsFunc(n.Status.Conditions, isRenewed) }

func isRenewed(c corev1.NodeCondition) bool {
	return conditions.Ours(string(c.Type)) && !conditions.IsVerdict(string(c.Type))
}

// resourcesOfGPUs are the starts of the names by which device plugins offer GPUs and NPUs.
var resourcesOfGPUs = []string{"nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "huawei.com/Ascend", "metax-tech.com/"}

// gpuNodes looks for nodes with GPUs that nothing checks.
func (d *doctor) gpuNodes(context.Context) ([]cli.Finding, error) {
	if d.nodesErr != nil {
		return nil, d.nodesErr
	}
	gpus, skipped := 0, []string{}
	var unchecked []string
	for i := range d.nodes {
		n := &d.nodes[i]
		if n.Labels[conditions.LabelSkip] == "true" {
			skipped = append(skipped, n.Name)
		}
		for name := range n.Status.Capacity {
			if slices.ContainsFunc(resourcesOfGPUs, func(start string) bool { return strings.HasPrefix(string(name), start) }) {
				gpus++
				if !isChecked(n) {
					unchecked = append(unchecked, n.Name)
				}
				break
			}
		}
	}
	var found []cli.Finding
	switch {
	case len(unchecked) > 0:
		found = append(found, cli.Warning("", "add a pool whose labels they have, or wait: the first conditions come within two minutes",
			"%d of %d nodes with GPUs have no condition of Pitcrew, nothing checks them: %s", len(unchecked), gpus, cli.Some(unchecked)))
	case gpus == 0:
		found = append(found, cli.Good("", "no node offers GPUs; %d nodes", len(d.nodes)))
	default:
		found = append(found, cli.Good("", "all %d are checked", gpus))
	}
	if len(skipped) > 0 {
		found = append(found, cli.Warning("", "kubectl label node NODE "+conditions.LabelSkip+"-",
			"label %s=true makes the remediator leave them alone: %s", conditions.LabelSkip, cli.Some(skipped)))
	}
	return found, nil
}

// staleConditions looks for conditions that no detector renews any more.
func (d *doctor) staleConditions(context.Context) ([]cli.Finding, error) {
	if d.nodesErr != nil {
		return nil, d.nodesErr
	}
	stale := map[string][]string{}
	for _, n := range d.nodes {
		if _, is := node.NotReady(&n); is {
			continue // its kubelet reports nothing either
		}
		for _, c := range n.Status.Conditions {
			if isRenewed(c) && d.Now().Sub(c.LastHeartbeatTime.Time) > policy.DefaultUnknownAfter {
				stale[string(c.Type)] = append(stale[string(c.Type)],
					fmt.Sprintf("%s (%s)", n.Name, duration.HumanDuration(d.Now().Sub(c.LastHeartbeatTime.Time))))
			}
		}
	}
	var found []cli.Finding
	for _, name := range slices.Sorted(maps.Keys(stale)) {
		found = append(found, cli.Warning("", "kubectl pitcrew describe NODE names the detector's pod; "+
			"if nothing writes the condition any more, docs/troubleshooting-repairs.md says how to remove it",
			"%s: no heartbeat on %d nodes: %s", name, len(stale[name]), cli.Some(stale[name])))
	}
	if len(found) == 0 {
		found = append(found, cli.Good("", "none: all have a heartbeat of the last %s", duration.HumanDuration(policy.DefaultUnknownAfter)))
	}
	return found, nil
}

// records looks for records of quarantines and of repairs that cannot be read, and for what they name and what is not removed.
func (d *doctor) records(ctx context.Context) ([]cli.Finding, error) {
	if d.nodesErr != nil {
		return nil, d.nodesErr
	}
	bad := map[string][]string{}
	for i := range d.nodes {
		if _, err := causes.RecordOf(&d.nodes[i]); err != nil {
			bad[conditions.AnnotationQuarantine] = append(bad[conditions.AnnotationQuarantine], d.nodes[i].Name)
		}
		if _, err := visit.RecordOf(&d.nodes[i]); err != nil {
			bad[conditions.AnnotationRepair] = append(bad[conditions.AnnotationRepair], d.nodes[i].Name)
		}
	}
	var found []cli.Finding
	for _, key := range slices.Sorted(maps.Keys(bad)) {
		found = append(found, cli.Problem("", "kubectl annotate node NODE "+key+"-, then look at its taints",
			"annotation %s cannot be read, so the remediator leaves the node alone: %s", key, cli.Some(bad[key])))
	}
	left, err := d.leftTaints(ctx)
	if found = append(found, left...); err != nil {
		return found, err
	}
	if len(found) == 0 {
		found = append(found, cli.Good("", "all can be read"))
	}
	return found, nil
}

// deliveredWithin is when a notice that is still in a node's record is late.
const deliveredWithin = 10 * time.Minute

// webhooks looks for notices that have not been delivered. What a webhook has answered is in the remediator's log and metrics only.
func (d *doctor) webhooks(context.Context) ([]cli.Finding, error) {
	if d.nodesErr != nil {
		return nil, d.nodesErr
	}
	late := map[string]int{}
	for i := range d.nodes {
		record, err := causes.RecordOf(&d.nodes[i])
		if err != nil || record == nil {
			continue
		}
		for _, notice := range record.Notices {
			if d.Now().Sub(notice.At) > deliveredWithin {
				for _, to := range notice.To {
					late[to]++
				}
			}
		}
	}
	var found []cli.Finding
	for _, name := range slices.Sorted(maps.Keys(late)) {
		found = append(found, cli.Warning("", "kubectl pitcrew explain PitcrewWebhookFailing", "webhook %s: %d notices wait for longer than %s",
			name, late[name], duration.HumanDuration(deliveredWithin)))
	}
	switch {
	case len(found) > 0:
		return found, nil
	case d.Parsed == nil:
		return []cli.Finding{cli.NotKnown("", "the policy cannot be read")}, nil
	}
	return []cli.Finding{cli.Good("", "%d in the policy, no notice waits", len(d.Parsed.Webhooks))}, nil
}
