package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// keptEvidence is how many snapshots of a node are kept, which bounds its ConfigMap to some 100 KiB.
const keptEvidence = 5

// evidence is what a node said of itself when it was quarantined. A reboot clears the conditions, and a repair needs to
// know what they were.
type evidence struct {
	Node       string                 `json:"node"`
	NodeUID    types.UID              `json:"nodeUID"`
	BootID     string                 `json:"bootID"`
	Quarantine string                 `json:"quarantine"`
	What       string                 `json:"what"`
	Conditions []corev1.NodeCondition `json:"conditions"`
}

// keep writes a snapshot into the ConfigMap of the node's evidence. The oldest make room.
func (c *Controller) keep(ctx context.Context, n *corev1.Node, quarantine, what string) error {
	snapshot := evidence{n.Name, n.UID, n.Status.NodeInfo.BootID, quarantine, what, slices.Clone(n.Status.Conditions)}
	for i := range snapshot.Conditions {
		snapshot.Conditions[i].Message = clip(snapshot.Conditions[i].Message)
	}
	text, err := json.MarshalIndent(snapshot, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the evidence of node %s: %w", n.Name, err)
	}
	key := c.now().UTC().Format("2006-01-02T15-04-05.000") + ".json"
	stored := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.namespace,
			Name:      conditions.EvidenceConfigMap + n.Name,
			// It goes when the Node does, or a cluster that scales would collect it for ever.
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}},
		},
		Data: map[string]string{key: string(text)},
	}
	err = c.client.Create(ctx, stored.DeepCopy(), client.FieldOwner(Name))
	if apierrors.IsAlreadyExists(err) {
		err = c.keepAlso(ctx, client.ObjectKeyFromObject(stored), key, string(text))
	}
	if err != nil {
		return fmt.Errorf("keep the evidence of node %s: %w", n.Name, err)
	}
	return nil
}

func (c *Controller) keepAlso(ctx context.Context, name client.ObjectKey, key, text string) error {
	var stored corev1.ConfigMap
	if err := c.reader.Get(ctx, name, &stored); err != nil {
		return err
	}
	before := stored.DeepCopy()
	if stored.Data == nil {
		stored.Data = map[string]string{}
	}
	stored.Data[key] = text
	keys := slices.Sorted(maps.Keys(stored.Data))
	for _, old := range keys[:max(0, len(keys)-keptEvidence)] {
		delete(stored.Data, old)
	}
	return c.client.Patch(ctx, &stored, client.MergeFrom(before), client.FieldOwner(Name))
}
