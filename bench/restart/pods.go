package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// pods are the pods of one namespace, followed by an informer.
type pods struct {
	mu     sync.Mutex
	all    map[types.UID]*corev1.Pod
	old    map[types.UID]bool // those of the first incarnation
	beside int
	gone   time.Time
}

func watch(ctx context.Context, c *cluster.Cluster, namespace string) (*pods, error) {
	p := &pods{all: map[types.UID]*corev1.Pod{}, old: map[types.UID]bool{}}
	one, err := cache.New(c.Admin, cache.Options{Scheme: scheme.Scheme, DefaultNamespaces: map[string]cache.Config{namespace: {}}})
	if err != nil {
		return nil, fmt.Errorf("watch the pods: %w", err)
	}
	informer, err := one.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch the pods: %w", err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(pod any) { p.see(pod.(*corev1.Pod)) },
		UpdateFunc: func(_, pod any) { p.see(pod.(*corev1.Pod)) },
		DeleteFunc: func(gone any) {
			if last, ok := gone.(toolscache.DeletedFinalStateUnknown); ok {
				gone = last.Obj
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.all, gone.(*corev1.Pod).UID)
			if p.gone.IsZero() && len(p.old) > 0 && p.counted().old == 0 {
				p.gone = time.Now()
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watch the pods: %w", err)
	}
	go one.Start(ctx) //nolint:errcheck // it ends with the context
	if !one.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("watch the pods: %w", context.Cause(ctx))
	}
	return p, nil
}

func (p *pods) see(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[pod.UID] = pod
	if n := p.counted(); n.old > 0 && len(p.old) > 0 {
		p.beside = max(p.beside, n.running)
	}
}

// counts are how many pods of the first incarnation are left and, once there is a second, how many of that run.
type counts struct{ old, running int }

func (p *pods) count() counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counted()
}

func (p *pods) counted() counts {
	var n counts
	for uid, pod := range p.all {
		switch {
		case p.old[uid]:
			n.old++
		case pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil:
			n.running++
		}
	}
	return n
}

// mark makes all pods so far the first incarnation, and chooses the node of one.
func (p *pods) mark() (node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, pod := range p.all {
		p.old[uid], node = true, pod.Spec.NodeName
	}
	return node
}

// most is the most pods of the second incarnation that ran while one of the first was left.
func (p *pods) most() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beside
}

// goneAt is when the last pod of the first incarnation was gone; zero if one is left.
func (p *pods) goneAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

func (p *pods) onNode(node string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, pod := range p.all {
		if pod.Spec.NodeName == node {
			n++
		}
	}
	return n
}
