package progress

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

// asked notes the restarts that are asked for.
type asked struct{ stalls []jobs.Stall }

func (*asked) Kinds() []kinds.Kind { return kinds.BuiltIn() }

func (*asked) ActivePods(context.Context, restart.Job) ([]corev1.Pod, error) { return nil, nil }

func (a *asked) RestartStalled(_ context.Context, s jobs.Stall) error {
	a.stalls = append(a.stalls, s)
	return nil
}

// Two namespaces hold up nobody, whatever their jobs do; three others at about the same time, if those are many of all that are followed,
// have something in common.
func TestWhatManyNamespacesShareRestartsNobody(t *testing.T) {
	for name, test := range map[string]struct {
		mode     policy.StallsMode
		others   map[string]time.Duration // by namespace, how much later
		running  int                      // further namespaces with followed jobs
		restarts bool
	}{
		"alone":                          {policy.StallsRestart, nil, 0, true},
		"observed":                       {policy.StallsObserve, nil, 0, false},
		"beside two namespaces":          {policy.StallsRestart, map[string]time.Duration{"b": 0, "c": 0}, 0, true},
		"beside three":                   {policy.StallsRestart, map[string]time.Duration{"b": 0, "c": sharedWindow, "d": 0}, 0, false},
		"beside three, one much earlier": {policy.StallsRestart, map[string]time.Duration{"b": 0, "c": -sharedWindow - time.Second, "d": 0}, 0, true},
		"beside three of twelve":         {policy.StallsRestart, map[string]time.Duration{"b": 0, "c": 0, "d": 0}, 9, false},
		"beside three of thirteen":       {policy.StallsRestart, map[string]time.Duration{"b": 0, "c": 0, "d": 0}, 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, recorder := newFollower()
			f.DryRun = true
			p, ask := &policy.Policy{}, &asked{}
			p.Restart.Stalls.Mode = test.mode
			f.Policy, f.Jobs, f.quiet = policy.Fixed(p), ask, map[request]time.Time{}
			at := func(namespace, name string, since time.Time) request {
				req := request{Kind: kinds.BuiltIn()[0].GVK, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
				f.enter(req, &followed{}, stall.Verdict{State: stall.Stalled, Since: since})
				f.places[namespace]++
				return req
			}
			for i := range 5 {
				at("a", fmt.Sprint(i), noon)
			}
			for namespace, later := range test.others {
				at(namespace, "train", noon.Add(later))
			}
			for i := range test.running {
				f.places[fmt.Sprint("running-", i)]++
			}
			req := at("a", "train", noon)
			known, object := &followed{uid: "uid", said: sets.New[string]()}, &metav1.PartialObjectMetadata{}
			known.job.Observe([]stall.Pod{{UID: "2"}, {UID: "1"}}, true, noon)
			v := stall.Verdict{State: stall.Stalled, Since: noon}
			for look := range 3 {
				if err := f.report(t.Context(), req, object, known, v); err != nil {
					t.Fatal(err)
				}
				if look == 0 && len(ask.stalls) > 0 {
					t.Error("restarted by the look that has reported it")
				}
			}
			want := 0
			if test.restarts {
				want = 2
			}
			if len(ask.stalls) != want {
				t.Errorf("%d restarts are asked for, want %d", len(ask.stalls), want)
			}
			for _, s := range ask.stalls {
				if s.UID != "uid" || s.Name != "train" || s.Kind.GVK != req.Kind || !slices.Equal(s.Pods, []types.UID{"1", "2"}) || !s.Since.Equal(noon) {
					t.Errorf("%+v", s)
				}
			}
			shared := 0
			for len(recorder.Events) > 0 {
				if strings.Contains(<-recorder.Events, "jobs of 3 other namespaces make no progress") {
					shared++
				}
			}
			if want := map[bool]int{true: 1}[len(test.others) == 3 && !test.restarts]; shared != want {
				t.Errorf("%d Events about what they share, want %d", shared, want)
			}
			f.enter(req, known, stall.Verdict{State: stall.Running})
			if _, there := f.quiet[req]; there {
				t.Error("a job that runs still counts")
			}
		})
	}
}

// A job that falls silent at one step after the other fills no namespace.
func TestSoMuchEvidenceIsKeptInADay(t *testing.T) {
	f, _ := newFollower()
	f.api = fake.NewClientBuilder().Build()
	req := request{Kind: kinds.BuiltIn()[0].GVK, NamespacedName: types.NamespacedName{Namespace: "a", Name: "train"}}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "train", UID: "uid"}}
	said := ""
	for step := range uint64(evidencePerDay + 3) {
		known, _ := f.follow(req, object, stall.Annotations{Progress: "step", StalledAfter: fmt.Sprintf("%dm", 10+step)}) // an annotation that changes gives no more
		if known == nil {
			t.Fatal("no place")
		}
		var err error
		if said, err = f.keep(t.Context(), object, known, Evidence{Namespace: "a", Step: &step, TakenAt: noon}); err != nil {
			t.Fatal(err)
		}
	}
	var kept corev1.ConfigMapList
	if err := f.api.List(t.Context(), &kept); err != nil || len(kept.Items) != evidencePerDay || said != "no evidence is kept, because 10 were in 24 hours" {
		t.Errorf("%d ConfigMaps, %q, %v", len(kept.Items), said, err)
	}
	known, _ := f.follow(req, object, stall.Annotations{Progress: "step", StalledAfter: "15m"})
	if said, err := f.keep(t.Context(), object, known, Evidence{Namespace: "a", TakenAt: noon.Add(3 * time.Hour)}); err != nil || !strings.HasSuffix(said, "has the evidence") {
		t.Errorf("three hours later: %q, %v", said, err)
	}
}

// A ConfigMap holds 1 MiB, and eight kubelets may write nearly that much into the conditions of their nodes.
func TestWhatNodesSayFillsNoEvidence(t *testing.T) {
	f, _ := newFollower()
	var nodes []client.Object
	var ranks []stall.Rank
	var behind []int
	for i := range maxNamed {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
		for range maxConditions {
			long := strings.Repeat("x", 500)
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
				Type: corev1.NodeConditionType(long), Status: corev1.ConditionStatus(long), Reason: long,
			})
		}
		nodes, ranks, behind = append(nodes, n), append(ranks, stall.Rank{Node: n.Name}), append(behind, i)
	}
	f.api = fake.NewClientBuilder().WithObjects(nodes...).Build()
	all := f.nodesOf(t.Context(), ranks, behind)
	text, err := json.Marshal(all)
	if err != nil || len(all) != maxNamed || len(all[7].Conditions) != maxConditions || len(text) > 256<<10 {
		t.Errorf("%d nodes in %d bytes: %v", len(all), len(text), err)
	}
}
