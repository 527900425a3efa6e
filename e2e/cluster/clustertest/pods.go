package clustertest

import (
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// Pods are the pods of a namespace in the order in which the API server recorded their events.
type Pods struct {
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
	w, err := c.Client.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	p := &Pods{at: map[types.UID]int{}}
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

// Lives returns the lives of all pods so far, in the order of their creation.
func (p *Pods) Lives() []Life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lives)
}
