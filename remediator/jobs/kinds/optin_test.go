package kinds

import (
	"reflect"
	"strings"
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
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func TestWhatOnlyLooksLikeAnOptIn(t *testing.T) {
	const key = "pitcrew.dev/restart-on-node-fault"
	tests := map[string]struct {
		labels, annotations map[string]string
		want                []string
	}{
		"nothing":             {map[string]string{"app": "x", "pitcrew.dev/restarting": "true"}, map[string]string{"pitcrew.dev/restart": "{}", "pitcrew.dev/abort-restart": ""}, nil},
		"in":                  {map[string]string{key: "true"}, nil, nil},
		"out":                 {map[string]string{key: "false", "kcover.io/cascading-recovery": "false"}, nil, nil},
		"yes":                 {map[string]string{key: "yes"}, nil, []string{"label " + key + `=yes on Job ml/train does not count: the value must be "true" or "false"`}},
		"True":                {map[string]string{key: "True"}, nil, []string{"label " + key + `=True on Job ml/train does not count: the value must be "true" or "false"`}},
		"1":                   {map[string]string{"kcover.io/cascading-recovery": "1"}, nil, []string{`label kcover.io/cascading-recovery=1 on Job ml/train does not count: the value must be "true"`}},
		"one letter too much": {map[string]string{key + "s": "true"}, nil, []string{"label " + key + "s=true on Job ml/train does not count: its key must be " + key}},
		"no domain":           {map[string]string{"restart-on-node-fault": "true"}, nil, []string{"label restart-on-node-fault=true on Job ml/train does not count: its key must be " + key}},
		"another domain":      {map[string]string{"pitcrew.io/restart-on-node-fault": "true"}, nil, []string{"label pitcrew.io/restart-on-node-fault=true on Job ml/train does not count: its key must be " + key}},
		"other words":         {map[string]string{"pitcrew.dev/restart-on-fault": "true"}, nil, []string{"label pitcrew.dev/restart-on-fault=true on Job ml/train does not count: its key must be " + key}},
		"an annotation":       {nil, map[string]string{key: "true"}, []string{"annotation " + key + " on Job ml/train does not count: it must be a label"}},
		"a misspelt one":      {nil, map[string]string{"pitcrew.dev/restart_on_node_fault": "true"}, []string{"annotation pitcrew.dev/restart_on_node_fault on Job ml/train does not count: it must be the label " + key}},
	}
	for name, test := range tests {
		got := Mistakes(&metav1.ObjectMeta{Labels: test.labels, Annotations: test.annotations}, "Job ml/train")
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, test.want)
		}
	}
}

// What the namespace has counts for all that is in it, and so does its mistake.
func TestTheMistakesOfAJobAndOfItsNamespaceAreTold(t *testing.T) {
	reader, _ := readerOf(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {pitcrew.dev/restart-on-node-fault: 'on'}}\n")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"restart-on-node-fault": "true"}}}
	got, err := ReadOptIn(t.Context(), reader, Workload{Namespace: "team", BarePod: pod})
	if err != nil || got.In || len(got.Mistakes) != 2 || !strings.Contains(got.Mistakes[0], "on Pod team/p") || !strings.Contains(got.Mistakes[1], "on namespace team") {
		t.Errorf("got %+v, %v", got, err)
	}
}
