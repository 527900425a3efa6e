package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
)

// PageSize is how many jobs are listed at a time.
const PageSize = 500

// JobArgument takes arguments apart as kubectl does: KIND/NAME and KIND NAME are a job, NAME alone and node/NAME are a node.
func JobArgument(args []string) (resource, name string, isJob bool, err error) {
	switch {
	case len(args) == 2:
		resource, name = args[0], args[1]
	case strings.Contains(args[0], "/"):
		resource, name, _ = strings.Cut(args[0], "/")
	default:
		return "", args[0], false, nil
	}
	if resource == "" || name == "" || strings.Contains(name, "/") {
		return "", "", true, errors.New("a job is named as KIND/NAME or KIND NAME, as in jobset/train")
	}
	if slices.Contains([]string{"node", "nodes", "no"}, strings.ToLower(resource)) {
		return "", name, false, nil
	}
	return resource, name, true, nil
}

// KindFor resolves the name of a kind as kubectl does: job, jobs.batch, jobset.jobset.x-k8s.io, jobs.v1.batch, JobSet, sts.
func (c *Target) KindFor(api client.Client, resource string) (schema.GroupVersionKind, error) {
	kind, err := kindOf(api.RESTMapper(), resource)
	if !meta.IsNoMatchError(err) {
		return kind, err
	}
	// Only discovery knows short names.
	config, configErr := c.Config()
	if configErr != nil {
		return kind, err
	}
	server, configErr := discovery.NewDiscoveryClientForConfig(config)
	if configErr != nil {
		return kind, err
	}
	return kindOf(restmapper.NewShortcutExpander(api.RESTMapper(), server, nil), resource)
}

func kindOf(mapper meta.RESTMapper, resource string) (schema.GroupVersionKind, error) {
	full, group := schema.ParseResourceArg(strings.ToLower(resource))
	if full != nil {
		if kind, err := mapper.KindFor(*full); err == nil {
			return kind, nil
		}
	}
	kind, err := mapper.KindFor(group.WithVersion(""))
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("find the kind %q: %w", resource, err)
	}
	return kind, nil
}

// GetJob reads the metadata of a job that is named as kubectl names it: job/train, jobset.jobset.x-k8s.io/train.
func (c *Target) GetJob(ctx context.Context, api client.Client, argument, namespace string) (*metav1.PartialObjectMetadata, error) {
	resource, name, isJob, err := JobArgument([]string{argument})
	if err != nil || !isJob {
		return nil, fmt.Errorf("%q is not KIND/NAME, as in jobset/train", argument)
	}
	kind, err := c.KindFor(api, resource)
	if err != nil {
		return nil, err
	}
	var object metav1.PartialObjectMetadata
	object.SetGroupVersionKind(kind)
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &object); err != nil {
		return nil, fmt.Errorf("get %s %s/%s: %w", kind.Kind, namespace, name, err)
	}
	object.SetGroupVersionKind(kind)
	return &object, nil
}

// JobName names a job for people.
func JobName(job *metav1.PartialObjectMetadata) string {
	return fmt.Sprintf("%s %s/%s", job.Kind, job.Namespace, job.Name)
}

// Restarting lists the jobs that are being restarted.
func Restarting(ctx context.Context, api client.Client, kinds []schema.GroupVersionKind) (all []*metav1.PartialObjectMetadata, err error) {
	err = EachJob(ctx, api, kinds, func(job *metav1.PartialObjectMetadata) { all = append(all, job) },
		client.HasLabels{conditions.LabelRestarting})
	return all, err
}

// EachJob visits the metadata of the objects of some kinds. A kind that the API server does not serve has none.
func EachJob(
	ctx context.Context, api client.Client, kinds []schema.GroupVersionKind, visit func(*metav1.PartialObjectMetadata),
	opts ...client.ListOption,
) error {
	for _, kind := range kinds {
		for next := ""; ; {
			var list metav1.PartialObjectMetadataList
			list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
			err := api.List(ctx, &list, append([]client.ListOption{client.Limit(PageSize), client.Continue(next)}, opts...)...)
			if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
				break
			}
			if err != nil {
				return fmt.Errorf("list the objects of kind %s: %w", kind.Kind, err)
			}
			for i := range list.Items {
				list.Items[i].SetGroupVersionKind(kind)
				visit(&list.Items[i])
			}
			if next = list.Continue; next == "" {
				break
			}
		}
	}
	return nil
}

func GvksOf(all []kinds.Kind) []schema.GroupVersionKind {
	var gvks []schema.GroupVersionKind
	for _, k := range all {
		gvks = append(gvks, k.GVK)
	}
	return gvks
}
