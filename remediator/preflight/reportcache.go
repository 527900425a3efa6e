package preflight

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// A tenant chooses what its ConfigMaps contain, so the cache keeps only what is read, up to these sizes and to those of [budget]. It never
// holds more than a few ConfigMaps as the API server sends them.
const (
	// maxMetadataBytes is the largest size of a report's labels, annotations, owners and finalizers. The shipped init
	// container writes about 500 bytes, and the shipped admission policy admits no more than this.
	maxMetadataBytes = 16 << 10
	// refusedKey is the only data key of a ConfigMap that is not kept; its value is the reason. The API server accepts no
	// such key, so a ConfigMap cannot have it.
	refusedKey = "/refused"
)

// newReportCache adds a cache of the reports in some namespaces to the manager.
func newReportCache(ctx context.Context, mgr ctrl.Manager, namespaces []string) (cache.Cache, error) {
	only := cache.Config{LabelSelector: labels.SelectorFromSet(labels.Set{conditions.LabelPreflight: "report"})}
	byNamespace := map[string]cache.Config{}
	for _, namespace := range namespaces {
		byNamespace[namespace] = only
	}
	room := newBudget(len(namespaces))
	reports, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme:                      mgr.GetScheme(),
		Mapper:                      mgr.GetRESTMapper(),
		HTTPClient:                  mgr.GetHTTPClient(),
		ReaderFailOnMissingInformer: true,
		ByObject:                    map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Namespaces: byNamespace, Transform: room.slimmed}},
		NewInformer:                 slim.Informer(room.slimmed),
	})
	if err != nil {
		return nil, fmt.Errorf("make the cache of preflight reports: %w", err)
	}
	informer, err := reports.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("make the informer of preflight reports: %w", err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: room.free}); err != nil {
		return nil, fmt.Errorf("follow deleted preflight reports: %w", err)
	}
	for name, valueOf := range map[string]client.IndexerFunc{indexRun: runOf, indexPod: podOf} {
		if err := reports.IndexField(ctx, &corev1.ConfigMap{}, name, valueOf); err != nil {
			return nil, fmt.Errorf("index preflight reports: %w", err)
		}
	}
	if err := mgr.Add(reports); err != nil {
		return nil, fmt.Errorf("add the cache of preflight reports: %w", err)
	}
	return reports, nil
}

// keep returns what is read of a ConfigMap, and of one that is too large to be a report only the reason. What it returns it
// keeps as it is.
func keep(cm *corev1.ConfigMap) *corev1.ConfigMap {
	kept := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: cm.Namespace, Name: cm.Name, UID: cm.UID, ResourceVersion: cm.ResourceVersion, CreationTimestamp: cm.CreationTimestamp,
		Labels: pick(cm.Labels, conditions.LabelPreflight, conditions.LabelPreflightRun),
	}}
	if reason := whyNotKept(cm); reason != "" {
		return refused(kept, reason)
	}
	kept.Annotations = pick(cm.Annotations, conditions.AnnotationPreflightNode, conditions.AnnotationPreflightPod,
		conditions.AnnotationPreflightPodUID)
	kept.OwnerReferences, kept.Immutable, kept.Data = cm.OwnerReferences, cm.Immutable, cm.Data
	return kept
}

// refused is a ConfigMap of which only the reason is kept.
func refused(cm *corev1.ConfigMap, reason string) *corev1.ConfigMap {
	cm.Annotations, cm.OwnerReferences, cm.Immutable, cm.Data = nil, nil, nil, map[string]string{refusedKey: reason}
	return cm
}

// whyNotKept is the reason why a ConfigMap is too large to be a report; empty when it is not.
func whyNotKept(cm *corev1.ConfigMap) string {
	if reason := cm.Data[refusedKey]; reason != "" {
		return reason
	}
	text, metadata := cm.Data[reportconfigmap.Key], metadataBytes(cm)
	switch {
	case len(cm.Data) != 1 || len(cm.BinaryData) > 0 || text == "":
		return reportconfigmap.Key + " must be its only key"
	case len(text) > report.MaxBytes:
		return fmt.Sprintf("%s has %d bytes, at most %d", reportconfigmap.Key, len(text), report.MaxBytes)
	case metadata > maxMetadataBytes:
		return fmt.Sprintf("its labels, annotations, owners and finalizers have %d bytes, at most %d", metadata, maxMetadataBytes)
	}
	return ""
}

// metadataBytes is the size of what a tenant can write in the metadata. The verdict is not counted: the remediator writes it,
// and does not read it.
func metadataBytes(cm *corev1.ConfigMap) int {
	n := 0
	for key, value := range cm.Labels {
		n += len(key) + len(value)
	}
	for key, value := range cm.Annotations {
		if key != conditions.AnnotationPreflightVerdict {
			n += len(key) + len(value)
		}
	}
	for _, o := range cm.OwnerReferences {
		n += len(o.APIVersion) + len(o.Kind) + len(o.Name) + len(o.UID)
	}
	for _, finalizer := range cm.Finalizers {
		n += len(finalizer)
	}
	return n
}

// pick copies some keys of a map; nil when it has none of them.
func pick(from map[string]string, keys ...string) map[string]string {
	var picked map[string]string
	for _, key := range keys {
		if value, ok := from[key]; ok {
			if picked == nil {
				picked = make(map[string]string, len(keys))
			}
			picked[key] = value
		}
	}
	return picked
}

func runOf(object client.Object) []string {
	return []string{object.GetLabels()[conditions.LabelPreflightRun]}
}

func podOf(object client.Object) []string {
	return []string{object.GetAnnotations()[conditions.AnnotationPreflightPodUID]}
}
