package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
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
	// Unshared says why the state could not be kept.
	Unshared string `json:"unshared,omitempty"`
}

// unread is a pod whose logs could not be read, and why.
type unread struct {
	Subject string `json:"subject"`
	Why     string `json:"why"`
}

// compact puts what could not be read into an order and says it once.
func compact(rows []unread) []unread {
	slices.SortFunc(rows, func(a, b unread) int { return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Why, b.Why)) })
	return slices.Compact(rows)
}

func (s snapshot) classifier() classifier { return newClassifier(s.Patterns, s.Window) }

// reader reads what is new in the pods' logs from look to look and merges what it finds into the state of all runs.
type reader struct {
	plugin                 *npd.Plugin
	podLogs, procfs, rules string
	namespaces             namespaces
	window                 time.Duration
	// maxBytes is how much one look reads.
	maxBytes int64

	store      *npd.Store[state]
	classifier classifier
	scanner    scanner
	buffer     []byte
	// behind says that the last look left something to read.
	behind bool
}

const (
	// bufferSize is what is read at once. It stays in the processor's cache, and is far more than a line of the CRI.
	bufferSize = 256 << 10
	// maxFiles bounds the state. A kubelet keeps a handful of logs for each of its at most some hundred pods.
	maxFiles = 8192
	// minBytes lets a look get past the longest line that is put together.
	minBytes = 4 * maxJoined
	// catchUp is the pause between two looks while behind: with the limit on a look's bytes it bounds the processor time.
	catchUp = 500 * time.Millisecond
)

// scanned is what one look read of one log.
type scanned struct {
	log       logFile
	from, to  cursor
	found     episodes
	malformed int
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	b, err := boot.Read(r.procfs)
	if err != nil {
		return snapshot{}, err
	}
	if err := r.open(b); err != nil {
		return snapshot{}, err
	}
	s := snapshot{
		BootID: b.ID, Booted: time.Now().Add(-b.Uptime).Round(time.Second), Namespaces: r.namespaces,
		Window: r.window, Patterns: r.scanner.patterns,
	}
	known, _ := r.store.Update(func(*state) bool { return false })
	var logs []logFile
	if len(r.namespaces) > 0 {
		if logs, s.Unread, err = walk(r.podLogs, r.namespaces, s.Booted); err != nil {
			return snapshot{}, err
		}
	}
	complete := len(s.Unread) == 0
	// The answer must be out when the look's time is over, and what remains can wait.
	ctx, cancel := context.WithTimeout(ctx, r.plugin.Timeout/2)
	defer cancel()
	news, failed, behind, err := r.scan(ctx, logs, known, s.Booted)
	if err != nil {
		return snapshot{}, err
	}
	s.Unread = compact(append(s.Unread, failed...))
	now, err := r.merge(known, logs, complete, news)
	if err != nil {
		s.Unshared = err.Error()
	}
	r.behind = behind > 0
	s.Behind, s.Lost, s.Malformed, s.Episodes = behind, now.Lost, now.Malformed, append(episodes{}, now.Episodes...)
	return s, nil
}

// open loads the patterns and binds the state to this boot.
func (r *reader) open(b boot.Boot) error {
	if r.store != nil {
		return nil
	}
	if r.maxBytes < minBytes {
		return fmt.Errorf("-max-bytes %d is less than %d", r.maxBytes, minBytes)
	}
	patterns, err := loadPatterns(r.rules)
	if err != nil {
		return err
	}
	r.classifier = newClassifier(patterns, r.window)
	r.scanner = scanner{patterns: patterns, finder: newFinderOf(patterns)}
	r.buffer = make([]byte, bufferSize)
	r.store = &npd.Store[state]{Path: filepath.Join(r.plugin.StateDir, "podlog.json"), BootID: b.ID}
	return nil
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

// scan reads what is new, at most maxBytes. behind is how much is left. A log with little news comes before one with
// much, so that one chatty container holds up no other.
func (r *reader) scan(ctx context.Context, logs []logFile, known state, booted time.Time) (news []scanned, failed []unread, behind int64, err error) {
	var todo []scanned
	for _, l := range logs {
		if from := known.Files[l.id]; l.size != from.Seen {
			todo = append(todo, scanned{log: l, from: from})
		}
	}
	slices.SortStableFunc(todo, func(a, b scanned) int {
		return cmp.Compare(a.log.size-a.from.Seen, b.log.size-b.from.Seen)
	})
	root, err := os.OpenRoot(r.podLogs)
	if err != nil {
		return nil, nil, 0, err
	}
	defer root.Close()
	budget := r.maxBytes
	for _, s := range todo {
		used, err := r.scanFile(ctx, root, &s, budget, booted)
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted or rotated since
			continue
		case err != nil:
			failed = append(failed, unread{subject(s.log.namespace, s.log.workload), reason(err)})
			continue
		}
		budget -= used
		behind += s.to.Size - s.to.Seen
		news = append(news, s)
	}
	return news, failed, behind, nil
}

// scanFile reads on in one log and returns how many bytes it read.
func (r *reader) scanFile(ctx context.Context, root *os.Root, s *scanned, budget int64, booted time.Time) (used int64, err error) {
	// Not to hang on a FIFO.
	f, err := root.OpenFile(s.log.path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if fileID(info) != s.log.id {
		return 0, fs.ErrNotExist
	}
	head, err := readHead(f)
	if err != nil {
		return 0, err
	}
	s.to = s.from
	if head != s.from.Head || info.Size() < s.from.Seen {
		s.to = cursor{Head: head, Namespace: s.log.namespace}
	}
	s.to.Size = info.Size()
	seen := s.to.Seen
	sc := r.scanner
	sc.report = func(m match, at time.Time, end int64) {
		if end > seen && !at.Before(booted) {
			s.found.add(s.log.episode(m, at), r.classifier)
		}
	}
	used, err = r.follow(ctx, f, &sc, s, budget)
	s.malformed = sc.malformed
	return used, err
}

// follow reads a log from its cursor to its end, while budget and ctx last, and moves the cursor.
func (r *reader) follow(ctx context.Context, f *os.File, sc *scanner, s *scanned, budget int64) (used int64, err error) {
	at, filled := s.to.Next, 0
	for used < budget && ctx.Err() == nil {
		n, err := f.ReadAt(r.buffer[filled:min(int64(len(r.buffer)), s.to.Size-at)], at+int64(filled))
		if err != nil && !errors.Is(err, io.EOF) {
			return used, err
		}
		if n == 0 {
			// What is left has no newline yet.
			if s.log.rotated {
				sc.finish(at)
			}
			s.to.Seen, s.to.Next = s.to.Size, sc.resume(at)
			return used, nil
		}
		used += int64(n)
		filled += n
		whole := bytes.LastIndexByte(r.buffer[:filled], '\n') + 1
		if whole == 0 && filled == len(r.buffer) {
			whole = filled
		}
		sc.scan(r.buffer[:whole], at)
		at += int64(whole)
		filled = copy(r.buffer, r.buffer[whole:filled])
	}
	s.to.Seen, s.to.Next = max(s.to.Seen, at), sc.resume(at)
	return used, nil
}

// readHead returns the time at a log's beginning, "" while there is none.
func readHead(f *os.File) (string, error) {
	// Longer than any time: 2026-11-20T14:00:00.000000001+08:00.
	var begin [64]byte
	n, err := f.ReadAt(begin[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	head, _, found := bytes.Cut(begin[:n], []byte{' '})
	if !found && n < len(begin) {
		return "", nil
	}
	if _, err := time.Parse(time.RFC3339Nano, string(head)); err != nil {
		return "", errors.New("a log is not of the CRI's form")
	}
	return string(head), nil
}

// merge brings what was read into the state that all runs share. Where another run has read on meanwhile, its word counts.
// complete says that logs lists all there are: what is not among them is gone.
func (r *reader) merge(known state, logs []logFile, complete bool, news []scanned) (state, error) {
	there := make(map[string]bool, len(logs))
	for _, l := range logs {
		there[l.id] = true
	}
	return r.store.Update(func(s *state) (changed bool) {
		if s.Files == nil {
			s.Files = map[string]cursor{}
		}
		for _, n := range news {
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
		for id, c := range known.Files {
			if complete && !there[id] && s.Files[id] == c && r.namespaces.has(c.Namespace) {
				if c.Seen < c.Size {
					s.Lost++
				}
				delete(s.Files, id)
				changed = true
			}
		}
		return changed
	})
}
