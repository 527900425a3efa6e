package node

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// maxNotOptedIn is how many jobs that are not opted in are named.
const maxNotOptedIn = 10

// describeOptIns prints how many jobs with active pods on a quarantined node are opted in, and why each of the others is not. What cannot
// be read is printed as unknown: the rest of the answer does not need it.
func describeOptIns(ctx context.Context, c *cli.Target, out io.Writer, api client.Client, n *corev1.Node, record *quarantine.Record, file string) {
	if record == nil || record.Phase != quarantine.Quarantined {
		return
	}
	unknown := func(err error) { cli.Fprintf(out, "Opt-in:   unknown: %s\n", err.Error()) }
	supported := kinds.BuiltIn()
	p, _, err := c.PolicyInForce(ctx, api, file)
	if err != nil {
		unknown(err)
		return
	}
	if p != nil {
		supported = kinds.All(p.JobKinds)
	}
	var pods corev1.PodList
	err = api.List(ctx, &pods, client.MatchingFields{"spec.nodeName": n.Name})
	if apierrors.IsForbidden(err) {
		cli.Fprintln(out, "Opt-in:   unknown: you may not list the pods of all namespaces")
		return
	}
	if err != nil {
		unknown(fmt.Errorf("list the pods on node %s: %w", n.Name, err))
		return
	}
	resolver := kinds.NewOwnerResolver(api, supported)
	seen := map[types.UID]bool{}
	in, unread, why := 0, 0, "you may not read them"
	missed := func(err error) {
		unread++
		if !apierrors.IsForbidden(err) {
			why = err.Error()
		}
	}
	var not []string
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !restart.ActiveOn(pod, n) {
			continue
		}
		w, err := resolver.OfPod(ctx, pod)
		if err != nil {
			missed(err)
			continue
		}
		if w.Job == nil || w.Unsupported != nil || seen[w.UID()] || !w.Owns(pod) {
			continue
		}
		seen[w.UID()] = true
		opt, err := kinds.ReadOptIn(ctx, api, w)
		if err != nil {
			missed(err)
			continue
		}
		if opt.In {
			in++
		} else if why := notOptedIn(w, opt); why != "" {
			not = append(not, why)
		}
	}
	if in+len(not) > 0 {
		cli.Fprintf(out, "Opt-in:   jobs with active pods on the node: %d opted in, %d not\n", in, len(not))
	}
	slices.SortFunc(not, cmp.Compare[string])
	for _, why := range not[:min(len(not), maxNotOptedIn)] {
		cli.Fprintf(out, "          %s\n", why)
	}
	if more := len(not) - maxNotOptedIn; more > 0 {
		cli.Fprintf(out, "          and %d more\n", more)
	}
	if unread > 0 {
		cli.Fprintf(out, "          the owners of %d pods are unknown: %s\n", unread, why)
	}
}

// notOptedIn says why a job is not opted in; empty for a service that has no reason to be.
func notOptedIn(w kinds.Workload, opt kinds.OptIn) string {
	job := w.Job
	name := fmt.Sprintf("%s %s/%s", job.GVK.Kind, w.Namespace, job.Object.GetName())
	switch {
	case len(opt.Mistakes) > 0:
		return name + " is not restarted: " + strings.Join(opt.Mistakes, "; ")
	case w.Kind.IsService:
		return ""
	case opt.By != "":
		return fmt.Sprintf("%s is not restarted: opted out by label %s", name, opt.By)
	}
	return fmt.Sprintf("%s is not restarted: no label %s=true on it or on its namespace", name, conditions.LabelRestartOnNodeFault)
}
