// Package kernellog puts records into the kernel log, for demo, tests and benchmarks.
package kernellog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Log is a way to put records where a kernel log reader finds them.
type Log struct {
	// How describes how the records are made.
	How string
	// Kernel is true if the kernel itself writes the records: facility 0, in /dev/kmsg.
	Kernel bool
	// Args are the arguments that a plugin needs to read the records and to accept them as the kernel's.
	Args []string

	write func(ctx context.Context, line string) (time.Time, error)
	close func() error
}

// Write puts a line into the log, at error level, and returns the time just before. The line must fit
// [MaxLine] and hold no double quote.
func (l *Log) Write(ctx context.Context, line string) (time.Time, error) {
	if len(line) > MaxLine {
		return time.Time{}, fmt.Errorf("write %q: longer than %d bytes", line, MaxLine)
	}
	at, err := l.write(ctx, line)
	if err != nil {
		return at, fmt.Errorf("write %q by %s: %w", line, l.How, err)
	}
	return at, nil
}

// Close releases what the log needed. Records that were written stay.
func (l *Log) Close() error { return l.close() }

// Open uses the most realistic way that this machine allows: [OpenNFT], else [OpenKmsg], else [OpenFIFO] in dir.
// How of the result includes why the better ways did not work.
func Open(dir string) (*Log, error) {
	l, nftErr := OpenNFT()
	if nftErr == nil {
		return l, nil
	}
	l, kmsgErr := OpenKmsg()
	if kmsgErr == nil {
		l.How += fmt.Sprintf(" (%v)", nftErr)
		return l, nil
	}
	l, err := OpenFIFO(filepath.Join(dir, "kmsg"))
	if err != nil {
		return nil, errors.Join(nftErr, kmsgErr, err)
	}
	l.How += fmt.Sprintf(" (%v; %v)", nftErr, kmsgErr)
	return l, nil
}

// OpenKmsg writes to /dev/kmsg, as root. The kernel marks such records as user space's, facility 1.
func OpenKmsg() (*Log, error) {
	const path = "/dev/kmsg"
	// Writing needs fewer privileges than reading (dmesg_restrict), and records that cannot be read are useless.
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("kernel log: %w", err)
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("kernel log: %w", err)
	}
	return &Log{
		How:  "a record written into /dev/kmsg by user space, and so marked (injected)",
		Args: []string{"-allow-injected"},
		write: func(_ context.Context, line string) (time.Time, error) {
			// A new open for each record: printk_devkmsg drops all but ten in five seconds of one open, silently.
			file, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return time.Time{}, err
			}
			at := time.Now()
			// Without the newline readers see the record only when the next one comes.
			_, err = fmt.Fprintf(file, "<3>%s\n", line)
			return at, errors.Join(err, file.Close())
		},
		close: func() error { return nil },
	}, nil
}

// OpenFIFO makes a FIFO at path and writes records into it in the form that /dev/kmsg has. It needs no privilege.
func OpenFIFO(path string) (*Log, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make FIFO %s: %w", path, err)
	}
	// Open for both, so that records wait for a reader in the time between two runs of a plugin.
	fifo, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open FIFO: %w", err), os.Remove(path))
	}
	seq := 0
	return &Log{
		How:  "a FIFO in the place of /dev/kmsg",
		Args: []string{"-kmsg", path},
		write: func(_ context.Context, line string) (time.Time, error) {
			var now unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
				return time.Time{}, err
			}
			at := time.Now()
			_, err := fmt.Fprintf(fifo, "3,%d,%d,-;%s\n", seq, now.Nano()/1000, line)
			seq++
			return at, err
		},
		close: func() error { return errors.Join(fifo.Close(), os.Remove(path)) },
	}, nil
}
