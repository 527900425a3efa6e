package node

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// maxNotOptedIn is how many jobs that are not opted in are named.
const maxNotOptedIn = 10

// describeOptIns prints how many jobs with active pods on a quarantined node are opted in, and why each of the others is not. What cannot
// be read is printed as unknown: the rest of the answer does not need it.
func describeOptIns(
	ctx context.Context, c *cli.Target, out io.Writer, api client.Client, n *corev1.Node, record *causes.Record, file string,
) {
	if record == nil || record.Phase != causes.Quarantined {
		return
	}
	o := optIns{api: api, seen: map[types.UID]bool{}, why: "you may not read them"}
	if err := o.read(ctx, c, n, file); err != nil {
		cli.Fprintf(out, "Opt-in:   unknown: %s\n", err.Error())
		return
	}
	if o.in+len(o.not) > 0 {
		cli.Fprintf(out, "Opt-in:   jobs with active pods on the node: %d opted in, %d not\n", o.in, len(o.not))
	}
	slices.SortFunc(o.not, cmp.Compare[string])
	for _, why := range o.not[:min(len(o.not), maxNotOptedIn)] {
		cli.Fprintf(out, "          %s\n", why)
	}
	if more := len(o.not) - maxNotOptedIn; more > 0 {
		cli.Fprintf(out, "          and %d more\n", more)
	}
	if o.unread > 0 {
		cli.Fprintf(out, "          the owners of %d pods are unknown: %s\n", o.unread, o.why)
	}
}

// optIns counts the jobs with active pods on a node.
type optIns struct {
	api  client.Client
	seen map[types.UID]bool
	in   int
	// not are the jobs that are not opted in, each with the reason.
	not []string
	// unread is of how many pods the owners are unknown, and why says the reason.
	unread int
	why    string
}

// read counts the jobs of all active pods on the node.
func (o *optIns) read(ctx context.Context, c *cli.Target, n *corev1.Node, file string) error {
	supported := kinds.BuiltIn()
	p, _, err := c.PolicyInForce(ctx, o.api, file)
	if err != nil {
		return err
	}
	if p != nil {
		supported = kinds.All(p.JobKinds)
	}
	var pods corev1.PodList
	err = o.api.List(ctx, &pods, client.MatchingFields{"spec.nodeName": n.Name})
	if apierrors.IsForbidden(err) {
		return errors.New("you may not list the pods of all namespaces")
	}
	if err != nil {
		return fmt.Errorf("list the pods on node %s: %w", n.Name, err)
	}
	resolver := kinds.NewOwnerResolver(o.api, supported)
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !restart.ActiveOn(pod, n) || pod.Namespace == conditions.RepairNamespace { // there are our own Jobs
			continue
		}
		if err := o.add(ctx, resolver, pod); err != nil {
			o.unread++
			if !apierrors.IsForbidden(err) {
				o.why = err.Error()
			}
		}
	}
	return nil
}

// add counts the job of a pod, once.
func (o *optIns) add(ctx context.Context, resolver kinds.OwnerResolver, pod *corev1.Pod) error {
	w, err := resolver.OfPod(ctx, pod)
	if err != nil || w.Job == nil || w.Unsupported != nil || o.seen[w.UID()] || !w.Owns(pod) {
		return err
	}
	o.seen[w.UID()] = true
	opt, err := kinds.ReadOptIn(ctx, o.api, w)
	if err != nil {
		return err
	}
	if opt.In {
		o.in++
	} else if why := notOptedIn(w, opt); why != "" {
		o.not = append(o.not, why)
	}
	return nil
}

// notOptedIn returns why a job is not opted in; empty for a service that has no reason to be.
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
