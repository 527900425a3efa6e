package main

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// missingFor is for how long a kind that the API server does not know is not asked for again. A burst of faults reads many jobs within it,
// and each read would ask for the kinds of Kueue, which most clusters do not have. A CRD that was just installed counts that much later.
const missingFor = 10 * time.Second

// kindMapper is a mapper that also remembers for a while which kinds do not exist. The others it remembers anyway.
type kindMapper struct {
	meta.RESTMapper
	clock clock.PassiveClock

	mu      sync.Mutex
	missing map[schema.GroupVersionKind]missingKind
}

type missingKind struct {
	err error
	at  time.Time
}

func newKindMapper(config *rest.Config, client *http.Client) (meta.RESTMapper, error) {
	m, err := apiutil.NewDynamicRESTMapper(config, client)
	if err != nil {
		return nil, err
	}
	return &kindMapper{RESTMapper: m, clock: clock.RealClock{}, missing: map[schema.GroupVersionKind]missingKind{}}, nil
}

// RESTMapping is that of the mapper below. With more or less than one version it remembers nothing.
func (m *kindMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if len(versions) != 1 {
		return m.RESTMapper.RESTMapping(kind, versions...)
	}
	gvk := kind.WithVersion(versions[0])
	m.mu.Lock()
	known, ok := m.missing[gvk]
	m.mu.Unlock()
	if ok && m.clock.Since(known.at) < missingFor {
		return nil, known.err
	}
	mapping, err := m.RESTMapper.RESTMapping(kind, versions...)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.missing, gvk)
	if meta.IsNoMatchError(err) {
		m.missing[gvk] = missingKind{err, m.clock.Now()}
	}
	return mapping, err
}
