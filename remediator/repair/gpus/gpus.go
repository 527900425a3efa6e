// Package gpus finds the GPUs that a repair is about, by what conditions report.
package gpus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Faulty returns the PCI addresses of the GPUs that causes name, in order, by their messages and by what the conditions report now; none if
// a message names only a part of them.
func Faulty(n *corev1.Node, of []causes.Cause) []string {
	var gpus []string
	for _, c := range of {
		if !conditions.Ours(string(c.Condition)) {
			continue
		}
		messages := []string{c.Message}
		if condition, ok := node.ConditionOf(n, c.Condition); ok && condition.Status == corev1.ConditionTrue {
			messages = append(messages, condition.Message)
		}
		for _, message := range messages {
			if m, err := conditions.ParseMessage(message); err == nil && m.More > 0 {
				return nil
			}
			for _, f := range causes.GPUFaults(message) {
				gpus = append(gpus, f.GPU)
			}
		}
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}
