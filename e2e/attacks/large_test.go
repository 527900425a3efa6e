package attacks

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/remediator/preflight"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// stored is the metadata of an object of a tenant as the API server has it.
func stored(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uuid.NewUUID(), CreationTimestamp: metav1.Now(), Labels: map[string]string{}}
}

// largePod is a pod that runs on a node. Its deletion takes no time.
func largePod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: stored(namespace, name),
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSDefault, SchedulerName: corev1.DefaultSchedulerName,
			SecurityContext: &corev1.PodSecurityContext{}, TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers: []corev1.Container{{Name: "c", Image: "none", ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// largeDeployment is labelled as under a restart, with as many annotations as fit. The restart lasts, as no rank of it runs.
func largeDeployment(namespace, name, outcome string) *appsv1.Deployment {
	now := time.Now()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{ObjectMeta: stored(namespace, name), Spec: appsv1.DeploymentSpec{
		Paused: true, Replicas: ptr.To[int32](0), RevisionHistoryLimit: ptr.To[int32](1), ProgressDeadlineSeconds: ptr.To[int32](600),
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: largePod("", "", "").Spec},
	}}
	record := fmt.Sprintf(`{"v":1,"jobUID":%q,"current":{"id":"forged","phase":%q,"startedAt":%q,"phaseSince":%[3]q,"ranks":1,"outcome":%[4]q}}`,
		d.UID, restart.Starting, now.UTC().Format(time.RFC3339), outcome)
	d.Labels[conditions.LabelRestarting] = "true"
	d.Annotations = map[string]string{conditions.AnnotationRestart: record}
	if outcome == "" {
		d.Annotations["filler"] = strings.Repeat("x", 240<<10)
	}
	return d
}

// largeReport has the label of a report and as many labels as etcd takes: those have no limit of their own.
func largeReport(namespace, name string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: stored(namespace, name), Immutable: ptr.To(true), Data: map[string]string{reportconfigmap.Key: "{}"}}
	cm.Labels[conditions.LabelPreflight], cm.Labels[conditions.LabelPreflightRun] = "report", "large"
	cm.Annotations = map[string]string{conditions.AnnotationPreflightPod: strings.Repeat("p", 250_000)}
	manyLabels(cm, 1500)
	return cm
}

func manyLabels(object client.Object, n int) {
	labels := object.GetLabels()
	for i := range n {
		labels[fmt.Sprintf("%s.example.com/%s-%d", strings.Repeat("l", 60), strings.Repeat("n", 50), i)] = strings.Repeat("v", 63)
	}
}

// A tenant may make pods, jobs and reports as large as etcd takes them. With all of these the remediator, which the chart limits to 256Mi, starts,
// reads the pods of the node that fails and of the one with room, and restarts the job of others. That each of them alone is cut, tests of the
// packages show, and e2e/hostile how it is with 1,000 nodes.
func TestAttack08LargeObjectsDoNotFillTheMemory(t *testing.T) {
	s := newScene(t, "attack08", 2, nil)
	job, here := s.job(s.tenant("team08"), "team08", "train")
	const mallory, labelled = "mallory08", "mallory08-labels" // the namespace with most is left out of a list that is too large
	s.reporter(mallory)
	s.namespace(labelled)
	var objects []client.Object
	for i := range 60 {
		pod := largePod(mallory, fmt.Sprint("large-", i), here)
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "FILLER", Value: strings.Repeat("x", 1_200_000)}}
		objects = append(objects, pod, largeReport(mallory, fmt.Sprint("large-", i)))
	}
	for _, node := range s.nodes {
		for i := range 30 {
			pod := largePod(labelled, fmt.Sprint("large-", node, "-", i), node)
			manyLabels(pod, 3500)
			objects = append(objects, pod)
		}
	}
	for i := range 100 {
		objects = append(objects, largeDeployment(mallory, fmt.Sprint("large-", i), ""))
	}
	refused := largeDeployment(mallory, "refused", strings.Repeat("x", 250<<10))
	if err := s.cluster.Store(t.Context(), append(objects, refused)...); err != nil {
		t.Fatal(err)
	}

	p := s.remediator(s.policy(`
  budget: {maxNodes: 3}
  restart: {checkCapacity: true}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}, restartJobs: true}
`), "-preflight-namespaces", mallory)
	s.report(here, corev1.ConditionTrue, lost)
	s.restarted(batchv1.SchemeGroupVersion.WithKind("Job"), client.ObjectKeyFromObject(job))
	s.reports("refused", "bytes, at most 245760")
	s.until("a report is refused", func() error { // one Event for all of them
		var events eventsv1.EventList
		if err := s.admin.List(t.Context(), &events, client.InNamespace(mallory)); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Reason == preflight.Refused && strings.Contains(e.Note, "its labels, annotations, owners and finalizers have ")
		}) {
			return fmt.Errorf("%d Events", len(events.Items))
		}
		return nil
	})
	s.until("its label is gone", func() error {
		if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(refused), refused); err != nil {
			return err
		}
		if refused.Labels[conditions.LabelRestarting] != "" {
			return fmt.Errorf("labels %v", refused.Labels)
		}
		return nil
	})
	const most = 128
	if mib := peakMemory(t, p); mib > most {
		t.Errorf("%d MiB, at most %d", mib, most)
	} else {
		t.Logf("%d MiB", mib)
	}
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
