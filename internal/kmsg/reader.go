package kmsg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxRecord is the kernel's limit for one record in /dev/kmsg format (CONSOLE_EXT_LOG_MAX, printk/internal.h);
// a smaller buffer makes read fail with EINVAL.
const maxRecord = 8192

// Reader reads records in order and never blocks except in [Reader.Wait]. It is not safe for concurrent use.
//
// A regular file or a FIFO with the same text serves as well, for fixtures and for tests without root.
type Reader struct {
	path string
	file *os.File
	raw  syscall.RawConn
	buf  []byte
	rest []byte
	next uint64
	lost uint64
}

// Open opens the kernel log for the records from sequence number next on; 0 replays all that the ring still holds.
func Open(path string, next uint64) (*Reader, error) {
	flags := os.O_RDONLY
	// A FIFO opened for reading alone reports end of file whenever its last writer goes.
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		flags = os.O_RDWR
	}
	file, err := os.OpenFile(path, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), file.Close())
	}
	return &Reader{path: path, file: file, raw: raw, buf: make([]byte, maxRecord), next: next}, nil
}

// Close releases the file.
func (r *Reader) Close() error { return r.file.Close() }

// Lost counts the records that were overwritten before they could be read, since the sequence number given to Open.
func (r *Reader) Lost() uint64 { return r.lost }

// Seq is the sequence number of the record that comes next.
func (r *Reader) Seq() uint64 { return r.next }

// Next returns the next record. io.EOF says that there is none for now; an error that wraps [ErrMalformed]
// concerns one line only and reading can go on.
func (r *Reader) Next() (Record, error) {
	for {
		line, ok, err := r.line()
		if err != nil {
			return Record{}, err
		}
		if !ok {
			if err := r.fill(false); err != nil {
				return Record{}, err
			}
			continue
		}
		// ` KEY=value` lines belong to the record before.
		if len(line) == 0 || line[0] == ' ' {
			continue
		}
		rec, err := Parse(string(line))
		if err != nil {
			return Record{}, err
		}
		if rec.Seq < r.next {
			continue
		}
		r.lost += rec.Seq - r.next
		r.next = rec.Seq + 1
		return rec, nil
	}
}

// Wait blocks until Next has something to return or the context is done.
func (r *Reader) Wait(ctx context.Context) error {
	if bytes.IndexByte(r.rest, '\n') >= 0 {
		return nil
	}
	if err := r.file.SetReadDeadline(time.Time{}); err != nil {
		// A regular file cannot be waited for: all of its content has been read.
		<-ctx.Done()
		return ctx.Err()
	}
	stop := context.AfterFunc(ctx, func() {
		// The only possible error is that the file is closed, which ends the read as well.
		_ = r.file.SetReadDeadline(time.Unix(1, 0))
	})
	err := r.fill(true)
	if !stop() {
		_ = r.file.SetReadDeadline(time.Time{})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// line takes one complete line off the buffer. A line that is still being written stays.
func (r *Reader) line() (line []byte, ok bool, err error) {
	line, rest, found := bytes.Cut(r.rest, []byte{'\n'})
	if found {
		r.rest = rest
		return line, true, nil
	}
	if len(r.rest) > 8*maxRecord {
		err := fmt.Errorf("%w: %d bytes without a line end: %.80q", ErrMalformed, len(r.rest), r.rest)
		r.rest = nil
		return nil, false, err
	}
	return nil, false, nil
}

// fill reads once: on /dev/kmsg exactly one record.
func (r *Reader) fill(wait bool) error {
	var n int
	var err error
	rawErr := r.raw.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), r.buf)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		return !wait || !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case rawErr != nil:
		return fmt.Errorf("read %s: %w", r.path, rawErr)
	case errors.Is(err, unix.EPIPE):
		// The ring overran us. The next read gives the oldest record that is left; its number tells how many are
		// lost. euank/go-kmsg-parser compares with == and stops permanently here (node-problem-detector issue 1003).
		return nil
	case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
		return io.EOF
	case err != nil:
		return fmt.Errorf("read %s: %w", r.path, err)
	}
	r.rest = append(r.rest, r.buf[:n]...)
	return nil
}
