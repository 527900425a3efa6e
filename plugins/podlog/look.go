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
	for _, n := range todo {
		err := l.file(ctx, &n)
		switch {
		case errors.Is(err, fs.ErrNotExist): // deleted or rotated since
		case err != nil:
			failed = append(failed, n.log.unread(err))
		default:
			l.behind += n.to.Size - n.to.Seen
			l.news = append(l.news, n)
		}
	}
	// In an order of their own, and each once: the answer must not change with the order of the work.
	slices.SortFunc(failed, func(a, b unread) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Why, b.Why))
	})
	l.unread = slices.Compact(failed)
	return nil
}

// file reads on in one log.
func (l *look) file(ctx context.Context, n *news) error {
	f, err := l.root.Open(n.log.path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if fileID(info) != n.log.id {
		return fs.ErrNotExist
	}
	head, err := readHead(f)
	if err != nil {
		return err
	}
	n.to = n.from
	if head != n.from.Head || info.Size() < n.from.Seen {
		n.to = cursor{Head: head, Namespace: n.log.namespace}
	}
	n.to.Size = info.Size()
	s, seen := l.scanner, n.to.Seen
	s.report = func(m match, at time.Time, end int64) {
		if end > seen && !at.Before(l.booted) {
			n.found.add(n.log.episode(m, at), l.classifier)
		}
	}
	err = l.follow(ctx, f, &s, n)
	n.malformed = s.malformed
	return err
}

// follow reads a log from its cursor to its end, while budget and ctx last, and moves the cursor.
func (l *look) follow(ctx context.Context, f *os.File, s *scanner, n *news) error {
	at, filled := n.to.Next, 0
	for l.budget > 0 && ctx.Err() == nil {
		size, err := f.ReadAt(l.buffer[filled:min(int64(len(l.buffer)), n.to.Size-at)], at+int64(filled))
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
