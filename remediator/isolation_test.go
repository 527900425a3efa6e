package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
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
	tm.mayIsolate()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: resourceapi.DeviceClassSpec{
		Selectors:            []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", pool+".example.com")}}},
		ExtendedResourceName: ptr.To(string(tm.extendedResource())),
	}}
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

// extendedResource is the name by which a pod asks for a GPU of the team without a claim of its own.
func (tm team) extendedResource() corev1.ResourceName {
	return corev1.ResourceName(tm.pool + ".example.com/gpu")
}

// byClaim and byResource are how a pod asks for one GPU.
func byClaim(_ team, spec *corev1.PodSpec) {
	spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}}
	spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
}

func byResource(tm team, spec *corev1.PodSpec) {
	spec.Containers[0].Resources.Limits = corev1.ResourceList{tm.extendedResource(): resource.MustParse("1")}
}

// mayIsolate gives the remediator the role.
func (tm team) mayIsolate() {
	tm.Helper()
	role, err := os.ReadFile(filepath.Join("..", "manifests", "remediator", "devices.yaml"))
	if err != nil {
		tm.Fatal(err)
	}
	if err := tm.Apply(tm.Context(), role); err != nil {
		tm.Fatal(err)
	}
}

// deviceJobs starts n opted-in jobs of one GPU each, as job-0 and so on, and waits until they run.
func (tm team) deviceJobs(n int) {
	tm.Helper()
	tm.createDeviceJobs(n, byClaim)
	tm.runDeviceJobs(n)
}

func (tm team) createDeviceJobs(n int, asks func(team, *corev1.PodSpec)) {
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
				RestartPolicy: corev1.RestartPolicyNever,
				NodeSelector:  map[string]string{cluster.LabelPool: tm.pool},
				Containers:    []corev1.Container{{Name: "main", Image: "none"}},
			}}},
		}
		asks(tm, &job.Spec.Template.Spec)
		if err := tm.Client.Create(tm.Context(), job); err != nil {
			tm.Fatal(err)
		}
	}
}

// runDeviceJobs waits until so many jobs hold a GPU each.
func (tm team) runDeviceJobs(n int) {
	tm.Helper()
	tm.until(fmt.Sprintf("%d jobs run", n), func() error {
		if holders, _ := tm.holders(); len(holders) != n {
			return fmt.Errorf("devices are held by %v", holders)
		}
		return nil
	})
}

// holders are the running pods by the device that they hold, and their UIDs by the name of their job.
func (tm team) holders() (byDevice, uids map[string]string) {
	tm.Helper()
	byDevice, uids = map[string]string{}, map[string]string{}
	for _, p := range tm.pods() {
		var name string
		switch s := p.Status; {
		case s.Phase != corev1.PodRunning || p.DeletionTimestamp != nil:
		case s.ExtendedResourceClaimStatus != nil:
			name = s.ExtendedResourceClaimStatus.ResourceClaimName
		case len(s.ResourceClaimStatuses) > 0:
			name = *s.ResourceClaimStatuses[0].ResourceClaimName
		}
		var claim resourceapi.ResourceClaim
		if name == "" || tm.Client.Get(tm.Context(), client.ObjectKey{Namespace: tm.pool, Name: name}, &claim) != nil || claim.Status.Allocation == nil {
			continue
		}
		r := claim.Status.Allocation.Devices.Results[0]
		byDevice[r.Pool+"/"+r.Device], uids[p.Labels[batchv1.JobNameLabel]] = p.Labels[batchv1.JobNameLabel], string(p.UID)
	}
	return byDevice, uids
}

// pods are those of the team's jobs.
func (tm team) pods() []corev1.Pod {
	tm.Helper()
	var pods corev1.PodList
	if err := tm.Client.List(tm.Context(), &pods, client.InNamespace(tm.pool)); err != nil {
		tm.Fatal(err)
	}
	return pods.Items
}

// onlyRestarted waits until the victim has another pod, and checks that the other jobs kept theirs.
func (tm team) onlyRestarted(victim string, before map[string]string) {
	tm.Helper()
	var after map[string]string
	tm.until("all jobs run, one of them in another pod", func() error {
		if _, after = tm.holders(); len(after) != len(before) || after[victim] == before[victim] {
			return fmt.Errorf("pods %v, before %v", after, before)
		}
		return nil
	})
	for name, uid := range before {
		if name != victim && after[name] != uid {
			tm.Errorf("%s: pod %s was %s; the fault was under %s", name, after[name], uid, victim)
		}
	}
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
func TestOneDeviceIsIsolatedAndOnlyItsJobIsRestarted(t *testing.T) {
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
	tm.onlyRestarted(victim, before)
	if now, _ := tm.holders(); now[free] != victim {
		t.Errorf("devices are held by %v", now)
	}
	n, r := tm.becomes(node, causes.Quarantined)
	if !r.IsIsolated() || taints(n) != "" || n.Labels[conditions.LabelStatus] != conditions.StatusIsolated {
		t.Errorf("taints %q, labels %v, record %s", taints(n), n.Labels, r)
	}
	tm.waitForEvent(n.UID, "DeviceIsolated")

	// A boot gives the GPU another name.
	tm.patchStatus(node, `{"status":{"nodeInfo":{"bootID":"another"}}}`)
	tm.publish(node, 1)
	tm.report(node, "True", ecc)
	tm.hasRules(node + "/gpu-0:NoSchedule")

	tm.report(node, "False", "")
	tm.hasRules("")
	tm.becomes(node, causes.Released)
	tm.waitForEvent(n.UID, "DeviceReleased")
}

// With one of eight GPUs isolated, the scheduler places seven pods of one GPU on the node, and the eighth after the release.
func TestSevenOfEightDevicesStayInUse(t *testing.T) {
	tm := newDeviceTeam(t, "isolation-seven", 1)
	node := tm.nodes[0]
	tm.start(tm.policy(1, "isolate: device", "clearAfter: 1s"), alone)
	tm.report(node, "True", ecc)
	tm.hasRules(node + "/gpu-1:NoSchedule")
	tm.createDeviceJobs(8, byClaim)
	tm.runDeviceJobs(7)
	tm.until("the scheduler has refused one pod", func() error {
		for _, p := range tm.pods() {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
					return nil
				}
			}
		}
		return errStill
	})
	if held, _ := tm.holders(); len(held) != 7 || held[node+"/gpu-1"] != "" {
		t.Errorf("devices are held by %v", held)
	}
	tm.report(node, "False", "")
	tm.hasRules("")
	tm.runDeviceJobs(8)
}

// A pod that asked for an extended resource has its GPU by a claim which the scheduler made. Before Kubernetes 1.37.2 effect NoExecute
// did not evict it (kubernetes/kubernetes#141290).
func TestAJobWithADeviceAsAnExtendedResourceIsRestarted(t *testing.T) {
	tm := newDeviceTeam(t, "isolation-extended", 1)
	node := tm.nodes[0]
	tm.createDeviceJobs(7, byResource)
	tm.runDeviceJobs(7)
	held, before := tm.holders()
	victim := held[node+"/gpu-1"]
	if victim == "" {
		t.Fatalf("nobody holds gpu-1: %v", held)
	}
	for _, p := range tm.pods() {
		if p.Status.ExtendedResourceClaimStatus == nil || len(p.Spec.ResourceClaims) > 0 {
			t.Fatalf("pod %s has its GPU in another way: %+v", p.Name, p.Status)
		}
	}
	tm.start(tm.policy(1, "isolate: device", "restartJobs: true"), alone)
	tm.report(node, "True", ecc)
	tm.hasRules(node + "/gpu-1:NoSchedule")
	tm.onlyRestarted(victim, before)
	if now, _ := tm.holders(); now[node+"/gpu-1"] != "" {
		t.Errorf("devices are held by %v", now)
	}
	if blocked := tm.blocked(victim); len(blocked) > 0 {
		t.Errorf("Events %q", blocked)
	}
}

// blocked are the notes of the Events which say that a job is not restarted.
func (tm team) blocked(job string) (notes []string) {
	tm.Helper()
	var list eventsv1.EventList
	if err := tm.Client.List(tm.Context(), &list, client.InNamespace(tm.pool)); err != nil {
		tm.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Reason == "JobRestartBlocked" && e.Regarding.Name == job {
			notes = append(notes, e.Note)
			if e.Series != nil {
				notes = append(notes, fmt.Sprintf("%d more", e.Series.Count-1))
			}
		}
	}
	return notes
}

// Whose claims cannot be read may hold the GPU. Its job says so once, and is restarted when they can.
func TestAJobWaitsUntilTheClaimsOfItsDevicesCanBeRead(t *testing.T) {
	tm := newDeviceTeam(t, "isolation-unread", 1)
	node := tm.nodes[0]
	tm.deviceJobs(3)
	held, before := tm.holders()
	victim := held[node+"/gpu-1"]
	if victim == "" {
		t.Fatalf("nobody holds gpu-1: %v", held)
	}
	role := &rbacv1.ClusterRole{}
	if err := tm.Client.Get(t.Context(), client.ObjectKey{Name: "pitcrew-remediator-devices"}, role); err != nil {
		t.Fatal(err)
	}
	whole := role.DeepCopy()
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "resourceclaims") })
	if err := tm.Client.Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	whole.ResourceVersion = role.ResourceVersion
	tm.until("the API server has read the role", func() error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:pitcrew:pitcrew-remediator",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Group: resourceapi.GroupName, Resource: "resourceclaims", Namespace: tm.pool},
		}}
		if err := tm.Client.Create(t.Context(), review); err != nil || review.Status.Allowed {
			return errors.Join(errStill, err)
		}
		return nil
	})
	p, err := tm.StartRemediator(t.Context(), "-policy", tm.policy(1, "isolate: device", "restartJobs: true"), alone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(10 * time.Second) })
	tm.report(node, "True", ecc)
	tm.until("all jobs say so", func() error {
		for name := range before {
			if notes := tm.blocked(name); len(notes) != 1 || !strings.Contains(notes[0], "get of resourceclaims (resource.k8s.io) is missing in the remediator's role") {
				return fmt.Errorf("Events of %s: %q\n%s", name, notes, p.Log())
			}
		}
		return nil
	})
	if _, now := tm.holders(); !maps.Equal(now, before) {
		t.Errorf("pods %v, before %v", now, before)
	}
	if err := tm.Client.Update(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	tm.onlyRestarted(victim, before)
	for name := range before {
		if notes := tm.blocked(name); len(notes) != 1 {
			t.Errorf("Events of %s: %q", name, notes)
		}
	}
}

// A kubelet may publish as many slices as it likes.
func TestSlicesOfDevicesAreReadUpToABound(t *testing.T) {
	tm := newDeviceTeam(t, "isolation-slices", 2)
	for i, n := range []int{100, 128} { // beside the one with the GPUs, which is the last
		for k := range n {
			s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%03d", tm.nodes[i], k)}, Spec: resourceapi.ResourceSliceSpec{
				Driver: "other.example.com", NodeName: &tm.nodes[i], Pool: resourceapi.ResourcePool{Name: tm.nodes[i], Generation: 1, ResourceSliceCount: int64(n)},
			}}
			if err := tm.Client.Create(t.Context(), s); err != nil {
				t.Fatal(err)
			}
		}
	}
	tm.start(tm.policy(2, "isolate: device"), alone)
	for _, node := range tm.nodes {
		tm.report(node, "True", ecc)
	}
	tm.hasRules(tm.nodes[0] + "/gpu-1:NoSchedule")
	tm.waitForEvent(tm.get(tm.nodes[1]).UID, "the node has more than 128 ResourceSlices")
}

// A rule that only observes changes nothing: it writes no DeviceTaintRule, and the Event says what it would do.
func TestObservedIsolationOfADeviceChangesNothing(t *testing.T) {
	tm := newDeviceTeam(t, "isolation-observed", 1)
	node := tm.nodes[0]
	tm.start(tm.policy(1, "isolate: device", "mode: observe", "restartJobs: true"), alone)
	tm.report(node, "True", ecc)
	tm.waitForEvent(tm.get(node).UID, "would isolate gpu")
	if r, err := causes.RecordOf(tm.get(node)); err != nil || r == nil || r.Isolation != nil {
		t.Errorf("record %s, %v", r, err)
	}
	if got := tm.rules(); got != "" {
		t.Errorf("rules %s", got)
	}
}

// Kubernetes 1.36 serves DeviceTaintRules in version v1beta2, if it is told so. The API server of 1.37 does the same when it emulates 1.36.
func TestDevicesOnKubernetes136(t *testing.T) {
	for name, test := range map[string]struct {
		flags   []string
		rule    string
		tainted bool
	}{
		"with the beta":    {[]string{"--runtime-config=resource.k8s.io/v1beta2=true", "--feature-gates=DRADeviceTaintRules=true"}, "resource.k8s.io/v1beta2 NoSchedule", false},
		"without the beta": {nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := cluster.Start(t.Context(), cluster.Options{APIOnly: true, APIServerFlags: append(test.flags, "--emulated-version=1.36")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
			tm := team{t, c, "isolation", []string{"isolation-0"}}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: tm.nodes[0], Labels: map[string]string{cluster.LabelPool: tm.pool}}}
			if err := c.Client.Create(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			tm.mayIsolate()
			tm.publish(node.Name, 0)
			tm.start(tm.policy(1, "isolate: device", "clearAfter: 1s"), alone)
			tm.report(node.Name, "True", ecc)
			if test.tainted {
				tm.devicesAreUnknownForLong(node.Name)
			}
			tm.until("a rule or a taint", func() error {
				rules := &unstructured.UnstructuredList{}
				rules.SetGroupVersionKind(resourceapi.SchemeGroupVersion.WithKind("DeviceTaintRuleList"))
				if err := c.Client.List(t.Context(), rules); !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
					t.Fatalf("version v1 is served: %v", err)
				}
				rules.SetAPIVersion("resource.k8s.io/v1beta2")
				err := c.Client.List(t.Context(), rules)
				var rule string
				for _, r := range rules.Items {
					effect, _, err := unstructured.NestedString(r.Object, "spec", "taint", "effect")
					if err != nil {
						t.Fatal(err)
					}
					rule += r.GetAPIVersion() + " " + effect
				}
				if got := taints(tm.get(node.Name)); rule != test.rule || strings.Contains(got, ourTaint) != test.tainted {
					return errors.Join(fmt.Errorf("rules %q, taints %q", rule, got), err)
				}
				return nil
			})
			if n, r := tm.becomes(node.Name, causes.Quarantined); r.IsIsolated() == test.tainted {
				t.Errorf("labels %v, record %s", n.Labels, r)
			}
			tm.report(node.Name, "False", "")
			tm.becomes(node.Name, causes.Released)
		})
	}
}

// devicesAreUnknownForLong waits until the remediator looks for the devices of a fault in vain, and has it look since [isolate.Settle].
func (tm team) devicesAreUnknownForLong(name string) {
	tm.Helper()
	tm.until("the devices are unknown", func() error {
		r, err := causes.RecordOf(tm.get(name))
		if err != nil || r == nil || r.DevicesUnknownSince.IsZero() {
			return fmt.Errorf("record %s, %w", r, err)
		}
		r.DevicesUnknownSince = r.DevicesUnknownSince.Add(-isolate.Settle)
		_, err = tm.Kubectl(tm.Context(), "annotate", "--overwrite", "node", name, conditions.AnnotationQuarantine+"="+r.String())
		return err
	})
}

func TestWithoutRightsForDevicesTheNodeIsQuarantined(t *testing.T) {
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
func TestDeviceRulesThatNoQuarantineExplainsAreDeleted(t *testing.T) {
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
