package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// jobArgument takes arguments apart as kubectl does: KIND/NAME and KIND NAME are a job, NAME alone and node/NAME are a node.
func jobArgument(args []string) (resource, name string, isJob bool, err error) {
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

// kindFor resolves the name of a kind as kubectl does: job, jobs.batch, jobset.jobset.x-k8s.io, jobs.v1.batch, JobSet, sts.
func (c *target) kindFor(api client.Client, resource string) (schema.GroupVersionKind, error) {
	kind, err := kindOf(api.RESTMapper(), resource)
	if !meta.IsNoMatchError(err) {
		return kind, err
	}
	// Only discovery knows short names.
	config, configErr := c.config()
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
