package kinds

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// What the deletion of a leader does is tested with the real LeaderWorkerSet in package operators. A worker that is deleted first is
// replaced there only on a busy machine.
func TestOnePodOfEachGroupIsDeleted(t *testing.T) {
	pod := func(name, group, worker string, deleted bool) metav1.PartialObjectMetadata {
		p := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{lwsGroupLabel: group, lwsWorkerLabel: worker},
		}}
		if deleted {
			p.DeletionTimestamp = &metav1.Time{Time: noon}
		}
		return p
	}
	tests := map[string]struct {
		pods []metav1.PartialObjectMetadata
		want []string
	}{
		"the leader of each": {
			[]metav1.PartialObjectMetadata{
				pod("train-0-1", "0", "1", false), pod("train-0", "0", "0", false), pod("train-1-1", "1", "1", false), pod("train-1", "1", "0", false),
			},
			[]string{"train-0 uid-train-0 Foreground", "train-1 uid-train-1 Foreground"},
		},
		"a leader alone": {[]metav1.PartialObjectMetadata{pod("train-2", "2", "0", false)}, []string{"train-2 uid-train-2 Foreground"}},
		"a worker without its leader": {
			[]metav1.PartialObjectMetadata{pod("train-0-1", "0", "1", false), pod("train-0-2", "0", "2", false)},
			[]string{"train-0-1 uid-train-0-1 Foreground"},
		},
		"none of a group that is being deleted": {
			[]metav1.PartialObjectMetadata{pod("train-0", "0", "0", false), pod("train-0-1", "0", "1", true)}, nil,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var deleted []string
			c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
				Delete: func(_ context.Context, _ client.WithWatch, pod client.Object, opts ...client.DeleteOption) error {
					o := (&client.DeleteOptions{}).ApplyOptions(opts)
					deleted = append(deleted, pod.GetName()+" "+string(*o.Preconditions.UID)+" "+string(*o.PropagationPolicy))
					return nil
				},
			}).Build()
			if refused, err := recreateGroups(t.Context(), c, restart.Job{}, nil, test.pods); err != nil || refused != "" {
				t.Errorf("got %q, %v", refused, err)
			}
			if diff := cmp.Diff(test.want, deleted); diff != "" {
				t.Error(diff)
			}
		})
	}
}
