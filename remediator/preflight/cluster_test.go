package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/schedule"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{JobSet: true}) }

// waitTimeout is how long a test waits for what takes seconds.
const waitTimeout = 2 * time.Minute

// site is a namespace with a job of one pod on each of its nodes, in a cluster with the admission policies.
type site struct {
	*testing.T
	*cluster.Cluster
	namespace string
	pods      []corev1.Pod
}

func (s site) Context() context.Context { return s.T.Context() }

// newSite has a Job that fills n nodes.
func newSite(t *testing.T, namespace string, n int) site {
	t.Helper()
	s := prepare(t, namespace, n)
	s.must(s.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: %s}
spec: %s
`, namespace, s.job(n))))
	s.waitForPods(n)
	return s
}

// prepare makes nodes and a namespace whose reports count.
func prepare(t *testing.T, namespace string, nodes int) site {
	t.Helper()
	s := site{t, clustertest.Get(t), namespace, nil}
	s.must(s.AddNamespace(t.Context(), namespace, nil))
	for _, args := range [][]string{
		{"apply", "-k", s.Root + "/manifests/preflight"},
		{"apply", "-k", s.Root + "/manifests/preflight/namespace", "-n", namespace},
	} {
		if out, err := s.Kubectl(t.Context(), args...); err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	_, err := s.AddNodes(t.Context(), namespace, nodes, nil)
	s.must(err)
	return s
}

// job is the spec of a Job each of whose pods takes all GPUs of a node.
func (s site) job(n int) string {
	return fmt.Sprintf(`{completions: %[1]d, parallelism: %[1]d, completionMode: Indexed, template: {spec: {
  serviceAccountName: pitcrew-preflight, restartPolicy: Never, nodeSelector: {%s: %s},
  containers: [{name: train, image: train, resources: {limits: {nvidia.com/gpu: 8}}}]}}}`, n, cluster.LabelPool, s.namespace)
}

// waitForPods waits until n pods that are not being deleted have their nodes. They are the ranks, in the order of the nodes.
func (s *site) waitForPods(n int) {
	s.Helper()
	s.until("the job's pods are scheduled", func() error {
		var pods corev1.PodList
		if err := s.Client.List(s.Context(), &pods, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		s.pods = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
			return p.Spec.NodeName == "" || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed
		})
		if len(s.pods) != n {
			return fmt.Errorf("%d of %d are scheduled", len(s.pods), n)
		}
		return nil
	})
	slices.SortFunc(s.pods, func(a, b corev1.Pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
}

func (s site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// until polls until check returns nil, or fails the test with the last error.
func (s site) until(what string, check func() error) {
	s.Helper()
	clustertest.Until(s, waitTimeout, what, check)
}

// as is a client with a token that is bound to a pod, as the kubelet mounts it.
func (s site) as(account string, pod *corev1.Pod) client.Client {
	s.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: account}}
	s.must(s.Client.SubResource("token").Create(s.Context(), sa, request))
	cfg := rest.AnonymousClientConfig(s.Admin)
	cfg.BearerToken = request.Status.Token
	c, err := client.New(cfg, client.Options{Scheme: s.Client.Scheme(), Mapper: s.Client.RESTMapper()})
	s.must(err)
	return c
}

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}) }

// reports are those of a run in which each slow rank has half of the bandwidth.
func (s site) reports(run string, slow ...int) []report.Report {
	n := len(s.pods)
	reports := make([]report.Report, n)
	for i := range reports {
		reports[i] = report.Report{RunID: run, Size: n, Rank: i, Node: s.pods[i].Spec.NodeName, IP: address(i), GPU: report.Passed, Storage: report.Passed}
	}
	for index, pairs := range schedule.Rounds(n, schedule.MaxRounds, 1, nil) {
		for _, p := range pairs {
			gibps := 100.0
			if slices.Contains(slow, p[0]) || slices.Contains(slow, p[1]) {
				gibps = 50
			}
			pair := [2]netip.Addr{address(min(p[0], p[1])), address(max(p[0], p[1]))}
			for _, i := range p {
				reports[i].Batches = append(reports[i].Batches, report.Batch{Index: index, Pair: pair, Self: address(i), Bandwidth: gibps})
			}
		}
	}
	return reports
}

func (s site) submit(reports []report.Report) {
	s.Helper()
	for _, r := range reports {
		pod := &s.pods[r.Rank]
		cm, err := reportconfigmap.New(pod, r)
		s.must(err)
		s.must(s.as("pitcrew-preflight", pod).Create(s.Context(), cm))
	}
}

// start runs the built remediator under its own account, with the shipped roles and a policy for SlowNode.
func (s site) start(args ...string) *cluster.Process {
	s.Helper()
	path := filepath.Join(s.TempDir(), "policy.yaml")
	s.must(os.WriteFile(path, fmt.Appendf(nil, `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 3}
  rules:
    slow-node:
      match: {condition: SlowNode, repair: [Inspect], nodeSelector: {%s: %s}}
      taint: {effect: PreferNoSchedule}
      unknownAfter: 168h
`, cluster.LabelPool, s.namespace), 0o644))
	return s.run(append([]string{"-policy", path, "-leader-elect=false", "-preflight-namespaces", s.namespace}, args...)...)
}

// run runs the built remediator under its own account until the test ends. The API server must not refuse it any request.
func (s site) run(args ...string) *cluster.Process {
	s.Helper()
	p, err := s.StartRemediator(s.Context(), args...)
	s.must(err)
	s.Cleanup(func() {
		p.Stop(10 * time.Second)
		if log := p.Log(); s.Failed() || strings.Contains(log, "is forbidden") || strings.Contains(log, "panic") {
			s.Errorf("log of the remediator:\n%s", log)
		}
	})
	return p
}

// waitForCondition waits until a condition of a node has a status and returns it.
func (s site) waitForCondition(node, conditionType string, status corev1.ConditionStatus) corev1.NodeCondition {
	s.Helper()
	var c corev1.NodeCondition
	s.until(fmt.Sprintf("%s of %s is %s", conditionType, node, status), func() error {
		n := s.node(node)
		var found bool
		if c, found = condition(n, conditionType); !found || c.Status != status {
			return fmt.Errorf("conditions %+v", n.Status.Conditions)
		}
		return nil
	})
	return c
}

// removeCondition removes a condition from a node.
func (s site) removeCondition(node, conditionType string) {
	s.Helper()
	target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	s.must(s.Client.Status().Patch(s.Context(), target, client.RawPatch(types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"status":{"conditions":[{"$patch":"delete","type":%q}]}}`, conditionType))))
}

func (s site) node(name string) *corev1.Node {
	s.Helper()
	n := &corev1.Node{}
	s.must(s.Client.Get(s.Context(), client.ObjectKey{Name: name}, n))
	return n
}

// verdicts are the annotations on a run's reports, by node.
func (s site) verdicts(run string) map[string]string {
	s.Helper()
	var list corev1.ConfigMapList
	s.must(s.Client.List(s.Context(), &list, client.InNamespace(s.namespace), client.MatchingLabels{conditions.LabelPreflightRun: run}))
	verdicts := map[string]string{}
	for _, cm := range list.Items {
		if v := cm.Annotations[conditions.AnnotationPreflightVerdict]; v != "" {
			verdicts[cm.Annotations[conditions.AnnotationPreflightNode]] = v
		}
	}
	return verdicts
}

// waitForEvent waits for an Event in the site's namespace.
func (s site) waitForEvent(reason string, texts ...string) {
	s.Helper()
	s.until("Event "+reason, func() error {
		var list eventsv1.EventList
		if err := s.Client.List(s.Context(), &list, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.Reason == reason && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Note, text) }) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Note)
		}
		return fmt.Errorf("Events %q", seen)
	})
}

func TestTheSlowAndTheFailedNodeOf64AreFound(t *testing.T) {
	s := newSite(t, "sixty-four", 64)
	reports := s.reports("first", 17)
	reports[40].GPU, reports[40].Batches = report.Failed, nil
	p := s.start()
	s.submit(reports)

	slow := s.pods[17].Spec.NodeName
	found := s.waitForCondition(slow, conditions.SlowNode, corev1.ConditionTrue)
	if want := "Inspect node: suspected slow by run sixty-four/first, drop 0.50, seen by 5 partners"; found.Message != want {
		t.Errorf("message %q, want %q", found.Message, want)
	}
	if c := s.waitForCondition(s.pods[40].Spec.NodeName, conditions.PreflightFailed, corev1.ConditionTrue); c.Message != "Inspect node: suspected failure of gpu check by run sixty-four/first" {
		t.Errorf("message %q", c.Message)
	}
	s.waitForEvent(Verdict, "64 of 64 reported", "slow: "+slow, "failed: "+s.pods[40].Spec.NodeName)
	s.until("the slow node is avoided", func() error {
		for _, taint := range s.node(slow).Spec.Taints {
			if taint.ToString() == "pitcrew.dev/unhealthy=SlowNode:PreferNoSchedule" {
				return nil
			}
		}
		return fmt.Errorf("taints %v", s.node(slow).Spec.Taints)
	})
	// The verdict is written on the reports too: about the run on the first one, about a node on its own.
	s.until("the verdicts are on the reports", func() error {
		got := s.verdicts("first")
		for rank, want := range map[int]string{17: "slow: p 1.000, drop 0.50, seen by 5 partners", 40: "failed: a local check"} {
			if node := s.pods[rank].Spec.NodeName; !strings.HasPrefix(got[node], want) {
				return fmt.Errorf("on the report of %s: %q, want %q", node, got[node], want)
			}
		}
		// One of the three is the first report, which may be that of a node of the other two.
		if about := slices.Collect(maps.Values(got)); len(about) > 3 || !slices.ContainsFunc(about, func(v string) bool { return strings.Contains(v, "64 of 64 reported") }) {
			return fmt.Errorf("annotations %q", about)
		}
		return nil
	})
	for i, pod := range s.pods {
		for _, v := range conditions.Verdicts {
			if c, found := condition(s.node(pod.Spec.NodeName), v.Type); found && i != 17 && i != 40 {
				t.Errorf("node %s: %+v", pod.Spec.NodeName, c)
			}
		}
	}

	// Another process reads the same reports and changes nothing. It restores the condition that a node has lost, which shows
	// that it has read them.
	p.Stop(10 * time.Second)
	before := s.node(slow)
	failed := s.pods[40].Spec.NodeName
	s.removeCondition(failed, conditions.PreflightFailed)
	s.start()
	s.waitForCondition(failed, conditions.PreflightFailed, corev1.ConditionTrue)
	after, _ := condition(s.node(slow), conditions.SlowNode)
	if was, _ := condition(before, conditions.SlowNode); was != after {
		t.Errorf("after a restart %+v, before %+v", after, was)
	}

	// The second preflight of the same pods is another run, and clean.
	s.submit(s.reports("second"))
	s.waitForCondition(slow, conditions.SlowNode, corev1.ConditionFalse)
	s.waitForCondition(failed, conditions.PreflightFailed, corev1.ConditionFalse)
}

func TestBadReportsAreRefusedAndDelayNoOther(t *testing.T) {
	s := newSite(t, "refused", 8)
	reports, begun := s.reports("r", 2), time.Now()
	// Two ranks' reports are bad: one has another size, one is not a report at all.
	reports[6].Size = 12
	pod := &s.pods[7]
	broken, err := reportconfigmap.New(pod, reports[7])
	s.must(err)
	broken.Data[reportconfigmap.Key] = `{"workload_size":8,"rank":7,"node_name":"` + pod.Spec.NodeName + `","node_check_busbw_threshold_gbps":"NaN"}`
	s.must(s.as("pitcrew-preflight", pod).Create(t.Context(), broken))
	s.submit(reports[:7])
	// The time is that of the reports, which are slow on a busy machine, and some for the remediator to start.
	collect := time.Since(begun).Round(time.Second) + 30*time.Second
	s.start("-preflight-trusted-namespaces", "refused", "-preflight-report-collection-timeout", collect.String())

	s.waitForEvent(Refused, "NaN")
	s.waitForEvent(Refused, "report of pod "+s.pods[6].Name+" in run r refused: workload_size is 12, but the run has 8")
	s.until("the refusals are on the reports", func() error {
		got := s.verdicts("r")
		if six, seven := got[s.pods[6].Spec.NodeName], got[pod.Spec.NodeName]; !strings.HasPrefix(six, "refused: workload_size is 12") || !strings.HasPrefix(seven, "refused: ") {
			return fmt.Errorf("annotations %q", got)
		}
		return nil
	})
	// The run ends by timeout, with a verdict from the reports that arrived. An admin's run confirms it immediately.
	found := s.waitForCondition(s.pods[2].Spec.NodeName, conditions.SlowNode, corev1.ConditionTrue)
	if !strings.HasPrefix(found.Message, "Inspect node: confirmed slow by run refused/r") {
		t.Errorf("message %q", found.Message)
	}
	s.waitForEvent(Incomplete, "6 of 8 reported", "suspects that did not report: "+s.pods[6].Spec.NodeName+", "+s.pods[7].Spec.NodeName)
	// A pod can report in a limited number of runs.
	reporter := s.as("pitcrew-preflight", &s.pods[0])
	for i := range maxPerPod {
		another := reports[0]
		another.RunID = fmt.Sprint("another-", i)
		cm, err := reportconfigmap.New(&s.pods[0], another)
		s.must(err)
		if i == maxPerPod-1 { // times of creation have seconds, and all the others must be older
			next := time.Now().Truncate(time.Second).Add(time.Second)
			s.until("the next second", func() error {
				if time.Now().Before(next) {
					return errors.New("it has not begun")
				}
				return nil
			})
		}
		s.must(reporter.Create(t.Context(), cm))
	}
	s.waitForEvent(Refused, fmt.Sprintf("refused: pod %s has already submitted %d reports", s.pods[0].Name, maxPerPod))
}

func TestAReportComesFromTheNodeThatItNames(t *testing.T) {
	s := newSite(t, "admission", 2)
	reports := s.reports("r")
	own, err := reportconfigmap.New(&s.pods[0], reports[0])
	s.must(err)
	other, err := reportconfigmap.New(&s.pods[1], reports[1])
	s.must(err)
	reporter := s.as("pitcrew-preflight", &s.pods[0])

	// The policies take a moment to be in force.
	s.until("a report for another node is refused", func() error {
		switch err := reporter.Create(s.Context(), other.DeepCopy()); {
		case err == nil:
			s.must(s.Client.Delete(s.Context(), other.DeepCopy()))
			return errors.New("it was admitted")
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
			return nil
		default:
			return err
		}
	})
	if err := s.Client.Create(t.Context(), other.DeepCopy()); err == nil {
		t.Error("a report without a pod was admitted")
	}
	s.must(reporter.Create(t.Context(), own))
	if err := reporter.Create(t.Context(), own.DeepCopy()); err == nil {
		t.Error("one report was created twice")
	}
	for name, change := range map[string]func(*corev1.ConfigMap){
		"its node":  func(cm *corev1.ConfigMap) { cm.Annotations[conditions.AnnotationPreflightNode] = "x" },
		"its label": func(cm *corev1.ConfigMap) { delete(cm.Labels, conditions.LabelPreflight) },
		"its run":   func(cm *corev1.ConfigMap) { cm.Labels[conditions.LabelPreflightRun] = "x" },
	} {
		cm := own.DeepCopy()
		change(cm)
		if err := s.Client.Update(t.Context(), cm); err == nil {
			t.Errorf("an update of %s was admitted", name)
		}
	}
	// The remediator may write what it decided, and nothing else; the reporter may not.
	const verdict = `{"metadata":{"annotations":{"pitcrew.dev/preflight-verdict":"slow"}}}`
	patch := func(c client.Client, name, patch string) error {
		target := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
		return c.Patch(s.Context(), target, client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	free := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "no-report"}}
	s.must(s.Client.Create(t.Context(), free))
	s.must(s.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reporter-patches, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: ServiceAccount, name: pitcrew-preflight, namespace: %[1]s}]
`, s.namespace)))
	s.until("the reporter may edit ConfigMaps", func() error { return patch(reporter, free.Name, `{"data":{"a":"b"}}`) })
	if _, err := s.Kubectl(t.Context(), "apply", "-f", s.Root+"/manifests/remediator/rbac.yaml"); err != nil {
		t.Fatal(err)
	}
	config, err := s.ServiceAccountConfig(t.Context(), "pitcrew", "pitcrew-remediator")
	s.must(err)
	remediator, err := client.New(config, client.Options{Scheme: s.Client.Scheme(), Mapper: s.Client.RESTMapper()})
	s.must(err)
	for what, refused := range map[string]error{
		"the reporter's verdict":               patch(reporter, own.Name, verdict),
		"a label by the remediator":            patch(remediator, own.Name, `{"metadata":{"labels":{"a":"b"}}}`),
		"another annotation by the remediator": patch(remediator, own.Name, `{"metadata":{"annotations":{"pitcrew.dev/preflight-node":"x"}}}`),
		"a lost annotation":                    patch(remediator, own.Name, `{"metadata":{"annotations":{"pitcrew.dev/preflight-pod":null}}}`),
		"no owner":                             patch(remediator, own.Name, `{"metadata":{"ownerReferences":null}}`),
		"another ConfigMap by the remediator":  patch(remediator, free.Name, verdict),
	} {
		if !apierrors.IsForbidden(refused) && !apierrors.IsInvalid(refused) {
			t.Errorf("%s: %v", what, refused)
		}
	}
	s.must(patch(remediator, own.Name, verdict))
}

func TestNPDPatchesItsOwnNodeOnly(t *testing.T) {
	s := newSite(t, "own-node", 2)
	s.must(s.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: node-problem-detector, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: npd-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-problem-detector}
subjects: [{kind: ServiceAccount, name: node-problem-detector, namespace: %[1]s}]
---
apiVersion: v1
kind: Pod
metadata: {name: npd, namespace: %[1]s}
spec:
  serviceAccountName: node-problem-detector
  nodeName: %[2]s
  containers: [{name: npd, image: npd}]
`, s.namespace, s.pods[0].Spec.NodeName)))
	var pod corev1.Pod
	s.must(s.Client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "npd"}, &pod))
	npd := s.as("node-problem-detector", &pod)
	patch := func(node string) error {
		return npd.Status().Patch(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.StrategicMergePatchType,
			[]byte(`{"status":{"conditions":[{"type":"GPUXidError","status":"True","reason":"x","message":"`+node+`"}]}}`)))
	}
	s.until("another node's status is refused", func() error {
		switch err := patch(s.pods[1].Spec.NodeName); {
		case err == nil:
			return errors.New("it was admitted")
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
			if !strings.Contains(err.Error(), "its own node only") {
				return err // the role is not in force yet
			}
			return nil
		default:
			return err
		}
	})
	own := s.pods[0].Spec.NodeName
	s.must(patch(own))
	// By the status, which is all that its role has, it would also change what no kubelet may.
	for what, metadata := range map[string]string{
		"a label of Kubernetes": `{"labels":{"topology.kubernetes.io/rack":"other"}}`,
		"a lost label":          `{"labels":{"` + cluster.LabelPool + `":null}}`,
		"an annotation":         `{"annotations":{"example.com/a":"b"}}`,
		"a finalizer":           `{"finalizers":["example.com/a"]}`,
		"an owner":              `{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"y"}]}`,
	} {
		err := npd.Status().Patch(s.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: own}},
			client.RawPatch(types.MergePatchType, []byte(`{"metadata":`+metadata+`}`)))
		if (!apierrors.IsForbidden(err) && !apierrors.IsInvalid(err)) || !strings.Contains(err.Error(), "no label, annotation, finalizer or owner") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The pods of a LeaderWorkerSet's group report as one run, though the workers' StatefulSet belongs to the leader's pod. A ConfigMap stands for
// the LeaderWorkerSet: only its UID counts.
func TestAGroupOfALeaderWorkerSetIsOneWorkload(t *testing.T) {
	s := prepare(t, "lws", 0)
	set := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "lws", Name: "train"}}
	s.must(s.Client.Create(t.Context(), set))
	pod := func(name string) (found corev1.Pod) {
		s.until("the StatefulSet's pod is made", func() error {
			return s.Client.Get(t.Context(), client.ObjectKey{Namespace: "lws", Name: name}, &found)
		})
		return found
	}
	makes := func(name string, first int32, owner metav1.OwnerReference) {
		labels := map[string]string{"app": name}
		s.must(s.Client.Create(t.Context(), &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "lws", Name: name, OwnerReferences: []metav1.OwnerReference{owner}},
			Spec: appsv1.StatefulSetSpec{
				Ordinals: &appsv1.StatefulSetOrdinals{Start: first}, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
					SchedulerName: "none", Containers: []corev1.Container{{Name: "train", Image: "train"}},
				}},
			},
		}))
	}
	makes("train", 0, *metav1.NewControllerRef(set, corev1.SchemeGroupVersion.WithKind("ConfigMap")))
	leader := pod("train-0")
	makes("train-0", 1, *metav1.NewControllerRef(&leader, corev1.SchemeGroupVersion.WithKind("Pod")))
	c := &Controller{apiReader: s.Client}
	for _, pod := range []corev1.Pod{leader, pod("train-0-1")} {
		if got, err := c.workloadOf(t.Context(), "lws", *metav1.GetControllerOf(&pod)); err != nil || got != set.UID {
			t.Errorf("%s is of %q (%v), want %s", pod.Name, got, err, set.UID)
		}
	}
}
