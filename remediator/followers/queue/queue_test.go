package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodes has a node of each name, all with one UID.
type nodes struct {
	client.Reader
	uid types.UID
}

func (s *nodes) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.SetName(key.Name)
	o.SetUID(s.uid)
	return nil
}

// What the API server refuses, as without a permission or with an output that the admission policy does not know, is tried again within a
// minute, and what is wanted by then is written.
func TestWhatIsRefusedIsWrittenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, written := 0, ""
		shown := &nodes{uid: "u"}
		q := New("Failed to write", shown, func(_ context.Context, n *corev1.Node, what string) error {
			if refused < 20 {
				refused++
				return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, n.Name, nil)
			}
			written += what
			return nil
		})
		go func() { _ = q.Start(t.Context()) }()
		q.Want("n", "u", "first ")
		<-time.After(5 * time.Minute)
		if refused < 10 || refused == 20 {
			t.Fatalf("%d tries within five minutes", refused)
		}
		q.Want("n", "u", "second ")
		<-time.After(20 * time.Minute)
		shown.uid = "new"
		q.Want("n", "new", "third ")
		q.Want("gone", "u", "fourth ")
		q.Forget("gone")
		synctest.Wait()
		if written != "second third " || q.Len() > 0 || q.queue.Len() > 0 {
			t.Errorf("after %d refusals %q was written, %d nodes are left", refused, written, q.Len())
		}
	})
}

// What is wanted while a write is under way is written after it.
func TestWhatChangesMeanwhileIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q *Queue[string]
		written := ""
		q = New("Failed to write", &nodes{uid: "u"}, func(_ context.Context, n *corev1.Node, what string) error {
			if written += what; what == "first " {
				q.Want(n.Name, n.UID, "second ")
			}
			return nil
		})
		go func() { _ = q.Start(t.Context()) }()
		q.Want("n", "u", "first ")
		synctest.Wait()
		if written != "first second " || q.Len() > 0 {
			t.Errorf("%q was written, %d nodes are left", written, q.Len())
		}
	})
}
