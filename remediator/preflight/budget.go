package preflight

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

const (
	// maxAllReports is the most that is kept of all reports, in bytes: that is some 8,000 as the shipped init container writes them. Read,
	// they cost as much again.
	maxAllReports = 24 << 20
	// minShare is the least that a namespace may have, however many share.
	minShare = 2 << 20
)

// budget bounds what is kept of the reports of each namespace. The first ones have the room until they are deleted.
type budget struct {
	share int

	mu    sync.Mutex
	sizes map[string]map[types.UID]int
	used  map[string]int
}

func newBudget(namespaces int) *budget {
	return &budget{share: max(maxAllReports/namespaces, minShare), sizes: map[string]map[types.UID]int{}, used: map[string]int{}}
}

// slimmed is the cache's transformation. It is applied twice to some objects.
func (b *budget) slimmed(object any) (any, error) {
	cm, ok := object.(*corev1.ConfigMap)
	if !ok {
		return object, nil // e.g. the key of a deleted one
	}
	kept := keep(cm)
	if b.take(kept, sizeOf(kept)) {
		return kept, nil
	}
	const text = "namespace %s has more reports than the %d MiB that are kept of one; delete old ones, and repeat the run"
	return refused(kept, fmt.Sprintf(text, cm.Namespace, b.share>>20)), nil
}

// sizeOf is what is kept of a report beside its name; of one that is refused nothing is.
func sizeOf(kept *corev1.ConfigMap) int {
	if kept.Data[refusedKey] != "" {
		return 0
	}
	return len(kept.Data[reportconfigmap.Key]) + metadataBytes(kept)
}

// take takes the room of a report, and reports whether there is any.
func (b *budget) take(cm *corev1.ConfigMap, size int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	sizes := b.sizes[cm.Namespace]
	if sizes == nil {
		sizes = map[types.UID]int{}
		b.sizes[cm.Namespace] = sizes
	}
	used := b.used[cm.Namespace] - sizes[cm.UID] + size
	if used > b.share {
		return false
	}
	sizes[cm.UID], b.used[cm.Namespace] = size, used
	return true
}

// free gives back the room of a report that was deleted. It is the DeleteFunc of an informer.
func (b *budget) free(object any) {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	cm, ok := object.(*corev1.ConfigMap)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used[cm.Namespace] -= b.sizes[cm.Namespace][cm.UID]
	delete(b.sizes[cm.Namespace], cm.UID)
}
