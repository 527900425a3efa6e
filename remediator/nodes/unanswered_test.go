package nodes

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// lostAnswers are the errors that leave open whether a write has reached the API server.
var lostAnswers = map[string]error{
	"the connection broke":     syscall.ECONNRESET,
	"a time-out":               apierrors.NewTimeoutError("later", 1),
	"an error of the server":   apierrors.NewInternalError(errors.New("etcdserver: request timed out")),
	"the server is overloaded": apierrors.NewTooManyRequests("later", 1),
}

// fails reconciles a node, which must fail.
func (r rig) fails(t *testing.T, name string, want error) {
	t.Helper()
	_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
	if !errors.Is(err, want) {
		t.Fatalf("node %s: %v, want %v", name, err, want)
	}
}

// Attack 9: whether the write arrived or not, the node keeps its place under the budget of one until that is known.
func TestALostAnswerKeepsThePlace(t *testing.T) {
	for what, answer := range lostAnswers {
		for _, arrives := range []bool{true, false} {
			t.Run(what+map[bool]string{true: ", it arrived", false: ", it did not arrive"}[arrives], func(t *testing.T) {
				r := newRig(t, "a", "b", "c", "d")
				r.client.locks, r.client.unanswered, r.client.arrives = true, answer, arrives
				r.fails(t, "a", answer)
				if said := r.reasons(); len(said) > 0 || len(r.restarts.quarantines) > 0 {
					t.Errorf("said %q, restarted %v though it is not known that the node is tainted", said, r.restarts.quarantines)
				}
				r.client.unanswered = nil
				for _, name := range []string{"b", "c", "d"} {
					r.reconcile(t, name)
				}
				r.reasons()
				for _, n := range r.client.live {
					if n.Name != "a" && len(n.Spec.Taints) > 0 {
						t.Errorf("node %s took the place of node a", n.Name)
					}
				}
				for range 2 {
					r.reconcile(t, "a")
				}
				if got := r.client.live["a"]; got == nil || len(got.Spec.Taints) != 1 {
					t.Errorf("node a became %v", got)
				}
				if got := slices.Contains(r.client.patched, "a"); got == arrives {
					t.Errorf("written again: %v", got)
				}
				if diff := cmp.Diff([]string{causes.NodeQuarantined}, r.reasons()); diff != "" || len(r.restarts.quarantines) != map[bool]int{true: 1, false: 2}[arrives] {
					t.Errorf("%s, restarted %v", diff, r.restarts.quarantines)
				}
			})
		}
	}
}

func TestALostAnswerIsInDoubtUntilTheServerCanBeRead(t *testing.T) {
	r := newRig(t, "a", "b")
	r.client.unanswered, r.client.down = syscall.ECONNRESET, syscall.ECONNREFUSED
	r.fails(t, "a", syscall.ECONNRESET)
	for range 3 {
		r.fails(t, "a", syscall.ECONNREFUSED)
	}
	r.client.unanswered, r.client.down = nil, nil
	r.reconcile(t, "b")
	r.reconcile(t, "a")
	if diff := cmp.Diff([]string{causes.QuarantineBlocked, causes.NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

// The cache shows a newer version of the node: the write is in it, or can never arrive.
func TestALostAnswerIsSettledByTheCache(t *testing.T) {
	for arrived, want := range map[bool]string{true: "b", false: ""} {
		for _, told := range []bool{true, false} {
			r := newRig(t, "a", "b")
			r.client.unanswered, r.client.arrives, r.client.down = syscall.ECONNRESET, arrived, syscall.ECONNREFUSED
			r.fails(t, "a", syscall.ECONNRESET)
			r.client.unanswered = nil
			before := r.client.nodes[0]
			if arrived {
				r.client.nodes[0] = *r.client.live["a"].DeepCopy()
			} else {
				r.client.nodes[0].ResourceVersion, r.client.nodes[0].Status.Conditions = "8", nil
			}
			if told {
				r.tellUpdate(t, &before, &r.client.nodes[0])
			}
			r.reconcile(t, "a")
			if got := strings.Join(r.reasons(), " "); got != map[bool]string{true: causes.NodeQuarantined, false: ""}[arrived] {
				t.Errorf("arrived %v, told %v: said %q about node a", arrived, told, got)
			}
			r.reconcile(t, "b")
			if got := map[bool]string{true: "b", false: ""}[slices.Contains(r.reasons(), causes.QuarantineBlocked)]; got != want {
				t.Errorf("arrived %v, told %v: held back %q, want %q", arrived, told, got, want)
			}
		}
	}
}

// Nobody can tell any more whether the write had arrived. In doubt it counts, whoever notices first that the node is gone.
func TestALostAnswerAboutANodeThatIsGoneKeepsThePlace(t *testing.T) {
	for name, gone := range map[string]func(rig){
		"a live read": func(r rig) {
			r.client.down = apierrors.NewNotFound(schema.GroupResource{}, "a")
			r.client.refuse = r.client.down
			r.reconcile(t, "a")
			r.client.refuse = nil
		},
		"deleted":                   func(r rig) { r.remove(t, "a") },
		"deleted, not noticed yet":  func(r rig) { r.client.nodes = r.client.nodes[1:] },
		"replaced, not noticed yet": func(r rig) { replace(&r.client.nodes[0]) },
		"replaced, the cache tells": func(r rig) {
			before := r.client.nodes[0]
			replace(&r.client.nodes[0])
			r.tellUpdate(t, &before, &r.client.nodes[0])
		},
		"replaced": func(r rig) {
			replace(&r.client.nodes[0])
			r.reconcile(t, "a")
		},
	} {
		r := newRig(t, "a", "b")
		r.client.unanswered = syscall.ECONNRESET
		r.fails(t, "a", syscall.ECONNRESET)
		r.client.unanswered = nil
		gone(r)
		r.reasons()
		r.reconcile(t, "b")
		if diff := cmp.Diff([]string{causes.QuarantineBlocked}, r.reasons()); diff != "" || r.breaker.Remembered()["a"] == nil {
			t.Errorf("%s: %s, remembers %s", name, diff, r.breaker.Remembered())
		}
	}
}

// tellUpdate has the cache tell of a node that has changed.
func (r rig) tellUpdate(t *testing.T, before, after *corev1.Node) {
	t.Helper()
	r.follow(t.Context()).Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
}

// replace makes a node another one of the same name, without a fault.
func replace(n *corev1.Node) {
	n.UID, n.ResourceVersion, n.Status.Conditions = "another", "9", nil
}

// A decision on an old version of a node is refused. What was written before stays in force until the cache shows it.
func TestARefusedWriteDoesNotUndoTheOneBeforeIt(t *testing.T) {
	r := newRig(t, "a", "b")
	r.client.locks = true
	r.reconcile(t, "a")
	r.client.nodes[0].Status.Conditions[0].Message = lost // the cache shows a change, and not the version of the write
	if got := r.reconcile(t, "a"); got.RequeueAfter != conflictRetry {
		t.Fatalf("the second write was not refused: %v", got)
	}
	r.reconcile(t, "b")
	if diff := cmp.Diff([]string{causes.NodeQuarantined, causes.QuarantineBlocked}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

func TestARefusalLeavesNoDoubt(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	for _, refusal := range []error{
		apierrors.NewConflict(resource, "a", nil), apierrors.NewNotFound(resource, "a"), apierrors.NewForbidden(resource, "a", nil),
		apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "a", nil),
	} {
		r := newRig(t, "a", "b")
		r.client.refuse = refusal
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}}); err != nil && !errors.Is(err, refusal) {
			t.Error(err)
		}
		r.client.refuse, r.client.down = nil, syscall.ECONNREFUSED
		r.reconcile(t, "b")
		r.reconcile(t, "a") // without a live read
		want := []string{causes.NodeQuarantined, causes.QuarantineBlocked}
		if isDenied(refusal) {
			want = append([]string{causes.QuarantineBlocked}, want...)
		}
		if diff := cmp.Diff(want, r.reasons()); diff != "" {
			t.Errorf("%v: %s", refusal, diff)
		}
	}
}

// Another writer was first, so the write whose answer was lost can never arrive. The cache shows neither.
func TestALostAnswerAfterAnotherWriterFreesThePlace(t *testing.T) {
	r := newRig(t, "a", "b")
	r.client.locks, r.client.unanswered = true, syscall.ECONNRESET
	r.fails(t, "a", syscall.ECONNRESET)
	theirs := r.client.nodes[0].DeepCopy()
	theirs.ResourceVersion = "8"
	r.client.unanswered, r.client.live = nil, map[string]*corev1.Node{"a": theirs}
	if got := r.reconcile(t, "a"); got.RequeueAfter != conflictRetry {
		t.Errorf("written over the other writer: %v", got)
	}
	r.reconcile(t, "b")
	if diff := cmp.Diff([]string{causes.NodeQuarantined}, r.reasons()); diff != "" || !slices.Equal(r.client.patched, []string{"b"}) {
		t.Errorf("%s, patched %v", diff, r.client.patched)
	}
}
