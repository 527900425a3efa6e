package attacks

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/remediator/preflight"
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
	r.until("the tenant's roles are in force", func() error { return client.IgnoreAlreadyExists(r.client.Create(r.Context(), job)) })
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

// An admin's run has found that a node fails its check. A tenant reports the same, so that the verdict seems to be its own,
// and then a clean run. Neither that nor the tenant's further reports change what the admins have confirmed. Their own clean
// run ends it.
func TestAttack14ATenantLaundersAnAdminsVerdict(t *testing.T) {
	s := newScene(t, "laundry", 1, nil)
	tenant, ops := s.reporter("laundry-a"), s.reporter("laundry-ops")
	target := s.nodes[0]
	s.runShipped(ops, tenant)

	admins := ops.podOn(target)
	ops.submit(admins, "found", report.Failed)
	s.hasTaint(target, corev1.TaintEffectNoSchedule)
	found := messageOf(s.get(target))
	if found != "Inspect node: confirmed failure of gpu check by run laundry-ops/found" {
		t.Fatalf("message %q", found)
	}
	tenants := tenant.podOn(target)
	tenant.submit(tenants, "mine", report.Failed)
	tenant.submit(tenants, "clean", report.Passed)
	tenant.submit(tenants, "last", report.Passed) // runs are judged one after the other: clean is through
	n := s.get(target)
	if got := messageOf(n); got != found {
		t.Errorf("message %q, want %q", got, found)
	}
	if got := effects(n); !slices.Equal(got, []corev1.TaintEffect{corev1.TaintEffectNoSchedule}) {
		t.Errorf("effects %q", got)
	}

	ops.submit(admins, "repaired", report.Passed)
	s.until("the node is released", func() error {
		if n := s.get(target); messageOf(n) != "" || len(effects(n)) > 0 {
			return fmt.Errorf("message %q, effects %q", messageOf(n), effects(n))
		}
		return nil
	})
}

// withoutReportPolicies switches the admission policies of preflight reports off until the returned function is called.
func (s *scene) withoutReportPolicies(try func() error) (restore func()) {
	s.Helper()
	var bindings admissionv1.ValidatingAdmissionPolicyBindingList
	if err := s.admin.List(s.Context(), &bindings); err != nil {
		s.Fatal(err)
	}
	n := 0
	for i := range bindings.Items {
		if b := &bindings.Items[i]; strings.HasPrefix(b.Name, "pitcrew-preflight") {
			n++
			if err := s.admin.Delete(s.Context(), b); err != nil {
				s.Fatal(err)
			}
		}
	}
	if n == 0 {
		s.Fatal("no admission policy for preflight reports is bound")
	}
	s.until("the policies are off", try)
	return func() {
		s.Helper()
		//nolint:usetesting // a cleanup runs after the test's own context has ended
		ctx := context.Background()
		text, err := os.ReadFile(filepath.Join(s.cluster.Root, "manifests/preflight/admission.yaml"))
		if err == nil {
			err = s.cluster.Apply(ctx, text)
		}
		if err != nil {
			s.Error(err)
		}
	}
}

// huge is a ConfigMap with the label of a report and as many labels as etcd takes: those have no limit of their own.
func huge(namespace, name string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels:      map[string]string{conditions.LabelPreflight: "report", conditions.LabelPreflightRun: "huge"},
			Annotations: map[string]string{conditions.AnnotationPreflightPod: strings.Repeat("p", 250_000)},
		},
		Immutable: new(true),
		Data:      map[string]string{reportconfigmap.Key: "{}"},
	}
	prefix := strings.Repeat("x", 50) + "."
	for i := range 1500 {
		cm.Labels[fmt.Sprintf("%s/%s-%d", strings.Repeat(prefix, 4)+"io", strings.Repeat("y", 50), i)] = strings.Repeat("z", 63)
	}
	return cm
}

// peakMemory is the most memory that a process has had, in MiB.
func peakMemory(t *testing.T, p *cluster.Process) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no VmHWM in %s", text)
	}
	kib, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}

// A tenant fills a namespace with ConfigMaps that have the label of a report and megabytes of metadata. The remediator keeps
// none of it, whether the API server streams the ConfigMaps or lists them, refuses each once, and judges another tenant's run
// as before. The remediator's memory limit in the chart is 256 MiB.
func TestAttack08PreflightConfigMapsFillTheMemory(t *testing.T) {
	s := newScene(t, "memory", 1, nil)
	attacker, tenant := s.reporter("memory-a"), s.reporter("memory-b")
	pod := tenant.podOn(s.nodes[0])
	policy := s.policy(`
  budget: {maxNodes: 1}
  rules:
    preflight: {match: {condition: PreflightFailed, repair: [Inspect], POOL}, unknownAfter: 168h}
`)
	run := 0
	// peak is the memory of a remediator that has judged a run, after it has listed all ConfigMaps.
	peak := func() int {
		p := s.remediator(policy, "-preflight-namespaces", "memory-a,memory-b")
		run++
		tenant.submit(pod, fmt.Sprint("run-", run), report.Passed)
		mib := peakMemory(t, p)
		p.Stop(10 * time.Second)
		return mib
	}
	modes := map[string]string{"streamed": "true", "listed": "false"}
	quiet := map[string]int{}
	for mode, value := range modes {
		t.Setenv("KUBE_FEATURE_WatchListClient", value)
		quiet[mode] = peak()
	}

	// A pod of the tenant may write reports, but hardly ones of this size. Without the policies it may.
	const n = 100
	inPod := attacker.in(attacker.podOn(s.nodes[0]))
	restore := s.withoutReportPolicies(func() error {
		probe := huge("memory-a", "probe")
		return inPod.Create(t.Context(), probe, client.DryRunAll)
	})
	t.Cleanup(restore)
	for i := range n {
		cm := huge("memory-a", fmt.Sprint("huge-", i))
		// etcd compacts and answers late on a busy machine.
		if err := retry.OnError(retry.DefaultBackoff, func(err error) bool { return !apierrors.IsAlreadyExists(err) }, func() error {
			return inPod.Create(t.Context(), cm.DeepCopy())
		}); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	restore()

	const more = 64 // MiB
	for mode, value := range modes {
		t.Setenv("KUBE_FEATURE_WatchListClient", value)
		loaded := peak()
		t.Logf("%s: %d MiB with %d large ConfigMaps, %d MiB without", mode, loaded, n, quiet[mode])
		if loaded > quiet[mode]+more {
			t.Errorf("%s: %d MiB with %d large ConfigMaps, %d MiB without", mode, loaded, n, quiet[mode])
		}
	}
	// One of them is refused with a reason, once.
	s.until("they are refused", func() error {
		var list eventsv1.EventList
		if err := s.admin.List(t.Context(), &list, client.InNamespace("memory-a")); err != nil {
			return err
		}
		refused := map[string]int{}
		for _, e := range list.Items {
			if e.Reason == preflight.Refused && strings.Contains(e.Note, "its labels, annotations, owners and finalizers have ") {
				refused[e.Regarding.Name]++
			}
		}
		if len(refused) == 0 {
			return errors.New("no Event")
		}
		return nil
	})
}
