package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

// judge reaches the verdict of a run, reports it, and updates the conditions of the run's nodes.
func (c *Controller) judge(ctx context.Context, namespace string, r run) error {
	o := verdict.Options{Size: r.size}
	var err error
	if !r.isComplete() {
		if o.Missing, err = c.nodesWithoutReport(ctx, namespace, r); err != nil {
			return err
		}
	}
	if o.Leaf, err = c.leafByNode(ctx); err != nil {
		return err
	}
	v := verdict.Judge(r.id, r.reports(), o)
	// A run that is reconciled again only writes conditions that are missing on its nodes.
	if text := summary(v, r); c.lastEvent[r.submissions[0].uid] != text {
		c.lastEvent[r.submissions[0].uid] = text
		c.runsTotal.WithLabelValues(result(v)).Inc()
		c.publish(ctx, namespace, r, v, text)
	}
	if c.clock.Since(r.decidedAt()) >= c.ttl {
		return nil
	}
	c.annotateRun(ctx, namespace, r, v)
	return c.updateConditions(ctx, r, v, verdictSource{
		namespace: namespace, run: r.id, trusted: slices.Contains(c.trusted, namespace), decidedAt: r.decidedAt(),
	})
}

// updateConditions asserts the conditions of slow and failed nodes, and clears those of healthy ones.
func (c *Controller) updateConditions(ctx context.Context, r run, v verdict.Verdict, from verdictSource) error {
	for _, node := range v.Failed {
		if err := c.patchCondition(ctx, node, func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return failedCondition(n, r.failedChecks(node), from)
		}); err != nil {
			return err
		}
	}
	for _, slow := range v.Slow {
		condition := func(n *corev1.Node) (corev1.NodeCondition, bool) { return slowCondition(n, slow, from) }
		if err := c.patchCondition(ctx, slow.Node, condition); err != nil {
			return err
		}
	}
	if from.trusted {
		for _, f := range v.Figures {
			for _, b := range f.Below {
				condition := func(n *corev1.Node) (corev1.NodeCondition, bool) { return figureCondition(n, f, b, from) }
				if err := c.patchCondition(ctx, b.Node, condition); err != nil {
					return err
				}
			}
		}
	}
	if !v.Complete {
		return nil // the missing reports may be the ones that show a fault
	}
	for _, node := range v.Healthy {
		if err := c.patchCondition(ctx, node, func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return clearedCondition(n, conditions.SlowNode, from)
		}); err != nil {
			return err
		}
	}
	for _, s := range r.submissions {
		if s.report.GPU != report.Passed || s.report.Storage != report.Passed || slices.Contains(v.Failed, s.report.Node) {
			continue
		}
		if err := c.patchCondition(ctx, s.report.Node, func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return clearedCondition(n, conditions.PreflightFailed, from)
		}); err != nil {
			return err
		}
	}
	return nil
}

// nodesWithoutReport are the nodes of a run's pods that have not reported. Whoever writes reports may have any number of runs, and pods of
// any size: a list takes at most one part in [listShare] of the time, so that runs of other namespaces are judged in between.
func (c *Controller) nodesWithoutReport(ctx context.Context, namespace string, r run) ([]string, error) {
	owners := r.owners()
	began := c.clock.Now()
	if began.Before(c.listAgain[namespace]) {
		return nil, errRateLimited
	}
	var pods corev1.PodList
	err := c.apiReader.List(ctx, &pods, client.InNamespace(namespace))
	c.listAgain[namespace] = c.clock.Now().Add((listShare - 1) * c.clock.Since(began))
	if err != nil {
		return nil, fmt.Errorf("list the pods of run %s/%s: %w", namespace, r.id, err)
	}
	reported := r.reportedNodes()
	var nodes []string
	for i := range pods.Items {
		pod := &pods.Items[i]
		controller := metav1.GetControllerOf(pod)
		if controller == nil || !slices.ContainsFunc(owners, func(o metav1.OwnerReference) bool { return o.UID == controller.UID }) {
			continue
		}
		if node := pod.Spec.NodeName; node != "" && !reported[node] {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// leafByNode is the rack or leaf switch of every node; nil without a label for it.
func (c *Controller) leafByNode(ctx context.Context) (map[string]string, error) {
	if c.leafLabel == "" {
		return nil, nil
	}
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	leaf := map[string]string{}
	for i := range nodes.Items {
		leaf[nodes.Items[i].Name] = nodes.Items[i].Labels[c.leafLabel]
	}
	return leaf, nil
}

// patchCondition changes one condition of a node and reports it as an Event. change returns false when the condition stays as
// it is. A strategic merge patch of the list does not affect the node's other conditions.
func (c *Controller) patchCondition(ctx context.Context, node string, change func(*corev1.Node) (corev1.NodeCondition, bool)) error {
	var n corev1.Node
	if err := c.client.Get(ctx, client.ObjectKey{Name: node}, &n); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("get node %s: %w", node, err)
	}
	after, ok := change(&n)
	if !ok || n.Labels[conditions.LabelSkip] == "true" {
		return nil
	}
	severity, message := corev1.EventTypeNormal, fmt.Sprintf("%s is %s: %s", after.Type, after.Status, after.Message)
	if after.Status == corev1.ConditionTrue {
		severity = corev1.EventTypeWarning
	}
	if c.dryRun {
		message = "dry run: " + message
	} else {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{after}}})
		if err != nil {
			return fmt.Errorf("encode condition %s: %w", after.Type, err)
		}
		target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		err = c.client.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, patch), client.FieldOwner(fieldOwner))
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("patch condition %s of node %s: %w", after.Type, node, err)
		}
	}
	c.recorder.Eventf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: n.UID}}, nil, severity, Verdict, "Judge", "%s", message)
	return nil
}

// annotateRun writes the verdict about each node on its report, and the one about the run on the first report.
func (c *Controller) annotateRun(ctx context.Context, namespace string, r run, v verdict.Verdict) {
	byNode := findings(v)
	for i, s := range r.submissions {
		texts := byNode[s.report.Node]
		if i == 0 {
			texts = append(texts, summary(v, r))
		}
		c.annotate(ctx, namespace, s, strings.Join(texts, "; "))
	}
}

// annotate writes the verdict about a report on its ConfigMap, for users. Nothing depends on it, so a failure is only logged.
func (c *Controller) annotate(ctx context.Context, namespace string, s submission, text string) {
	if c.dryRun || c.lastAnnotation[s.uid] == text {
		return
	}
	c.lastAnnotation[s.uid] = text
	value := &text
	if text == "" {
		value = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.uid, "annotations": map[string]any{conditions.AnnotationPreflightVerdict: value},
	}})
	if err == nil {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.name}}
		err = c.client.Patch(ctx, cm, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	}
	if client.IgnoreNotFound(err) != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to write the verdict on a report; leaving it as it is", "configMap", s.name)
	}
}
