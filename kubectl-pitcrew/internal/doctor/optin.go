package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
)

// maxPages bounds the requests for one kind, of [pageSize] objects each.
const maxPages = 20

// labelsOfJobs are our labels that jobs and namespaces may have.
var labelsOfJobs = []string{conditions.LabelRestartOnNodeFault, conditions.LabelRestarting}

// optIn looks for labels that were to opt in a job or a namespace and do not. It reads metadata only, and a bounded number of objects.
func (d *doctor) optIn(ctx context.Context) ([]cli.Finding, error) {
	var found []cli.Finding
	in := 0
	look := func(kind string, o *metav1.PartialObjectMetadata) {
		name := strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")
		if o.Labels[conditions.LabelRestartOnNodeFault] == "true" || o.Labels[conditions.LabelKcoverRecovery] == "true" {
			in++
		}
		for _, wrong := range wrongOptIns(o.Labels) {
			argument := strings.ToLower(kind) + " " + o.Name
			if o.Namespace != "" {
				argument += " -n " + o.Namespace
			}
			key, value, _ := strings.Cut(wrong, "=")
			meant, or := meantBy(value)
			do := fmt.Sprintf("kubectl label --overwrite %s %s=%s", argument, conditions.LabelRestartOnNodeFault, meant)
			if key != conditions.LabelRestartOnNodeFault {
				do += " " + key + "-"
			}
			do += or
			found = append(found, cli.Warning("", do, "%s %s has label %s, which opts nothing in", kind, name, wrong))
		}
	}
	namespaces := &metav1.PartialObjectMetadataList{}
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	more, err := eachPage(ctx, d.api, namespaces, func(o *metav1.PartialObjectMetadata) { look("Namespace", o) })
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	unread, cut := []string{}, []string{}
	if more {
		cut = append(cut, "namespaces")
	}
	all := kinds.BuiltIn()
	if d.Parsed != nil {
		all = kinds.All(d.Parsed.JobKinds)
	}
	for _, k := range all {
		if k.GVK.Group == "apps" {
			continue // opted in by their namespace
		}
		more, err := eachPage(ctx, d.api, k.List(), func(o *metav1.PartialObjectMetadata) { look(k.GVK.Kind, o) })
		switch {
		case kinds.Gone(err): // not served
		case apierrors.IsForbidden(err):
			unread = append(unread, k.GVK.Kind)
		case err != nil:
			return nil, fmt.Errorf("list %ss: %w", k.GVK.Kind, err)
		case more:
			cut = append(cut, k.GVK.Kind+"s")
		}
	}
	found = append(bounded(found), optedIn(in, unread)...)
	if len(cut) > 0 {
		found = append(found, cli.NotKnown("", fmt.Sprintf("only the first %d were looked at: %s",
			cli.PageSize*maxPages, strings.Join(cut, ", "))))
	}
	return found, nil
}

// bounded leaves out the findings that are too many for a person.
func bounded(found []cli.Finding) []cli.Finding {
	if len(found) > cli.PageSize {
		found = append(found[:cli.PageSize], cli.Warning("", "", "and %d more", len(found)-cli.PageSize))
	}
	return found
}

// optedIn returns how many are opted in, as far as the kinds may be listed.
func optedIn(in int, unread []string) []cli.Finding {
	if in == 0 && len(unread) == 0 {
		return []cli.Finding{cli.Warning("", "kubectl label namespace NAMESPACE "+conditions.LabelRestartOnNodeFault+"=true",
			"no job and no namespace is opted in: no job is restarted")}
	}
	found := []cli.Finding{cli.Good("", "%d jobs and namespaces are opted in", in)}
	if len(unread) > 0 {
		found = append(found, cli.NotKnown("", "you may not list jobs of kind "+strings.Join(unread, ", ")+" in all namespaces"))
	}
	return found
}

// wrongOptIns are the labels, as key=value, that look like an opt-in and are none.
func wrongOptIns(labels map[string]string) (wrong []string) {
	_, name, _ := strings.Cut(conditions.LabelRestartOnNodeFault, "/")
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		domain, is, ok := strings.Cut(key, "/")
		if !ok {
			domain, is = "", key
		}
		switch {
		case key == conditions.LabelRestartOnNodeFault && (value == "true" || value == "false"):
		case key == conditions.LabelRestartOnNodeFault,
			domain == conditions.Domain && !slices.Contains(labelsOfJobs, key),
			domain != conditions.Domain && letters(is) == letters(name):
			wrong = append(wrong, key+"="+value)
		}
	}
	return wrong
}

// meantBy is the value that a user of a wrong label has meant; or is what to add where that is not clear.
func meantBy(value string) (meant, or string) {
	switch strings.ToLower(value) {
	case "true", "yes", "y", "on", "1":
		return "true", ""
	case "false", "no", "n", "off", "0":
		return "false", ""
	}
	return "true", ", or =false to opt it out"
}

// letters are the small letters of a name, without what separates words.
func letters(name string) string {
	return strings.NewReplacer("-", "", "_", "", ".", "").Replace(strings.ToLower(name))
}

// eachPage calls do for the objects of a list, page by page; more tells that there are more than that.
func eachPage(
	ctx context.Context, api client.Client, list *metav1.PartialObjectMetadataList, do func(*metav1.PartialObjectMetadata),
) (more bool, err error) {
	gvk, next := list.GroupVersionKind(), ""
	for range maxPages {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(gvk)
		if err := api.List(ctx, page, client.Limit(cli.PageSize), client.Continue(next)); err != nil {
			return false, err
		}
		for i := range page.Items {
			do(&page.Items[i])
		}
		if next = page.Continue; next == "" {
			return false, nil
		}
	}
	return true, nil
}
