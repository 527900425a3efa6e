package quarantine

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

const markPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  correlated: {maxPercent: 50, minNodes: 4, window: 2m}
  handOff:
    cordon: true
    labels: {example.com/broken: "yes"}
    annotations: {example.com/case: hardware}
    taints: [{key: example.com/repair, value: now, effect: NoSchedule}]
  output: {aws: true, soperator: true}
  webhooks:
    pager: {url: "https://hooks.example.com/gpu", secretFile: /etc/pitcrew-webhooks/pager}
    tickets: {url: "https://hooks.example.com/tickets", secretFile: /etc/pitcrew-webhooks/pager, events: [NodeReleased]}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}, restartJobs: true}
    gpu-drain: {match: {condition: GPUXidError, repair: [ResetGPU], message: Drain}, priority: 10}
    preflight: {match: {condition: PreflightFailed, repair: [Inspect]}, clearAfter: 1m}
    dead: {match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}, for: 2m, clearAfter: 5m, restartJobs: true}
`

func init() {
	for name, made := range map[string]func(*testing.T) kept{
		"marked":            one(markPolicy, newWorld, gpu(ecc), stores, suspects),
		"marked-upgraded":   one(markPolicy, newWorld, gpu(drain), stores, suspects, passes(time.Second), gpu(lost), stores, suspects),
		"marked-advised":    one(markPolicy, newWorld, gpu(lost), stores, suspects, advised, lasts(time.Minute)),
		"marked-undone":     one(markPolicy, newWorld, gpu(ecc), stores, suspects, uncordons, stores),
		"marked-released":   one(markPolicy, newWorld, gpu(ecc), stores, suspects, gpuFine, decide, lasts(time.Hour), suspects),
		"marked-dead":       one(markPolicy, newReadyWorld, decide, passes(time.Minute), silent, decide, starves(10*time.Minute), suspects),
		"marked-preflight":  one(markPolicy, newWorld, says("PreflightFailed", "True", "Inspect node: refused by 2 runs"), stores, suspects),
		"isolated-observed": one(devicePolicy, newDeviceWorld, says("GPUOverheated", "True", "Inspect gpu 0000:1b:00: hot"), decide, settled, lasts(time.Minute)),
	} {
		goldens[name] = func(t *testing.T) kept {
			k := made(t)
			k.Marks = true
			return k
		}
	}
}

// suspects writes soperator's condition, as the controller does.
func suspects(w *world) {
	message, known := w.last.State.Suspicion()
	if !known || !w.policy.Output.Soperator {
		return
	}
	if c, changes := handoff.Suspicion(w.node, message, w.now); changes {
		says(string(c.Type), string(c.Status), c.Message)(w)
		for i := range w.node.Status.Conditions {
			if w.node.Status.Conditions[i].Type == c.Type {
				w.node.Status.Conditions[i] = c
			}
		}
	}
}

// advised is what a visit recommends for the quarantine.
func advised(w *world) {
	w.visits = Visits{Quarantine: w.record().ID, Advice: "replace", AdvisedAt: w.now}
	w.decide()
}

// hasNotices reports whether the record has notices for webhooks. Only they may be lost when it is read.
func hasNotices(record string) bool { return strings.Contains(record, `"notices":`) }

// mark adds what others see: labels, annotations, soperator's condition, and what webhooks receive.
func (k kept) mark(w *world, a *answer) {
	suspects(w)
	if strings.HasSuffix(a.Rules, ":None") {
		a.Rules = "" // a rule that keeps nothing away may stay while a policy observes, and may go
	}
	a.Marks = maps.Clone(w.node.Labels)
	if a.Marks == nil {
		a.Marks = map[string]string{}
	}
	maps.Copy(a.Marks, w.node.Annotations)
	maps.DeleteFunc(a.Marks, func(key, _ string) bool { return strings.HasPrefix(key, conditions.Domain+"/") })
	if w.node.Spec.Unschedulable {
		a.Marks["cordoned"] = "true"
	}
	for _, c := range w.node.Status.Conditions {
		if c.Type == corev1.NodeConditionType(policy.SoperatorCondition) {
			a.Suspected = string(c.Status) + " " + c.Reason
		}
	}
	if r := w.record(); r != nil {
		for _, n := range r.Notices {
			a.Notified = append(a.Notified, n.Event+" > "+strings.Join(n.To, " "))
		}
	}
}
