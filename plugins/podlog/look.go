package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/bounded"
)

// look is one look at all logs: what is new in them since the known state.
type look struct {
	*reader
	known  state
	booted time.Time
	// budget is how many bytes may still be read.
	budget int64

	root *os.Root
	// there are the files that exist. complete says that these are all, because every folder could be read.
	there    map[string]bool
	complete bool
	news     []news
	// behind is how many bytes are left to read.
	behind int64
	unread []unread
}

// news is what one look read of one log.
type news struct {
	log       logFile
	from, to  cursor
	found     episodes
	malformed int
}

// run reads what is new while the budget and ctx last. A log with little news comes before one with much, so that one
// chatty container holds up no other.
func (l *look) run(ctx context.Context) (err error) {
	if l.root, err = os.OpenRoot(l.podLogs); err != nil {
		return err
	}
	// Nothing was written that could be lost.
	defer func() { _ = l.root.Close() }()
	logs, failed, err := walk(l.root, l.namespaces, l.booted)
	if err != nil {
		return err
	}
	l.complete = len(failed) == 0
	l.there = make(map[string]bool, len(logs))
	var todo []news
	for _, log := range logs {
		l.there[log.id] = true
		if from := l.known.Files[log.id]; log.size != from.Seen {
			todo = append(todo, news{log: log, from: from})
		}
	}
	slices.SortStableFunc(todo, func(a, b news) int {
		return cmp.Compare(a.log.size-a.from.Seen, b.log.size-b.from.Seen)
	})
	failed = append(failed, l.files(ctx, todo)...)
	// In an order of their own, and each once: the answer must not change with the order of the work.
	slices.SortFunc(failed, func(a, b unread) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Why, b.Why))
	})
	l.unread = slices.Compact(failed)
	return nil
}

// files reads on in logs, and returns those that cannot be read.
func (l *look) files(ctx context.Context, todo []news) (failed []unread) {
	// A read that ends with the look's own time is not one that hangs.
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.plugin.Timeout*7/8)
	defer cancel()
	for _, n := range todo {
		if ctx.Err() != nil {
			l.behind += max(1, n.log.size-n.from.Seen)
			continue
		}
		err := l.file(ctx, patient, &n)
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted or rotated since
		case err != nil:
			failed = append(failed, n.log.unread(err))
		default:
			l.behind += n.to.Size - n.to.Seen
			l.news = append(l.news, n)
		}
	}
	return failed
}

// openLog is a log that is being read.
type openLog struct {
	file *os.File
	info fs.FileInfo
	head string
}

func open(root *os.Root, path string) (o openLog, err error) {
	if o.file, err = root.Open(path); err != nil {
		return o, err
	}
	if o.info, err = o.file.Stat(); err == nil {
		o.head, err = readHead(o.file)
	}
	if err != nil {
		_ = o.file.Close() // nothing was written that could be lost
	}
	return o, err
}

// file reads on in one log.
func (l *look) file(ctx, patient context.Context, n *news) error {
	root, path := l.root, n.log.path
	o, err := bounded.Do(patient, &l.calls, n.log.id, func() (openLog, error) { return open(root, path) })
	if err != nil {
		return err
	}
	defer o.file.Close()
	if fileID(o.info) != n.log.id {
		return fs.ErrNotExist
	}
	n.to = n.from
	if o.head != n.from.Head || o.info.Size() < n.from.Seen {
		n.to = cursor{Head: o.head, Namespace: n.log.namespace}
	}
	n.to.Size = o.info.Size()
	s, seen := l.scanner, n.to.Seen
	s.report = func(m match, at time.Time, end int64) {
		if end > seen && !at.Before(l.booted) {
			n.found.add(n.log.episode(m, at), l.classifier)
		}
	}
	err = l.follow(ctx, patient, o.file, &s, n)
	n.malformed = s.malformed
	return err
}

// follow reads a log from its cursor to its end, while budget and ctx last, and moves the cursor.
func (l *look) follow(ctx, patient context.Context, f *os.File, s *scanner, n *news) error {
	at, filled := n.to.Next, 0
	for l.budget > 0 && ctx.Err() == nil {
		into, from := l.buffer[filled:min(int64(len(l.buffer)), n.to.Size-at)], at+int64(filled)
		size, err := bounded.Do(patient, &l.calls, n.log.id, func() (int, error) { return f.ReadAt(into, from) })
		if errors.Is(err, bounded.ErrNoAnswer) {
			l.buffer = make([]byte, bufferSize) // the other one may still be written to
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if size == 0 {
			// What is left has no newline yet; a rotated log gets none any more.
			if n.log.rotated {
				s.finish(at)
			}
			n.to.Seen, n.to.Next = n.to.Size, s.resume(at)
			return nil
		}
		l.budget -= int64(size)
		filled += size
		whole := bytes.LastIndexByte(l.buffer[:filled], '\n') + 1
		if whole == 0 && filled == len(l.buffer) {
			whole = filled // no line of the CRI is so long
		}
		s.scan(l.buffer[:whole], at)
		at += int64(whole)
		filled = copy(l.buffer, l.buffer[whole:filled])
	}
	n.to.Seen, n.to.Next = max(n.to.Seen, at), s.resume(at)
	return nil
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
