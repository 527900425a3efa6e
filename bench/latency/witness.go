package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

// witness reads the kernel log like any program can, for the part of the latency that no reader can beat: the kernel
// prints a record on its consoles first and wakes readers from the next timer tick (printk, wake_up_klogd).
type witness struct{ log *kmsg.Reader }

func newWitness() (*witness, error) {
	log, err := kmsg.Open("/dev/kmsg", 0)
	if err != nil {
		return nil, err
	}
	return &witness{log}, nil
}

// drain skips the records that are already in the log.
func (w *witness) drain() error {
	for {
		if _, err := w.log.Next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil && !errors.Is(err, kmsg.ErrMalformed) {
			return err
		}
	}
}

// await waits for the record whose text contains subject and returns its time of arrival.
func (w *witness) await(ctx context.Context, subject string) (time.Time, error) {
	for {
		if err := w.log.Wait(ctx); err != nil {
			return time.Time{}, fmt.Errorf("wait for %s in the kernel log: %w", subject, err)
		}
		at := time.Now()
		for {
			rec, err := w.log.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err == nil && strings.Contains(rec.Body, subject) {
				return at, nil
			}
			if err != nil && !errors.Is(err, kmsg.ErrMalformed) {
				return time.Time{}, err
			}
		}
	}
}
