package preflight

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

// publish writes the Events on the jobs of a run. A run that an earlier process has judged gets no further Event.
func (c *Controller) publish(ctx context.Context, namespace string, r run, v verdict.Verdict, text string) {
	ctrl.LoggerFrom(ctx).Info("Judged a preflight run", "verdict", text)
	if c.clock.Since(r.decidedAt()) > c.timeout {
		return
	}
	severity, reason := corev1.EventTypeNormal, Verdict
	if result(v) != "clean" {
		severity = corev1.EventTypeWarning
	}
	if !v.Complete {
		reason = Incomplete
	}
	for _, owner := range r.owners() {
		job := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: owner.Name, UID: owner.UID}}
		job.TypeMeta = metav1.TypeMeta{APIVersion: owner.APIVersion, Kind: owner.Kind}
		c.recorder.Eventf(job, nil, severity, reason, "Judge", "%s", text)
	}
}

// summary is the text of the Event on the run's jobs.
func summary(v verdict.Verdict, r run) string {
	text := fmt.Sprintf("run %s: %d of %d reported", v.Run, len(r.submissions), r.size)
	var slow, retest []string
	for _, s := range v.Slow {
		slow = append(slow, s.Node)
	}
	for _, pair := range v.Retest {
		retest = append(retest, pair[0]+" with "+pair[1])
	}
	var below []string
	for _, f := range v.Figures {
		for _, b := range f.Below {
			below = append(below, fmt.Sprintf("%s (%s %.2f below the median)", b.Node, f.Name, b.Drop))
		}
	}
	for _, list := range []struct {
		title string
		items []string
	}{
		{"slow", slow}, {"failed", v.Failed}, {"suspects", below}, {"suspects that did not report", v.Missing},
		{"retest", retest}, {"fabric", v.Fabric},
	} {
		if n := len(list.items); n > 10 {
			list.items = append(slices.Clone(list.items[:10]), fmt.Sprintf("%d more", n-10))
		}
		if len(list.items) > 0 {
			text += fmt.Sprintf("; %s: %s", list.title, strings.Join(list.items, ", "))
		}
	}
	return text
}

// findings are the parts of the verdict about single nodes, by node name. A healthy node has none.
func findings(v verdict.Verdict) map[string][]string {
	byNode := map[string][]string{}
	for _, s := range v.Slow {
		byNode[s.Node] = append(byNode[s.Node], fmt.Sprintf("slow: p %.3f, drop %.2f, seen by %d partners", s.P, s.Drop, s.Partners))
	}
	for _, node := range v.Failed {
		byNode[node] = append(byNode[node], "failed: a local check")
	}
	for _, f := range v.Figures {
		for _, b := range f.Below {
			byNode[b.Node] = append(byNode[b.Node], fmt.Sprintf("suspect: %s %.2f below the median of %d nodes", f.Name, b.Drop, f.Nodes))
		}
	}
	for _, pair := range v.Retest {
		byNode[pair[0]] = append(byNode[pair[0]], "retest with "+pair[1])
	}
	return byNode
}
