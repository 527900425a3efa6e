package pending

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestAPendingWriteShowsUntilTheCacheShowsIt(t *testing.T) {
	quarantined := &causes.Record{NodeUID: "u", Quarantine: causes.Quarantine{
		ID: "0123456789ab", Phase: causes.Quarantined, Taint: &causes.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: "NoSchedule"},
	}}
	slimNode := func() *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7"}}
	}
	newPending := func(dryRun bool) *Writes {
		w := New(dryRun)
		w.Add(slimNode(), quarantined)
		return w
	}
	shown := func(w *Writes, change func(*corev1.Node)) bool {
		n := slimNode()
		change(n)
		as := n.DeepCopy()
		w.Overlay(n)
		return !equality.Semantic.DeepEqual(n, as)
	}
	same := func(*corev1.Node) {}
	newer := func(n *corev1.Node) { n.ResourceVersion = "8" }
	recreated := func(n *corev1.Node) { n.UID = "v" }
	tests := map[string]struct {
		dryRun bool
		looks  []func(*corev1.Node)
		want   []bool // whether each look shows the write
	}{
		"the version that was written over":           {false, []func(*corev1.Node){same, same}, []bool{true, true}},
		"a newer version, which has the write itself": {false, []func(*corev1.Node){newer, same}, []bool{false, false}},
		"another node of the same name":               {false, []func(*corev1.Node){recreated}, []bool{false}},
		"a dry run, whatever happens to the node":     {true, []func(*corev1.Node){newer, newer}, []bool{true, true}},
		"a dry run and another node of the same name": {true, []func(*corev1.Node){recreated}, []bool{false}},
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
