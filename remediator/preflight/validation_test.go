package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

// fakeAPI is an API server with some pods, without Nodes and Jobs, that counts the requests for an object. Its reports are
// the cache of ConfigMaps.
type fakeAPI struct {
	client.Client
	pods    map[string]*corev1.Pod
	reports []corev1.ConfigMap
	gets    int
	patches int
}

func (f *fakeAPI) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	f.gets++
	if pod, ok := into.(*corev1.Pod); ok && f.pods[key.Name] != nil {
		*pod = *f.pods[key.Name]
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (f *fakeAPI) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	into, ok := list.(*corev1.ConfigMapList)
	if !ok {
		return nil
	}
	o := (&client.ListOptions{}).ApplyOptions(opts)
	for _, cm := range f.reports {
		run, byRun := o.FieldSelector.RequiresExactMatch(indexRun)
		pod, byPod := o.FieldSelector.RequiresExactMatch(indexPod)
		if cm.Namespace == o.Namespace && (!byRun || runOf(&cm)[0] == run) && (!byPod || podOf(&cm)[0] == pod) {
			into.Items = append(into.Items, cm)
		}
	}
	return nil
}

func (f *fakeAPI) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	f.patches++
	return nil
}

// newTestController has a clock that is at noon.
func newTestController(api *fakeAPI) (*Controller, *events.FakeRecorder, *testingclock.FakePassiveClock) {
	recorder, clock := events.NewFakeRecorder(100*validationBurst), testingclock.NewFakePassiveClock(noon)
	return newController(Options{Timeout: time.Hour, TTL: 24 * time.Hour, Recorder: recorder, Clock: clock}, api, api, api), recorder, clock
}

// podOfJob is a pod of job train; its name and UID follow from id.
func podOfJob(namespace, id string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "train-" + id, UID: types.UID(id), CreationTimestamp: metav1.NewTime(noon),
			OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "train", UID: "job", Controller: new(true)}}},
		Spec: corev1.PodSpec{NodeName: "node-" + id},
	}
}

// reportOf is what the pod writes at noon.
func reportOf(t *testing.T, pod *corev1.Pod, r report.Report) corev1.ConfigMap {
	t.Helper()
	r.Node = pod.Spec.NodeName
	cm, err := reportconfigmap.New(pod, r)
	if err != nil {
		t.Fatal(err)
	}
	cm.UID, cm.CreationTimestamp = "cm-"+pod.UID, metav1.NewTime(noon)
	return *cm
}

// floodOf n reports of pods that do not exist.
func floodOf(t *testing.T, n int, prefix string) []corev1.ConfigMap {
	t.Helper()
	flood := make([]corev1.ConfigMap, n)
	for i := range flood {
		flood[i] = reportOf(t, podOfJob("flood", fmt.Sprint(prefix, i)), report.Report{RunID: "r", Size: 8})
	}
	return flood
}

// slowLists is an API server on which a list of pods takes some time, as it does if they have a megabyte each.
type slowLists struct {
	*fakeAPI
	clock *testingclock.FakePassiveClock
	takes time.Duration
	lists map[string]int
}

func (s slowLists) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*corev1.PodList); ok {
		s.lists[(&client.ListOptions{}).ApplyOptions(opts).Namespace]++
		s.clock.SetTime(s.clock.Now().Add(s.takes))
	}
	return s.fakeAPI.List(ctx, list, opts...)
}

// A tenant with runs of two ranks of which one reports, and with large pods, had the one worker list them for hours.
func TestRunsWithoutReportsDelayNoOtherNamespace(t *testing.T) {
	api := &fakeAPI{pods: map[string]*corev1.Pod{}}
	c, _, clock := newTestController(api)
	slow := slowLists{api, clock, 5 * time.Second, map[string]int{}}
	c.apiReader = slow
	submit := func(namespace, id string) {
		pod := podOfJob(namespace, id)
		api.pods[pod.Name] = pod
		api.reports = append(api.reports, reportOf(t, pod, report.Report{
			RunID: "run-" + id, Size: 2, IP: netip.MustParseAddr("10.9.9.9"), GPU: report.Passed, Storage: report.Passed,
		}))
	}
	for i := range 100 {
		submit("flood", fmt.Sprint(i))
	}
	submit("quiet", "q")
	judge := func(namespace, id string) time.Duration {
		t.Helper()
		result, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: "run-" + id}})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	judge("quiet", "q")
	clock.SetTime(noon.Add(time.Hour)) // the end of all runs
	for i := range 100 {
		again := judge("flood", fmt.Sprint(i))
		if i > 0 && (again < firstBackoff || again > longestBackoff) {
			t.Fatalf("run %d is tried again after %s", i, again)
		}
	}
	if slow.lists["flood"] != 1 || judge("quiet", "q") != 0 || slow.lists["quiet"] != 1 {
		t.Errorf("lists of pods: %v", slow.lists)
	}
	clock.SetTime(clock.Now().Add(listShare * slow.takes))
	if again := judge("flood", "1"); again != 0 || slow.lists["flood"] != 2 {
		t.Errorf("later: again after %s, lists of pods %v", again, slow.lists)
	}
}

func TestAFloodIsLimitedToItsNamespace(t *testing.T) {
	api := &fakeAPI{}
	c, recorder, _ := newTestController(api)
	flood := floodOf(t, 2*validationBurst, "")
	if _, _, err := c.validate(t.Context(), types.NamespacedName{Namespace: "flood", Name: "r"}, flood); !errors.Is(err, errRateLimited) {
		t.Errorf("error %v, want %v", err, errRateLimited)
	}
	if api.gets < validationBurst || api.gets > validationBurst+validationBurst/2 {
		t.Errorf("the API server had %d requests, want about %d", api.gets, validationBurst)
	}
	if n := len(recorder.Events); n < refusalBurst || n > refusalBurst+5 {
		t.Errorf("%d Events, want about %d", n, refusalBurst)
	}
	before := api.gets
	if _, _, err := c.validate(t.Context(), types.NamespacedName{Namespace: "quiet", Name: "r"}, flood[:1]); err != nil || api.gets != before+1 {
		t.Errorf("another namespace: %v, %d requests", err, api.gets-before)
	}
	if _, _, err := c.validate(t.Context(), types.NamespacedName{Namespace: "flood", Name: "r"}, flood); !errors.Is(err, errRateLimited) {
		t.Errorf("the flood goes on: %v", err)
	}
}

func TestTheReportsOfAPodAreCounted(t *testing.T) {
	reports := make([]corev1.ConfigMap, maxPerPod+1)
	for i := range reports {
		reports[i].UID, reports[i].CreationTimestamp = types.UID(fmt.Sprint(i)), metav1.NewTime(noon.Add(time.Duration(i)*time.Second))
	}
	c, _, _ := newTestController(&fakeAPI{reports: reports})
	for i, want := range map[int]int{0: 0, 1: 1, maxPerPod - 1: maxPerPod - 1, maxPerPod: maxPerPod} {
		if got, err := c.countOlderOfPod(t.Context(), &reports[i]); err != nil || got != want {
			t.Errorf("%d reports before number %d, %v", got, i, err)
		}
	}
}

// entries counts what the controller stores about ConfigMaps and their runs.
func (c *Controller) entries() map[string]int {
	n := map[string]int{"events": len(c.lastEvent), "annotations": len(c.lastAnnotation), "backoffs": len(c.backoff), "runs": len(c.validations)}
	for _, done := range c.validations {
		n["validations"] += len(done)
	}
	maps.DeleteFunc(n, func(_ string, n int) bool { return n == 0 })
	return n
}

func TestNothingIsStoredAboutDeletedReports(t *testing.T) {
	reconcile := func(t *testing.T, c *Controller, namespace string) time.Duration {
		t.Helper()
		result, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: "r"}})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}

	t.Run("of a judged run", func(t *testing.T) {
		api := &fakeAPI{pods: map[string]*corev1.Pod{}}
		c, recorder, _ := newTestController(api)
		for rank, id := range []string{"a", "b", "c"} {
			pod := podOfJob("team", id)
			api.pods[pod.Name] = pod
			api.reports = append(api.reports, reportOf(t, pod, report.Report{RunID: "r", Size: 2, Rank: min(rank, 1), GPU: report.Passed, Storage: report.Passed}))
		}
		reconcile(t, c, "team")
		want := map[string]int{"runs": 1, "validations": 3, "events": 2, "annotations": 2} // of the run and of the refused report
		if diff := cmp.Diff(want, c.entries()); diff != "" || len(recorder.Events) != 2 {
			t.Errorf("%s, %d Events", diff, len(recorder.Events))
		}
		api.reports = api.reports[1:]
		reconcile(t, c, "team")
		if got := c.entries(); got["validations"] != 2 || got["events"] > 2 || got["annotations"] > 2 {
			t.Errorf("after one report was deleted: %v", got)
		}
		api.reports = nil
		reconcile(t, c, "team")
		if diff := cmp.Diff(map[string]int{}, c.entries()); diff != "" {
			t.Error(diff)
		}
	})

	// Reports that are deleted and replaced faster than the rate limit allows to validate them.
	t.Run("of a flood", func(t *testing.T) {
		api := &fakeAPI{}
		c, _, clock := newTestController(api)
		const flood = 2 * validationBurst
		for i := range 20 {
			api.reports = floodOf(t, flood, fmt.Sprint(i, "-"))
			if wait := reconcile(t, c, "flood"); wait < firstBackoff || wait > longestBackoff {
				t.Fatalf("requeued after %s", wait)
			}
			clock.SetTime(clock.Now().Add(time.Second))
			for what, n := range c.entries() {
				if n > flood {
					t.Fatalf("pass %d: %d %s about %d reports", i, n, what, flood)
				}
			}
		}
		api.reports = nil
		if wait := reconcile(t, c, "flood"); wait != 0 {
			t.Errorf("requeued after %s", wait)
		}
		if diff := cmp.Diff(map[string]int{}, c.entries()); diff != "" {
			t.Error(diff)
		}
	})
}

// The old and the new run are reconciled: the old one must not keep what is stored about the report.
func TestAReportThatChangesItsRunIsReconciled(t *testing.T) {
	before := reportOf(t, podOfJob("team", "a"), report.Report{RunID: "r", Size: 2})
	judged, moved := before.DeepCopy(), before.DeepCopy()
	judged.Annotations[conditions.AnnotationPreflightVerdict] = "slow"
	moved.Labels[conditions.LabelPreflightRun] = "other"
	if reportEvents.Update(event.TypedUpdateEvent[*corev1.ConfigMap]{ObjectOld: &before, ObjectNew: judged}) {
		t.Error("the verdict on a report causes another pass")
	}
	if !reportEvents.Update(event.TypedUpdateEvent[*corev1.ConfigMap]{ObjectOld: &before, ObjectNew: moved}) {
		t.Error("another run id is ignored")
	}
	if !reportEvents.Delete(event.TypedDeleteEvent[*corev1.ConfigMap]{Object: &before}) {
		t.Error("a deletion is ignored")
	}
}

// Names that the API server does not check: a request with one is an error of the client, which would be repeated for ever.
func TestNamesThatAreNoneAskForNothing(t *testing.T) {
	api := &fakeAPI{pods: map[string]*corev1.Pod{}}
	c, recorder, _ := newTestController(api)
	odd := reportOf(t, podOfJob("team", "a"), report.Report{RunID: "r", Size: 1})
	odd.Annotations[conditions.AnnotationPreflightPod] = "a/b"
	pod := podOfJob("team", "b")
	pod.OwnerReferences[0].APIVersion, pod.OwnerReferences[0].Name = "batch/v1", "a/b"
	api.pods[pod.Name] = pod
	valid, _, err := c.validate(t.Context(), types.NamespacedName{Namespace: "team", Name: "r"}, []corev1.ConfigMap{odd, reportOf(t, pod, report.Report{RunID: "r", Size: 1})})
	if err != nil || len(valid) != 1 || valid[0].workload != "job" || api.gets != 1 {
		t.Errorf("%+v, %v, %d requests", valid, err, api.gets)
	}
	if got := <-recorder.Events; !strings.Contains(got, "must name the reporting pod") {
		t.Errorf("Event %q", got)
	}
}
