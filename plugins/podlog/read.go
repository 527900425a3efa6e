package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/bounded"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// snapshot is all that the judge needs.
type snapshot struct {
	BootID string `json:"bootID"`
	// Booted is when the node booted. Older lines are not of this boot and count for nothing.
	Booted     time.Time     `json:"booted"`
	Namespaces namespaces    `json:"namespaces"`
	Window     time.Duration `json:"window"`
	Patterns   []pattern     `json:"patterns"`
	Episodes   episodes      `json:"episodes"`
	// Behind is how many bytes are left for the next looks.
	Behind    int64    `json:"behind"`
	Lost      int      `json:"lost"`
	Malformed int      `json:"malformed"`
	Unread    []unread `json:"unread,omitempty"`
	// Unshared is why the state could not be kept.
	Unshared string `json:"unshared,omitempty"`
}

// unread is a workload whose logs could not be read, and why.
type unread struct {
	Subject string `json:"subject"`
	Why     string `json:"why"`
}

// reader reads what is new in the pods' logs from look to look and merges what it finds into the state of all runs.
type reader struct {
	plugin                    *npd.Plugin
	podLogs, procfs, patterns string
	namespaces                namespaces
	window                    time.Duration
	// maxBytes is how much one look reads.
	maxBytes int64

	store      npd.Store[state]
	classifier classifier
	scanner    scanner
	buffer     []byte
	// calls are those to the logs, by their ids.
	calls bounded.Calls
	// behind reports that the last look left something to read.
	behind bool
}

const (
	// bufferSize is what is read at once. It stays in the processor's cache, and is far more than a line of the CRI.
	bufferSize = 256 << 10
	// minBytes lets a look get past the longest line that is put together.
	minBytes = 4 * maxJoined
	// catchUp is the pause between two looks while behind: with the limit on a look's bytes it bounds the processor time.
	catchUp = 500 * time.Millisecond
)

func (r *reader) read(ctx context.Context) (snapshot, error) {
	if err := r.prepare(); err != nil {
		return snapshot{}, err
	}
	b, err := r.store.Open(r.procfs, r.plugin.StateDir, "podlog")
	if err != nil {
		return snapshot{}, err
	}
	booted := time.Now().Add(-b.Uptime).Round(time.Second)
	known, _ := r.store.Update(func(*state) bool { return false })
	l := look{reader: r, known: known, booted: booted, budget: r.maxBytes}
	if len(r.namespaces) > 0 {
		// The answer must be out when the look's time is over, and what remains can wait.
		ctx, cancel := context.WithTimeout(ctx, r.plugin.Timeout/2)
		defer cancel()
		if err := l.run(ctx); err != nil {
			return snapshot{}, err
		}
	}
	now, err := r.merge(&l)
	r.behind = l.behind > 0
	s := snapshot{
		BootID: b.ID, Booted: booted, Namespaces: r.namespaces, Window: r.window, Patterns: r.scanner.patterns,
		Episodes: append(episodes{}, now.Episodes...), Behind: l.behind, Lost: now.Lost, Malformed: now.Malformed, Unread: l.unread,
	}
	if err != nil {
		s.Unshared = err.Error()
	}
	return s, nil
}

// prepare loads the patterns, once.
func (r *reader) prepare() error {
	if r.buffer != nil {
		return nil
	}
	if r.maxBytes < minBytes {
		return fmt.Errorf("-max-bytes %d is less than %d", r.maxBytes, minBytes)
	}
	patterns, err := loadPatterns(r.patterns)
	if err != nil {
		return err
	}
	r.classifier = newClassifier(patterns, r.window)
	r.scanner = newScanner(patterns)
	r.buffer = make([]byte, bufferSize)
	return nil
}

// merge brings what was read into the state that all runs share. Where another run has read on meanwhile, its cursor counts.
func (r *reader) merge(l *look) (state, error) {
	return r.store.Update(func(s *state) (changed bool) {
		if s.Files == nil {
			s.Files = map[string]cursor{}
		}
		for _, n := range l.news {
			if s.Files[n.log.id] != n.from {
				continue
			}
			if n.from.Head != n.to.Head && n.from.Seen < n.from.Size {
				s.Lost++
			}
			s.Files[n.log.id] = n.to
			s.Malformed += n.malformed
			for _, e := range n.found {
				s.Episodes.add(e, r.classifier)
			}
			changed = true
		}
		return s.forgetFiles(l) || changed
	})
}

// clear reads the logs to their ends first, so that it forgets all that was written before it.
func (r *reader) clear(ctx context.Context, subject string) (cleared []string, err error) {
	for {
		s, err := r.read(ctx)
		if err != nil {
			return nil, err
		}
		if s.Behind == 0 {
			break
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%d bytes of logs are still unread: clear again", s.Behind)
		}
	}
	_, err = r.store.Update(func(s *state) bool {
		cleared = s.clear(subject)
		return len(cleared) > 0
	})
	return cleared, err
}

// wait ends the pause between two looks early while there is something left to read.
func (r *reader) wait(ctx context.Context) error {
	if !r.behind {
		<-ctx.Done()
		return ctx.Err()
	}
	pause := time.NewTimer(catchUp)
	defer pause.Stop()
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
