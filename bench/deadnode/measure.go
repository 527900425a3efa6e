package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	// labelLive is on the nodes that are not switched off.
	labelLive = "e2e.pitcrew.dev/live"
	// patience is how long a job may take to run for the first time.
	patience = 5 * time.Minute
)

// bench is one run.
type bench struct {
	c        *cluster.Cluster
	flags    flags
	progress io.Writer
	// reader has the pods and Events of the cluster.
	reader client.Reader
	// live are the kubelets of the nodes that are not switched off, if those of the cluster report too seldom; else nil.
	live    *cluster.Kubelets
	running *cluster.Process
}

func newBench(ctx context.Context, c *cluster.Cluster, f flags, progress io.Writer) (*bench, error) {
	b := &bench{c: c, flags: f, progress: progress}
	all, err := cache.New(c.Admin, cache.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, err
	}
	for _, kind := range []client.Object{&corev1.Pod{}, &eventsv1.Event{}} {
		if _, err := all.GetInformer(ctx, kind, cache.BlockUntilSynced(false)); err != nil {
			return nil, err
		}
	}
	go all.Start(ctx) //nolint:errcheck // it ends with the context
	if !all.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("watch the pods: %w", context.Cause(ctx))
	}
	b.reader = all
	if f.grace > 0 {
		b.live, err = c.StartKubelets(ctx, "live")
	}
	return b, err
}

// remediator runs a remediator with the policy of a phase, in place of that of the last one.
func (b *bench) remediator(ctx context.Context, p phase) error {
	if b.running != nil {
		b.running.Stop(time.Minute)
	}
	path, err := b.policyFor(p)
	if err != nil {
		return fmt.Errorf("write the policy: %w", err)
	}
	b.running, err = b.c.StartRemediator(ctx, "-policy", path, "-leader-elect=false")
	return err
}

// cell is one job, and its place in the table.
type cell struct {
	kind      kind
	setting   setting
	namespace string
	// dead is the node that is switched off, at off; first are the job's pods before.
	dead  string
	off   time.Time
	first map[types.UID]bool

	// took is how long the job stood still; 0: it did not run again. kept is how many of its pods ran through.
	took time.Duration
	kept int
	// asked is when the Event came that says what the job waits for, after the power-off; 0: it did not.
	asked time.Duration
}

func (o *cell) String() string {
	switch {
	case o.took == 0 && o.asked > 0:
		return "waits"
	case o.took == 0:
		return "not within " + o.setting.limit.String()
	case o.kept > 0:
		return short(o.took) + ", lost pod only"
	}
	return short(o.took)
}

// prepare starts a job for each kind and setting, each with a node that is going to be switched off, and switches those off.
func (b *bench) prepare(ctx context.Context, name string, p phase, kinds []kind) ([]*cell, error) {
	doomed, err := b.c.StartKubelets(ctx, "doomed-"+name)
	if err != nil {
		return nil, err
	}
	var cells []*cell
	jobs, jobsCtx := errgroup.WithContext(ctx)
	jobs.SetLimit(4) // more would only wait for this machine
	for i, s := range p.settings {
		for j, k := range kinds {
			o := &cell{kind: k, setting: s, namespace: fmt.Sprintf("%s-%d-%d", name, i, j), first: map[types.UID]bool{}}
			cells = append(cells, o)
			jobs.Go(func() error {
				if err := b.startJob(jobsCtx, o, doomed); err != nil {
					return fmt.Errorf("%s, %s: %w", k.name, s.name, err)
				}
				return nil
			})
		}
	}
	if err := jobs.Wait(); err != nil {
		return nil, err
	}
	doomed.Kill()
	off := time.Now()
	for _, o := range cells {
		o.off = off
	}
	fmt.Fprintf(b.progress, "%d jobs run; their nodes are off\n", len(cells))
	return cells, nil
}

// startJob starts a job with one rank on each of its nodes and waits until it runs.
func (b *bench) startJob(ctx context.Context, o *cell, doomed *cluster.Kubelets) error {
	if err := b.c.AddNamespace(ctx, o.namespace, nil); err != nil {
		return err
	}
	o.dead = o.namespace + "-0"
	place := func(node *corev1.Node) {
		if o.setting.alone {
			node.Labels[conditions.LabelSkip] = "true"
		}
		node.Labels[cluster.LabelPool] = o.namespace
		switch {
		case node.Name == o.dead:
			doomed.Own(node)
			return
		case b.live != nil:
			b.live.Own(node)
		}
		node.Labels[labelLive] = "true"
	}
	if _, err := b.c.AddNodes(ctx, o.namespace, o.kind.ranks, place); err != nil {
		return err
	}
	if err := b.c.Apply(ctx, []byte(o.kind.in(o.namespace, !o.setting.alone))); err != nil {
		return err
	}
	starting, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	if err := poll(starting, func() (bool, error) {
		pods, err := b.pods(ctx, o.namespace)
		onDead := slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == o.dead })
		for _, pod := range pods {
			o.first[pod.UID] = true
		}
		return len(pods) == o.kind.ranks && onDead, err
	}); err != nil {
		return fmt.Errorf("wait for all ranks to run: %w", err)
	}
	// Where the lost rank goes.
	_, err := b.c.AddNodes(ctx, o.namespace+"-spare", 1, place)
	return err
}

// pods are those pods of a namespace that run, by what the API server says, and are not being deleted.
func (b *bench) pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := b.reader.List(ctx, &pods, client.InNamespace(namespace))
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		return p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil
	}), err
}

// measure waits until the job runs again, on other nodes, and helps it as the setting says.
func (b *bench) measure(ctx context.Context, o *cell) error {
	err := poll(ctx, func() (bool, error) {
		if err := b.answer(ctx, o); err != nil {
			return false, err
		}
		pods, err := b.pods(ctx, o.namespace)
		if err != nil {
			return false, err
		}
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == o.dead })
		if len(pods) == o.kind.ranks {
			o.took = time.Since(o.off)
			for _, pod := range pods {
				if o.first[pod.UID] {
					o.kept++
				}
			}
			return true, nil
		}
		return time.Since(o.off) > o.setting.limit, nil
	})
	fmt.Fprintf(b.progress, "%s, %s: %s\n", o.kind.name, o.setting.name, o)
	return err
}

// answer looks for the Event that says what the job waits for, and does what it asks for, once.
func (b *bench) answer(ctx context.Context, o *cell) error {
	if o.asked > 0 {
		return nil
	}
	var events eventsv1.EventList
	if err := b.reader.List(ctx, &events, client.InNamespace(o.namespace)); err != nil {
		return err
	}
	if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
		return e.Reason == "JobRestartBlocked" && strings.Contains(e.Note, o.dead) && strings.Contains(e.Note, corev1.TaintNodeOutOfService)
	}) {
		return nil
	}
	o.asked = time.Since(o.off)
	if o.setting.help == nil {
		return nil
	}
	return o.setting.help(ctx, b.c, o.dead)
}

func poll(ctx context.Context, check func() (bool, error)) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if done, err := check(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), context.Cause(ctx))
		case <-ticker.C:
		}
	}
}
