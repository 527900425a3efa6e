// Package room searches room for ranks that have to move. It reads, live, the pods of the nodes that come into question, and about
// devices only if one of those ranks has resource claims.
package room

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/deviceapi"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/claims"
)

const (
	// deadline bounds all that one search does about devices.
	deadline = 20 * time.Second
	// page is how many objects are listed in one request.
	page = 500
)

// Search searches room for those ranks of a job that have to move, claimed being how many ranks of other jobs need room, too. What is
// unknown about devices is no error, see [restart.Search.Unknown].
func Search(ctx context.Context, api client.Reader, q restart.Quarantine, ranks []corev1.Pod, nodes []corev1.Node, claimed int, now time.Time) (*restart.Search, error) {
	search := restart.NewSearch(q, ranks, nodes, claimed, now)
	needsDevices := search.NeedsDevices()
	short := ctx
	if needsDevices {
		var cancel context.CancelFunc
		short, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
		look, err := lookAt(short, api, ranks)
		if err != nil {
			search.DevicesUnknown(why(err))
		} else {
			search.UseDevices(look)
		}
	}
	for node := range search.Nodes() {
		var there corev1.PodList
		if err := api.List(ctx, &there, client.MatchingFields{"spec.nodeName": node.Name}); err != nil {
			return nil, fmt.Errorf("list the pods on node %s: %w", node.Name, err)
		}
		var own []resourceapi.ResourceSlice
		if needsDevices {
			var err error
			own, err = deviceapi.Slices(short, api, node.Name)
			if errors.Is(err, deviceapi.ErrTooMany) {
				continue // it is the fault of that node, so it has no room and the search goes on
			}
			if err != nil {
				search.DevicesUnknown(why(fmt.Errorf("list ResourceSlices: %w", err)))
				break
			}
		}
		search.Place(short, node, there.Items, own)
	}
	return search, nil
}

// why adds to an error what to do about it.
func why(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w (the role pitcrew-remediator-claims has this right)", err)
	}
	return err
}

// lookAt reads what is to be known about devices, but for the slices of single nodes. All ranks are in one namespace.
func lookAt(ctx context.Context, api client.Reader, ranks []corev1.Pod) (look claims.Look, err error) {
	namespace := ranks[0].Namespace
	var classes resourceapi.DeviceClassList
	if err := api.List(ctx, &classes); err != nil {
		return look, fmt.Errorf("list DeviceClasses: %w", err)
	}
	look.Classes = classes.Items
	if look.Slices, err = deviceapi.Slices(ctx, api, ""); err != nil {
		return look, fmt.Errorf("list ResourceSlices: %w", err)
	}
	if look.Rules, err = rules(ctx, api); err != nil {
		return look, fmt.Errorf("list DeviceTaintRules: %w", err)
	}
	if look.Templates, err = templates(ctx, api, ranks); err != nil {
		return look, err
	}
	for next := ""; ; {
		var list resourceapi.ResourceClaimList
		if err := api.List(ctx, &list, client.Limit(page), client.Continue(next)); err != nil {
			return look, fmt.Errorf("list ResourceClaims: %w", err)
		}
		for _, c := range list.Items {
			if c.Namespace != namespace {
				if c.Status.Allocation == nil {
					continue
				}
				c = resourceapi.ResourceClaim{ObjectMeta: c.ObjectMeta, Status: c.Status}
			}
			c.ManagedFields = nil
			look.Claims = append(look.Claims, c)
		}
		if next = list.Continue; next == "" {
			return look, nil
		}
	}
}

// templates are those that the ranks name. One that does not exist is left out.
func templates(ctx context.Context, api client.Reader, ranks []corev1.Pod) (found []resourceapi.ResourceClaimTemplate, err error) {
	var names []string
	for i := range ranks {
		for _, c := range ranks[i].Spec.ResourceClaims {
			if name := c.ResourceClaimTemplateName; name != nil && !slices.Contains(names, *name) {
				names = append(names, *name)
			}
		}
	}
	for _, name := range names {
		var t resourceapi.ResourceClaimTemplate
		err := api.Get(ctx, client.ObjectKey{Namespace: ranks[0].Namespace, Name: name}, &t)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get ResourceClaimTemplate %s: %w", name, err)
		}
		if err == nil {
			found = append(found, t)
		}
	}
	return found, nil
}

// rules lists all DeviceTaintRules, in the version that the API server serves. Where it serves none, there are none.
func rules(ctx context.Context, api client.Reader) ([]resourceapi.DeviceTaintRule, error) {
	for _, version := range deviceapi.RuleVersions {
		all, err := deviceapi.Rules(ctx, api, version)
		if !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return all, err //nolint:wrapcheck // by the caller
		}
	}
	return nil, nil
}
