package detect

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

// TestNoConditionBeforeAnAnswer is what the first check of a new node rests on: with skip_initial_status, which all our monitors have,
// NPD writes a condition when its plugin has answered, and not before. Without it NPD writes False when it starts.
func TestNoConditionBeforeAnAnswer(t *testing.T) {
	c := clustertest.Get(t)
	names, err := c.AddNodes(t.Context(), "first-answer", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	answer := filepath.Join(dir, "answer")
	plugin := filepath.Join(dir, "plugin")
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\nwhile ! [ -e "+answer+" ]; do sleep 0.2; done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var monitors []cluster.Monitor
	for name, skip := range map[string]bool{"Ours": true, "Theirs": false} {
		file := filepath.Join(dir, name+".json")
		text := fmt.Sprintf(`{"plugin": "custom", "source": %q, "pluginConfig": {"invoke_interval": "1s", "timeout": "1h", "max_output_length": 512, "concurrency": 1, "skip_initial_status": %v},
			"conditions": [{"type": %q, "reason": "Fine", "message": "fine"}], "rules": [{"type": "permanent", "condition": %q, "reason": "Bad", "path": %q}]}`, name, skip, name, name, plugin)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		monitors = append(monitors, cluster.Monitor{File: file})
	}
	// So that what NPD knows is written soon, whether or not it has changed.
	npd, err := c.StartNPD(t.Context(), cluster.NPD{Node: names[0], Monitors: monitors, Args: []string{"--k8s-exporter-heartbeat-period=2s"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(npd.Kill)
	condition := func(name corev1.NodeConditionType) (corev1.NodeCondition, error) {
		var node corev1.Node
		if err := c.Client.Get(t.Context(), client.ObjectKey{Name: names[0]}, &node); err != nil {
			return corev1.NodeCondition{}, err
		}
		i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == name })
		if i < 0 {
			return corev1.NodeCondition{}, fmt.Errorf("no condition %s", name)
		}
		return node.Status.Conditions[i], nil
	}
	var began time.Time
	clustertest.Until(t, patience, "two heartbeats without an answer", func() error {
		theirs, err := condition("Theirs")
		if err != nil {
			return err
		}
		if began.IsZero() {
			began = theirs.LastHeartbeatTime.Time
		}
		if theirs.Status != corev1.ConditionFalse || !theirs.LastHeartbeatTime.After(began) {
			return fmt.Errorf("%s with heartbeat %s", theirs.Status, theirs.LastHeartbeatTime)
		}
		return nil
	})
	if ours, err := condition("Ours"); err == nil {
		t.Errorf("a condition is %s before its plugin has answered", ours.Status)
	}
	if err := os.WriteFile(answer, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	clustertest.Until(t, patience, "the answer", func() error {
		ours, err := condition("Ours")
		if err == nil && ours.Status != corev1.ConditionFalse {
			err = fmt.Errorf("it is %s", ours.Status)
		}
		return err
	})
}
