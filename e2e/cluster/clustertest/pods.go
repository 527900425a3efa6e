package clustertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// Pods are the pods of a namespace in the order in which the API server recorded their events.
type Pods struct {
	testing.TB
	c         *cluster.Cluster
	namespace string

	mu     sync.Mutex
	events int
	at     map[types.UID]int
	lives  []Life
}

// Life is the life of one pod. Created, Running and Gone are the positions of its first event, of the first that shows it
// Running and of its last among those of all pods of the namespace; 0 is not yet.
type Life struct {
	Name, Node             string
	Created, Running, Gone int
}

// WatchPods follows the pods of a namespace until the test ends.
func WatchPods(t testing.TB, c *cluster.Cluster, namespace string) *Pods {
	t.Helper()
	var there corev1.PodList
	if err := c.Client.List(t.Context(), &there, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	p := &Pods{TB: t, c: c, namespace: namespace, at: map[types.UID]int{}}
	for i := range there.Items {
		p.see(watch.Added, &there.Items[i])
	}
	// A busy API server ends a watch that does not take its events quickly.
	from := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return c.Client.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace), &client.ListOptions{Raw: &o})
	}}
	w, err := watchtools.NewRetryWatcherWithContext(t.Context(), there.ResourceVersion, from)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for e := range w.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				p.see(e.Type, pod)
			}
		}
	}()
	return p
}

func (p *Pods) see(what watch.EventType, pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events++
	i, known := p.at[pod.UID]
	if !known {
		i = len(p.lives)
		p.at[pod.UID] = i
		p.lives = append(p.lives, Life{Name: pod.Name, Created: p.events})
	}
	life := &p.lives[i]
	life.Node = pod.Spec.NodeName
	if life.Running == 0 && pod.Status.Phase == corev1.PodRunning {
		life.Running = p.events
	}
	if what == watch.Deleted {
		life.Gone = p.events
	}
}

// Lives returns the lives of all pods so far, in the order of their creation. It waits until the watch shows what a list shows now.
func (p *Pods) Lives() []Life {
	p.Helper()
	p.mu.Lock()
	before := slices.Collect(maps.Keys(p.at))
	p.mu.Unlock()
	var list corev1.PodList
	if err := p.c.Client.List(p.Context(), &list, client.InNamespace(p.namespace)); err != nil {
		p.Fatal(err)
	}
	var lives []Life
	Until(p, 3*time.Minute, "the watch of the pods keeps up", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		there := map[types.UID]bool{}
		for _, pod := range list.Items {
			there[pod.UID] = true
			if i, known := p.at[pod.UID]; !known || pod.Status.Phase == corev1.PodRunning && p.lives[i].Running == 0 {
				return fmt.Errorf("pod %s is listed as %s", pod.Name, pod.Status.Phase)
			}
		}
		for _, uid := range before {
			if life := p.lives[p.at[uid]]; !there[uid] && life.Gone == 0 {
				return fmt.Errorf("pod %s is listed no more", life.Name)
			}
		}
		lives = slices.Clone(p.lives)
		return nil
	})
	return lives
}
