package pending

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type record struct{ text string }

var kind = Kind[*record]{
	Annotation: "test/record",
	Text: func(r *record) string {
		if r == nil {
			return ""
		}
		return r.text
	},
	Overlay: func(n *corev1.Node, r *record) { n.Annotations = map[string]string{"test/record": r.text} },
}

func TestAPendingWriteShowsUntilTheCacheShowsIt(t *testing.T) {
	quarantined := &record{"written"}
	slimNode := func() *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7"}}
	}
	newPending := func(dryRun bool) *Writes[*record, struct{}] {
		w := New[*record, struct{}](kind, dryRun)
		w.Add(slimNode(), quarantined)
		return w
	}
	shown := func(w *Writes[*record, struct{}], change func(*corev1.Node)) bool {
		n := slimNode()
		change(n)
		as := n.DeepCopy()
		w.Overlay(n)
		return !equality.Semantic.DeepEqual(n, as)
	}
	same := func(*corev1.Node) {}
	older := func(n *corev1.Node) { n.ResourceVersion = "6" }
	newer := func(n *corev1.Node) { n.ResourceVersion = "8" }
	recreated := func(n *corev1.Node) { n.UID = "v" }
	tests := map[string]struct {
		dryRun bool
		looks  []func(*corev1.Node)
		want   []bool // whether each look shows the write
	}{
		"the version that was written over":               {false, []func(*corev1.Node){same, same}, []bool{true, true}},
		"an older version: the write is over a live read": {false, []func(*corev1.Node){older, same}, []bool{true, true}},
		"a newer version, which has the write itself":     {false, []func(*corev1.Node){newer, same}, []bool{false, false}},
		"another node of the same name":                   {false, []func(*corev1.Node){recreated}, []bool{false}},
		"a dry run, whatever happens to the node":         {true, []func(*corev1.Node){newer, newer}, []bool{true, true}},
		"a dry run and another node of the same name":     {true, []func(*corev1.Node){recreated}, []bool{false}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newPending(test.dryRun)
			var got []bool
			for _, look := range test.looks {
				got = append(got, shown(w, look))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
