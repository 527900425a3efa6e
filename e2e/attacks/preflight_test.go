package attacks

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// reporter is a tenant in a namespace whose preflight reports count. Its account is "tenant", see [scene.tenant].
type reporter struct {
	*scene
	namespace string
	client    client.Client
}

func (s *scene) reporter(namespace string) reporter {
	s.Helper()
	r := reporter{s, namespace, s.tenant(namespace)}
	if _, err := s.cluster.Kubectl(s.Context(), "apply", "-k", filepath.Join(s.cluster.Root, "manifests/preflight/namespace"), "-n", namespace); err != nil {
		s.Fatal(err)
	}
	return r
}

// podOn puts a pod of a Job of the tenant on a node by spec.nodeName, past the scheduler and every taint.
func (r reporter) podOn(node string) *corev1.Pod {
	r.Helper()
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		ServiceAccountName: "tenant", RestartPolicy: corev1.RestartPolicyNever, NodeName: node,
		Containers: []corev1.Container{{Name: "train", Image: "train"}},
	}}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, GenerateName: "train-"}, Spec: batchv1.JobSpec{Template: template}}
	if err := r.client.Create(r.Context(), job); err != nil {
		r.Fatal(err)
	}
	pod := &corev1.Pod{}
	r.until("the tenant's pod runs on "+node, func() error {
		var pods corev1.PodList
		if err := r.client.List(r.Context(), &pods, client.InNamespace(r.namespace), client.MatchingLabels{batchv1.JobNameLabel: job.Name}); err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%d pods %+v", len(pods.Items), pods.Items)
		}
		*pod = pods.Items[0]
		return nil
	})
	return pod
}

// in has the credentials that the kubelet mounts into a pod: a token of its service account that is bound to it.
func (r reporter) in(pod *corev1.Pod) client.Client {
	r.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}}
	if err := r.admin.SubResource("token").Create(r.Context(), account, request); err != nil {
		r.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(r.cluster.Admin)
	cfg.BearerToken = request.Status.Token
	return r.scene.client(cfg)
}

// submit reports the result of the GPU check in a run of one rank, and waits until the remediator has judged it. It does so in
// a second in which the test has not submitted anything: the time of a verdict is that of a ConfigMap, which has seconds.
func (r reporter) submit(pod *corev1.Pod, run string, gpu report.Check) {
	r.Helper()
	next := time.Now().Truncate(time.Second).Add(time.Second)
	r.until("the next second", func() error {
		if time.Now().Before(next) {
			return errors.New("it has not begun")
		}
		return nil
	})
	cm, err := reportconfigmap.New(pod, report.Report{RunID: run, Size: 1, Node: pod.Spec.NodeName, IP: netip.MustParseAddr("10.9.9.9"), GPU: gpu, Storage: report.Passed})
	if err != nil {
		r.Fatal(err)
	}
	if err := r.in(pod).Create(r.Context(), cm); err != nil {
		r.Fatal(err)
	}
	r.until("run "+run+" is judged", func() error {
		var got corev1.ConfigMap
		if err := r.admin.Get(r.Context(), client.ObjectKeyFromObject(cm), &got); err != nil {
			return err
		}
		if text := got.Annotations[conditions.AnnotationPreflightVerdict]; !strings.Contains(text, "run "+run+": 1 of 1 reported") {
			return fmt.Errorf("verdict %q", text)
		}
		return nil
	})
}

// messageOf is the message of the node's PreflightFailed; empty when it is not True.
func messageOf(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == conditions.PreflightFailed && c.Status == corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

// effects are those of the node's quarantine taints.
func effects(n *corev1.Node) []corev1.TaintEffect {
	var all []corev1.TaintEffect
	for _, taint := range n.Spec.Taints {
		if taint.Key == conditions.TaintUnhealthy {
			all = append(all, taint.Effect)
		}
	}
	return all
}

func (s *scene) hasTaint(node string, effect corev1.TaintEffect) {
	s.Helper()
	s.until(fmt.Sprintf("node %s has %s", node, effect), func() error {
		n := s.get(node)
		if got := effects(n); !slices.Equal(got, []corev1.TaintEffect{effect}) {
			return fmt.Errorf("effects %q, record %s", got, n.Annotations[conditions.AnnotationQuarantine])
		}
		return nil
	})
}

// runShipped runs the remediator with the shipped policy in mode enforce; reports of the namespaces count, ops is trusted.
func (s *scene) runShipped(ops reporter, tenants ...reporter) {
	s.Helper()
	policy, err := s.cluster.ShippedPolicy(time.Second)
	if err != nil {
		s.Fatal(err)
	}
	var namespaces []string
	for _, t := range tenants {
		namespaces = append(namespaces, t.namespace)
	}
	s.remediator(policy, "-preflight-namespaces", strings.Join(namespaces, ","), "-preflight-trusted-namespaces", ops.namespace)
}

// A tenant puts a pod on a node of its choice and reports that the node's GPU check has failed. It gets as far as the
// scheduler's preference: the node keeps serving, and the job that runs there is not restarted, until an admin's run or one
// of a second namespace says the same.
func TestAttack03OneTenantReportsAFailedCheck(t *testing.T) {
	s := newScene(t, "failed-check", 4, nil)
	attacker, second, ops := s.reporter("failed-check-a"), s.reporter("failed-check-b"), s.reporter("failed-check-ops")
	victim := s.tenant("failed-check-victim")
	if err := s.cluster.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train, namespace: failed-check-victim, labels: {%s: "true"}}
spec:
  replicatedJobs:
  - {name: workers, template: {spec: {completions: 2, parallelism: 2, completionMode: Indexed, template: {spec: {
      restartPolicy: Never, nodeSelector: {%s: %s},
      containers: [{name: train, image: train, resources: {limits: {nvidia.com/gpu: 8}}}]}}}}}
`, conditions.LabelRestartOnNodeFault, cluster.LabelPool, s.pool)); err != nil {
		t.Fatal(err)
	}
	pods := func() []corev1.Pod {
		var list corev1.PodList
		if err := victim.List(t.Context(), &list, client.InNamespace("failed-check-victim")); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
		return list.Items
	}
	var before []corev1.Pod
	s.until("the victim's job runs", func() error {
		if before = pods(); len(before) != 2 || before[0].Status.Phase != corev1.PodRunning || before[1].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pods %+v", before)
		}
		return nil
	})
	target := before[0].Spec.NodeName
	s.runShipped(ops, attacker, second)

	pod := attacker.podOn(target)
	for _, run := range []string{"lie", "lie-again"} { // a second run of the same tenant confirms nothing
		attacker.submit(pod, run, report.Failed)
		s.until("the verdict is suspected", func() error {
			if got := messageOf(s.get(target)); !strings.HasPrefix(got, "Inspect node: suspected failure of gpu check by run failed-check-a/lie") {
				return fmt.Errorf("message %q", got)
			}
			return nil
		})
		s.hasTaint(target, corev1.TaintEffectPreferNoSchedule)
	}

	// A second, independent namespace confirms it. Only then does the job restart, once.
	confirming := second.podOn(target)
	since := time.Now()
	second.submit(confirming, "also", report.Failed)
	s.hasTaint(target, corev1.TaintEffectNoSchedule)
	if got := messageOf(s.get(target)); got != "Inspect node: confirmed failure of gpu check by run failed-check-b/also" {
		t.Errorf("message %q", got)
	}
	s.until("the victim's job has restarted elsewhere", func() error {
		job := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet"}}
		if err := s.admin.Get(t.Context(), client.ObjectKey{Namespace: "failed-check-victim", Name: "train"}, job); err != nil {
			return err
		}
		text := job.Annotations[conditions.AnnotationRestart]
		r, err := restart.ReadRecord(job)
		if err != nil {
			return err
		}
		if r.Current != nil || len(r.Last) == 0 {
			return fmt.Errorf("record %s", text)
		}
		if r.Total != 1 || len(r.Last) != 1 || r.Last[0].StartedAt.Before(since) || r.Last[0].Quarantines[0].Taint.Effect != corev1.TaintEffectNoSchedule {
			t.Fatalf("record %s", text)
		}
		for _, pod := range pods() {
			if pod.Spec.NodeName == target && pod.DeletionTimestamp == nil {
				return fmt.Errorf("pod %s is on %s", pod.Name, target)
			}
		}
		return nil
	})
}
