package slim_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// pagedAPI answers with pages, as the API server does without streams.
type pagedAPI struct {
	all     []corev1.ConfigMap
	largest int
	bad     []metav1.ListOptions
}

func (p *pagedAPI) ListWithContext(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.ResourceVersion != "" || o.ResourceVersionMatch != "" || o.Limit == 0 { // it ignores the limit
		p.bad = append(p.bad, o)
		o.Limit = int64(len(p.all))
	}
	var first int
	if o.Continue != "" {
		if _, err := fmt.Sscan(o.Continue, &first); err != nil {
			return nil, err
		}
	}
	last := min(first+int(o.Limit), len(p.all))
	page := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}}
	for _, cm := range p.all[first:last] {
		page.Items = append(page.Items, *cm.DeepCopy())
	}
	if last < len(p.all) {
		page.Continue = fmt.Sprint(last)
	}
	p.largest = max(p.largest, last-first)
	return page, nil
}

func (*pagedAPI) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

func TestListsAreReadInPages(t *testing.T) {
	api := &pagedAPI{}
	var want []corev1.ConfigMap
	for i := range 3*slim.Page + 1 {
		cm := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Data: map[string]string{"k": "v"}}
		api.all = append(api.all, cm)
		want = append(want, corev1.ConfigMap{ObjectMeta: cm.ObjectMeta})
	}
	transform := func(object any) (any, error) {
		return &corev1.ConfigMap{ObjectMeta: object.(*corev1.ConfigMap).ObjectMeta}, nil
	}
	got, err := slim.InPages(api, transform).ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: want}, got); diff != "" {
		t.Error(diff)
	}
	if api.largest > slim.Page || len(api.bad) > 0 {
		t.Errorf("a page of %d ConfigMaps; requests whose limit the API server ignores: %+v", api.largest, api.bad)
	}
}
