package deviceapi

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// servesPages is an API server with n ResourceSlices of each node, which gives them out in pages.
func servesPages(t *testing.T, n int, asked *[]string, slice resourceapi.ResourceSlice) client.Reader {
	t.Helper()
	return interceptor.NewClient(fake.NewFakeClient(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			var o client.ListOptions
			o.ApplyOptions(opts)
			*asked = append(*asked, fmt.Sprintf("%s limit=%d from=%s", o.FieldSelector, o.Limit, o.Continue))
			from, _ := strconv.Atoi(o.Continue)
			page := list.(*resourceapi.ResourceSliceList)
			for i := from; i < n && (o.Limit == 0 || int64(i-from) < o.Limit); i++ {
				page.Items = append(page.Items, slice)
			}
			if next := from + len(page.Items); next < n {
				page.Continue = strconv.Itoa(next)
			}
			return nil
		},
	})
}

func TestResourceSlicesOfANodeAreReadInPagesUpToABound(t *testing.T) {
	const most = MaxSlices / slicesPage
	for n, pages := range map[int]int{0: 1, slicesPage: 1, slicesPage + 1: 2, MaxSlices: most, MaxSlices + 1: most + 1, 1000 * MaxSlices: most + 1} {
		var asked []string
		got, err := Slices(t.Context(), servesPages(t, n, &asked, resourceapi.ResourceSlice{}), "n")
		if is := n > MaxSlices; is != errors.Is(err, ErrTooMany) || !is && len(got) != n || is && got != nil {
			t.Errorf("%d slices: %d, %v", n, len(got), err)
		}
		if len(asked) != pages || asked[0] != "spec.nodeName=n limit=32 from=" || pages > 1 && asked[1] != "spec.nodeName=n limit=32 from=32" {
			t.Errorf("%d slices: asked %q", n, asked)
		}
	}
}

// A kubelet may write slices of 1.5 MB, all of which would be in memory at once.
func TestLargeResourceSlicesOfANodeAreReadUpToABound(t *testing.T) {
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	for i := range 32 {
		name := fmt.Sprintf("attribute-%d", i)
		attributes[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{StringValue: &name}
	}
	large := resourceapi.ResourceSlice{}
	for i := range 128 {
		large.Spec.Devices = append(large.Spec.Devices, resourceapi.Device{Name: fmt.Sprint(i), Attributes: attributes})
	}
	for n, refused := range map[int]bool{8: false, MaxSlices: true} {
		var asked []string
		if got, err := Slices(t.Context(), servesPages(t, n, &asked, large), "n"); errors.Is(err, ErrTooMany) != refused || !refused && len(got) != n || len(asked) != 1 {
			t.Errorf("%d slices: %d, %v; asked %q", n, len(got), err, asked)
		}
	}
}
