package evidence

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

const (
	// expireEvery is how often old evidence is deleted.
	expireEvery = time.Hour
	// evidenceAge is how long the evidence of a node outlives its last quarantine, and the node.
	evidenceAge = 90 * 24 * time.Hour
	// evidenceNodes bounds the nodes with evidence, since a cluster that scales has ever new names.
	evidenceNodes = 500
)

// Start deletes evidence that is too old to be of use, until the context ends. A garbage collector cannot do it: the
// ConfigMaps are not owned by their Nodes, because the Node may be what is replaced.
func (s *Store) Start(ctx context.Context) error {
	ticker := time.NewTicker(expireEvery)
	defer ticker.Stop()
	for {
		if err := s.expire(ctx); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to delete old evidence; retrying", "after", expireEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (s *Store) expire(ctx context.Context) error {
	var kept metav1.PartialObjectMetadataList
	kept.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	ours := client.MatchingLabels{"app.kubernetes.io/managed-by": quarantine.ControllerName}
	if err := s.apiReader.List(ctx, &kept, client.InNamespace(s.namespace), ours); err != nil {
		return fmt.Errorf("list the evidence in namespace %s: %w", s.namespace, err)
	}
	for _, old := range expired(kept.Items, s.clock.Now()) {
		old.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		// Not if a new snapshot has come meanwhile.
		err := s.client.Delete(ctx, &old, client.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the evidence of node %s: %w", old.Name, err)
		}
		ctrl.LoggerFrom(ctx).Info("Deleted old evidence", "node", old.Name, "takenAt", old.Annotations[conditions.AnnotationEvidenceAt])
	}
	return nil
}

// expired lists what is older than evidenceAge, and the oldest beyond evidenceNodes.
func expired(kept []metav1.PartialObjectMetadata, now time.Time) []metav1.PartialObjectMetadata {
	at := func(m metav1.PartialObjectMetadata) time.Time {
		t, err := time.Parse(time.RFC3339, m.Annotations[conditions.AnnotationEvidenceAt])
		if err != nil {
			return m.CreationTimestamp.Time
		}
		return t
	}
	slices.SortFunc(kept, func(a, b metav1.PartialObjectMetadata) int { return at(b).Compare(at(a)) }) // newest first
	for i := range kept {
		if i == evidenceNodes || now.Sub(at(kept[i])) > evidenceAge {
			return kept[i:]
		}
	}
	return nil
}
