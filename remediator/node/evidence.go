package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	// keptEvidence is how many snapshots of a node are kept, and keptConditions how many conditions of each, which bounds its
	// ConfigMap to some 300 KiB; a usual one has 20.
	keptEvidence, keptConditions = 5, 64
	// maxInventory is the longest inventory of a node's GPUs that is believed to be one.
	maxInventory = 8 << 10
)

// evidence is what a node said of itself when it was quarantined. A reboot clears the conditions, and a repair needs to
// know what they were.
type evidence struct {
	Node       string                 `json:"node"`
	NodeUID    types.UID              `json:"nodeUID"`
	BootID     string                 `json:"bootID"`
	Quarantine string                 `json:"quarantine"`
	TakenAt    time.Time              `json:"takenAt"`
	Taint      *Taint                 `json:"taint"`
	Causes     []Cause                `json:"causes"`
	GPUs       []blamed               `json:"gpus,omitempty"`
	Inventory  json.RawMessage        `json:"inventory,omitempty"`
	Conditions []corev1.NodeCondition `json:"conditions"`
}

// blamed is a GPU that a cause names, as it names it: by its PCI address or by its UUID.
type blamed struct {
	PCI  string `json:"pci,omitempty"`
	UUID string `json:"uuid,omitempty"`
	Code string `json:"code,omitempty"`
}

// gpuUUID is how NVIDIA's tools write the UUID of a GPU.
var gpuUUID = regexp.MustCompile(`\bGPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)

// keepEvidence makes sure that the evidence of the quarantine that stands is kept, whoever made it: a crash between the taint
// and this loses nothing. It says whether that could be done.
func (c *Controller) keepEvidence(ctx context.Context, n *corev1.Node, r *Record) bool {
	if c.dryRun || r == nil || r.Phase != Quarantined {
		return true
	}
	key := evidenceKey(r)
	if c.memory.keeps(n.Name, key) {
		return true
	}
	if err := c.keep(ctx, n, r, key); err != nil {
		c.metrics.evidenceFailed.Inc()
		ctrl.LoggerFrom(ctx).Error(err, "The evidence is not kept yet")
		return false
	}
	c.memory.keep(n.Name, key)
	return true
}

// evidenceKey names the snapshot of a decision. The keys of a node sort by time.
func evidenceKey(r *Record) string {
	return r.Taint.Since.UTC().Format("2006-01-02T15-04-05.000") + "-" + r.ID + ".json"
}

// keep writes a snapshot into the ConfigMap of the node's evidence, unless it is there. The oldest make room.
func (c *Controller) keep(ctx context.Context, n *corev1.Node, r *Record, key string) error {
	text, err := json.MarshalIndent(c.snapshot(n, r), "", "  ")
	if err != nil {
		return fmt.Errorf("encode the evidence of node %s: %w", n.Name, err)
	}
	stored := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   c.evidence,
			Name:        n.Name,
			Labels:      map[string]string{"app.kubernetes.io/managed-by": Name},
			Annotations: map[string]string{conditions.AnnotationEvidenceAt: r.Taint.Since.UTC().Format(time.RFC3339)},
		},
		Data: map[string]string{key: string(text)},
	}
	err = c.client.Create(ctx, stored.DeepCopy(), client.FieldOwner(Name))
	if apierrors.IsAlreadyExists(err) {
		err = c.keepAlso(ctx, stored, key)
	}
	if err != nil {
		return fmt.Errorf("keep the evidence of node %s in namespace %s: %w", n.Name, c.evidence, err)
	}
	return nil
}

func (c *Controller) keepAlso(ctx context.Context, wanted *corev1.ConfigMap, key string) error {
	var stored corev1.ConfigMap
	if err := c.reader.Get(ctx, client.ObjectKeyFromObject(wanted), &stored); err != nil {
		return err
	}
	if _, kept := stored.Data[key]; kept {
		return nil
	}
	before := stored.DeepCopy()
	if stored.Data == nil {
		stored.Data = map[string]string{}
	}
	stored.Data[key] = wanted.Data[key]
	keys := slices.Sorted(maps.Keys(stored.Data))
	for _, old := range keys[:max(0, len(keys)-keptEvidence)] {
		delete(stored.Data, old)
	}
	stored.Annotations = set(stored.Annotations, conditions.AnnotationEvidenceAt, wanted.Annotations[conditions.AnnotationEvidenceAt])
	return c.client.Patch(ctx, &stored, client.MergeFrom(before), client.FieldOwner(Name))
}

func (c *Controller) snapshot(n *corev1.Node, r *Record) evidence {
	e := evidence{
		Node: n.Name, NodeUID: n.UID, BootID: n.Status.NodeInfo.BootID, Quarantine: r.ID, TakenAt: c.now().UTC(),
		Taint: r.Taint, Causes: r.Causes, Conditions: slices.Clone(n.Status.Conditions),
	}
	e.Conditions = e.Conditions[:min(len(e.Conditions), keptConditions)]
	for i := range e.Conditions {
		e.Conditions[i].Message = clip(e.Conditions[i].Message)
	}
	for _, cause := range r.Causes {
		for _, f := range faults(cause.Message) {
			e.GPUs = append(e.GPUs, blamed{PCI: f.GPU, Code: f.Code})
		}
		for _, uuid := range gpuUUID.FindAllString(cause.Message, -1) {
			e.GPUs = append(e.GPUs, blamed{UUID: uuid})
		}
	}
	if text := n.Annotations[conditions.AnnotationGPUs]; len(text) <= maxInventory && json.Valid([]byte(text)) {
		e.Inventory = json.RawMessage(text)
	}
	return e
}
