package jobs

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// serving is the selector and template of two pods, one on each node.
func (tm team) serving() (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	template := tm.jobSpec(2).Template
	template.Labels = map[string]string{"app": "serve"}
	template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	return &metav1.LabelSelector{MatchLabels: template.Labels}, template
}

func (tm team) createDeployment() gang {
	tm.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: "serve", Labels: optedIn}}
	d.Spec.Replicas = ptr.To[int32](2)
	d.Spec.Selector, d.Spec.Template = tm.serving()
	if err := tm.c.Client.Create(tm.Context(), d); err != nil {
		tm.Fatal(err)
	}
	return tm.gang(jobstest.Kind("apps/v1", "Deployment"), "serve", 2)
}

func (tm team) createStatefulSet() gang {
	tm.Helper()
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: "serve", Labels: optedIn}}
	s.Spec.Replicas = ptr.To[int32](2)
	s.Spec.Selector, s.Spec.Template = tm.serving()
	if err := tm.c.Client.Create(tm.Context(), s); err != nil {
		tm.Fatal(err)
	}
	return tm.gang(jobstest.Kind("apps/v1", "StatefulSet"), "serve", 2)
}

func (tm team) createReplicaSet() gang {
	tm.Helper()
	r := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: "serve", Labels: optedIn}}
	r.Spec.Replicas = ptr.To[int32](2)
	r.Spec.Selector, r.Spec.Template = tm.serving()
	if err := tm.c.Client.Create(tm.Context(), r); err != nil {
		tm.Fatal(err)
	}
	return tm.gang(jobstest.Kind("apps/v1", "ReplicaSet"), "serve", 2)
}

// replaced checks that the pod has one successor, on another node, and that nothing became of the others.
func (g gang) replaced(before []corev1.Pod, gone types.UID, bad string) {
	g.Helper()
	after := g.runs()
	if n := len(g.pods.Lives()); n != len(before)+1 {
		g.Errorf("%d pods were created, want one more than %d", n, len(before))
	}
	for _, old := range before {
		still := slices.ContainsFunc(after, func(p corev1.Pod) bool { return p.UID == old.UID })
		if still == (old.UID == gone) {
			g.Errorf("pod %s is still there: %t", old.Name, still)
		}
	}
	for _, p := range after {
		if p.Spec.NodeName == bad {
			g.Errorf("pod %s runs on %s", p.Name, bad)
		}
	}
}

func TestOnlyThePodsOnTheNodeAreEvicted(t *testing.T) {
	t.Parallel()
	tests := map[string]func(team) gang{"deployment": team.createDeployment, "statefulset": team.createStatefulSet, "replicaset": team.createReplicaSet}
	for name, create := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 3, nil)
			r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
			g := create(tm)
			before := g.runs()
			q := tm.quarantineOf(before[0].Spec.NodeName)
			restartJobs(t, r, q)
			restartJobs(t, r, q)
			if closed := g.closes(); closed.Phase != restart.Done || closed.Outcome != "all ranks running (2/2)" {
				t.Errorf("record %+v", closed)
			}
			g.replaced(before, before[0].UID, q.Node)
			tm.event("JobRestarting", g.read().Object.GetUID(), "replacing 1 of its pods")
		})
	}
}

func TestAnEvictionThatABudgetRefusesIsReportedAndTriedAgain(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 3, nil)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
	g := tm.createDeployment()
	before := g.runs()
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: "serve"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "serve"}}, MinAvailable: ptr.To(intstr.FromInt32(2)),
		},
	}
	if err := tm.c.Client.Create(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	q := tm.quarantineOf(before[0].Spec.NodeName)
	restartJobs(t, r, q)
	tm.event("JobRestartBlocked", g.read().Object.GetUID(), "the eviction of pod "+before[0].Name+" is refused")
	sameRanks(t, before, g.runs())
	if err := tm.c.Client.Patch(t.Context(), budget, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"minAvailable":1}}`))); err != nil {
		t.Fatal(err)
	}
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
	g.replaced(before, before[0].UID, q.Node)
}

// An eviction that is refused is tried again for hours, in namespaces with thousands of pods.
func TestTheWholeNamespaceIsReadOnlyOnceNothingElseIsLeft(t *testing.T) {
	job := restart.Job{Object: &metav1.ObjectMeta{Namespace: "team", Name: "serve"}, Pods: labels.SelectorFromSet(labels.Set{"app": "serve"})}
	pod := func(name string, of map[string]string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: of}}
	}
	its, lost := pod("its", map[string]string{"app": "serve"}), pod("lost", nil)
	others := pod("other", map[string]string{"app": "other"})
	tests := map[string]struct {
		there []metav1.PartialObjectMetadata
		left  []string
		// listed are the recorded pods that the app's labels find, whole the lists of the namespace.
		listed, whole int
	}{
		"a pod of the app is left":               {[]metav1.PartialObjectMetadata{others, its}, []string{"its"}, 1, 0},
		"a pod that lost its labels, too":        {[]metav1.PartialObjectMetadata{others, its, lost}, []string{"its"}, 1, 0},
		"only the pod that lost its labels":      {[]metav1.PartialObjectMetadata{others, lost}, []string{"lost"}, 0, 1},
		"a new pod of the app":                   {[]metav1.PartialObjectMetadata{others, pod("new", its.Labels)}, nil, 0, 1},
		"nothing but what belongs to other apps": {[]metav1.PartialObjectMetadata{others}, nil, 0, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			whole := 0
			reader := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
				List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					var o client.ListOptions
					o.ApplyOptions(opts)
					if o.LabelSelector.Empty() {
						whole++
					}
					for _, p := range test.there {
						if o.LabelSelector.Matches(labels.Set(p.Labels)) {
							pods := list.(*metav1.PartialObjectMetadataList)
							pods.Items = append(pods.Items, p)
						}
					}
					return nil
				},
			})
			remaining, _, listed, err := podreader.Reader{API: reader, Kinds: kinds.BuiltIn}.Remaining(t.Context(), job, restart.Restart{Pods: []types.UID{"its", "lost"}})
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, p := range remaining {
				left = append(left, p.Name)
			}
			if diff := cmp.Diff(test.left, left); diff != "" || whole != test.whole || listed != test.listed {
				t.Errorf("%d lists of the namespace, %d pods listed; %s", whole, listed, diff)
			}
		})
	}
}
