package node

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

// An order writes nothing but the request, and ends with the answer of a remediator or says that none has come.
func TestAnOrderWaitsForItsAnswer(t *testing.T) {
	quarantined := clitest.QuarantinedBy(t, "a", "gpu", conditions.Reboot)
	for name, test := range map[string]struct {
		answers     func(n *corev1.Node, r *request.Request) *corev1.Node // nil: nobody does
		kind        request.Kind
		says, fails string
	}{
		"it is carried out": {func(n *corev1.Node, r *request.Request) *corev1.Node {
			o, err := request.Carry(request.Scope{}, n, r, clitest.Now)
			return request.Answered(n, *r, o, err, clitest.Now)
		}, request.ReleaseNow, "Node a: released manually\n", ""},
		"it is refused": {func(n *corev1.Node, r *request.Request) *corev1.Node {
			r.Answer = &request.Answer{Text: "the quarantine\x1b has ended"}
			n = n.DeepCopy()
			r.Put(n)
			return n
		}, request.Repair, "", "the remediator refuses: the quarantine\ufffd has ended"},
		"another takes its place": {func(n *corev1.Node, _ *request.Request) *corev1.Node {
			n = n.DeepCopy()
			(&request.Request{ID: "other"}).Put(n)
			return n
		}, request.Stop, "", "another request has replaced this one"},
		"no remediator runs": {nil, request.ReleaseNow, "", "no remediator has answered within 300ms: the request stays on the node until one runs, and `kubectl annotate node a pitcrew.dev/request-`"},
	} {
		t.Run(name, func(t *testing.T) {
			patched := 0
			api := fake.NewClientBuilder().WithObjects(quarantined.DeepCopy()).WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
					patched++
					if data, err := patch.Data(object); err != nil || strings.Contains(string(data), "taints") || strings.Contains(string(data), "quarantine\":\"{") {
						t.Errorf("it patches more than the request: %s, %v", data, err)
					}
					if err := api.Patch(ctx, object, patch, opts...); err != nil || test.answers == nil {
						return err
					}
					var n corev1.Node
					if err := api.Get(ctx, client.ObjectKeyFromObject(object), &n); err != nil {
						return err
					}
					r, err := request.Of(&n)
					if err != nil {
						return err
					}
					return api.Update(ctx, test.answers(&n, r))
				},
			}).Build()
			var out strings.Builder
			cmd := &cobra.Command{}
			cmd.SetContext(t.Context())
			cmd.SetOut(&out)
			by := cli.Actor{Manual: quarantine.Manual{User: "ann", Reason: "mine"}, Cmd: cmd, Api: api}
			c := &cli.Target{Namespace: "pitcrew", AnswerWithin: 300 * time.Millisecond, Now: func() time.Time { return clitest.Now }}
			changes, err := orders(c, by, []string{"a"}, test.kind, clitest.PolicyFile(t, clitest.RepairPolicy))
			if err != nil {
				t.Fatal(err)
			}
			if patched > 0 {
				t.Error("it was written before anybody was asked")
			}
			err = changes[0].Do(t.Context())
			if out.String() != test.says || (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("says %q, %v", out.String(), err)
			}
		})
	}
}
