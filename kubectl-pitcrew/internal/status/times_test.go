package status

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Attack 22: a kubelet writes any time that its node's conditions can hold.
func TestANodeWithAnImpossibleTimeIsShown(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for year, text := range map[string]string{"year 10000": `"9999-12-31T23:59:59-23:59"`, "year -1": `"0000-01-01T00:00:00+23:59"`} {
		var at metav1.Time
		if err := json.Unmarshal([]byte(text), &at); err != nil {
			t.Fatal(err)
		}
		for field, change := range map[string]func(*corev1.NodeCondition){
			"transition": func(c *corev1.NodeCondition) { c.LastTransitionTime = metav1.Time{Time: at.UTC()} },
			"heartbeat":  func(c *corev1.NodeCondition) { c.LastHeartbeatTime = metav1.Time{Time: at.UTC()} },
		} {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
			c := corev1.NodeCondition{Type: conditions.GPUXidError, Status: corev1.ConditionTrue, Message: "Inspect gpu 0000:1b:00: Xid 999 unknown",
				LastTransitionTime: metav1.NewTime(now), LastHeartbeatTime: metav1.NewTime(now)}
			change(&c)
			n.Status.Conditions = []corev1.NodeCondition{c}
			r := RowOf(n, now)
			if r.Node != "n" || r.Status == Healthy || !r.Since.IsZero() || !strings.Contains(r.Cause, "impossible, in the "+year) {
				t.Errorf("%s of %s: %+v", year, field, r)
			}
			if _, err := json.Marshal(r); err != nil {
				t.Errorf("%s of %s: %v", year, field, err)
			}
			if _, err := yaml.Marshal(r); err != nil {
				t.Errorf("%s of %s: %v", year, field, err)
			}
		}
	}
}

func TestAHeartbeatFromTheFutureIsUnknown(t *testing.T) {
	now := time.Now()
	n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
		Type: conditions.GPUXidError, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.NewTime(now.Add(time.Hour)), LastTransitionTime: metav1.NewTime(now)}}}}
	if r := RowOf(n, now); r.Status != Unknown || !strings.Contains(r.Cause, "in the future") {
		t.Errorf("%+v", r)
	}
}
