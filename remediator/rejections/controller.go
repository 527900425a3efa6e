package rejections

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

// fieldOwner is the field manager of the condition.
const fieldOwner = "pitcrew-rejections"

const (
	// judgeEvery is how often nodes are judged, whatever number of pods is rejected in between.
	judgeEvery = 5 * time.Second
	retryAfter = 5 * time.Second
)

// Options configure [SetupWithManager].
type Options struct {
	// Pods is how many rejections within Window are a fault of the node; 0 watches nothing.
	Pods   int
	Window time.Duration
	DryRun bool
	Clock  clock.WithTicker
}

// Check returns an error for a number that makes no sense.
func (o Options) Check() error {
	if o.Pods == 1 || o.Pods < 0 || o.Pods > 100 {
		return fmt.Errorf("-rejected-pods %d: not 0, and not 2 to 100", o.Pods)
	}
	if o.Window < time.Minute || o.Window > time.Hour {
		return fmt.Errorf("-rejected-within %s: not between 1m and 1h", o.Window)
	}
	return nil
}

// Controller follows the pods that fail, and sets the condition of nodes. It keeps no pod.
type Controller struct {
	Options
	// nodes reads from the cache, and writes.
	nodes client.Client
	pods  client.WithWatch
	tally *tally
	// flagged are the nodes whose condition is True, since when they have been known to this process.
	flagged map[string]time.Time
	// version is where the watch goes on; empty: from now.
	version string
	// readAt is when the watch was read last; zero: never.
	readAt time.Time
}

// SetupWithManager adds the controller to the manager, unless it has nothing to do.
func SetupWithManager(mgr ctrl.Manager, o Options) error {
	if o.Pods == 0 {
		return nil
	}
	pods, err := client.NewWithWatch(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
	})
	if err != nil {
		return fmt.Errorf("make the client of rejected pods: %w", err)
	}
	c := &Controller{Options: o, nodes: mgr.GetClient(), pods: pods, tally: newTally(o.Pods, o.Window), flagged: map[string]time.Time{}}
	if err := mgr.Add(c); err != nil {
		return fmt.Errorf("add the controller of rejected pods: %w", err)
	}
	return nil
}

// NeedLeaderElection reports that only the leader runs it.
func (c *Controller) NeedLeaderElection() bool { return true }

// Start follows the pods until the context ends.
func (c *Controller) Start(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := c.nodes.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		if cond, ok := node.ConditionOf(&nodes.Items[i], conditions.GPUPodsRejected); ok && cond.Status == corev1.ConditionTrue {
			c.flagged[nodes.Items[i].Name] = c.Clock.Now()
		}
	}
	ticker := c.Clock.NewTicker(judgeEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := c.follow(ctx, ticker.C()); err != nil && ctx.Err() == nil {
			ctrl.Log.Error(err, "Failed to follow rejected pods; retrying")
			select {
			case <-ctx.Done():
			case <-c.Clock.After(retryAfter):
			}
		}
	}
	return nil
}

// follow reads one watch to its end. It begins where the last one has ended, or now: what has failed before is never listed.
func (c *Controller) follow(ctx context.Context, tick <-chan time.Time) error {
	anew := c.version == ""
	if anew {
		one := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		if err := c.pods.List(ctx, one, client.Limit(1)); err != nil {
			return fmt.Errorf("ask for the version of pods: %w", err)
		}
		c.version = one.ResourceVersion
	}
	w, err := c.pods.Watch(ctx, &corev1.PodList{}, &client.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("status.phase", string(corev1.PodFailed)),
		Raw:           &metav1.ListOptions{ResourceVersion: c.version, AllowWatchBookmarks: true},
	})
	if err != nil {
		c.version = ""
		return fmt.Errorf("watch failed pods: %w", err)
	}
	defer w.Stop()
	c.noteGap(anew)
	for ; ; c.readAt = c.Clock.Now() {
		select {
		case event, open := <-w.ResultChan():
			if !open {
				return nil
			}
			if err := c.take(event); err != nil {
				return err
			}
		case <-tick:
			if err := c.judge(ctx); err != nil {
				return err
			}
		}
	}
}

// noteGap has the flagged nodes be quiet for the whole window anew if the watch was not read for some time, or goes on from now: what no
// one has watched is no silence.
func (c *Controller) noteGap(anew bool) {
	now := c.Clock.Now()
	if c.readAt.IsZero() || !anew && now.Sub(c.readAt) <= 2*judgeEvery {
		return
	}
	for name := range c.flagged {
		c.flagged[name] = now
	}
}

// take counts a pod when it fails, that is when the selector begins to select it. It is not counted again when it changes or goes.
func (c *Controller) take(event watch.Event) error {
	if event.Type == watch.Error {
		c.version = ""
		return fmt.Errorf("watch failed pods: %w", apierrors.FromObject(event.Object))
	}
	p, ok := event.Object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("the watch of pods gave a %T", event.Object)
	}
	c.version = p.ResourceVersion
	if r, ok := of(p); ok && event.Type == watch.Added {
		c.tally.add(r, c.Clock.Now())
	}
	return nil
}

// judge sets the condition of nodes that reject pods, and clears that of nodes that have rejected none for the window.
func (c *Controller) judge(ctx context.Context) error {
	now := c.Clock.Now()
	c.tally.forget(now)
	var errs []error
	for name := range c.tally.nodes {
		if _, known := c.flagged[name]; !known && c.tally.rejects(name) {
			message := conditions.Summarize([]conditions.Finding{{Repair: conditions.Inspect, Subject: "node",
				Text: "rejects GPU pods of several namespaces with " + reason}})
			if err := c.set(ctx, name, corev1.ConditionTrue, message.String()); err != nil {
				errs = append(errs, err)
				continue
			}
			c.flagged[name] = now
		}
	}
	for name, since := range c.flagged {
		if !c.tally.isQuiet(name) || now.Sub(since) < c.Window {
			continue
		}
		if err := c.set(ctx, name, corev1.ConditionFalse, fmt.Sprintf("no GPU pod was rejected for %s", c.Window)); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(c.flagged, name)
	}
	return errors.Join(errs...)
}

// set writes the condition of a node, unless the node is gone or is to be left alone.
func (c *Controller) set(ctx context.Context, name string, status corev1.ConditionStatus, message string) error {
	var n corev1.Node
	if err := c.nodes.Get(ctx, client.ObjectKey{Name: name}, &n); err != nil {
		return client.IgnoreNotFound(err)
	}
	before, _ := node.ConditionOf(&n, conditions.GPUPodsRejected)
	if before.Status == status || n.Labels[conditions.LabelSkip] == "true" {
		return nil
	}
	ctrl.Log.Info("Node rejects GPU pods", "node", name, "status", status, "dryRun", c.DryRun)
	if c.DryRun {
		return nil
	}
	verdict := conditions.Verdict(conditions.GPUPodsRejected)
	text := verdict.Healthy
	if status == corev1.ConditionTrue {
		text = verdict.Problem
	}
	at := metav1.NewTime(c.Clock.Now())
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: conditions.GPUPodsRejected, Status: status, Reason: text, Message: message, LastHeartbeatTime: at, LastTransitionTime: at,
	}}}})
	if err != nil {
		return fmt.Errorf("encode the condition of node %s: %w", name, err)
	}
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err = c.nodes.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, patch), client.FieldOwner(fieldOwner))
	return client.IgnoreNotFound(err)
}
