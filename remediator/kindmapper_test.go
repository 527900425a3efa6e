package main

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"
)

// asked counts what a mapper is asked for.
type asked struct {
	meta.RESTMapper
	n int
}

func (a *asked) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	a.n++
	return a.RESTMapper.RESTMapping(kind, versions...)
}

func TestAKindThatIsMissingIsAskedForOnceInAWhile(t *testing.T) {
	group := schema.GroupVersion{Group: "kueue.x-k8s.io", Version: "v1beta2"}
	known := meta.NewDefaultRESTMapper([]schema.GroupVersion{group})
	below := &asked{RESTMapper: known}
	now := testingclock.NewFakePassiveClock(time.Now())
	m := &kindMapper{RESTMapper: below, clock: now, missing: map[schema.GroupVersionKind]missingKind{}}
	workload := schema.GroupKind{Group: group.Group, Kind: "Workload"}
	for range 3 {
		if _, err := m.RESTMapping(workload, group.Version); !meta.IsNoMatchError(err) {
			t.Fatal(err)
		}
	}
	if below.n != 1 {
		t.Errorf("a missing kind was asked for %d times", below.n)
	}
	known.Add(group.WithKind("Workload"), meta.RESTScopeNamespace)
	now.SetTime(now.Now().Add(missingFor))
	if mapping, err := m.RESTMapping(workload, group.Version); err != nil || mapping.Resource.Resource != "workloads" {
		t.Errorf("%v %v", mapping, err)
	}
	if _, err := m.RESTMapping(workload, "v1beta1"); !meta.IsNoMatchError(err) {
		t.Errorf("another version: %v", err)
	}
}
