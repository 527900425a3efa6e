// Package maintenance has the NodeCondition MaintenanceInProgress (KEP-5683) follow the repairs of nodes. Others may replace the pods of a
// node that has it (KEP-6262), so a node has ours only while it has the taint of a repair: it is empty then, and gets no pods.
package maintenance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/queue"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// firstVersion is the first version of Kubernetes that knows the condition.
var firstVersion = version.MustParseGeneric("1.37")

// Version asks the API server for its version, such as v1.37.2.
type Version func(context.Context) (string, error)

// VersionOf returns a Version that asks an API server. Nothing is asked before it is called.
func VersionOf(config *rest.Config, by *http.Client) Version {
	return func(ctx context.Context) (string, error) {
		server, err := discovery.NewDiscoveryClientForConfigAndClient(config, by)
		if err != nil {
			return "", err
		}
		info, err := server.ServerVersionWithContext(ctx)
		if err != nil {
			return "", err
		}
		return info.GitVersion, nil
	}
}

// Follower writes the condition of one node after another.
type Follower struct {
	*queue.Queue[bool]

	client client.Client
	server Version
	clock  clock.PassiveClock
	// saidTooOld is set once the log says that the API server does not know the condition.
	saidTooOld bool
}

// New makes a follower that writes once it is started.
func New(api client.Client, apiReader client.Reader, server Version, clock clock.PassiveClock) *Follower {
	f := &Follower{client: api, server: server, clock: clock}
	f.Queue = queue.New("Failed to write the condition of a repair; retrying", apiReader, f.write)
	return f
}

// Follow has the condition of a node say whether it is repaired; if off, it is only taken back once it is not.
func (f *Follower) Follow(n *corev1.Node, on bool) {
	if change(n, on, f.clock.Now()) == nil {
		f.Forget(n.Name)
		return
	}
	f.Want(n.Name, n.UID, on)
}

// write patches the status of a node unless its condition reports what it must. The patch names one condition, so that it keeps those of
// the kubelet, and one version, so that the node has its taint when it gets the condition.
func (f *Follower) write(ctx context.Context, live *corev1.Node, on bool) error {
	entry := change(live, on, f.clock.Now().UTC())
	if entry == nil {
		return nil
	}
	if _, sets := entry.(corev1.NodeCondition); sets {
		if known, err := f.asksServer(ctx); err != nil || !known {
			return err
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": live.ResourceVersion}, "status": map[string]any{"conditions": []any{entry}},
	})
	if err != nil {
		return fmt.Errorf("encode condition %s: %w", corev1.NodeMaintenanceInProgress, err)
	}
	target := &corev1.Node{}
	target.Name = live.Name
	by := client.RawPatch(types.StrategicMergePatchType, patch)
	return f.client.Status().Patch(ctx, target, by, client.FieldOwner(quarantine.ControllerName))
}

// asksServer reports whether the API server knows the condition. It is asked for each repair: a control plane may be upgraded.
func (f *Follower) asksServer(ctx context.Context) (bool, error) {
	text, err := f.server(ctx)
	if err != nil {
		return false, fmt.Errorf("ask the API server for its version: %w", err)
	}
	is, err := version.ParseGeneric(text)
	if err != nil {
		return false, fmt.Errorf("read the version of the API server: %w", err)
	}
	if is.AtLeast(firstVersion) {
		return true, nil
	}
	if !f.saidTooOld {
		f.saidTooOld = true
		const what = "output.maintenance does nothing: the API server does not know the condition"
		log.FromContext(ctx).Info(what, "version", text, "needs", firstVersion)
	}
	return false, nil
}

// change returns what a strategic merge patch changes about the condition of a node: a [corev1.NodeCondition] that is set, or the removal
// of ours; nil: nothing. That of another writer stays.
func change(n *corev1.Node, on bool, now time.Time) any {
	before, found := node.ConditionOf(n, corev1.NodeMaintenanceInProgress)
	if found && !node.IsOwnMaintenance(before) || !found && !on {
		return nil
	}
	switch repaired, err := isRepaired(n); {
	case err != nil: // it is not known, so ours stays
	case repaired && on && before.Status != corev1.ConditionTrue:
		return corev1.NodeCondition{
			Type: corev1.NodeMaintenanceInProgress, Status: corev1.ConditionTrue, Reason: conditions.ReasonRepair,
			Message:           "Pitcrew repairs the node; annotation " + conditions.AnnotationRepair + " says how",
			LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		}
	case found && !repaired:
		return map[string]string{"$patch": "delete", "type": string(corev1.NodeMaintenanceInProgress)}
	}
	return nil
}

// isRepaired reports whether a repair is under way on a node that is empty: it has the taint of one.
func isRepaired(n *corev1.Node) (bool, error) {
	if !node.HasTaintValue(n.Spec.Taints, conditions.TaintMaintenance, conditions.MaintenanceRepair) {
		return false, nil
	}
	r, err := visit.RecordOf(n)
	if err != nil || r == nil || r.Current == nil || r.Current.Kind != visit.Repair {
		return false, err
	}
	return slices.ContainsFunc(n.Spec.Taints, r.SetsTaint), nil
}
