package operator

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const upgrade = "paused-for-driver-upgrade"

func TestPauseAndResume(t *testing.T) {
	long := strings.Repeat("x", 38)
	for value, want := range map[string]string{
		"true": Paused, "false": "false", "": "", "custom": "custom_" + Paused, upgrade: upgrade, "custom_" + upgrade: "custom_" + upgrade,
		Paused: Paused, long: long, long[1:]: long[1:] + "_" + Paused,
	} {
		before := map[string]string{prefix + "dcgm-exporter": value, prefix + "driver": "true", "pool": "a"}
		kept := maps.Clone(before)
		after := Pause(before)
		if after[prefix+"dcgm-exporter"] != want || after[prefix+"driver"] != "true" || after["pool"] != "a" {
			t.Errorf("%q: %v", value, after)
		}
		if diff := cmp.Diff(after, Pause(after)); diff != "" {
			t.Errorf("%q, paused twice: %s", value, diff)
		}
		if value == Paused {
			kept[prefix+"dcgm-exporter"] = "true"
		}
		if diff := cmp.Diff(kept, Resume(after)); diff != "" {
			t.Errorf("%q, given back: %s", value, diff)
		}
		if IsPaused(after) != strings.Contains(want, Paused) {
			t.Errorf("%q: paused is %t", value, IsPaused(after))
		}
	}
	if after := Pause(map[string]string{"pool": "a"}); len(after) != 1 {
		t.Errorf("without the operator: %v", after)
	}
	if diff := cmp.Diff(map[string]string{"other": Paused}, Resume(map[string]string{"other": Paused})); diff != "" {
		t.Errorf("a label of others: %s", diff)
	}
}

// A driver upgrade that begins during a repair appends its mark (maybeSetPaused), and takes it away again (maybeSetTrue), in either order.
func TestADriverUpgradeDuringARepairKeepsItsMark(t *testing.T) {
	key := prefix + "device-plugin"
	both := map[string]string{key: Paused + "_" + upgrade}
	if got := Resume(both)[key]; got != upgrade {
		t.Errorf("the repair ends first: %s", got)
	}
	if got := Resume(map[string]string{key: Paused})[key]; got != "true" {
		t.Errorf("the upgrade ends first: %s", got)
	}
	for value, want := range map[string]string{"true": "", Paused: "", upgrade: key + "=" + upgrade, both[key]: key + "=" + both[key], "x_paused-for-mig-change": key + "=x_paused-for-mig-change"} {
		if got := PausedByOthers(map[string]string{key: value, "other": upgrade}); got != want {
			t.Errorf("%s is paused by others: %q", value, got)
		}
	}
}

func TestLeaving(t *testing.T) {
	pod := func(name, key, value string, phase corev1.PodPhase) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeSelector: map[string]string{key: value, "pool": "b"}}, Status: corev1.PodStatus{Phase: phase}}
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{prefix + "dcgm": Paused, prefix + "driver": "true", "pool": "a"}}}
	var names []string
	for _, p := range Leaving(true, n, []corev1.Pod{
		pod("dcgm", prefix+"dcgm", "true", corev1.PodRunning), pod("driver", prefix+"driver", "true", corev1.PodRunning),
		pod("other", "x", "y", corev1.PodRunning), pod("ended", prefix+"dcgm", "true", corev1.PodFailed), {},
	}) {
		names = append(names, p.Name)
	}
	if strings.Join(names, " ") != "dcgm" {
		t.Errorf("%q", names)
	}
}
