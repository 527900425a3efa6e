package attacks

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// onRepairInputs is the admission policy on what the templates of repairs have their pods mount and read.
const onRepairInputs = "pitcrew-repair-inputs"

const inRepair = client.InNamespace(conditions.RepairNamespace)

// rightsWhereNodesAreRepaired are the resources that an admin of all namespaces may write in that of repairs, and why nobody is root on a
// node by that. What is denied is tried below.
var rightsWhereNodesAreRepaired = map[string]string{
	"pods":                                 "denied but for deletion, which stops a repair",
	"batch jobs":                           "denied but for deletion, which stops a repair",
	"pods/exec":                            "denied",
	"pods/attach":                          "denied",
	"pods/portforward":                     "denied",
	"pods/proxy":                           "denied",
	"batch cronjobs":                       "their Jobs are denied",
	"apps daemonsets":                      "their pods are denied",
	"apps deployments":                     "their pods are denied",
	"apps replicasets":                     "their pods are denied",
	"apps statefulsets":                    "their pods are denied",
	"replicationcontrollers":               "their pods are denied",
	"configmaps":                           "denied for those that a template names",
	"secrets":                              "denied for those that a template names",
	"persistentvolumeclaims":               "denied for those that a template names, but for changes, which make no other volume of one",
	"pods/eviction":                        "stops a repair",
	"serviceaccounts":                      "no account there has rights, and no pod a token",
	"serviceaccounts/token":                "no account there has rights",
	"rbac.authorization roles":             "nobody grants rights that they do not have, and so none to write PodTemplates",
	"rbac.authorization rolebindings":      "as roles",
	"networking ingresses":                 "no pod there listens",
	"networking networkpolicies":           "no pod there listens, or has anything to send",
	"services":                             "no pod there listens",
	"services/proxy":                       "no pod there listens",
	"autoscaling horizontalpodautoscalers": "nothing there scales",
	"policy poddisruptionbudgets":          "no pod there is evicted",
	"resource resourceclaims":              "give a pod a device, which is privileged anyway",
	"resource resourceclaimtemplates":      "as resourceclaims",
	"events":                               "are read by people",
	"events events":                        "are read by people",
	"coordination leases":                  "nothing there elects",
	// Reviews are questions.
	"authentication selfsubjectreviews": "", "authorization localsubjectaccessreviews": "",
	"authorization selfsubjectaccessreviews": "", "authorization selfsubjectrulesreviews": "",
}

// Nothing that Kubernetes lets an admin of namespaces write has been forgotten: a resource that a later release adds fails this test.
func TestAttack23WhatAnAdminOfNamespacesMayWriteWhereNodesAreRepaired(t *testing.T) {
	t.Parallel()
	r := newRepair(t, "repair-rights")
	admin := r.client(r.account("repair-rights", "admin"))
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: conditions.RepairNamespace}}
	r.until("the admin's role is in force", func() error {
		if err := admin.Create(t.Context(), review); err != nil {
			return err
		}
		if len(review.Status.ResourceRules) < 10 {
			return fmt.Errorf("%d rules", len(review.Status.ResourceRules))
		}
		return nil
	})
	found := map[string]bool{}
	for _, rule := range review.Status.ResourceRules {
		if !slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) }) {
			continue
		}
		for _, group := range rule.APIGroups {
			for _, name := range rule.Resources {
				name, sub, _ := strings.Cut(name, "/")
				group, _, _ := strings.Cut(group, ".")
				switch key := strings.TrimSpace(group + " " + name); {
				case group == "extensions", sub == "scale", sub == "rollback": // old names, and parts of a workload
				case sub != "":
					found[key+"/"+sub] = true
				default:
					found[key] = true
				}
			}
		}
	}
	for key := range found {
		key := strings.Replace(key, "rbac ", "rbac.authorization ", 1)
		if _, known := rightsWhereNodesAreRepaired[key]; !known {
			t.Errorf("an admin of namespaces may write %s, and nobody has said why that harms no node", key)
		}
	}
	for _, key := range []string{"pods", "batch jobs", "configmaps", "pods/exec"} {
		if !found[key] {
			t.Errorf("an admin of namespaces may not write %s: the test reads the rules wrongly", key)
		}
	}
}

// A template of an admin's own reads a script from a ConfigMap. Who may edit ConfigMaps everywhere is not root on the nodes by that.
func TestAttack23WhatATemplateReadsIsWrittenByWhoWritesTemplates(t *testing.T) {
	t.Parallel()
	r := newRepair(t, "repair-inputs")
	ctx := t.Context()
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: name}
	}
	source := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	container := corev1.Container{
		Name: "main", Image: "x",
		EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: source("env-from")}}},
		Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: source("env"), Key: "a",
		}}}},
	}
	r.create(&corev1.PodTemplate{ObjectMeta: meta("own"), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{container},
		Volumes: []corev1.Volume{
			{Name: "a", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: source("script")}}},
			{Name: "b", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "bundles"}}},
			{Name: "d", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: source("projected")}},
			}}}},
		},
	}}})
	editor := r.client(r.account("repair-inputs", "edit"))
	data := map[string]string{"a": "b"}
	r.enforced(onRepairInputs, func() error {
		return editor.Create(ctx, &corev1.ConfigMap{ObjectMeta: meta("script"), Data: data}, client.DryRunAll)
	})
	claim := func(name string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta(name), Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		}}
	}
	for _, object := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: meta("script")}, &corev1.ConfigMap{ObjectMeta: meta("projected")},
		&corev1.ConfigMap{ObjectMeta: meta("env-from")},
		&corev1.Secret{ObjectMeta: meta("env")}, &corev1.Secret{ObjectMeta: meta("key")}, claim("bundles"),
	} {
		name := fmt.Sprintf("%T %s", object, object.GetName())
		r.reasoned(editor.Create(ctx, object.DeepCopyObject().(client.Object)), onRepairInputs, "create "+name)
		r.create(object)
		if _, isClaim := object.(*corev1.PersistentVolumeClaim); !isClaim {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`))
			r.reasoned(editor.Patch(ctx, object.DeepCopyObject().(client.Object), patch), onRepairInputs, "change "+name)
		}
		r.reasoned(editor.Delete(ctx, object), onRepairInputs, "delete "+name)
	}
	r.reasoned(editor.DeleteAllOf(ctx, &corev1.ConfigMap{}, inRepair), onRepairInputs, "delete all ConfigMaps")
	other := &corev1.ConfigMap{ObjectMeta: meta("other"), Data: data}
	r.may(editor.Create(ctx, other), "a ConfigMap that no template names")
	r.may(editor.Delete(ctx, other), "delete it")
}

// What the built-in controllers would make for an editor, and what is left of an exec, is tried here; the rest in the tests beside.
func TestAttack23NoControllerMakesARepairForAnEditor(t *testing.T) {
	t.Parallel()
	r := newRepair(t, "repair-workloads")
	ctx := t.Context()
	cfg := r.account("repair-workloads", "edit")
	editor := r.client(cfg)
	labels := map[string]string{"app": "x"}
	meta := metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "x"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: r.pod().Spec}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	workloads := []client.Object{
		&appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: corev1.PodTemplateSpec{
			ObjectMeta: template.ObjectMeta, Spec: corev1.PodSpec{Containers: template.Spec.Containers},
		}}},
		&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}},
		&corev1.ReplicationController{ObjectMeta: meta, Spec: corev1.ReplicationControllerSpec{Selector: labels, Template: &template}},
	}
	r.until("the editor's role is in force", func() error {
		return editor.List(ctx, &batchv1.JobList{}, inRepair)
	})
	for _, w := range workloads {
		r.may(editor.Create(ctx, w), fmt.Sprintf("%T, which has no effect", w))
	}
	r.until("the pods of all are refused", func() error {
		var events corev1.EventList
		if err := r.admin.List(ctx, &events, inRepair); err != nil {
			return err
		}
		for _, w := range workloads {
			if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return e.InvolvedObject.UID == w.GetUID() && strings.Contains(e.Message, onRepairPods)
			}) {
				return fmt.Errorf("%T: %d events", w, len(events.Items))
			}
		}
		return nil
	})
	// As the controller of CronJobs, which runs once a minute.
	controller, err := r.cluster.Config("system:serviceaccount:kube-system:cronjob-controller", "system:serviceaccounts",
		"system:serviceaccounts:kube-system", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	r.reasoned(r.client(controller).Create(ctx, r.job(r.admin, "check")), onRepairJobs, "a Job of a CronJob")

	running := r.job(r.admin, "check")
	r.may(r.admin.Create(ctx, running), "the Job")
	var pods corev1.PodList
	r.until("the Job has a pod", func() error {
		if err := r.admin.List(ctx, &pods, inRepair, client.MatchingLabels{batchv1.JobNameLabel: running.Name}); err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("%d pods", len(pods.Items))
		}
		return nil
	})
	pod := pods.Items[0].Name
	all, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	core := all.CoreV1().RESTClient()
	err = core.Get().Namespace(conditions.RepairNamespace).Resource("pods").Name(pod).SubResource("proxy").Do(ctx).Error()
	r.reasoned(err, onRepairChanges, "the proxy of a pod")
	for key, patch := range map[string]string{
		"the visit of a Job":    `{"metadata":{"labels":{"pitcrew.dev/visit":null}}}`,
		"the template of a Job": `{"metadata":{"labels":{"pitcrew.dev/template":"reboot"}}}`,
		"the node of a Job":     `{"metadata":{"annotations":{"pitcrew.dev/node":"other"}}}`,
	} {
		r.reasoned(editor.Patch(ctx, running.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch))), onRepairChanges, key)
	}
	labelled := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"a"}}}`))
	r.may(editor.Patch(ctx, running.DeepCopy(), labelled), "a label of others")
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: pod},
		Target:     corev1.ObjectReference{Kind: "Node", Name: "other"},
	}
	if err := r.admin.SubResource("binding").Create(ctx, &pods.Items[0], binding); !apierrors.IsConflict(err) {
		t.Errorf("a pod is bound to another node: %v", err)
	}
	// A token of the only account there may do nothing.
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "pitcrew-repair"}}
	r.may(editor.SubResource("token").Create(ctx, account, request), "a token of the account")
	cfg.BearerToken, cfg.BearerTokenFile = request.Status.Token, ""
	check := client.ObjectKey{Namespace: conditions.RepairNamespace, Name: "check"}
	if err := r.client(cfg).Get(ctx, check, &corev1.PodTemplate{}); !apierrors.IsForbidden(err) {
		t.Errorf("the account of repairs may read: %v", err)
	}
	for _, object := range append(workloads, running) {
		r.may(r.admin.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground)), fmt.Sprintf("delete %T", object))
	}
}
