package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// publish publishes eight GPUs of a node as the driver of a vendor does. first is the place on the bus of gpu-0; a boot may move it.
func (tm team) publish(node string, first int) {
	tm.Helper()
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: tm.pool + ".example.com", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range 8 {
		at := (first + i) % 8
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/pciBusID": {StringValue: ptr.To(fmt.Sprintf("0000:%02x:00.0", 0x1a+at))}, "uuid": {StringValue: ptr.To(fmt.Sprintf("GPU-%s-%d", node, at))},
		}})
	}
	if err := tm.Client.Delete(tm.Context(), s.DeepCopy()); client.IgnoreNotFound(err) != nil {
		tm.Fatal(err)
	}
	if err := tm.Client.Create(tm.Context(), s); err != nil {
		tm.Fatal(err)
	}
}

// newDeviceTeam is a team whose nodes publish GPUs, and whose remediator may isolate them.
func newDeviceTeam(t *testing.T, pool string, n int) team {
	t.Helper()
	tm := newTeam(t, pool, n, nil)
	role, err := os.ReadFile(filepath.Join("..", "manifests", "remediator", "devices.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tm.Apply(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
		{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", pool+".example.com")}},
	}}}
	if err := tm.Client.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	for _, node := range tm.nodes {
		tm.publish(node, 0)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		ctx := context.Background()
		for _, o := range []client.Object{class, &resourceapi.DeviceTaintRule{}, &resourceapi.ResourceSlice{}} {
			var err error
			if o.GetName() != "" {
				err = tm.Client.Delete(ctx, o)
			} else {
				err = tm.Client.DeleteAllOf(ctx, o)
			}
			if client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
	})
	return tm
}

// deviceJobs starts n opted-in jobs of one GPU each, as job-0 and so on, and waits until they run.
func (tm team) deviceJobs(n int) {
	tm.Helper()
	if err := tm.AddNamespace(tm.Context(), tm.pool, nil); err != nil {
		tm.Fatal(err)
	}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: tm.pool, Name: "gpu"}, Spec: resourceapi.ResourceClaimTemplateSpec{
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: tm.pool}},
		}}},
	}}
	if err := tm.Client.Create(tm.Context(), template); err != nil {
		tm.Fatal(err)
	}
	for i := range n {
		job := &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: tm.pool, Name: fmt.Sprintf("job-%d", i), Labels: map[string]string{conditions.LabelRestartOnNodeFault: "true"}},
			Spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy:  corev1.RestartPolicyNever,
				NodeSelector:   map[string]string{cluster.LabelPool: tm.pool},
				ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}},
				Containers:     []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
			}}},
		}
		if err := tm.Client.Create(tm.Context(), job); err != nil {
			tm.Fatal(err)
		}
	}
	tm.until("all jobs run", func() error {
		if holders, _ := tm.holders(); len(holders) != n {
			return fmt.Errorf("devices are held by %v", holders)
		}
		return nil
	})
}

// holders are the running pods by the device that they hold, and their UIDs by the name of their job.
func (tm team) holders() (byDevice, uids map[string]string) {
	tm.Helper()
	var pods corev1.PodList
	if err := tm.Client.List(tm.Context(), &pods, client.InNamespace(tm.pool)); err != nil {
		tm.Fatal(err)
	}
	byDevice, uids = map[string]string{}, map[string]string{}
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || len(p.Status.ResourceClaimStatuses) == 0 {
			continue
		}
		var claim resourceapi.ResourceClaim
		err := tm.Client.Get(tm.Context(), client.ObjectKey{Namespace: tm.pool, Name: *p.Status.ResourceClaimStatuses[0].ResourceClaimName}, &claim)
		if err != nil || claim.Status.Allocation == nil {
			continue
		}
		r := claim.Status.Allocation.Devices.Results[0]
		byDevice[r.Pool+"/"+r.Device], uids[p.Labels[batchv1.JobNameLabel]] = p.Labels[batchv1.JobNameLabel], string(p.UID)
	}
	return byDevice, uids
}

// rules are the devices of all rules, with their effects.
func (tm team) rules() string {
	tm.Helper()
	var list resourceapi.DeviceTaintRuleList
	if err := tm.Client.List(tm.Context(), &list); err != nil {
		tm.Fatal(err)
	}
	var all []string
	for _, r := range list.Items {
		if d := devices.Of(&r); d.Driver == tm.pool+".example.com" {
			all = append(all, d.Pool+"/"+d.Name+":"+string(r.Spec.Taint.Effect))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (tm team) hasRules(want string) {
	tm.Helper()
	tm.until("rules "+want, func() error {
		if got := tm.rules(); got != want {
			return fmt.Errorf("rules %q", got)
		}
		return nil
	})
}

// One of eight GPUs has a fault, on a real control plane: its job alone is restarted, on another GPU of the same node.
func TestOneGPUIsIsolatedAndOnlyItsJobIsRestarted(t *testing.T) {
	tm := newDeviceTeam(t, "isolation", 1)
	node := tm.nodes[0]
	tm.deviceJobs(7)
	held, before := tm.holders()
	victim, free := held[node+"/gpu-1"], ""
	for i := range 8 {
		if name := fmt.Sprintf("%s/gpu-%d", node, i); held[name] == "" {
			free = name
		}
	}
	if victim == "" { // the scheduler takes them in order
		t.Fatalf("nobody holds gpu-1: %v", held)
	}
	tm.start(tm.policy(1, "isolate: device", "restartJobs: true", "clearAfter: 1s"), alone)
	tm.report(node, "True", ecc)
	tm.hasRules(node + "/gpu-1:NoSchedule")
	tm.until("the job runs on the free GPU", func() error {
		if now, _ := tm.holders(); now[free] != victim {
			return fmt.Errorf("devices are held by %v", now)
		}
		return nil
	})
	n, r := tm.becomes(node, quarantine.Quarantined)
	if !r.IsIsolated() || taints(n) != "" || n.Labels[conditions.LabelStatus] != conditions.StatusIsolated {
		t.Errorf("taints %q, labels %v, record %s", taints(n), n.Labels, r)
	}
	tm.waitForEvent(n.UID, "DeviceIsolated")
	_, after := tm.holders()
	for name, uid := range before {
		if (after[name] == uid) != (name != victim) {
			t.Errorf("%s: pod %s was %s; the fault was under %s", name, after[name], uid, victim)
		}
	}

	// A boot gives the GPU another name.
	tm.patchStatus(node, `{"status":{"nodeInfo":{"bootID":"another"}}}`)
	tm.publish(node, 1)
	tm.report(node, "True", ecc)
	tm.hasRules(node + "/gpu-0:NoSchedule")

	tm.report(node, "False", "")
	tm.hasRules("")
	tm.becomes(node, quarantine.Released)
	tm.waitForEvent(n.UID, "DeviceReleased")
}

func TestObservedIsolationHasNoEffect(t *testing.T) {
	tm := newDeviceTeam(t, "isolation-observed", 1)
	node := tm.nodes[0]
	tm.start(tm.policy(1, "isolate: device", "mode: observe", "restartJobs: true"), alone)
	tm.report(node, "True", ecc)
	tm.hasRules(node + "/gpu-1:None")
	tm.until("the rule was seen", func() error {
		if r, err := quarantine.RecordOf(tm.get(node)); err != nil || r == nil || r.Isolation == nil || !r.Isolation.PendingSince.IsZero() {
			return errors.Join(fmt.Errorf("%w: record %s", errStill, r), err)
		}
		return nil
	})
	// What a person deletes is not written again: the next decision is made for a changed label.
	rule := &resourceapi.DeviceTaintRule{}
	if err := tm.Client.DeleteAllOf(t.Context(), rule, client.HasLabels{devices.LabelNodeUID}); err != nil {
		t.Fatal(err)
	}
	tm.patch(node, `{"metadata":{"labels":{"example.com/again":"1"}}}`)
	tm.until("the record says so", func() error {
		if r, err := quarantine.RecordOf(tm.get(node)); err != nil || r == nil || r.Isolation == nil || !r.Isolation.Withdrawn {
			return errors.Join(fmt.Errorf("%w: record %s", errStill, r), err)
		}
		return nil
	})
	if got := tm.rules(); got != "" {
		t.Errorf("rules %s", got)
	}
}

func TestWithoutRightsTheNodeIsQuarantined(t *testing.T) {
	tm := newDeviceTeam(t, "isolation-refused", 1)
	node := tm.nodes[0]
	deny := []byte(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-device-rules}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [resource.k8s.io], apiVersions: ["*"], resources: [devicetaintrules], operations: [CREATE]}]}
  validations: [{expression: "!object.spec.deviceSelector.pool.startsWith('isolation-refused')"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-device-rules}
spec: {policyName: no-device-rules, validationActions: [Deny]}
`)
	if err := tm.Apply(t.Context(), deny); err != nil {
		t.Fatal(err)
	}
	tm.until("the admission policy is in force", func() error {
		rule := devices.Node{Name: node, UID: "x"}.Rule("0000:1a:00", devices.Device{Driver: "x.example.com", Pool: "isolation-refused", Name: "gpu-0"}, corev1.Taint{Key: "example.com/x"})
		if err := tm.Client.Create(t.Context(), &rule); err == nil {
			return fmt.Errorf("accepted: %w", tm.Client.Delete(t.Context(), &rule))
		}
		return nil
	})
	tm.start(tm.policy(1, "isolate: device"), alone)
	tm.report(node, "True", ecc)
	tm.until("the node is tainted", func() error {
		if n := tm.get(node); taints(n) != ourTaint {
			return fmt.Errorf("taints %q", taints(n))
		}
		return nil
	})
	tm.waitForEvent(tm.get(node).UID, "refuses the DeviceTaintRule")
}

// A remediator that was killed after the release of a node, before it deleted the rules, deletes them when it starts again. So it does for
// a node that was deleted meanwhile.
func TestRulesThatNoQuarantineExplainsAreDeleted(t *testing.T) {
	tm := newDeviceTeam(t, "isolation-left", 2)
	for i, name := range tm.nodes {
		n := devices.Node{Name: name, UID: tm.get(name).UID}
		if i == 1 {
			n.UID = "an-earlier-node"
		}
		rule := n.Rule("0000:1b:00", devices.Device{Driver: tm.pool + ".example.com", Pool: name, Name: "gpu-1"}, corev1.Taint{Key: "pitcrew.dev/unhealthy", Effect: corev1.TaintEffectNoSchedule})
		if err := tm.Client.Create(t.Context(), &rule); err != nil {
			t.Fatal(err)
		}
	}
	tm.start(tm.policy(1, "isolate: device"), alone)
	tm.hasRules("")
}
