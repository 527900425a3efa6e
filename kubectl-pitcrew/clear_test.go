package main

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
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
		_, err := new(target).clearCondition(actor{}, "node", strings.ToLower(c.Type))
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
