package chaos

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// version is an object as it was after one write, or after several that nobody has seen apart.
type version[T client.Object] struct {
	object T
	// at is the revision of the write. Revisions of all kinds have one order: that in which etcd took the writes.
	at uint64
	// gone: the write has removed the object.
	gone bool
	// joined: writes before this one may not have been seen, because the API server was away. at is that of the last of them. What such a
	// version shows is true, but not when it became true.
	joined bool
}

// history is all versions of the objects of one kind, as a watch that is this package's own sees them.
type history[T client.Object] struct {
	newList func() client.ObjectList
	options []client.ListOption

	mu       sync.Mutex
	started  bool
	versions map[types.UID][]version[T]
	living   map[types.UID]bool
}

// follow records the objects until the context ends. It outlives the API server: what changes in between is one joined version.
func follow[T client.Object](ctx context.Context, c client.WithWatch, newList func() client.ObjectList, options ...client.ListOption) *history[T] {
	h := &history[T]{newList: newList, options: options, versions: map[types.UID][]version[T]{}, living: map[types.UID]bool{}}
	with := func(o metav1.ListOptions) []client.ListOption {
		return append(slices.Clone(options), &client.ListOptions{Raw: &o})
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := newList()
			return list, c.List(ctx, list, with(o)...)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, newList(), with(o)...)
		},
	}
	go cache.NewReflectorWithOptions(source, nil, h, cache.ReflectorOptions{}).RunWithContext(ctx)
	return h
}

func revision(text string) uint64 {
	at, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		panic(err) // the API server's are numbers
	}
	return at
}

func (h *history[T]) add(object any, gone, joined bool) {
	o, ok := object.(T)
	if !ok {
		return
	}
	o.SetManagedFields(nil)
	v := version[T]{o, revision(o.GetResourceVersion()), gone, joined}
	if all := h.versions[o.GetUID()]; len(all) > 0 && all[len(all)-1].at >= v.at {
		return
	}
	h.versions[o.GetUID()] = append(h.versions[o.GetUID()], v)
	if h.living[o.GetUID()] = true; gone {
		delete(h.living, o.GetUID())
	}
}

func (h *history[T]) see(object any, gone bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(object, gone, false)
	return nil
}

// Add is for the reflector, as are the following four.
func (h *history[T]) Add(object any) error { return h.see(object, false) }

func (h *history[T]) Update(object any) error { return h.see(object, false) }

func (h *history[T]) Delete(object any) error { return h.see(object, true) }

func (h *history[T]) Resync() error { return nil }

func (h *history[T]) Replace(list []any, listed string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	there := map[types.UID]bool{}
	for _, object := range list {
		h.add(object, false, true)
		there[object.(client.Object).GetUID()] = true
	}
	for uid := range h.living {
		if !there[uid] {
			all := h.versions[uid]
			h.versions[uid] = append(all, version[T]{all[len(all)-1].object, revision(listed), true, true})
			delete(h.living, uid)
		}
	}
	h.started = true
	return nil
}

// caughtUp tells whether the history shows at least what a list shows now.
func (h *history[T]) caughtUp(ctx context.Context, c client.Client) error {
	list := h.newList()
	if err := c.List(ctx, list, h.options...); err != nil {
		return err
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.started {
		return fmt.Errorf("the watch of %T has not begun", list)
	}
	there := map[types.UID]bool{}
	for _, o := range objects {
		o := o.(client.Object)
		there[o.GetUID()] = true
		if all := h.versions[o.GetUID()]; len(all) == 0 || all[len(all)-1].at < revision(o.GetResourceVersion()) {
			return fmt.Errorf("%T %s is newer than the watch shows", o, o.GetName())
		}
	}
	for uid := range h.living {
		if at := h.versions[uid]; !there[uid] && at[len(at)-1].at <= revision(list.GetResourceVersion()) {
			return fmt.Errorf("%s is gone", at[0].object.GetName())
		}
	}
	return nil
}

// until are the versions of all objects up to a revision, in the order of the writes. Histories are only compared up to one that all of
// them have reached: the world goes on while they are read.
func (h *history[T]) until(at uint64) []version[T] {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []version[T]
	for _, versions := range h.versions {
		for _, v := range versions {
			if v.at <= at {
				all = append(all, v)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b version[T]) int {
		if a.at < b.at {
			return -1
		}
		return min(1, int(a.at-b.at))
	})
	return all
}
