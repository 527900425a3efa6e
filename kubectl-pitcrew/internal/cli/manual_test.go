package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// racing is an API server at which other writers change a node before each of the first patches arrives.
func racing(t *testing.T, n *corev1.Node, writers ...func(*corev1.Node)) client.Client {
	t.Helper()
	return fake.NewClientBuilder().WithObjects(n).WithStatusSubresource(n).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if len(writers) > 0 {
				var now corev1.Node
				if err := api.Get(ctx, client.ObjectKeyFromObject(object), &now); err != nil {
					t.Error(err)
				}
				writers[0](&now)
				if err := api.Update(ctx, &now); err != nil {
					t.Error(err)
				}
				if err := api.Status().Update(ctx, &now); err != nil {
					t.Error(err)
				}
				writers = writers[1:]
			}
			return api.Patch(ctx, object, patch, opts...)
		},
	}).Build()
}

// changed changes the node n as it is now.
func changed(t *testing.T, api client.Client, to func(*corev1.Node) (*corev1.Node, error)) error {
	t.Helper()
	var n corev1.Node
	if err := api.Get(t.Context(), client.ObjectKey{Name: "n"}, &n); err != nil {
		t.Fatal(err)
	}
	return ChangeNode(t.Context(), api, &n, to)
}

func TestAHeartbeatStopsNoManualChange(t *testing.T) {
	quarantined := func(n *corev1.Node) (*corev1.Node, error) {
		return quarantine.QuarantineManually(n, quarantine.Manual{Reason: "smoke"}, clitest.Now)
	}
	released := func(n *corev1.Node) (*corev1.Node, error) {
		return quarantine.ReleaseManually(n, quarantine.Manual{}, nil, clitest.Now.Add(time.Minute))
	}
	healthy := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	faulty, err := quarantined(healthy)
	if err != nil {
		t.Fatal(err)
	}
	heartbeat := func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(clitest.Now)}}
	}
	// What another writer does meanwhile is kept.
	taint := func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoSchedule})
	}
	for _, test := range []struct {
		verb, want string
		node       *corev1.Node
		to         func(*corev1.Node) (*corev1.Node, error)
	}{
		{"Quarantine", "example.com/theirs:NoSchedule pitcrew.dev/unhealthy=ByHand:NoSchedule", healthy, quarantined},
		{"Release", "example.com/theirs:NoSchedule", faulty, released},
	} {
		api := racing(t, test.node, heartbeat, taint)
		if err := changed(t, api, test.to); err != nil {
			t.Fatalf("%s: %v", test.verb, err)
		}
		var n corev1.Node
		if err := api.Get(t.Context(), client.ObjectKey{Name: "n"}, &n); err != nil {
			t.Fatal(err)
		}
		if got := Taints(&n); got != test.want {
			t.Errorf("%s: taints %q, want %q", test.verb, got, test.want)
		}
	}
}

func TestAConflictIsDecidedAnew(t *testing.T) {
	// Another user is faster.
	quarantined := func(n *corev1.Node) {
		after, err := quarantine.QuarantineManually(n, quarantine.Manual{Reason: "theirs"}, clitest.Now)
		if err != nil {
			t.Fatal(err)
		}
		*n = *after
	}
	api := racing(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}, quarantined)
	err := changed(t, api, func(n *corev1.Node) (*corev1.Node, error) {
		return quarantine.QuarantineManually(n, quarantine.Manual{Reason: "ours"}, clitest.Now)
	})
	if err == nil || !strings.Contains(err.Error(), "quarantined manually already") {
		t.Errorf("got %v", err)
	}
	var n corev1.Node
	if err := api.Get(t.Context(), client.ObjectKey{Name: "n"}, &n); err != nil {
		t.Fatal(err)
	}
	if record := n.Annotations[conditions.AnnotationQuarantine]; !strings.Contains(record, "theirs") || strings.Contains(record, "ours") {
		t.Errorf("record %s", record)
	}
}

func TestANodeThatIsAlwaysWrittenIsGivenUp(t *testing.T) {
	tries := 0
	busy := func(n *corev1.Node) { tries++; n.Labels = map[string]string{"try": string(rune('a' + tries))} }
	var writers []func(*corev1.Node)
	for range 100 {
		writers = append(writers, busy)
	}
	api := racing(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}, writers...)
	err := changed(t, api, func(n *corev1.Node) (*corev1.Node, error) {
		return quarantine.QuarantineManually(n, quarantine.Manual{Reason: "smoke"}, clitest.Now)
	})
	if err == nil || !strings.Contains(err.Error(), "the object has been modified") && !strings.Contains(err.Error(), "object was modified") {
		t.Errorf("got %v", err)
	}
	if tries > 10 {
		t.Errorf("%d tries", tries)
	}
}
