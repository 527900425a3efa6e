package doctor

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
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/coverage"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// repairs looks whether what the policy says about repairs, sweeps and first checks can be done.
func (d *doctor) repairs(ctx context.Context) ([]cli.Finding, error) {
	namespace, known := d.RepairNamespace()
	wanted := coverage.Templates(d.Parsed)
	var found []cli.Finding
	switch {
	case d.Parsed == nil || !known:
		found = append(found, cli.NotKnown("", "the policy or the remediator's flags cannot be read"))
	case namespace == "" && !cli.VisitsNodes(d.Parsed):
		found = append(found, cli.Good("", "off: the policy asks for no repair, no sweep and no check"))
	case namespace == "":
		found = append(found, cli.Problem("", health.EnableRepair,
			"the policy asks for repairs or checks of nodes, but the remediator runs without -repair-namespace: none is made"))
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
func (d *doctor) unfinished() []cli.Finding {
	var names []string
	for i := range d.nodes {
		if visit.Unfinished(&d.nodes[i]) {
			names = append(names, d.nodes[i].Name)
		}
	}
	if d.nodesErr != nil || len(names) == 0 {
		return nil
	}
	return []cli.Finding{cli.Problem("", "wait until no Job in namespace "+conditions.RepairNamespace+" runs there, "+
		"then kubectl taint nodes NODE "+conditions.TaintMaintenance+"-, "+
		"and set labels nvidia.com/gpu.deploy.* that are paused-for-pitcrew-repair to true; "+
		"or set repair.enabled again",
		"visits were not finished before the remediator ran without -repair-namespace: their taint %s stays on nodes: %s",
		conditions.TaintMaintenance, cli.Some(names))}
}

// repairTools looks for the templates and the remediator's rights in the namespace of the Jobs.
func (d *doctor) repairTools(ctx context.Context, namespace string, wanted map[string][]string) ([]cli.Finding, error) {
	var templates corev1.PodTemplateList
	if err := d.api.List(ctx, &templates, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list PodTemplates of namespace %s: %w", namespace, err)
	}
	var names []string
	verdicts := map[string][]string{}
	for _, t := range templates.Items {
		names, verdicts[t.Name] = append(names, t.Name), firstcheck.Verdict(&t)
	}
	slices.Sort(names)
	var found []cli.Finding
	for _, gap := range coverage.Gaps(d.Parsed, d.nodes, verdicts, d.Now()) {
		found = append(found, cli.Problem("", gap.Do, "%s", gap.Text))
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !slices.Contains(names, name) {
			found = append(found, cli.Problem("", "correct the policy, or create the PodTemplate; helm upgrade puts back those of the chart",
				"%s names template %s, and there is no such PodTemplate in namespace %s (there are: %s)",
				strings.Join(wanted[name], ", "), name, namespace, cmp.Or(strings.Join(names, ", "), "none")))
		}
	}
	missing, err := d.templateNeeds(ctx, templates.Items)
	if err != nil {
		return nil, err
	}
	found = append(found, missing...)
	rights, err := d.missing(ctx, ToVisit(namespace))
	switch {
	case apierrors.IsForbidden(err):
		found = append(found, cli.NotKnown("", err))
	case err != nil:
		return nil, err
	case len(rights) > 0:
		found = append(found, cli.Problem("", health.EnableRepair, "in namespace %s the remediator may not %s", namespace,
			strings.Join(rights, ", ")))
	}
	if len(found) == 0 {
		found = append(found, cli.Good("", "on, by Jobs in namespace %s; templates: %s", namespace, strings.Join(names, ", ")))
	}
	return found, nil
}

// ToVisit is what the remediator needs in the namespace of the Jobs.
func ToVisit(namespace string) []right {
	rights := []right{
		{Verb: "get", Resource: "podtemplates", namespace: namespace},
		{Verb: "create", Group: conditions.Domain, Resource: "repairjobs", namespace: namespace},
	}
	for _, verb := range []string{"get", "list", "watch", "create", "delete"} {
		rights = append(rights, right{Verb: verb, Group: "batch", Resource: "jobs", namespace: namespace})
	}
	return rights
}

// untouched looks for nodes that wait for a first check which no policy makes.
func (d *doctor) untouched() []cli.Finding {
	if d.nodesErr != nil || d.Parsed == nil || d.Parsed.FirstCheck != nil {
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
	return []cli.Finding{cli.Warning("", "add firstCheck to the policy, or kubectl taint nodes NODE "+conditions.TaintUnchecked+"-",
		"taint %s is on nodes, and the policy has no firstCheck that removes it: %s", conditions.TaintUnchecked, cli.Some(names))}
}
