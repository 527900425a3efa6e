package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// installManifests installs files that the chart ships, too: roles, templates and admission policies.
func (w *world) installManifests(names ...string) error {
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(w.Root, "manifests", name+".yaml"))
		if err != nil {
			return err
		}
		if err := w.Apply(w.ctx, text); err != nil {
			return fmt.Errorf("install %s: %w", name, err)
		}
	}
	return nil
}

// publishDevices publishes the 8 GPUs of a node as the driver of a vendor does. They are where the faults of the world are.
func (w *world) publishDevices(node string) error {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range 8 {
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/pciBusID": {StringValue: ptr.To(fmt.Sprintf("0000:%x0:00.0", i+1))},
		}})
	}
	return w.tried(func() error {
		err := w.Client.Create(w.ctx, s.DeepCopy())
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// noDeviceRules tells whether no rule keeps pods off a GPU of this world.
func (w *world) noDeviceRules() error {
	if !w.isolates() {
		return nil
	}
	var list resourceapi.DeviceTaintRuleList
	if err := w.Client.List(w.ctx, &list); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		if node := devices.NodeOf(&list.Items[i]); w.index(node) >= 0 {
			errs = append(errs, fmt.Errorf("rule %s still keeps pods off a GPU of node %s", list.Items[i].Name, node))
		}
	}
	return errors.Join(errs...)
}

// playHardware plays what the programs of visits and the GPUs do, until the context ends: KWOK runs no container. What it cannot write now
// it writes later.
func (w *world) playHardware(ctx context.Context) {
	r := rand.New(rand.NewPCG(w.seed, 19))
	ended := map[types.UID]bool{}
	for ; ctx.Err() == nil; pause(ctx, 200*time.Millisecond) {
		var pods corev1.PodList
		if err := w.Client.List(ctx, &pods, client.InNamespace(conditions.RepairNamespace)); err != nil {
			continue
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || ended[p.UID] {
				continue
			}
			luck := r.IntN(8)
			w.note(func() {
				if !w.healed.IsZero() {
					luck = 7
				}
			})
			ended[p.UID] = w.runProgram(ctx, p, luck) == nil
		}
		w.beat(ctx)
	}
}

// runProgram runs the program of a pod, with luck from 0 to 7. The templates name their containers after themselves.
func (w *world) runProgram(ctx context.Context, p *corev1.Pod, luck int) error {
	node := w.index(p.Spec.NodeName)
	switch template := p.Spec.Containers[0].Name; {
	case luck == 0: // it hangs
		return nil
	case luck == 1:
		return w.endPod(ctx, p, repairresult.Failed)
	case template == "check":
		return w.endPod(ctx, p, repairresult.Healthy)
	case template == "reboot":
		if err := w.reboot(node); err != nil {
			return err
		}
		pause(ctx, booting)
		return w.healthy(node)
	case luck == 2: // the fault stays
		return w.endPod(ctx, p, repairresult.Done)
	default:
		if err := w.healthy(node); err != nil {
			return err
		}
		return w.endPod(ctx, p, repairresult.Done)
	}
}

// endPod ends a pod as a kubelet reports it.
func (w *world) endPod(ctx context.Context, p *corev1.Pod, result repairresult.Kind) error {
	text, err := json.Marshal(repairresult.Result{Result: result, Message: "chaos"})
	if err != nil {
		return err
	}
	before := p.DeepCopy()
	if p.Status.Phase = corev1.PodSucceeded; result.ExitCode() != 0 {
		p.Status.Phase = corev1.PodFailed
	}
	now := metav1.Now()
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: p.Spec.Containers[0].Name, Image: p.Spec.Containers[0].Image, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(result.ExitCode()), Message: string(text), StartedAt: now, FinishedAt: now,
		}},
	}}
	return client.IgnoreNotFound(w.Client.Status().Patch(ctx, p, client.MergeFrom(before)))
}

// beat has the Node Problem Detectors of nodes that wait for the proof of a repair report their conditions as they are once more. They do so
// every minute, and a world has no minute for that.
func (w *world) beat(ctx context.Context) {
	var list corev1.NodeList
	if err := w.Client.List(ctx, &list, client.MatchingLabels{cluster.LabelPool: w.pool}); err != nil {
		return
	}
	for i := range list.Items {
		n := &list.Items[i]
		if r, err := visit.RecordOf(n); err != nil || r == nil || r.Current == nil || r.Current.Phase != visit.Proving {
			continue
		}
		before := n.DeepCopy()
		for j := range n.Status.Conditions {
			if c := &n.Status.Conditions[j]; c.Type != corev1.NodeReady {
				c.LastHeartbeatTime = w.now(w.index(n.Name))
			}
		}
		// A conflict is no matter: the next beat comes soon.
		_ = w.Client.Status().Patch(ctx, n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	}
}
