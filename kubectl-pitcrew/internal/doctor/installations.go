package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// installations looks for a second remediator, by its Deployment and by visits whose Jobs are elsewhere.
func (d *doctor) installations(ctx context.Context) ([]cli.Finding, error) {
	var deployments appsv1.DeploymentList
	err := d.api.List(ctx, &deployments, client.MatchingLabels{cli.LabelName: quarantine.ControllerName})
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("list Deployments: %w", err)
	}
	var found []cli.Finding
	if all := deployments.Items; len(all) > 1 {
		var names []string
		for _, one := range all {
			names = append(names, one.Namespace+"/"+one.Name)
		}
		slices.Sort(names)
		found = append(found, cli.Problem("", "uninstall all but one: each taints, restarts and counts as if it were alone",
			"the cluster has %d remediators: %s", len(names), strings.Join(names, ", ")))
	}
	if more := d.visitsOfOthers(); more != nil {
		found = append(found, *more)
	}
	switch {
	case len(found) > 0:
		return found, nil
	case err != nil:
		return nil, err //nolint:wrapcheck // the caller says what is not known
	}
	return []cli.Finding{cli.Good("", "one at most")}, nil
}

// visitsOfOthers names nodes with a visit that the remediator leaves alone, because its Jobs are in another namespace; nil: there are none.
func (d *doctor) visitsOfOthers() *cli.Finding {
	ours, known := d.RepairNamespace()
	if !known || ours == "" {
		return nil
	}
	of := map[string][]string{}
	for i := range d.nodes {
		if r, err := visit.RecordOf(&d.nodes[i]); err == nil && r.OfOthers(ours) != "" {
			of[r.OfOthers(ours)] = append(of[r.OfOthers(ours)], d.nodes[i].Name)
		}
	}
	if len(of) == 0 {
		return nil
	}
	var texts []string
	for _, namespace := range slices.Sorted(maps.Keys(of)) {
		texts = append(texts, fmt.Sprintf("namespace %s: %s", namespace, cli.Some(of[namespace])))
	}
	found := cli.Problem("", "if no other remediator is there any more: kubectl annotate node NODE "+conditions.AnnotationRepair+"-",
		"visits are of another installation, whose Jobs are not in %s, and this one leaves them alone: %s", ours, strings.Join(texts, "; "))
	return &found
}

// leftTaints looks for taints that a record calls ours and that no policy is known to set, as after ConfigMap pitcrew-known was deleted
// and a rule has got another taint. They are not removed: whoever may annotate a node can claim so in its record.
func (d *doctor) leftTaints(ctx context.Context) ([]cli.Finding, error) {
	if d.nodesErr != nil || d.Parsed == nil {
		return nil, d.nodesErr
	}
	stored, err := d.Read(ctx, d.api, conditions.KnownConfigMap)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the ConfigMap
	}
	known := handoff.KnownIn(d.Parsed, stored)
	left := map[string][]string{}
	for i := range d.nodes {
		n := &d.nodes[i]
		r, err := causes.RecordOf(n)
		if err != nil || r == nil {
			continue
		}
		for _, q := range append([]causes.Quarantine{r.Quarantine}, r.Last...) {
			if q.Taint == nil || q.Taint.PreExisting || q.IsIsolated() || known.HasTaint(q.Taint.NodeTaint()) {
				continue
			}
			taint := q.Taint.Key + ":" + string(q.Taint.Effect)
			if causes.HasTaint(n.Spec.Taints, q.Taint) && !slices.Contains(left[taint], n.Name) {
				left[taint] = append(left[taint], n.Name)
			}
		}
	}
	var found []cli.Finding
	for _, taint := range slices.Sorted(maps.Keys(left)) {
		found = append(found, cli.Problem("", "kubectl taint nodes NODE "+taint+"- once the node is healthy",
			"taint %s is on nodes whose record says that a quarantine has set it, and no known policy does, so it stays: %s",
			taint, cli.Some(left[taint])))
	}
	return found, nil
}
