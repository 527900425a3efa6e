package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

func TestOnlyWhatAPluginKeepsCanBeCleared(t *testing.T) {
	for _, c := range conditions.All {
		if got := slices.Contains(clearable(), c.Type); got != c.Latches {
			t.Errorf("%s is offered: %v, its plugin keeps what it has seen: %v", c.Type, got, c.Latches)
		}
		if c.Latches {
			continue
		}
		// It needs no cluster to say so.
		_, err := clearCondition(new(cli.Target), cli.Actor{}, "node", strings.ToLower(c.Type))
		want := c.Type + " cannot be cleared: its plugin " + c.Plugin + " keeps nothing, and the condition follows the hardware"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("clear %s: %v, want %s", c.Type, err, want)
		}
	}
}

func TestReleaseClearsWhatAPluginKeepsOnly(t *testing.T) {
	record := `{"v":1,"id":"1","nodeUID":"u","phase":"suspect","causes":[` +
		`{"condition":"GPUMemoryError","rule":"gpu","repair":"Replace","message":"Replace gpu 0000:4e:00: row remapping failed"},` +
		`{"condition":"GPUXidError","rule":"gpu","repair":"Reboot","message":"Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"},` +
		`{"condition":"SlowNode","rule":"slow","repair":"Inspect","message":"Inspect node: slow"}]}`
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{conditions.AnnotationQuarantine: record}}}
	types, err := latched(n)
	if err != nil || !slices.Equal(types, []string{conditions.GPUXidError}) {
		t.Errorf("%q, %v; want GPUXidError alone", types, err)
	}
}

// A tenant can start a pod whose container has the detector's name, and write a ConfigMap with any command.
func TestAConditionIsClearedInATrustedNamespaceOnly(t *testing.T) {
	const npd, chart = "kube-system", cli.OwnNPD
	for name, test := range map[string]struct {
		pods         [][2]string // namespace and label app.kubernetes.io/name
		npdNamespace string
		want         string // the pod; empty: none
	}{
		"a tenant's pod":                      {pods: [][2]string{{"a-team", chart}}, npdNamespace: npd},
		"no other namespace":                  {pods: [][2]string{{"a-team", chart}}},
		"the chart's beside a tenant's":       {pods: [][2]string{{"a-team", chart}, {"pitcrew", chart}}, npdNamespace: npd, want: "pitcrew/0"},
		"another in Pitcrew's namespace":      {pods: [][2]string{{"pitcrew", ""}}, npdNamespace: npd, want: "pitcrew/0"},
		"the chart's before another":          {pods: [][2]string{{"pitcrew", ""}, {"pitcrew", chart}}, npdNamespace: npd, want: "pitcrew/1"},
		"the users' own":                      {pods: [][2]string{{"a-team", ""}, {npd, ""}}, npdNamespace: npd, want: npd + "/0"},
		"the chart's before the users' own":   {pods: [][2]string{{npd, chart}, {"pitcrew", chart}}, npdNamespace: npd, want: "pitcrew/0"},
		"the users' own in a named namespace": {pods: [][2]string{{"a-team", ""}, {"monitoring", ""}}, npdNamespace: "monitoring", want: "monitoring/0"},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			seen := map[string]int{}
			for _, in := range test.pods {
				pod := fmt.Sprint(seen[in[0]])
				seen[in[0]]++
				meta := metav1.ObjectMeta{Namespace: in[0], Name: pod, Labels: map[string]string{cli.LabelName: in[1]}}
				objects = append(objects, &corev1.ConfigMap{ObjectMeta: meta,
					Data: map[string]string{"xid.json": `{"rules":[{"condition":"GPUXidError","path":"/` + in[0] + "/" + pod + `"}]}`}},
					&corev1.Pod{ObjectMeta: meta, Status: corev1.PodStatus{Phase: corev1.PodRunning}, Spec: corev1.PodSpec{
						NodeName: "n", Containers: []corev1.Container{{Name: ContainerNPD}},
						Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
							LocalObjectReference: corev1.LocalObjectReference{Name: pod}}}}},
					}})
			}
			api := fake.NewClientBuilder().WithObjects(objects...).WithIndex(&corev1.Pod{}, "spec.nodeName",
				func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).Build()
			c := &cli.Target{Namespace: "pitcrew", NpdNamespace: test.npdNamespace}
			pod, command, err := detector(t.Context(), c, api, "n", conditions.GPUXidError)
			if test.want == "" {
				if err == nil || !strings.Contains(err.Error(), "--npd-namespace") {
					t.Errorf("%v, command %q, %v", pod, command, err)
				}
				return
			}
			if err != nil || pod.Namespace+"/"+pod.Name != test.want || !slices.Equal(command, []string{"/" + test.want}) {
				t.Errorf("pod %v, command %q, %v; want %s", pod, command, err, test.want)
			}
		})
	}
}
