package attacks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// The tests of this file are about what the admission policies refuse, and what they must not refuse. That the remediator
// withstands the same records when the policies are switched off, TestForgeriesHoldUpNoOther and the tests of its packages show.

const (
	nodePolicy   = "pitcrew-node-records"
	jobPolicy    = "pitcrew-job-records"
	reportPolicy = "pitcrew-preflight-report"
)

// installed applies objects of install.yaml, each named by its kind and name.
func (s *scene) installed(names ...string) {
	s.Helper()
	if err := s.cluster.ApplyShipped(s.Context(), names...); err != nil {
		s.Fatal(err)
	}
}

// account adds a service account to namespace default that is bound to cluster roles, and returns a configuration with its token.
func (s *scene) account(name string, roles ...string) *rest.Config {
	s.Helper()
	s.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}})
	for _, role := range roles {
		s.create(&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: name}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		})
	}
	cfg, err := s.cluster.ServiceAccountConfig(s.Context(), metav1.NamespaceDefault, name)
	if err != nil {
		s.Fatal(err)
	}
	return cfg
}

// create creates an object as admin, until the test ends.
func (s *scene) create(object client.Object) {
	s.Helper()
	if err := s.admin.Create(s.Context(), object); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := client.IgnoreNotFound(s.admin.Delete(context.Background(), object, client.PropagationPolicy(metav1.DeletePropagationBackground))); err != nil {
			s.Error(err)
		}
	})
}

// boundToPod is a client with a token of a service account that is bound to a pod, as the kubelet mounts it.
func (s *scene) boundToPod(account string, pod *corev1.Pod) client.Client {
	s.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	target := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: account}}
	if err := s.admin.SubResource("token").Create(s.Context(), target, request); err != nil {
		s.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(s.cluster.Admin)
	cfg.BearerToken = request.Status.Token
	return s.client(cfg)
}

// podOn is a pod of an account on a node.
func (s *scene) podOn(node, namespace, account string) *corev1.Pod {
	s.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: node},
		Spec: corev1.PodSpec{
			ServiceAccountName: account, NodeName: node,
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "main", Image: "none", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}
	s.create(pod)
	return pod
}

// may fails the test if the API server refused a request that must be possible.
func (s *scene) may(err error, request string) {
	s.Helper()
	if err != nil {
		s.Errorf("%s: %v", request, err)
	}
}

// enforced waits until a policy refuses what it must refuse.
func (s *scene) enforced(policy string, attack func() error) {
	s.Helper()
	s.until("admission policy "+policy+" is in force", func() error {
		if err := attack(); !deniedBy(err, policy) {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
}

func patchNode(ctx context.Context, c client.Client, node, subresource string, kind types.PatchType, patch string) error {
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if subresource == "status" {
		return c.Status().Patch(ctx, target, client.RawPatch(kind, []byte(patch)))
	}
	return c.Patch(ctx, target, client.RawPatch(kind, []byte(patch)))
}

// nodeForgeries are merge patches of the metadata of a Node, one for each key that is reserved, and one for a key that no version has yet.
func nodeForgeries() map[string]string {
	forgeries := map[string]string{}
	for _, key := range []string{conditions.LabelSkip, conditions.LabelStatus, conditions.LabelRepair, conditions.Domain + "/later"} {
		forgeries["label "+key] = fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, key)
	}
	for _, key := range []string{conditions.AnnotationQuarantine, conditions.Domain + "/repair", conditions.AnnotationRequest, conditions.Domain + "/repair-wanted", conditions.Domain + "/later"} {
		forgeries["annotation "+key] = fmt.Sprintf(`{"metadata":{"annotations":{%q:"{}"}}}`, key)
	}
	return forgeries
}

func TestAttack01AKubeletMayNotWriteRecords(t *testing.T) {
	t.Parallel()
	s := newScene(t, "forge-node", 2, nil)
	name := s.nodes[0]
	kubelet := s.kubelet(name)
	subresources := map[string]string{"": "nodes", "status": "nodes/status"}
	play := func(attacker client.Client, who, attack, patch string) {
		t.Helper()
		for subresource, resource := range subresources {
			s.denied(patchNode(t.Context(), attacker, name, subresource, types.MergePatchType, patch), nodePolicy, fmt.Sprintf("%s writes %s by %s", who, attack, resource))
		}
	}
	for attack, patch := range nodeForgeries() {
		play(kubelet, "a kubelet", attack, patch)
	}
	verdict := func(conditionType string, status corev1.ConditionStatus) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"reason":"x","message":"Inspect node: forged"}]}}`, conditionType, status)
	}
	for _, c := range conditions.Verdicts {
		s.denied(patchNode(t.Context(), kubelet, name, "status", types.StrategicMergePatchType, verdict(c.Type, corev1.ConditionTrue)), nodePolicy, "a kubelet writes "+c.Type)
	}

	// The node is quarantined. Its kubelet wants to be rid of that.
	s.may(patchNode(t.Context(), s.admin, name, "", types.MergePatchType, fmt.Sprintf(
		`{"metadata":{"labels":{%q:"quarantined",%q:"Reboot",%q:"false"},"annotations":{%q:"{}"}},"spec":{"taints":[{"key":%q,"value":"GPUXidError","effect":"NoSchedule"},{"key":%q,"effect":"NoSchedule"}]}}`,
		conditions.LabelStatus, conditions.LabelRepair, conditions.LabelSkip, conditions.AnnotationQuarantine, conditions.TaintUnhealthy, conditions.TaintUnchecked)), "an admin writes a record")
	s.may(patchNode(t.Context(), s.admin, name, "status", types.StrategicMergePatchType, verdict(conditions.SlowNode, corev1.ConditionTrue)), "an admin writes a verdict")
	before := s.get(name)
	for _, key := range []string{conditions.LabelStatus, conditions.LabelRepair, conditions.LabelSkip} {
		play(kubelet, "a kubelet", "no "+key, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key))
	}
	play(kubelet, "a kubelet", "no record", fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, conditions.AnnotationQuarantine))
	play(kubelet, "a kubelet", "no annotations", `{"metadata":{"annotations":null}}`)
	s.denied(patchNode(t.Context(), kubelet, name, "status", types.StrategicMergePatchType, verdict(conditions.SlowNode, corev1.ConditionFalse)), nodePolicy, "a kubelet clears a verdict")
	s.denied(patchNode(t.Context(), kubelet, name, "status", types.StrategicMergePatchType, `{"status":{"conditions":[{"type":"SlowNode","$patch":"delete"}]}}`), nodePolicy, "a kubelet removes a verdict")
	if err := patchNode(t.Context(), kubelet, name, "", types.MergePatchType, `{"spec":{"taints":[]}}`); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet removes its taints: %v", err) // NodeRestriction
	}
	if err := kubelet.Delete(t.Context(), before.DeepCopy()); !apierrors.IsForbidden(err) {
		t.Errorf("a kubelet deletes its Node: %v", err)
	}

	s.installed("ServiceAccount pitcrew-node-problem-detector", "ClusterRoleBinding pitcrew-node-problem-detector")
	npd := s.boundToPod("pitcrew-node-problem-detector", s.podOn(name, "pitcrew", "pitcrew-node-problem-detector"))
	detected := func(on string) error {
		return patchNode(t.Context(), npd, on, "status", types.StrategicMergePatchType,
			fmt.Sprintf(`{"status":{"conditions":[{"type":"GPUXidError","status":"False","reason":"x","message":%q}]}}`, time.Now()))
	}
	s.until("the Node Problem Detector may write", func() error { return detected(name) })
	s.enforced("pitcrew-own-node", func() error { return detected(s.nodes[1]) })
	other := strings.NewReplacer(`"true"`, `"forged"`, `"{}"`, `"[]"`) // than what is there
	for attack, patch := range nodeForgeries() {
		err := patchNode(t.Context(), npd, name, "status", types.MergePatchType, other.Replace(patch))
		if !deniedBy(err, "pitcrew-own-node") { // which lets it change conditions alone, whatever the others say
			s.denied(err, nodePolicy, "the Node Problem Detector writes "+attack)
		}
	}
	s.denied(patchNode(t.Context(), npd, name, "status", types.StrategicMergePatchType, verdict(conditions.PreflightFailed, corev1.ConditionTrue)), nodePolicy, "the Node Problem Detector writes a verdict")

	// The garbage collector deletes a Node whose owners are gone.
	var owner corev1.Namespace
	s.may(s.admin.Get(t.Context(), client.ObjectKey{Name: "default"}, &owner), "an admin reads a namespace")
	owned := func(as client.Client, subresource string, uid types.UID) error {
		return patchNode(t.Context(), as, name, subresource, types.MergePatchType,
			fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"default","uid":%q}]}}`, uid))
	}
	s.may(owned(s.admin, "", owner.UID), "an admin gives a node an owner")
	s.denied(owned(npd, "status", "gone"), "pitcrew-own-node", "the Node Problem Detector gives its node another owner of the same name")

	// An account that may patch every Node, such as that of an inventory.
	s.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "patch-nodes"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes", "nodes/status"}, Verbs: []string{"get", "patch", "update"}},
	}})
	inventory := s.client(s.account("inventory", "patch-nodes"))
	s.until("the inventory's role is in force", func() error {
		return inventory.Get(t.Context(), client.ObjectKey{Name: name}, &corev1.Node{})
	})
	for attack, patch := range nodeForgeries() {
		play(inventory, "an inventory", attack, other.Replace(patch))
	}
	taints := func(list string) error {
		return patchNode(t.Context(), inventory, name, "", types.MergePatchType, fmt.Sprintf(`{"spec":{"taints":[%s]}}`, list))
	}
	unhealthy := fmt.Sprintf(`{"key":%q,"value":"GPUXidError","effect":"NoSchedule"}`, conditions.TaintUnhealthy)
	unchecked := fmt.Sprintf(`{"key":%q,"effect":"NoSchedule"}`, conditions.TaintUnchecked)
	foreign := `{"key":"example.com/reserved","value":"x","effect":"NoSchedule"}`
	for attack, list := range map[string]string{
		"removes our taint":              unchecked,
		"ends the first check":           unhealthy,
		"writes an old list of taints":   foreign,
		"changes our taint's effect":     strings.Replace(unhealthy, "NoSchedule", "PreferNoSchedule", 1) + "," + unchecked,
		"puts the node into maintenance": unhealthy + "," + unchecked + fmt.Sprintf(`,{"key":%q,"value":"x","effect":"NoSchedule"}`, conditions.TaintMaintenance),
	} {
		err := taints(list)
		s.denied(err, nodePolicy, "an inventory "+attack)
		if err != nil && !strings.Contains(err.Error(), "read the Node again") {
			t.Errorf("the refusal does not say what to do: %v", err)
		}
	}
	after := s.get(name)
	if !maps.Equal(before.Labels, after.Labels) || before.Annotations[conditions.AnnotationQuarantine] != after.Annotations[conditions.AnnotationQuarantine] || len(after.Spec.Taints) != 2 {
		t.Errorf("labels %v, want %v; annotations %v; taints %v", after.Labels, before.Labels, after.Annotations, after.Spec.Taints)
	}

	// A node that attacks when it joins.
	const fresh = "forge-node-new"
	joining := s.kubelet(fresh)
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fresh, Labels: map[string]string{"example.com/zone": "a"}, Annotations: map[string]string{}}}
		change(n)
		return n
	}
	for attack, change := range map[string]func(*corev1.Node){
		"skip":   func(n *corev1.Node) { n.Labels[conditions.LabelSkip] = "true" },
		"status": func(n *corev1.Node) { n.Labels[conditions.LabelStatus] = conditions.StatusHealthy },
		"record": func(n *corev1.Node) { n.Annotations[conditions.AnnotationQuarantine] = "{}" },
		"unhealthy": func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule}}
		},
		"maintenance": func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintMaintenance, Effect: corev1.TaintEffectNoSchedule}}
		},
		"a key that only begins like the taint of a joining node": func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked + "-not", Effect: corev1.TaintEffectNoSchedule}}
		},
		"verdict": func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: conditions.SlowNode, Status: corev1.ConditionTrue}}
		},
	} {
		s.denied(joining.Create(t.Context(), node(change)), nodePolicy, "a joining kubelet writes "+attack)
	}
	joined := node(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	})
	s.may(joining.Create(t.Context(), joined), "a kubelet registers its node, unchecked")
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := s.cluster.DeleteNodes(context.Background(), fresh); err != nil {
			t.Error(err)
		}
	})
}

// Kubelets, people and controllers go on with their work on a Node that has everything of ours.
func TestNodesCanBeUsedUnderTheAdmissionPolicies(t *testing.T) {
	t.Parallel()
	s := newScene(t, "use-node", 1, nil)
	name := s.nodes[0]
	s.may(patchNode(t.Context(), s.admin, name, "", types.MergePatchType, fmt.Sprintf(
		`{"metadata":{"labels":{%q:"quarantined"},"annotations":{%q:"{}"}},"spec":{"taints":[{"key":%q,"value":"GPUXidError","effect":"NoSchedule"}]}}`,
		conditions.LabelStatus, conditions.AnnotationQuarantine, conditions.TaintUnhealthy)), "an admin writes a record")
	s.may(patchNode(t.Context(), s.admin, name, "status", types.StrategicMergePatchType,
		`{"status":{"conditions":[{"type":"SlowNode","status":"True","reason":"x"},{"type":"PreflightFailed","status":"True","reason":"x"}]}}`), "an admin writes verdicts")

	kubelet := s.kubelet(name)
	s.may(patchNode(t.Context(), kubelet, name, "", types.MergePatchType, fmt.Sprintf(
		`{"metadata":{"labels":{"example.com/zone":"a"},"annotations":{"example.com/a":"b",%q:"{}"}}}`, conditions.AnnotationGPUs)), "a kubelet writes its own label and annotations")
	// NodeRestriction allows it (kubernetes 1.37.1, plugin/pkg/admission/noderestriction), so that Slurm uses the node again.
	s.may(patchNode(t.Context(), s.admin, name, "", types.MergePatchType, `{"spec":{"unschedulable":true}}`), "an admin cordons a node")
	s.may(patchNode(t.Context(), kubelet, name, "", types.MergePatchType, `{"spec":{"unschedulable":null}}`), "a kubelet uncordons its own Node")
	// As kubelets do: a patch of what has changed, with the order of all conditions as the kubelet knows them.
	s.may(patchNode(t.Context(), kubelet, name, "status", types.StrategicMergePatchType, fmt.Sprintf(
		`{"status":{"$setElementOrder/conditions":[{"type":"MemoryPressure"},{"type":"Ready"}],"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`,
		time.Now().UTC().Format(time.RFC3339))), "a heartbeat")
	// The controller manager has a taint of its own for the cordon. While it comes and goes, NodeRestriction takes an update of what was read
	// before for a change of taints, ahead of the check for conflicts.
	again := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsForbidden(err) }
	s.may(retry.OnError(retry.DefaultBackoff, again, func() error {
		n := &corev1.Node{}
		if err := kubelet.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
			return err
		}
		n.Status.NodeInfo.KubeletVersion = "v1.99.0"
		return kubelet.Status().Update(t.Context(), n)
	}), "a kubelet updates its whole status")

	s.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "cordon-nodes"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "patch", "update"}},
	}})
	cfg := s.account("cordoner", "cordon-nodes")
	kubeconfig, err := s.cluster.WriteKubeconfig("cordoner", cfg)
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) error {
		out, err := exec.CommandContext(t.Context(), components.Kube.Path(s.cluster.Root), append([]string{"kubectl", "--kubeconfig=" + kubeconfig}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	s.until("the role is in force", func() error { return kubectl("get", "node", name) })
	s.may(kubectl("cordon", name), "kubectl cordon")
	s.may(kubectl("uncordon", name), "kubectl uncordon")
	s.may(kubectl("label", "node", name, "example.com/rack=7"), "kubectl label")
	s.may(kubectl("taint", "node", name, "example.com/reserved=x:NoSchedule"), "a foreign taint beside ours")
	s.may(kubectl("taint", "node", name, "pitcrew.dev/unchecked:NoSchedule"), "a controller that adds the taint of unchecked nodes")
	s.may(kubectl("taint", "node", name, "example.com/reserved-"), "the foreign taint is removed")
	if err := kubectl("taint", "node", name, "pitcrew.dev/unhealthy-"); err == nil || !strings.Contains(err.Error(), "noderecords.pitcrew.dev") {
		t.Errorf("kubectl taint removes our taint: %v", err)
	}
	n := s.get(name)
	if len(n.Spec.Taints) != 2 || n.Labels[conditions.LabelStatus] != conditions.StatusQuarantined || n.Annotations[conditions.AnnotationGPUs] != "{}" {
		t.Errorf("taints %v, labels %v, annotations %v", n.Spec.Taints, n.Labels, n.Annotations)
	}
	// The controller manager adds its own taint and keeps ours.
	s.may(patchNode(t.Context(), s.admin, name, "status", types.StrategicMergePatchType, `{"status":{"conditions":[{"type":"DiskPressure","status":"True","reason":"x"}]}}`), "the disk is full")
	s.until("the controller manager taints the node", func() error {
		n := s.get(name)
		if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeDiskPressure }) {
			return fmt.Errorf("taints %v", n.Spec.Taints)
		}
		return nil
	})
	if n := s.get(name); len(n.Spec.Taints) != 3 {
		t.Errorf("taints %v", n.Spec.Taints)
	}

	// A repair controller with the role of docs/install.md.
	s.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "write-noderecords"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"pitcrew.dev"}, Resources: []string{"noderecords"}, Verbs: []string{"write"}},
	}})
	if kubeconfig, err = s.cluster.WriteKubeconfig("repair", s.account("repair", "cordon-nodes", "write-noderecords")); err != nil {
		t.Fatal(err)
	}
	s.until("a repair controller may set and remove its taint", func() error {
		return errors.Join(kubectl("taint", "--overwrite", "node", name, "pitcrew.dev/maintenance=repair:NoSchedule"), kubectl("taint", "node", name, "pitcrew.dev/maintenance-"))
	})
}

// jobLike are empty jobs of the kinds that this cluster has.
func jobLike(namespace string) map[string]client.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	of := map[string]string{"app": "train"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: of},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}, NodeSelector: map[string]string{"nowhere": "true"}},
	}
	selector := &metav1.LabelSelector{MatchLabels: of}
	job := template.DeepCopy()
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	jobSet := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
		"spec": map[string]any{"suspend": true, "replicatedJobs": []any{map[string]any{"name": "ranks", "template": map[string]any{"spec": map[string]any{
			"template": map[string]any{"spec": map[string]any{"restartPolicy": "Never", "containers": []any{map[string]any{"name": "main", "image": "none"}}}},
		}}}}},
	}}
	jobSet.SetNamespace(namespace)
	jobSet.SetName("train")
	return map[string]client.Object{
		"Job":         &batchv1.Job{ObjectMeta: meta("train"), Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: *job}},
		"Deployment":  &appsv1.Deployment{ObjectMeta: meta("train"), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](0), Selector: selector, Template: template}},
		"ReplicaSet":  &appsv1.ReplicaSet{ObjectMeta: meta("train-rs"), Spec: appsv1.ReplicaSetSpec{Replicas: ptr.To[int32](0), Selector: selector, Template: template}},
		"StatefulSet": &appsv1.StatefulSet{ObjectMeta: meta("train"), Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](0), Selector: selector, Template: template}},
		"JobSet":      jobSet,
	}
}

func withoutOptIn(labels map[string]string) map[string]string {
	delete(labels, conditions.LabelRestartOnNodeFault)
	return labels
}

func copyOf(object client.Object) client.Object { return object.DeepCopyObject().(client.Object) }

// jobForgeries are merge patches of the metadata of a job, one for each reserved key.
func jobForgeries() map[string]string {
	forgeries := map[string]string{"label " + conditions.LabelRestarting: fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, conditions.LabelRestarting)}
	for _, key := range []string{conditions.AnnotationRestart, conditions.AnnotationCheckpointBy, conditions.AnnotationRestartStep} {
		forgeries["annotation "+key] = fmt.Sprintf(`{"metadata":{"annotations":{%q:"{}"}}}`, key)
	}
	return forgeries
}

func mergePatch(patch string, values ...any) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, patch, values...))
}

func TestAttack07ATenantMayNotWriteRestartRecords(t *testing.T) {
	t.Parallel()
	const namespace = "forge-job"
	s := newScene(t, "forge-job", 1, nil)
	tenant := s.tenant(namespace)
	// Also a tenant who may write the status: of built-in kinds that is a way to the annotations.
	s.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "status"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"apps", "batch", "jobset.x-k8s.io"}, Resources: []string{"*/status"}, Verbs: []string{"patch"}},
	}})
	s.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "status"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "status"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "tenant"}},
	})
	all := jobLike(namespace)
	probe := copyOf(all["Job"])
	probe.SetLabels(map[string]string{conditions.LabelRestarting: "true"})
	s.enforced(jobPolicy, func() error { return tenant.Create(t.Context(), copyOf(probe), client.DryRunAll) })

	for kind, object := range all {
		for _, key := range []string{conditions.AnnotationRestart, conditions.AnnotationCheckpointBy, conditions.AnnotationRestartStep} {
			forged := copyOf(object)
			forged.SetAnnotations(map[string]string{key: "{}"})
			s.denied(tenant.Create(t.Context(), forged), jobPolicy, "a tenant creates a "+kind+" with annotation "+key)
		}
		forged := copyOf(object)
		forged.SetLabels(map[string]string{conditions.LabelRestarting: "true"})
		s.denied(tenant.Create(t.Context(), forged), jobPolicy, "a tenant creates a "+kind+" under restart")

		object.SetLabels(map[string]string{conditions.LabelRestartOnNodeFault: "true"})
		if err := tenant.Create(t.Context(), object); err != nil {
			t.Fatalf("a tenant creates a %s: %v", kind, err)
		}
		for attack, patch := range jobForgeries() {
			s.denied(tenant.Patch(t.Context(), copyOf(object), mergePatch("%s", patch)), jobPolicy, "a tenant writes "+attack+" on its "+kind)
			if kind == "JobSet" { // a custom resource has no metadata in its status
				continue
			}
			// Through the status, labels and annotations that are there change as well, except for labels of the kinds in apps.
			err := tenant.Status().Patch(t.Context(), copyOf(object), mergePatch("%s", patch))
			if strings.HasPrefix(attack, "annotation") || kind == "Job" {
				s.denied(err, jobPolicy, "a tenant writes "+attack+" by the status of its "+kind)
			}
		}
		s.may(tenant.Patch(t.Context(), copyOf(object), mergePatch(`{"metadata":{"labels":{%q:"false"},"annotations":{%q:"x",%q:"y"}}}`,
			conditions.LabelRestartOnNodeFault, conditions.AnnotationAbortRestart, conditions.AnnotationCheckpointed)), "a tenant opts out, confirms a checkpoint and aborts")

		// Pitcrew has written a record. The tenant wants the restart to be forgotten.
		own := fmt.Sprintf(`{"v":1,"jobUID":%q}`, object.GetUID())
		s.may(s.admin.Patch(t.Context(), copyOf(object), mergePatch(`{"metadata":{"labels":{%q:"true"},"annotations":{%q:%q,%q:"t"}}}`,
			conditions.LabelRestarting, conditions.AnnotationRestart, own, conditions.AnnotationCheckpointBy)), "an admin writes a record")
		owner := fmt.Sprintf(`"ownerReferences":[{"apiVersion":"batch/v1","kind":"CronJob","name":"x","uid":%q,"controller":true}]`, object.GetUID())
		for attack, patch := range map[string]string{
			"removes the label":               `{"metadata":{"labels":{"pitcrew.dev/restarting":null}}}`,
			"removes the record":              `{"metadata":{"annotations":{"pitcrew.dev/restart":null}}}`,
			"moves the deadline":              `{"metadata":{"annotations":{"pitcrew.dev/checkpoint-by":"2126-01-01T00:00:00Z"}}}`,
			"removes both, with a new owner":  `{"metadata":{"labels":{"pitcrew.dev/restarting":null},"annotations":{"pitcrew.dev/restart":null},` + owner + `}}`,
			"changes both, with a new owner":  fmt.Sprintf(`{"metadata":{"annotations":{"pitcrew.dev/restart":%q},%s}}`, `{"v":1,"jobUID":"other"}`, owner),
			"removes the label, with a owner": `{"metadata":{"labels":{"pitcrew.dev/restarting":null},` + owner + `}}`,
		} {
			s.denied(tenant.Patch(t.Context(), copyOf(object), mergePatch("%s", patch)), jobPolicy, "a tenant "+attack+" of its "+kind)
		}
		s.may(tenant.Patch(t.Context(), copyOf(object), mergePatch(`{"metadata":{"labels":{"example.com/a":"b"}}}`)), "a tenant labels its "+kind+" while it is restarted")
		s.may(s.admin.Patch(t.Context(), copyOf(object), mergePatch(`{"metadata":{"labels":{%q:null},"annotations":{%q:null}}}`,
			conditions.LabelRestarting, conditions.AnnotationCheckpointBy)), "an admin closes the restart")
		s.denied(tenant.Patch(t.Context(), copyOf(object), mergePatch(`{"metadata":{"annotations":{%q:"{}"}}}`, conditions.AnnotationRestart)), jobPolicy, "a tenant changes the closed record of its "+kind)
		s.may(tenant.Patch(t.Context(), copyOf(object), mergePatch(`{"metadata":{"annotations":{%q:null}}}`, conditions.AnnotationRestart)), "a tenant replaces its "+kind+" by one without a record")
	}

	// A tenant's object that names a controller may bear a copy of a record, for controllers copy annotations. It must not bear its own.
	child := copyOf(jobLike(namespace)["Job"])
	child.SetName("child")
	parent := all["JobSet"]
	child.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: parent.GetName(), UID: parent.GetUID(), Controller: ptr.To(true)}})
	child.SetLabels(map[string]string{conditions.LabelRestarting: "true"})
	copied := fmt.Sprintf(`{"v":1,"jobUID":%q}`, parent.GetUID())
	child.SetAnnotations(map[string]string{conditions.AnnotationRestart: copied})
	s.may(tenant.Create(t.Context(), child), "a child with its parent's label and record")
	if rec, err := restart.ReadRecord(child); err != nil || rec.Current != nil || rec.JobUID != child.GetUID() || rec.Total != 0 {
		t.Errorf("a copied record counts: %+v, %v", rec, err)
	}
	uid := string(child.GetUID())
	for attack, text := range map[string]string{
		"as it is":               fmt.Sprintf(`{"v":1,"jobUID":%q}`, uid),
		"as an escape":           fmt.Sprintf(`{"v":1,"jobUID":"\u%04x%s"}`, uid[0], uid[1:]),
		"with an escaped hyphen": fmt.Sprintf(`{"v":1,"jobUID":%q}`, strings.Replace(uid, "-", `\u002d`, 1)),
		"with upper-case escape": fmt.Sprintf(`{"v":1,"jobUID":"%s"}`, strings.ReplaceAll(uid, "-", `\u002D`)),
		"a second time":          fmt.Sprintf(`{"v":1,"jobUID":"x","JobUID":%q}`, uid),
	} {
		s.denied(tenant.Patch(t.Context(), copyOf(child), mergePatch(`{"metadata":{"annotations":{%q:%q}}}`, conditions.AnnotationRestart, text)), jobPolicy, "a tenant writes its own UID into a record, "+attack)
	}
	s.denied(tenant.Patch(t.Context(), copyOf(child), mergePatch(`{"metadata":{"annotations":{%q:"x"}}}`, conditions.AnnotationRestartStep)), jobPolicy, "a tenant writes a step on a child")

	// The remediator of a later test would report jobs of a namespace that is being deleted.
	for _, object := range append(slices.Collect(maps.Values(all)), child) {
		s.may(s.admin.Patch(t.Context(), copyOf(object), mergePatch(`{"metadata":{"labels":{%q:null}}}`, conditions.LabelRestarting)), "an admin cleans up")
	}
}

// Controllers, operators and the remediator go on with their work on jobs that have everything of ours.
func TestJobsCanBeUsedUnderTheAdmissionPolicies(t *testing.T) {
	const namespace = "use-job"
	s := newScene(t, "use-job", 3, nil)
	tenant := s.tenant(namespace)
	all := jobLike(namespace)

	// The Deployment's controller copies its annotations to the ReplicaSet, and changes the copy later.
	deployment := all["Deployment"].(*appsv1.Deployment)
	s.may(tenant.Create(t.Context(), deployment), "a tenant creates a Deployment")
	for _, record := range []string{fmt.Sprintf(`{"v":1,"jobUID":%q}`, deployment.UID), fmt.Sprintf(`{"v":1,"jobUID":%q,"total":2}`, deployment.UID)} {
		s.may(s.admin.Patch(t.Context(), copyOf(deployment), mergePatch(`{"metadata":{"annotations":{%q:%q}}}`, conditions.AnnotationRestart, record)), "an admin writes a record")
		s.may(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			return tenant.Patch(t.Context(), copyOf(deployment), mergePatch(`{"spec":{"template":{"metadata":{"annotations":{"revision":%q}}}}}`, time.Now()))
		}), "a tenant rolls out")
		s.until("the ReplicaSet has the Deployment's annotations", func() error {
			var sets appsv1.ReplicaSetList
			if err := s.admin.List(t.Context(), &sets, client.InNamespace(namespace)); err != nil {
				return err
			}
			for _, set := range sets.Items {
				if set.Annotations[conditions.AnnotationRestart] == record {
					return nil
				}
			}
			return fmt.Errorf("%d ReplicaSets, none with %s", len(sets.Items), record)
		})
	}

	// A JobSet is restarted from end to end by the real remediator.
	s.may(s.cluster.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {namespace: %s, name: gang, labels: {%s: "true"}}
spec:
  replicatedJobs:
  - name: ranks
    template:
      spec:
        parallelism: 2
        completions: 2
        completionMode: Indexed
        template:
          spec:
            restartPolicy: Never
            nodeSelector: {%s: %s}
            containers: [{name: main, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]
`, namespace, conditions.LabelRestartOnNodeFault, cluster.LabelPool, s.pool)), "a JobSet")
	var sick string
	s.until("two ranks run", func() error {
		var pods corev1.PodList
		if err := s.admin.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"jobset.sigs.k8s.io/jobset-name": "gang"}); err != nil {
			return err
		}
		running := 0
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning {
				running++
				sick = p.Spec.NodeName
			}
		}
		if running != 2 {
			return fmt.Errorf("%d run", running)
		}
		return nil
	})
	s.remediator(s.policy(`
  budget: {maxNodes: 1}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}, restartJobs: true}
`))
	s.report(sick, corev1.ConditionTrue, lost)
	s.becomes(sick, causes.Quarantined)
	s.until("the JobSet was restarted", func() error {
		gang := &metav1.PartialObjectMetadata{}
		gang.SetGroupVersionKind(all["JobSet"].GetObjectKind().GroupVersionKind())
		if err := s.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "gang"}, gang); err != nil {
			return err
		}
		rec, err := restart.ReadRecord(gang)
		if err != nil || rec.Current != nil || len(rec.Last) != 1 || rec.Last[0].Phase != restart.Done {
			return fmt.Errorf("record %+v, %w", rec, err)
		}
		return nil
	})
}

func TestAttack08TooLargeIsRefusedByAdmission(t *testing.T) {
	t.Parallel()
	const namespace = "too-large"
	s := newScene(t, "too-large", 1, nil)
	tenant := s.tenant(namespace)
	all := jobLike(namespace)
	probe := copyOf(all["Job"])
	probe.SetLabels(map[string]string{conditions.LabelRestarting: "true"})
	s.enforced(jobPolicy, func() error { return tenant.Create(t.Context(), copyOf(probe), client.DryRunAll) })

	optIn := func(object client.Object, extra int) client.Object {
		object.SetLabels(map[string]string{conditions.LabelRestartOnNodeFault: "true"})
		object.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("ä", extra/2)})
		return object
	}
	for kind, object := range all {
		s.denied(tenant.Create(t.Context(), optIn(copyOf(object), 130<<10)), jobPolicy, "a tenant opts in a huge "+kind)
		big := copyOf(object)
		labels := map[string]string{conditions.LabelRestartOnNodeFault: "true"}
		prefix := strings.Repeat(strings.Repeat("a", 61)+".", 4) + "com"
		for i := range 1200 { // The API server limits the size of annotations, not that of labels.
			labels[fmt.Sprintf("%s/%060d", prefix, i)] = strings.Repeat("x", 63)
		}
		big.SetLabels(labels)
		s.denied(tenant.Create(t.Context(), big), jobPolicy, "a tenant opts in a "+kind+" with labels of 450 KiB")
		big.SetLabels(withoutOptIn(labels))
		s.may(tenant.Create(t.Context(), big, client.DryRunAll), "a tenant creates a "+kind+" with the same labels without opting in")
		s.may(tenant.Create(t.Context(), optIn(copyOf(object), 120<<10), client.DryRunAll), "a tenant opts in a "+kind+" that kubectl has applied")
		free := optIn(object, 200<<10)
		free.SetLabels(nil)
		s.may(tenant.Create(t.Context(), free), "a tenant creates a huge "+kind+" without opting in")
		s.denied(tenant.Patch(t.Context(), copyOf(free), mergePatch(`{"metadata":{"labels":{%q:"true"}}}`, conditions.LabelRestartOnNodeFault)), jobPolicy, "a tenant opts in its huge "+kind)
		// As one that was labelled before the policy was there. Its owner and its controllers may still change it.
		s.may(s.admin.Patch(t.Context(), copyOf(free), mergePatch(`{"metadata":{"labels":{%q:"true"}}}`, conditions.LabelRestartOnNodeFault)), "an admin opts it in")
		s.may(tenant.Patch(t.Context(), copyOf(free), mergePatch(`{"metadata":{"labels":{"example.com/a":"b"}}}`)), "a tenant labels its huge "+kind)
	}

	s.may(s.cluster.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: %[1]s, name: reporter}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {namespace: %[1]s, name: reporter}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: ServiceAccount, namespace: %[1]s, name: reporter}]
`, namespace)), "an account for reports")
	pod := s.podOn(s.nodes[0], namespace, "reporter")
	reporter := s.boundToPod("reporter", pod)
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: all["Job"].GetUID(), Controller: ptr.To(true)}}
	shape := func(change func(*corev1.ConfigMap)) *corev1.ConfigMap {
		cm, err := reportconfigmap.New(pod, report.Report{RunID: "run", Node: pod.Spec.NodeName})
		if err != nil {
			t.Fatal(err)
		}
		change(cm)
		return cm
	}
	sized := func(n int) func(*corev1.ConfigMap) {
		return func(cm *corev1.ConfigMap) { cm.Data[reportconfigmap.Key] = strings.Repeat("ä", n/2) }
	}
	s.enforced(reportPolicy, func() error { return tenant.Create(t.Context(), shape(sized(2)), client.DryRunAll) })
	for attack, change := range map[string]func(*corev1.ConfigMap){
		"of 16 KiB and two bytes": sized(report.MaxBytes + 2),
		"without a report":        func(cm *corev1.ConfigMap) { cm.Data = nil },
		"with a second key":       func(cm *corev1.ConfigMap) { cm.Data["more"] = "" },
		"with another key":        func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"report": "{}"} },
		"with binary data":        func(cm *corev1.ConfigMap) { cm.BinaryData = map[string][]byte{"more": {0}} },
		"with many labels": func(cm *corev1.ConfigMap) {
			for i := range 16 {
				cm.Labels[fmt.Sprint("l", i)] = ""
			}
		},
		"with many annotations": func(cm *corev1.ConfigMap) {
			for i := range 16 {
				cm.Annotations[fmt.Sprint("a", i)] = ""
			}
		},
		"with large annotations": func(cm *corev1.ConfigMap) { cm.Annotations["a"] = strings.Repeat("x", 8<<10) },
		"with a finalizer":       func(cm *corev1.ConfigMap) { cm.Finalizers = []string{"example.com/keep"} },
		"with two owners": func(cm *corev1.ConfigMap) {
			cm.OwnerReferences = append(cm.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID})
		},
		"with a huge owner": func(cm *corev1.ConfigMap) { cm.OwnerReferences[0].Name = strings.Repeat("x", 1<<10) },
	} {
		s.denied(reporter.Create(t.Context(), shape(change)), reportPolicy, "a tenant writes a report "+attack)
	}
	s.may(reporter.Create(t.Context(), shape(sized(report.MaxBytes))), "a report of 16 KiB")
}

// What people do with `kubectl pitcrew` is possible with role pitcrew-operate, and only with it.
func TestOperatorsWorkUnderTheAdmissionPolicies(t *testing.T) {
	s := newScene(t, "operate", 1, nil)
	s.installed("ClusterRole pitcrew-view", "ClusterRole pitcrew-operate")
	s.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "only-patch-nodes"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "patch"}},
	}})
	const namespace = "operate"
	if err := s.cluster.AddNamespace(t.Context(), namespace, nil); err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), s.cluster.Root, "./kubectl-pitcrew"); err != nil {
		t.Fatal(err)
	}
	as := func(name string, cfg *rest.Config) func(...string) error {
		kubeconfig, err := s.cluster.WriteKubeconfig(name, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return func(args ...string) error {
			out, err := exec.CommandContext(t.Context(), filepath.Join(s.cluster.Root, "bin", "kubectl-pitcrew"), append(args, "--yes", "--kubeconfig", kubeconfig)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("kubectl pitcrew %q: %w: %s", args, err, out)
			}
			return nil
		}
	}
	node := s.nodes[0]
	operator := as("operator", s.account("operator", "pitcrew-view", "pitcrew-operate", "edit"))
	patcher := as("patcher", s.account("patcher", "only-patch-nodes"))
	remediator := s.remediator(s.policy("  budget: {maxNodes: 9}\n  rules: {gpu: {match: {condition: GPUXidError, repair: [Reboot], POOL}}}\n"))
	s.until("the operator's roles are in force", func() error { return operator("quarantine", node) })
	if n, r := s.becomes(node, causes.Quarantined); !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy }) {
		t.Errorf("taints %v, record %+v", n.Spec.Taints, r)
	}
	s.until("the other account's role is in force", func() error {
		if err := patcher("release", node, "--without-validation"); err == nil || !strings.Contains(err.Error(), "noderecords.pitcrew.dev") {
			return fmt.Errorf("an account that may only patch Nodes releases: %w", err)
		}
		return nil
	})
	s.may(operator("release", node), "an operator releases")
	s.becomes(node, causes.Released)
	remediator.Stop(10 * time.Second) // it would answer the abort

	job := jobLike(namespace)["Job"]
	job.SetLabels(map[string]string{conditions.LabelRestarting: "true"})
	s.create(job)
	s.may(operator("abort", "job/"+job.GetName(), "-n", namespace), "an operator aborts a restart")
	s.may(s.client(s.cluster.Admin).Get(t.Context(), client.ObjectKeyFromObject(job), job), "get the job")
	if _, aborted := job.GetAnnotations()[conditions.AnnotationAbortRestart]; !aborted {
		t.Error("the abort is not on the job")
	}
	// A record that cannot be read is removed by an operator who may patch the job.
	cfg, err := s.cluster.ServiceAccountConfig(t.Context(), metav1.NamespaceDefault, "operator")
	if err != nil {
		t.Fatal(err)
	}
	s.may(s.client(cfg).Patch(t.Context(), job, mergePatch(`{"metadata":{"annotations":{%q:"x"}}}`, conditions.AnnotationRestart)), "an operator writes a record")
}

// The API server checks the types of the expressions. A field that no kind has would make a policy refuse everything, or nothing.
func TestExpressionsOfTheAdmissionPoliciesHaveTypes(t *testing.T) {
	t.Parallel()
	s := newScene(t, "types", 1, nil)
	for _, name := range []string{nodePolicy, jobPolicy, reportPolicy, "pitcrew-own-node"} {
		s.until("policy "+name+" was checked", func() error {
			policy := &admissionv1.ValidatingAdmissionPolicy{}
			if err := s.admin.Get(t.Context(), client.ObjectKey{Name: name}, policy); err != nil {
				return err
			}
			if policy.Status.TypeChecking == nil || policy.Status.ObservedGeneration != policy.Generation {
				return errors.New("not checked yet")
			}
			for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
				t.Errorf("%s: %s: %s", name, warning.FieldRef, warning.Warning)
			}
			return nil
		})
	}
}
