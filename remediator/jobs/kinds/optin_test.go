package kinds

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOptIn(t *testing.T) {
	const ours, kcovers = "pitcrew.dev/restart-on-node-fault", "kcover.io/cascading-recovery"
	tests := map[string]struct {
		labels      map[string]string
		in, decided bool
	}{
		"no labels":                   {nil, false, false},
		"opted in":                    {map[string]string{ours: "true"}, true, true},
		"opted out":                   {map[string]string{ours: "false"}, false, true},
		"opted in by kcover's":        {map[string]string{kcovers: "true"}, true, true},
		"kcover's, but opted out":     {map[string]string{ours: "false", kcovers: "true"}, false, true},
		"kcover's false says nothing": {map[string]string{kcovers: "false"}, false, false},
		"any other word says nothing": {map[string]string{ours: "yes"}, false, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if in, by := optIn(test.labels); in != test.in || (by != "") != test.decided {
				t.Errorf("got %t by %q, want %t, %t", in, by, test.in, test.decided)
			}
		})
	}
}

func TestTheNamespaceOptsInWhereTheJobSaysNothing(t *testing.T) {
	const namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {pitcrew.dev/restart-on-node-fault: 'true'}}\n"
	reader, _ := readerOf(t, namespace)
	own := func(labels map[string]string) Workload {
		return Workload{Namespace: "team", BarePod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: labels}}}
	}
	tests := map[string]struct {
		workload Workload
		want     OptIn
	}{
		"the job says nothing":     {own(nil), OptIn{In: true, By: "pitcrew.dev/restart-on-node-fault=true", Namespace: true}},
		"the job opts out":         {own(map[string]string{"pitcrew.dev/restart-on-node-fault": "false"}), OptIn{By: "pitcrew.dev/restart-on-node-fault=false"}},
		"an owner that is unknown": {Workload{Namespace: "team", Unsupported: &metav1.OwnerReference{}}, OptIn{In: true, By: "pitcrew.dev/restart-on-node-fault=true", Namespace: true}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ReadOptIn(t.Context(), reader, test.workload)
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}
