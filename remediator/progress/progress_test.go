package progress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// newFollower is one without a cluster.
func newFollower() (*follower, *events.FakeRecorder) {
	recorder, now := events.NewFakeRecorder(1000), clocktesting.NewFakePassiveClock(noon)
	return &follower{
		Options: Options{Recorder: recorder, Clock: now, Policy: policy.Fixed(&policy.Policy{})}, metrics: newMetrics(), reads: newReads(now),
		compiled: lru.New(maxCompiled), followed: map[request]*followed{}, places: map[string]int{}, full: sets.New[types.UID](),
	}, recorder
}

// Unless the policy asks for it nothing of the manager is used: there is none.
func TestOffSetsUpNothing(t *testing.T) {
	f, _ := newFollower()
	for _, mode := range []policy.StallsMode{"", policy.StallsOff} {
		p := &policy.Policy{}
		p.Restart.Stalls.Mode = mode
		f.Policy = policy.Fixed(p)
		if err := f.setup(nil, nil); err != nil || f.watcher != nil || f.pods != nil {
			t.Errorf("mode %q: %v", mode, err)
		}
	}
}

func TestRanksAreInTheOrderOfTheirNumbers(t *testing.T) {
	want := []string{"a-leader-0-0-zz", "a-worker-0-2-bb", "a-worker-0-10-aa", "a-worker-0-010-ab", "a-worker-1-0-aa", "a-worker-1-0-aab", "b"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareNatural)
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func pod(name string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon), Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}, {Name: "proxy"}}},
		Status: corev1.PodStatus{
			StartTime:  ptr.To(metav1.NewTime(noon.Add(time.Minute))),
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(time.Minute))}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "proxy", RestartCount: 7},
				{Name: "main", RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(noon.Add(2 * time.Minute))}}},
			},
		},
	}
	if change != nil {
		change(&p)
	}
	return p
}

func TestPodsOf(t *testing.T) {
	got, wrong := podsOf([]corev1.Pod{
		pod("p-1", func(p *corev1.Pod) { p.Annotations[defaultContainer] = "proxy" }),
		pod("p-0", nil),
		pod("p-2", func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(noon)) }),
		pod("p-3", func(p *corev1.Pod) { p.Status.StartTime = ptr.To(metav1.NewTime(noon.Add(20 * time.Second))) }),
	})
	if wrong != "" || len(got) != 4 {
		t.Fatalf("%q, %+v", wrong, got)
	}
	if p := got[0]; p.Name != "p-0" || p.Container != "main" || !p.Running || p.Restarts != 1 || !p.ClockTrusted || !p.StartedAt.Equal(noon.Add(2*time.Minute)) {
		t.Errorf("%+v", p)
	}
	if p := got[1]; p.Container != "proxy" || p.Running {
		t.Errorf("%+v", p)
	}
	if p := got[2]; p.Running {
		t.Errorf("a pod that is being deleted runs: %+v", p)
	}
	if p := got[3]; p.ClockTrusted {
		t.Errorf("the clock of a node that started the pod before it was bound is trusted: %+v", p)
	}
	got, wrong = podsOf([]corev1.Pod{pod("p-0", func(p *corev1.Pod) { p.Annotations[defaultContainer] = "trainer" })})
	if !strings.Contains(wrong, `names the container "trainer", which it does not have`) || got[0].Running {
		t.Errorf("%q, %+v", wrong, got)
	}
}

func TestANamespaceHasSoManyPlaces(t *testing.T) {
	f, recorder := newFollower()
	kind := kinds.BuiltIn()[0].GVK
	follow := func(name, namespace string) bool {
		req := request{Kind: kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name)}}
		known, _ := f.follow(req, object, stall.Annotations{Progress: "step", StalledAfter: "15m"})
		return known != nil
	}
	for i := range maxPerNamespace {
		if !follow(fmt.Sprint(i), "a") {
			t.Fatalf("no place for job %d", i)
		}
	}
	first, again := follow("more", "a"), follow("more", "a")
	if first || again || !follow("0", "a") || !follow("0", "b") {
		t.Error("the places are not counted by namespace, one for each job")
	}
	if n := len(recorder.Events); n != 1 {
		t.Errorf("%d Events", n)
	}
	f.drop(request{Kind: kind, NamespacedName: types.NamespacedName{Namespace: "a", Name: "0"}})
	if !follow("more", "a") {
		t.Error("a job that ends frees no place")
	}
	if f.compiled.Len() != 1 {
		t.Errorf("%d expressions are kept", f.compiled.Len())
	}
}

func TestAnotherIncarnationOrAnnotationBeginsAnew(t *testing.T) {
	f, _ := newFollower()
	req := request{Kind: kinds.BuiltIn()[0].GVK, NamespacedName: types.NamespacedName{Namespace: "a", Name: "b"}}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "1"}}
	a := stall.Annotations{Progress: "step", StalledAfter: "15m"}
	first, _ := f.follow(req, object, a)
	if same, _ := f.follow(req, object, a); same != first {
		t.Error("it is not remembered")
	}
	a.StalledAfter = "soon"
	edited, _ := f.follow(req, object, a)
	if edited == first || edited.wrong == nil {
		t.Error("an edited annotation is not read")
	}
	object.UID = "2"
	if other, _ := f.follow(req, object, a); other == edited || f.places["a"] != 1 {
		t.Errorf("another job of the name is taken for the same, with %d places", f.places["a"])
	}
}

// What an earlier version has read is no reason not to follow the job, and nobody is left to believe that it has an effect.
func TestARemovedAnnotationIsIgnoredAndReported(t *testing.T) {
	f, recorder := newFollower()
	job := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job", UID: "1"}}
	annotations := map[string]string{"pitcrew.dev/progress": "step", "pitcrew.dev/stalled-after": "15m", "pitcrew.dev/slow-after": "nan", "pitcrew.dev/nccl-ras-port": "1"}
	for range 2 {
		if known, _ := f.follow(request{}, job, stall.AnnotationsOf(annotations)); known == nil || known.wrong != nil {
			t.Fatalf("%+v", known)
		}
	}
	if len(recorder.Events) != 1 {
		t.Fatalf("%d Events", len(recorder.Events))
	}
	if got := <-recorder.Events; !strings.Contains(got, "Warning PolicyWarning ignored, because") ||
		!strings.Contains(got, "annotation pitcrew.dev/nccl-ras-port, pitcrew.dev/slow-after of") {
		t.Error(got)
	}
}

func TestThePace(t *testing.T) {
	r := newReads(clocktesting.NewFakePassiveClock(noon))
	if n := r.allow("a", 1000); n != namespaceBurst {
		t.Errorf("%d reads at once in a namespace", n)
	}
	if n := r.allow("a", 1); n != 0 {
		t.Errorf("%d more", n)
	}
	for i := range 10 {
		r.allow(fmt.Sprint(i), namespaceBurst)
	}
	if n := r.allow("b", 1); n != 0 {
		t.Errorf("%d more in all", n)
	}
}

func TestASilentNodeRests(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(noon)
	r := newReads(now)
	r.rest("a")
	if !r.resting("a") || r.resting("b") {
		t.Error("not the node that was silent rests")
	}
	now.SetTime(noon.Add(nodeRest))
	if r.resting("a") {
		t.Error("it rests for ever")
	}
}

func TestAReasonHasNothingOfAnAnswer(t *testing.T) {
	for want, err := range map[string]error{
		"the answer was 500":                               apierrors.NewInternalError(fmt.Errorf("secret")),
		"there is no such pod":                             apierrors.NewNotFound(corev1.Resource("pods"), "secret"),
		"the remediator has no right to it (pods/log get)": apierrors.NewForbidden(corev1.Resource("pods"), "secret", nil),
		"the request failed":                               fmt.Errorf("secret"),
	} {
		if got := reasonOf(fmt.Errorf("read: %w", err), "pods/log get"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestTheCacheKeepsLittle(t *testing.T) {
	full := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "a", UID: "1", Labels: map[string]string{"a": "b"},
		Annotations:   map[string]string{"pitcrew.dev/progress": strings.Repeat("x", 10_000), "other": "value", "pitcrew.dev/slow-after": "1.5"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}},
	}}
	kept, err := slim(full)
	if err != nil {
		t.Fatal(err)
	}
	o := kept.(*metav1.PartialObjectMetadata)
	if len(o.Annotations) != 2 || o.Annotations["pitcrew.dev/slow-after"] != "1.5" || len(o.Annotations["pitcrew.dev/progress"]) != maxAnnotation || o.Labels != nil || o.ManagedFields != nil || o.UID != "1" {
		t.Errorf("%+v", o)
	}
}

func TestAtMostSoManyRanksAreNamed(t *testing.T) {
	v := stall.Verdict{State: stall.Stalled, Since: noon, HasStep: true, Step: 9}
	var ranks []stall.Rank
	for i := range 20 {
		ranks = append(ranks, stall.Rank{Rank: i, Pod: fmt.Sprintf("pod-%d", i), Node: "n", Step: ptr.To(uint64(8))})
		v.Behind = append(v.Behind, i)
	}
	text := stalledText(v, ranks, noon.Add(15*time.Minute))
	if !strings.Contains(text, "(pod pod-7, node n), and 12 more") || strings.Contains(text, "pod-8") {
		t.Error(text)
	}
}

// Pods of which the container is not known do not run, so that each look finds a job that does not run.
func TestThatThereIsNoContainerIsSaidOnce(t *testing.T) {
	f, recorder := newFollower()
	known := &followed{said: sets.New(eventStalled)}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "job"}}
	for range 3 {
		f.sayOnce(known, object, "Container", "wrong")
		if err := f.report(t.Context(), request{}, object, known, stall.Verdict{State: stall.NotRunning}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(recorder.Events); n != 1 || known.said.Has(eventStalled) {
		t.Errorf("%d Events; of other pods it is still said: %v", n, known.said.UnsortedList())
	}
}

// A read that fails, or a log that is rotated, ends no silence that was reported.
func TestASilenceIsReportedOnce(t *testing.T) {
	f, recorder := newFollower()
	f.DryRun = true
	settings, err := stall.Parse(stall.Annotations{Progress: `step (?P<step>\d+)`, StalledAfter: "15m"}, stall.Compile)
	if err != nil {
		t.Fatal(err)
	}
	known, object := &followed{said: sets.New[string](), settings: settings}, &metav1.PartialObjectMetadata{}
	object.Name, object.Namespace = "job", "a"
	pods := []stall.Pod{{Name: "p", UID: "1", Running: true, StartedAt: noon, ClockTrusted: true}}
	now := noon
	looks := func(n int, text string) {
		for range n {
			now = now.Add(time.Minute)
			if known.job.NeedsPods(settings, now) {
				known.job.Observe(pods, true, now)
			}
			for _, l := range known.job.Wanted(settings, now) {
				if text == "" {
					known.job.Failed(l.Rank, "dead", now)
					continue
				}
				known.job.Answer(l.Rank, stall.Read([]byte(text), usual, settings, l.Anchor), now)
			}
			if err := f.report(t.Context(), request{}, object, known, known.job.Judge(settings, now)); err != nil {
				t.Fatal(err)
			}
		}
	}
	stalls := func() (n int) {
		for len(recorder.Events) > 0 {
			if strings.Contains(<-recorder.Events, eventStalled) {
				n++
			}
		}
		return n
	}
	looks(20, "2026-11-23T12:00:01Z step 5\n")
	if n := stalls(); n != 1 {
		t.Fatalf("%d Events", n)
	}
	looks(3, "")
	looks(20, "2026-11-23T12:00:01Z step 5\n")
	looks(30, "2026-11-23T12:50:00Z a new file\n")
	if n := stalls(); n != 0 {
		t.Errorf("%d more of the same silence", n)
	}
	looks(40, "2026-11-23T13:20:00Z step 6\n")
	if n := stalls(); n != 1 {
		t.Errorf("%d of the next silence", n)
	}
}

func TestTheClusterHasSoManyPlaces(t *testing.T) {
	f, recorder := newFollower()
	name := func(namespace, i int) request {
		return request{Kind: kinds.BuiltIn()[0].GVK, NamespacedName: types.NamespacedName{Namespace: fmt.Sprint(namespace), Name: fmt.Sprint(i)}}
	}
	follow := func(req request) bool {
		object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name, UID: types.UID(req.String())}}
		known, _ := f.follow(req, object, stall.Annotations{Progress: "step", StalledAfter: "15m"})
		return known != nil
	}
	for i := range maxFollowed {
		if !follow(name(i/maxPerNamespace, i)) {
			t.Fatalf("no place for job %d", i)
		}
	}
	// A namespace that has none takes a place of the others, and they take none from each other.
	if !follow(name(-1, 0)) || len(f.followed) != maxFollowed || f.taken != maxFollowed || f.places["-1"] != 1 {
		t.Errorf("%d are followed, %d of the namespace that came last", len(f.followed), f.places["-1"])
	}
	lost := func() (some []request) {
		for i := range maxFollowed {
			if req := name(i/maxPerNamespace, i); f.followed[req] == nil {
				some = append(some, req)
			}
		}
		return some
	}
	gone := lost()
	if len(gone) != 1 || follow(gone[0]) {
		t.Fatalf("%q gave way, and may follow another one", gone)
	}
	if n := len(recorder.Events); n != 1 {
		t.Fatalf("%d Events", n)
	}
	if note := <-recorder.Events; !strings.Contains(note, "2000 jobs of the cluster") {
		t.Error(note)
	}
	for i := range maxPerNamespace - 1 {
		follow(name(-1, i+1))
	}
	if n := f.places["-1"]; n < maxFollowed/11 || n > maxFollowed/11+1 || len(lost()) != n || f.taken != maxFollowed {
		t.Errorf("the last of eleven namespaces has %d of %d places", n, f.taken)
	}
	f.drop(name(-1, 0))
	if !follow(gone[0]) || f.taken != maxFollowed {
		t.Error("the place of a job that has ended is not given to another one")
	}
}

// A look that is under way when its job loses its place counts it no more.
func TestAJobThatLostItsPlaceIsNotCounted(t *testing.T) {
	f, _ := newFollower()
	req := request{Kind: kinds.BuiltIn()[0].GVK, NamespacedName: types.NamespacedName{Namespace: "a", Name: "b"}}
	job := &followed{}
	f.followed[req], f.places["a"], f.taken = job, 1, 1
	f.enter(req, job, stall.Verdict{State: stall.Running})
	f.drop(req)
	f.enter(req, job, stall.Verdict{State: stall.Stalled})
	for _, state := range []stall.State{stall.Running, stall.Stalled} {
		var count dto.Metric
		if err := f.metrics.jobs.WithLabelValues(string(state)).Write(&count); err != nil || count.GetGauge().GetValue() != 0 {
			t.Errorf("%s: %v, %v", state, &count, err)
		}
	}
	if len(f.quiet) > 0 {
		t.Errorf("quiet: %v", f.quiet)
	}
}

// While no text can be matched, the texts of so many reads are in memory and no more, and nobody waits for longer than a look may take.
func TestSoManyTextsAreInMemory(t *testing.T) {
	f, _ := newFollower()
	var served atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		fmt.Fprintln(w, "2026-11-23T12:00:01Z step 5")
	}))
	defer server.Close()
	core, err := clientcorev1.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	f.pods = core
	for range maxMatches {
		f.reads.matching <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	settings, err := stall.Parse(stall.Annotations{Progress: "step", StalledAfter: "15m"}, stall.Compile)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 3 * maxReads {
		group.Go(func() {
			if _, _, err := f.readAs(ctx, "a", stall.Look{Pod: stall.Pod{Name: "p", Container: "main"}}, settings, usual); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("read, and not matched: %v", err)
			}
		})
	}
	ended := make(chan struct{})
	go func() { group.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it waits for a match for ever")
	}
	if n := served.Load(); n != maxReads {
		t.Errorf("%d texts at once", n)
	}
	if n := len(f.reads.reading); n != 0 {
		t.Errorf("%d slots are not given back", n)
	}
}
