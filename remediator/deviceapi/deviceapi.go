// Package deviceapi lists ResourceSlices and DeviceTaintRules, in pages.
package deviceapi

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

const (
	// rulesPage is how many rules are listed in one request.
	rulesPage = 500
	// slicesPage is how many ResourceSlices are listed in one request, and MaxSlices is the most that a node may have to be read. A slice
	// has up to 128 devices, and a kubelet may publish as many slices as it likes.
	slicesPage, MaxSlices = 32, 128
	// maxKept is the most that is kept of the ResourceSlices of a node, in bytes of memory: a slice of MIG devices takes about 1 MB.
	maxKept = 16 << 20
)

// RuleKind is a DeviceTaintRule, and RuleVersions are the versions that are known, the preferred one first. All have the same fields.
var (
	RuleKind     = schema.GroupKind{Group: resourceapi.GroupName, Kind: "DeviceTaintRule"}
	RuleVersions = []string{"v1", "v1beta2"}
)

// ErrTooMany reports that a node has more than [MaxSlices] ResourceSlices, or larger ones than are kept.
var ErrTooMany = fmt.Errorf("the node has more than %d ResourceSlices, or larger ones, which are not read", MaxSlices)

// Slices lists the ResourceSlices of a node, at most [MaxSlices]. An error is one of the API server, [slim.ErrTooLarge] or [ErrTooMany].
func Slices(ctx context.Context, api client.Reader, node string) (all []resourceapi.ResourceSlice, err error) {
	kept := 0
	for next := ""; ; {
		var page resourceapi.ResourceSliceList
		if err := api.List(ctx, &page, client.MatchingFields{resourceapi.ResourceSliceSelectorNodeName: node},
			client.Limit(slicesPage), client.Continue(next)); err != nil {
			return nil, err //nolint:wrapcheck // the kind of the error counts
		}
		if kept += slim.HeapOf(&page.Items); kept > maxKept {
			return nil, ErrTooMany
		}
		if all = append(all, page.Items...); len(all) > MaxSlices {
			return nil, ErrTooMany
		}
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
}

// Rules lists DeviceTaintRules in one of [RuleVersions]. An error is one of the API server, or names the rule that cannot be decoded.
func Rules(
	ctx context.Context, api client.Reader, version string, which ...client.ListOption,
) (rules []resourceapi.DeviceTaintRule, err error) {
	for next := ""; ; {
		var page unstructured.UnstructuredList
		page.SetGroupVersionKind(RuleKind.WithVersion(version).GroupVersion().WithKind(RuleKind.Kind + "List"))
		if err := api.List(ctx, &page, append(which, client.Limit(rulesPage), client.Continue(next))...); err != nil {
			return nil, err //nolint:wrapcheck // the kind of the error counts
		}
		for i := range page.Items {
			var rule resourceapi.DeviceTaintRule
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(page.Items[i].Object, &rule); err != nil {
				return nil, fmt.Errorf("decode DeviceTaintRule %s: %w", page.Items[i].GetName(), err)
			}
			rules = append(rules, rule)
		}
		if next = page.GetContinue(); next == "" {
			return rules, nil
		}
	}
}
