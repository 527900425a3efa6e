package failures

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
)

var reboot = breaker.Action{Template: "reboot", Condition: "GPUXidError"}

func nodeOf(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}

// newStore returns a store over nodes a to d, whose policy holds an action that failed on three, and its API server, which is away while
// away is true.
func newStore(t *testing.T) (s *Store, api client.Client, away *bool) {
	t.Helper()
	away = new(bool)
	var nodes []client.Object
	for _, name := range []string{"a", "b", "c", "d"} {
		nodes = append(nodes, nodeOf(name))
	}
	api = fake.NewClientBuilder().WithObjects(nodes...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if *away {
				return errors.New("connection refused")
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	p := policy.Fixed(&policy.Policy{Repair: &policy.Repair{MaxFailures: 3}})
	return New(api, api, "pitcrew", p, clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))), api, away
}

func TestAnActionThatFailsOnSeveralNodesIsHeldUntilAPersonResetsIt(t *testing.T) {
	s, api, away := newStore(t)
	note := func(node string, outcome breaker.Outcome) {
		t.Helper()
		for range 2 { // what is noted twice counts once
			if err := s.Note(t.Context(), nodeOf(node), []repair.Note{{Action: reboot, Outcome: outcome}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	held := func(want int) {
		t.Helper()
		// A new process knows what the ConfigMap has.
		fresh := New(api, api, "pitcrew", s.Policy, s.Clock)
		got, err := fresh.Held(t.Context())
		if err != nil || got[reboot] != want {
			t.Errorf("held %v: %v; want %d failures", got, err, want)
		}
		metrics := make(chan prometheus.Metric, 10)
		fresh.Collect(t.Context(), metrics)
		if n := len(metrics); n != min(want, 1) {
			t.Errorf("%d series", n)
		}
	}
	for _, node := range []string{"a", "b", "c"} {
		note(node, breaker.Started)
	}
	held(0)
	note("a", breaker.Failed)
	note("b", breaker.Failed)
	held(0)
	note("c", breaker.Failed)
	held(3)
	*away = true
	metrics := make(chan prometheus.Metric, 10)
	s.Collect(t.Context(), metrics)
	if _, err := s.Held(t.Context()); err == nil || len(metrics) > 0 {
		t.Errorf("without an API server: %v, %d series", err, len(metrics))
	}
	*away = false
	if err := api.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.BreakerConfigMap}}); err != nil {
		t.Fatal(err)
	}
	held(0)

	// A machine that does not come back has no outcome.
	for _, node := range []string{"a", "b", "c"} {
		note(node, breaker.Started)
		if err := api.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
			t.Fatal(err)
		}
	}
	held(3)
	note("d", breaker.Helped)
	held(0)
}

// Whoever may write the ConfigMap may have written anything.
func TestAStateThatCannotBeReadLetsNothingBegin(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "{", "too large": fmt.Sprintf("%300000s", "{}"),
	} {
		s, api, _ := newStore(t)
		state := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.BreakerConfigMap}, Data: map[string]string{breaker.Key: text}}
		if err := api.Create(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		if held, err := s.Held(t.Context()); err == nil {
			t.Errorf("%s: held %v", name, held)
		}
		if err := s.Note(t.Context(), nodeOf("a"), []repair.Note{{Action: reboot, Outcome: breaker.Started}}); err == nil {
			t.Errorf("%s: an action begins", name)
		}
		if err := s.Note(t.Context(), nodeOf("a"), []repair.Note{{Action: reboot, Outcome: breaker.Failed}}); err != nil {
			t.Errorf("%s: what has begun does not end: %v", name, err)
		}
	}
}
