// Package evidence keeps what the conditions of a node were after it was quarantined: a ConfigMap per node, in a namespace of
// its own. docs/adr/0013 gives the reasons.
package evidence

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

const (
	// keptEvidence is how many snapshots of a node are kept, and keptConditions how many conditions of each, which bounds its
	// ConfigMap to some 300 KiB; a usual one has 20.
	keptEvidence, keptConditions = 5, 64
	// maxInventory is the most bytes of an inventory of a node's GPUs; a longer one is left out.
	maxInventory = 8 << 10
)

// Snapshot is what the conditions of a node were at TakenAt, after it was quarantined: in a burst that may be half a minute. A reboot
// clears the conditions, and a repair needs to know what they were.
type Snapshot struct {
	Node    string    `json:"node"`
	NodeUID types.UID `json:"nodeUID"`
	BootID  string    `json:"bootID"`
	// Quarantine is the id of the quarantine.
	Quarantine string         `json:"quarantine"`
	TakenAt    time.Time      `json:"takenAt"`
	Taint      *causes.Taint  `json:"taint"`
	Causes     []causes.Cause `json:"causes"`
	// GPUs are those that the causes name.
	GPUs []GPU `json:"gpus,omitempty"`
	// Inventory is a copy of the Node's annotation [conditions.AnnotationGPUs].
	Inventory  json.RawMessage        `json:"inventory,omitempty"`
	Conditions []corev1.NodeCondition `json:"conditions"`
}

// GPU is a GPU that a cause names, as it names it: by its PCI address or by its UUID.
type GPU struct {
	PCI  string `json:"pci,omitempty"`
	UUID string `json:"uuid,omitempty"`
	Code string `json:"code,omitempty"`
}

// gpuUUID is how NVIDIA's tools write the UUID of a GPU.
var gpuUUID = regexp.MustCompile(`\bGPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)

// Options configure a [Store].
type Options struct {
	// Namespace holds the ConfigMaps.
	Namespace string
	// DryRun keeps and deletes nothing.
	DryRun bool
	Clock  clock.PassiveClock
}

// Store keeps evidence, and deletes it when it is old.
type Store struct {
	client    client.Client
	apiReader client.Reader // the manager's cache does not hold the ConfigMaps
	namespace string
	dryRun    bool
	clock     clock.PassiveClock
	failed    prometheus.Counter

	mu sync.Mutex
	// kept is the key of the snapshot that is known to be kept, by node.
	kept map[string]string
}

// SetupWithManager makes a store, and registers its metrics and, with the manager, the expiry of its ConfigMaps.
func SetupWithManager(_ context.Context, mgr ctrl.Manager, registry prometheus.Registerer, o Options) (*Store, error) {
	s := New(mgr.GetClient(), mgr.GetAPIReader(), o)
	if err := registry.Register(s.failed); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if !o.DryRun {
		if err := mgr.Add(s); err != nil {
			return nil, fmt.Errorf("expire evidence: %w", err)
		}
	}
	return s, nil
}

// New makes a store without expiry.
func New(c client.Client, apiReader client.Reader, o Options) *Store {
	return &Store{
		client: c, apiReader: apiReader, namespace: o.Namespace, dryRun: o.DryRun, clock: o.Clock, kept: map[string]string{},
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pitcrew_evidence_failed_total", Help: "Failed attempts to keep the evidence of a quarantine; they are repeated.",
		}),
	}
}

// Keep makes sure that the evidence of the quarantine in a node's record is stored, also of a manual quarantine. A crash
// between the taint and this loses nothing. r may be nil. After an error it is to be called again.
func (s *Store) Keep(ctx context.Context, n *corev1.Node, r *causes.Record) error {
	if s.dryRun || r == nil || r.Phase != causes.Quarantined {
		return nil
	}
	key := keyOf(r)
	s.mu.Lock()
	kept := s.kept[n.Name] == key
	s.mu.Unlock()
	if kept {
		return nil
	}
	if err := s.write(ctx, n, r, key); err != nil {
		s.failed.Inc()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[n.Name] = key
	return nil
}

// Forget drops what is kept in memory about a node that is gone. Its ConfigMap stays.
func (s *Store) Forget(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, node)
}

// keyOf names the snapshot of a decision. The keys of a node sort by time.
func keyOf(r *causes.Record) string {
	return r.Taint.Since.UTC().Format("2006-01-02T15-04-05.000") + "-" + r.ID + ".json"
}

// write adds a snapshot to the ConfigMap of the node, unless it is there. The oldest make room.
func (s *Store) write(ctx context.Context, n *corev1.Node, r *causes.Record, key string) error {
	text, err := json.MarshalIndent(snapshot(n, r, s.clock.Now().UTC()), "", "  ")
	if err != nil {
		return fmt.Errorf("encode the evidence of node %s: %w", n.Name, err)
	}
	stored := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   s.namespace,
			Name:        n.Name,
			Labels:      map[string]string{"app.kubernetes.io/managed-by": quarantine.ControllerName},
			Annotations: map[string]string{conditions.AnnotationEvidenceAt: r.Taint.Since.UTC().Format(time.RFC3339)},
		},
		Data: map[string]string{key: string(text)},
	}
	err = s.client.Create(ctx, stored.DeepCopy(), client.FieldOwner(quarantine.ControllerName))
	if apierrors.IsAlreadyExists(err) {
		err = s.addTo(ctx, stored, key)
	}
	if err != nil {
		return fmt.Errorf("keep the evidence of node %s in namespace %s: %w", n.Name, s.namespace, err)
	}
	return nil
}

// addTo adds a snapshot to a ConfigMap that exists.
func (s *Store) addTo(ctx context.Context, wanted *corev1.ConfigMap, key string) error {
	var stored corev1.ConfigMap
	if err := s.apiReader.Get(ctx, client.ObjectKeyFromObject(wanted), &stored); err != nil {
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
	if stored.Annotations == nil {
		stored.Annotations = map[string]string{}
	}
	stored.Annotations[conditions.AnnotationEvidenceAt] = wanted.Annotations[conditions.AnnotationEvidenceAt]
	return s.client.Patch(ctx, &stored, client.MergeFrom(before), client.FieldOwner(quarantine.ControllerName))
}

func snapshot(n *corev1.Node, r *causes.Record, now time.Time) Snapshot {
	e := Snapshot{
		Node: n.Name, NodeUID: n.UID, BootID: n.Status.NodeInfo.BootID, Quarantine: r.ID, TakenAt: now,
		Taint: r.Taint, Causes: r.Causes, Conditions: slices.Clone(n.Status.Conditions),
	}
	e.Conditions = e.Conditions[:min(len(e.Conditions), keptConditions)]
	for i := range e.Conditions {
		e.Conditions[i].Message = causes.Clip(e.Conditions[i].Message, conditions.MaxMessage)
	}
	for _, cause := range r.Causes {
		for _, f := range causes.GPUFaults(cause.Message) {
			e.GPUs = append(e.GPUs, GPU{PCI: f.GPU, Code: f.Code})
		}
		for _, uuid := range gpuUUID.FindAllString(cause.Message, -1) {
			e.GPUs = append(e.GPUs, GPU{UUID: uuid})
		}
	}
	if text := n.Annotations[conditions.AnnotationGPUs]; len(text) <= maxInventory && json.Valid([]byte(text)) {
		e.Inventory = json.RawMessage(text)
	}
	return e
}
