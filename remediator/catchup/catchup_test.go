package catchup_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/catchup"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

func quarantined(name, version string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version, Labels: map[string]string{conditions.LabelStatus: "quarantined"}}}
}

// reader is a cache, or an API server, with these nodes.
func reader(nodes ...client.Object) client.WithWatch {
	return fake.NewClientBuilder().WithObjects(nodes...).Build()
}

func TestTheGateOpensWhenTheCacheShowsAllRecords(t *testing.T) {
	healthy := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "healthy", ResourceVersion: "900"}}
	live := reader(quarantined("a", "99"), quarantined("b", "200"), healthy)
	for name, cache := range map[string]client.Reader{
		"the same versions":                        reader(quarantined("a", "99"), quarantined("b", "200")),
		"a later version, by number":               reader(quarantined("a", "100"), quarantined("b", "1000")),
		"old versions of nodes without a status":   reader(quarantined("a", "99"), quarantined("b", "200"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "healthy", ResourceVersion: "1"}}),
		"more nodes than the API server still has": reader(quarantined("a", "99"), quarantined("b", "200"), quarantined("gone", "5")),
	} {
		t.Run(name, func(t *testing.T) {
			if err := catchup.New(cache, live, catchup.Quarantines).Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// The cache is late for good here, so that each call fails when its time is over.
func TestALateCacheKeepsTheGateClosed(t *testing.T) {
	live := reader(quarantined("a", "99"), quarantined("b", "200"))
	for name, cache := range map[string]client.Reader{
		"an old version":               reader(quarantined("a", "99"), quarantined("b", "199")),
		"a version that is less long":  reader(quarantined("a", "99"), quarantined("b", "30")),
		"a node that it does not have": reader(quarantined("a", "99")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := catchup.New(cache, live).Wait(t.Context())
				if err == nil || !strings.Contains(err.Error(), "of 1 nodes, b among them") {
					t.Errorf("Wait() = %v, want an error that names node b", err)
				}
			})
		})
	}
}

// A node in service has no status while it is checked, and takes a place all the same.
func TestAGateForAllNodesWaitsForThoseInService(t *testing.T) {
	node := func(version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "checked", ResourceVersion: version}}
	}
	synctest.Test(t, func(t *testing.T) {
		if err := catchup.New(reader(node("98")), reader(node("99"))).Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "checked among them") {
			t.Errorf("Wait() = %v, want an error that names the node", err)
		}
		if err := catchup.New(reader(node("99")), reader(node("99"))).Wait(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestTheCacheCatchesUpWhileTheGateIsWaitedFor(t *testing.T) {
	live := reader(quarantined("a", "99"))
	behind, current := reader(quarantined("a", "98")), reader(quarantined("a", "99"))
	var reads, lists atomic.Int32
	cache := interceptor.NewClient(behind, interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
			if reads.Add(1) > 3 {
				return current.Get(ctx, key, object, opts...)
			}
			return behind.Get(ctx, key, object, opts...)
		},
	})
	counted := interceptor.NewClient(live, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			lists.Add(1)
			return c.List(ctx, list, opts...)
		},
	})
	gate := catchup.New(cache, counted)
	for range 3 {
		if err := gate.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if reads.Load() != 4 || lists.Load() != 1 {
		t.Errorf("%d reads of the cache and %d lists, want 4 and 1: an open gate costs nothing", reads.Load(), lists.Load())
	}
}

// A node that is deleted after the list never comes to the cache.
func TestANodeThatIsGoneKeepsNothingClosed(t *testing.T) {
	first, then := reader(quarantined("a", "99"), quarantined("gone", "98")), reader(quarantined("a", "99"))
	var lists atomic.Int32
	live := interceptor.NewClient(first, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if lists.Add(1) > 1 {
				return then.List(ctx, list, opts...)
			}
			return c.List(ctx, list, opts...)
		},
	})
	synctest.Test(t, func(t *testing.T) {
		if err := catchup.New(then, live).Wait(t.Context()); err != nil || lists.Load() != 2 {
			t.Errorf("Wait() = %v after %d lists, want 2", err, lists.Load())
		}
	})
}

func TestNodesThatCannotBeListedKeepTheGateClosed(t *testing.T) {
	refusing := true
	live := interceptor.NewClient(reader(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if refusing {
				return errors.New("connection refused")
			}
			return c.List(ctx, list, opts...)
		},
	})
	gate := catchup.New(reader(), live)
	if err := gate.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Wait() = %v, want the error of the list", err)
	}
	refusing = false
	if err := gate.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// Kubelets choose how large their nodes are. A list that is too large is read in smaller pages, and one that takes longer than a call goes on
// with the next.
func TestAListOfLargeNodesIsReadInSmallPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, fit = 60, 10
		live := interceptor.NewClient(reader(), interceptor.Funcs{
			List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				o := (&client.ListOptions{}).ApplyOptions(opts)
				if o.Limit > fit {
					return fmt.Errorf("nodes: %w", slim.ErrTooLarge)
				}
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return ctx.Err()
				}
				first, _ := strconv.Atoi(o.Continue)
				page := list.(*metav1.PartialObjectMetadataList)
				for i := first; i < min(nodes, first+int(o.Limit)); i++ {
					page.Items = append(page.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), ResourceVersion: "7"}})
				}
				if next := first + int(o.Limit); next < nodes {
					page.Continue = fmt.Sprint(next)
				}
				return nil
			},
		})
		var cached []client.Object
		for i := range nodes {
			cached = append(cached, quarantined(fmt.Sprint(i), "7"))
		}
		gate, calls := catchup.New(reader(cached...), live), 1
		for ; gate.Wait(t.Context()) != nil && calls < 20; calls++ {
		}
		if calls < 2 || calls > 5 { // 500, 125, 31, 7 at a time: nine requests of a second, in calls of five
			t.Errorf("the gate is open after %d calls", calls)
		}
	})
}
