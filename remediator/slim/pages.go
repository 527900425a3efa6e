package slim

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
)

// page is the number of objects in an answer of the API server, which has up to 2 MiB for each.
const page = 8

// Informer makes the informers of a cache, as its option NewInformer. They list page by page and keep of each page what transform keeps;
// nil: all. An informer lists only where the API server cannot stream (before Kubernetes 1.34, by default), and would transform the list
// when it has all of it.
func Informer(transform toolscache.TransformFunc) func(
	toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers,
) toolscache.SharedIndexInformer {
	return func(
		all toolscache.ListerWatcher, kind runtime.Object, resync time.Duration, indexers toolscache.Indexers,
	) toolscache.SharedIndexInformer {
		return toolscache.NewSharedIndexInformer(InPages(toolscache.ToListerWatcherWithContext(all), transform), kind, resync, indexers)
	}
}

// InPages lists as [Informer] does.
func InPages(all toolscache.ListerWatcherWithContext, transform toolscache.TransformFunc) *toolscache.ListWatch {
	return &toolscache.ListWatch{
		WatchFuncWithContext: all.WatchWithContext,
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			// The API server ignores the limit when it is asked for a version that its own cache has.
			o.ResourceVersion, o.ResourceVersionMatch, o.Limit, o.Continue = "", "", page, ""
			var kept []runtime.Object
			for {
				list, err := all.ListWithContext(ctx, o)
				if err != nil {
					return nil, err //nolint:wrapcheck // the informer looks at its kind
				}
				about, err := meta.ListAccessor(list)
				if err != nil {
					return nil, fmt.Errorf("read a page: %w", err)
				}
				if err := meta.EachListItemWithAlloc(list, keepIn(&kept, transform)); err != nil {
					return nil, fmt.Errorf("read a page: %w", err)
				}
				if o.Continue = about.GetContinue(); o.Continue == "" {
					return list, meta.SetList(list, kept)
				}
			}
		},
	}
}

// keepIn returns what adds an object to some, as far as it is kept.
func keepIn(kept *[]runtime.Object, transform toolscache.TransformFunc) func(runtime.Object) error {
	return func(object runtime.Object) error {
		if transform != nil {
			slim, err := transform(object)
			if err != nil {
				return err
			}
			object = slim.(runtime.Object) //nolint:forcetypeassert // a transform of an object returns one
		}
		*kept = append(*kept, object)
		return nil
	}
}
