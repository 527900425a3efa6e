package clustertest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// Pods are the pods of a namespace in the order in which the API server recorded their events.
type Pods struct {
	list func() ([]corev1.Pod, error)

	mu     sync.Mutex
	events int
	at     map[types.UID]int
	seen   map[types.UID]string // the last resourceVersion of each pod that is not gone
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
	w, err := c.Client.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	p := &Pods{at: map[types.UID]int{}, seen: map[types.UID]string{}, list: func() ([]corev1.Pod, error) {
		var pods corev1.PodList
		err := c.Client.List(t.Context(), &pods, client.InNamespace(namespace))
		return pods.Items, err
	}}
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
	p.seen[pod.UID] = pod.ResourceVersion
	if what == watch.Deleted {
		life.Gone = p.events
		delete(p.seen, pod.UID)
	}
}

// Lives returns the lives of all pods so far, in the order of their creation.
func (p *Pods) Lives() []Life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lives)
}

// LivesNow is [Pods.Lives], when the watch has shown the pods as they are listed now.
func (p *Pods) LivesNow(t testing.TB) []Life {
	t.Helper()
	Until(t, 3*time.Minute, "wait for the watch of pods", func() error {
		listed, err := p.list()
		if err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(listed) != len(p.seen) {
			return fmt.Errorf("%d pods are listed, %d were seen", len(listed), len(p.seen))
		}
		for _, pod := range listed {
			if p.seen[pod.UID] != pod.ResourceVersion {
				return fmt.Errorf("pod %s was not seen as it is listed", pod.Name)
			}
		}
		return nil
	})
	return p.Lives()
}
