package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/coverage"
)

const enableRepair = "helm upgrade --reuse-values --set repair.enabled=true; see docs/repair.md"

// repairNamespace is the namespace of the Jobs that repair and check nodes; empty: the remediator visits no node. known is false where
// its flags are not known, as of one that was started by hand.
func (i *installation) repairNamespace() (name string, known bool) {
	pod, ok := i.podSpec()
	return flagValue(pod, "repair-namespace"), ok
}

// repairs looks whether what the policy says about repairs, sweeps and first checks can be done.
func (d *doctor) repairs(ctx context.Context) ([]finding, error) {
	namespace, known := d.repairNamespace()
	wanted := coverage.Templates(d.policy)
	var found []finding
	switch {
	case d.policy == nil || !known:
		found = append(found, notKnown("", "the policy or the remediator's flags cannot be read"))
	case namespace == "" && !visitsNodes(d.policy):
		found = append(found, good("", "off: the policy asks for no repair, no sweep and no check"))
	case namespace == "":
		found = append(found, problem("", enableRepair, "the policy asks for repairs or checks of nodes, but the remediator runs without -repair-namespace: none is made"))
	default:
		more, err := d.repairTools(ctx, namespace, wanted)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	if known && namespace == "" {
		found = append(found, d.unfinished()...)
	}
	return append(found, d.untouched()...), nil
}

// unfinished looks for nodes that a visit keeps out of use although no remediator ends it any more.
func (d *doctor) unfinished() []finding {
	var names []string
	for i := range d.nodes {
		if repair.Unfinished(&d.nodes[i]) {
			names = append(names, d.nodes[i].Name)
		}
	}
	if d.nodesErr != nil || len(names) == 0 {
		return nil
	}
	return []finding{problem("", "wait until no Job in namespace "+conditions.RepairNamespace+" runs there, then kubectl taint nodes NODE "+conditions.TaintMaintenance+"-, and set labels nvidia.com/gpu.deploy.* that are paused-for-pitcrew-repair to true; or set repair.enabled again",
		"visits were not finished before the remediator ran without -repair-namespace: their taint %s stays on nodes: %s", conditions.TaintMaintenance, some(names))}
}

// repairTools looks for the templates and the remediator's rights in the namespace of the Jobs.
func (d *doctor) repairTools(ctx context.Context, namespace string, wanted map[string][]string) ([]finding, error) {
	var templates corev1.PodTemplateList
	if err := d.api.List(ctx, &templates, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list PodTemplates of namespace %s: %w", namespace, err)
	}
	var names []string
	verdicts := map[string][]string{}
	for _, t := range templates.Items {
		names, verdicts[t.Name] = append(names, t.Name), repair.Verdict(&t)
	}
	slices.Sort(names)
	var found []finding
	for _, lack := range coverage.Lacks(d.policy, d.nodes, verdicts, d.now()) {
		found = append(found, problem("", lack.Do, "%s", lack.Text))
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !slices.Contains(names, name) {
			found = append(found, problem("", "correct the policy, or create the PodTemplate; helm upgrade puts back those of the chart",
				"%s names template %s, and there is no such PodTemplate in namespace %s (there are: %s)", strings.Join(wanted[name], ", "), name, namespace, cmp.Or(strings.Join(names, ", "), "none")))
		}
	}
	lacks, err := d.lacks(ctx, toVisit(namespace))
	switch {
	case apierrors.IsForbidden(err):
		found = append(found, notKnown("", err))
	case err != nil:
		return nil, err
	case len(lacks) > 0:
		found = append(found, problem("", enableRepair, "in namespace %s the remediator may not %s", namespace, strings.Join(lacks, ", ")))
	}
	if len(found) == 0 {
		found = append(found, good("", "on, by Jobs in namespace %s; templates: %s", namespace, strings.Join(names, ", ")))
	}
	return found, nil
}

// toVisit is what the remediator needs in the namespace of the Jobs.
func toVisit(namespace string) []right {
	rights := []right{
		{verb: "get", resource: "podtemplates", namespace: namespace},
		{verb: "create", group: conditions.Domain, resource: "repairjobs", namespace: namespace},
	}
	for _, verb := range []string{"get", "list", "watch", "create", "delete"} {
		rights = append(rights, right{verb: verb, group: "batch", resource: "jobs", namespace: namespace})
	}
	return rights
}

// visitsNodes tells whether a policy asks for Jobs on nodes, or for the removal of the taint of new ones.
func visitsNodes(p *policy.Policy) bool {
	return p.Repair != nil || len(p.Sweeps) > 0 || p.FirstCheck != nil || slices.ContainsFunc(p.Rules, func(r policy.Rule) bool { return r.Validate })
}

// untouched looks for nodes that wait for a first check which no policy makes.
func (d *doctor) untouched() []finding {
	if d.nodesErr != nil || d.policy == nil || d.policy.FirstCheck != nil {
		return nil
	}
	var names []string
	for _, n := range d.nodes {
		if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnchecked }) {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []finding{warning("", "add firstCheck to the policy, or kubectl taint nodes NODE "+conditions.TaintUnchecked+"-",
		"taint %s is on nodes, and the policy has no firstCheck that removes it: %s", conditions.TaintUnchecked, some(names))}
}
