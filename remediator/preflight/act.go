package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

// judge reaches the verdict about a run and brings the nodes' conditions into line with it.
func (c *Controller) judge(ctx context.Context, namespace string, r run) error {
	o := verdict.Options{Size: r.size}
	var err error
	if !r.complete() {
		if o.Missing, err = c.silent(ctx, namespace, r); err != nil {
			return err
		}
	}
	if o.Leaf, err = c.leaves(ctx); err != nil {
		return err
	}
	v := verdict.Judge(r.id, r.reports(), o)
	from := origin{namespace: namespace, run: r.id, trusted: slices.Contains(c.Trusted, namespace), decided: r.decided()}
	// One run that is looked at again only repairs what is missing on the nodes.
	if text := summary(v, r); c.told[r.filings[0].uid] != text {
		c.told[r.filings[0].uid] = text
		c.judged.WithLabelValues(result(v)).Inc()
		c.announce(ctx, namespace, r, v, text)
	}
	if c.Now().Sub(from.decided) >= c.TTL {
		return nil
	}
	about := notes(v)
	for i, f := range r.filings {
		words := about[f.report.Node]
		if i == 0 {
			words = append(words, summary(v, r))
		}
		c.annotate(ctx, namespace, f, strings.Join(words, "; "))
	}
	for _, node := range v.Failed {
		if err := c.write(ctx, node, func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return failedCondition(n, r.failedChecks(node), from)
		}); err != nil {
			return err
		}
	}
	for _, slow := range v.Slow {
		if err := c.write(ctx, slow.Node, func(n *corev1.Node) (corev1.NodeCondition, bool) { return slowCondition(n, slow, from) }); err != nil {
			return err
		}
	}
	if from.trusted {
		for _, f := range v.Figures {
			for _, b := range f.Below {
				if err := c.write(ctx, b.Node, func(n *corev1.Node) (corev1.NodeCondition, bool) { return figureCondition(n, f, b, from) }); err != nil {
					return err
				}
			}
		}
	}
	if !v.Complete {
		return nil // what is missing may be what was wrong
	}
	for _, node := range v.Healthy {
		if err := c.write(ctx, node, func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return clearedCondition(n, conditions.SlowNode, from)
		}); err != nil {
			return err
		}
	}
	for _, f := range r.filings {
		if f.report.GPU != report.Passed || f.report.Storage != report.Passed || slices.Contains(v.Failed, f.report.Node) {
			continue
		}
		if err := c.write(ctx, f.report.Node, func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return clearedCondition(n, conditions.PreflightFailed, from)
		}); err != nil {
			return err
		}
	}
	return nil
}

// silent names the nodes of a run's pods that have not reported.
func (c *Controller) silent(ctx context.Context, namespace string, r run) ([]string, error) {
	owners := r.owners()
	var pods corev1.PodList
	if err := c.live.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the pods of run %s/%s: %w", namespace, r.id, err)
	}
	reported := r.nodes()
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

// leaves are the racks or leaf switches of all nodes.
func (c *Controller) leaves(ctx context.Context) (map[string]string, error) {
	if c.LeafLabel == "" {
		return nil, nil
	}
	var nodes corev1.NodeList
	if err := c.nodes.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	leaf := map[string]string{}
	for i := range nodes.Items {
		leaf[nodes.Items[i].Name] = nodes.Items[i].Labels[c.LeafLabel]
	}
	return leaf, nil
}

// write brings one condition of a node into line. A strategic merge patch of the list leaves the others alone.
func (c *Controller) write(ctx context.Context, node string, change func(*corev1.Node) (corev1.NodeCondition, bool)) error {
	var n corev1.Node
	if err := c.nodes.Get(ctx, client.ObjectKey{Name: node}, &n); err != nil {
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
	if c.DryRun {
		message = "dry run: " + message
	} else {
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{after}}})
		if err != nil {
			return fmt.Errorf("encode condition %s: %w", after.Type, err)
		}
		target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		err = c.nodes.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, patch), client.FieldOwner(fieldOwner))
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("patch condition %s of node %s: %w", after.Type, node, err)
		}
	}
	c.Events.Eventf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: n.UID}}, nil, severity, Verdict, "Judge", "%s", message)
	return nil
}

// annotate writes on a report what was decided about it, for people. Nothing depends on it, so a failure is only logged.
func (c *Controller) annotate(ctx context.Context, namespace string, f filing, text string) {
	if c.DryRun || c.written[f.uid] == text {
		return
	}
	c.written[f.uid] = text
	value := &text
	if text == "" {
		value = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": f.uid, "annotations": map[string]any{conditions.AnnotationPreflightVerdict: value},
	}})
	if err == nil {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: f.name}}
		err = c.nodes.Patch(ctx, cm, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	}
	if client.IgnoreNotFound(err) != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Write the verdict on a report", "configMap", f.name)
	}
}

// notes say what was decided about each node, for those that are not well.
func notes(v verdict.Verdict) map[string][]string {
	about := map[string][]string{}
	for _, s := range v.Slow {
		about[s.Node] = append(about[s.Node], fmt.Sprintf("slow: p %.3f, drop %.2f, seen by %d partners", s.P, s.Drop, s.Partners))
	}
	for _, node := range v.Failed {
		about[node] = append(about[node], "failed: a local check")
	}
	for _, f := range v.Figures {
		for _, b := range f.Below {
			about[b.Node] = append(about[b.Node], fmt.Sprintf("suspect: %s %.2f below the median of %d nodes", f.Name, b.Drop, f.Nodes))
		}
	}
	for _, pair := range v.Retest {
		about[pair[0]] = append(about[pair[0]], "retest with "+pair[1])
	}
	return about
}

// result is the metric's label.
func result(v verdict.Verdict) string {
	switch {
	case len(v.Fabric) > 0:
		return "fabric"
	case len(v.Slow) > 0:
		return "slow"
	case len(v.Failed) > 0:
		return "failed"
	case !v.Complete || len(v.Retest) > 0 || slices.ContainsFunc(v.Figures, func(f verdict.Figure) bool { return len(f.Below) > 0 }):
		return "undecided"
	}
	return "clean"
}

// summary is what the job's Event says.
func summary(v verdict.Verdict, r run) string {
	text := fmt.Sprintf("run %s: %d of %d reported", v.Run, len(r.filings), r.size)
	var slow, retest []string
	for _, s := range v.Slow {
		slow = append(slow, s.Node)
	}
	for _, pair := range v.Retest {
		retest = append(retest, pair[0]+" with "+pair[1])
	}
	var below []string
	for _, f := range v.Figures {
		for _, b := range f.Below {
			below = append(below, fmt.Sprintf("%s (%s %.2f below the median)", b.Node, f.Name, b.Drop))
		}
	}
	for _, list := range []struct {
		word  string
		items []string
	}{{"slow", slow}, {"failed", v.Failed}, {"suspects", below}, {"suspects that did not report", v.Missing}, {"retest", retest}, {"fabric", v.Fabric}} {
		if n := len(list.items); n > 10 {
			list.items = append(slices.Clone(list.items[:10]), fmt.Sprintf("%d more", n-10))
		}
		if len(list.items) > 0 {
			text += fmt.Sprintf("; %s: %s", list.word, strings.Join(list.items, ", "))
		}
	}
	return text
}

// announce writes the Events on the jobs of a run, unless it is one that an earlier process has judged.
func (c *Controller) announce(ctx context.Context, namespace string, r run, v verdict.Verdict, text string) {
	ctrl.LoggerFrom(ctx).Info("Judged a preflight run", "verdict", text)
	if c.Now().Sub(r.decided()) > c.Timeout {
		return
	}
	severity, reason := corev1.EventTypeNormal, Verdict
	if result(v) != "clean" {
		severity = corev1.EventTypeWarning
	}
	if !v.Complete {
		reason = Incomplete
	}
	for _, owner := range r.owners() {
		job := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: owner.Name, UID: owner.UID}}
		job.TypeMeta = metav1.TypeMeta{APIVersion: owner.APIVersion, Kind: owner.Kind}
		c.Events.Eventf(job, nil, severity, reason, "Judge", "%s", text)
	}
}

// runsWith lists the runs in which a node has reported.
func (c *Controller) runsWith(ctx context.Context, node client.Object) []reconcile.Request {
	var list corev1.ConfigMapList
	if err := c.reports.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List preflight reports for a new node", "node", node.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if cm := &list.Items[i]; cm.Annotations[conditions.AnnotationPreflightNode] == node.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: cm.Namespace, Name: cm.Labels[conditions.LabelPreflightRun]}})
		}
	}
	return requests
}

func (c *Controller) countSlow() float64 {
	var nodes corev1.NodeList
	if err := c.nodes.List(context.Background(), &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return 0
	}
	n := 0.0
	for i := range nodes.Items {
		if slow, stands := condition(&nodes.Items[i], conditions.SlowNode); stands && slow.Status == corev1.ConditionTrue {
			n++
		}
	}
	return n
}

// setupExpiry adds the controller that ends verdicts after their TTL.
func (c *Controller) setupExpiry(mgr ctrl.Manager) error {
	convicted := func(object client.Object) bool {
		return slices.ContainsFunc(conditions.Verdicts, func(v conditions.Condition) bool {
			cond, stands := condition(object.(*corev1.Node), v.Type)
			return stands && cond.Status == corev1.ConditionTrue
		})
	}
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("preflight-expiry").
		For(&corev1.Node{}, builder.WithPredicates(predicate.NewPredicateFuncs(convicted))).
		Complete(reconcile.Func(c.expire)); err != nil {
		return fmt.Errorf("add the controller of expired verdicts: %w", err)
	}
	return nil
}

func (c *Controller) expire(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var n corev1.Node
	if err := c.nodes.Get(ctx, req.NamespacedName, &n); err != nil {
		if apierrors.IsNotFound(err) {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("get node %s: %w", req.Name, err)
	}
	var again time.Duration
	for _, v := range conditions.Verdicts {
		if err := c.write(ctx, req.Name, func(n *corev1.Node) (corev1.NodeCondition, bool) {
			return expiredCondition(n, v.Type, c.TTL, c.Now())
		}); err != nil {
			return ctrl.Result{}, err
		}
		cond, stands := condition(&n, v.Type)
		left := cond.LastHeartbeatTime.Add(c.TTL).Sub(c.Now())
		if stands && cond.Status == corev1.ConditionTrue && left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(s string) bool { return s == "" })
}
