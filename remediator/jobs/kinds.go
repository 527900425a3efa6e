package jobs

import (
	"fmt"
	"sync"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
)

// kindsUnderRestart remembers for each job under restart by which definition of its kind it was stopped. A reload of the policy may
// drop or change a kind of job in the middle of a restart, and what was stopped has to be started by the same field.
type kindsUnderRestart struct {
	settings *settings

	mu    sync.Mutex
	known map[request]kinds.Kind
}

func newKindsUnderRestart(s *settings) *kindsUnderRestart {
	return &kindsUnderRestart{settings: s, known: map[request]kinds.Kind{}}
}

// remember keeps the kind of a job until [kindsUnderRestart.forget].
func (k *kindsUnderRestart) remember(req request, kind kinds.Kind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, known := k.known[req]; !known {
		k.known[req] = kind
	}
}

func (k *kindsUnderRestart) forget(req request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, req)
}

// of is the kind of a job that is, or was, under restart. An error means that no policy that this process has seen during the restart
// names it.
func (k *kindsUnderRestart) of(req request) (kinds.Kind, error) {
	k.mu.Lock()
	kind, known := k.known[req]
	k.mu.Unlock()
	if known {
		return kind, nil
	}
	if kind, known = kinds.Get(k.settings.kinds(), req.kind); !known {
		return kind, fmt.Errorf("%s %s is under restart, but its kind is no longer configured", req.kind.Kind, req.NamespacedName)
	}
	return kind, nil
}
