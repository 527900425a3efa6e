package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

// follow reads the kernel log to its end, from where the look before got to.
func (r *reader) follow(from uint64) (modules map[string]string, next uint64, err error) {
	if r.log == nil {
		if r.log, err = kmsg.Open(r.kmsg, from); err != nil {
			return nil, from, err
		}
	}
	_, err = r.drain()
	modules, r.modules = r.modules, nil
	return modules, r.log.Seq(), err
}

// drain notes the module events in the kernel log and reports whether a driver of adapters has written anything.
func (r *reader) drain() (ours bool, err error) {
	for {
		rec, err := r.log.Next()
		switch {
		case errors.Is(err, io.EOF):
			return ours, nil
		case errors.Is(err, kmsg.ErrMalformed):
			continue
		case err != nil:
			return ours, err
		}
		// User space can write the same text, but never with the kernel's facility, 0.
		if rec.Facility != 0 {
			continue
		}
		ours = ours || slices.ContainsFunc(drivers, func(name string) bool { return strings.Contains(rec.Body, name) })
		if address, event, ok := parseModuleEvent(rec.Body); ok {
			if r.modules == nil {
				r.modules = map[string]string{}
			}
			r.modules[address] = event
		}
	}
}

// drivers are the drivers whose lines name them: mlx5_core says for each port with a network interface when its link goes and comes
// ("mlx5_core 0000:4e:00.0 eth0: Link down").
var drivers = []string{"mlx5_core", "mlx4_", "bnxt_", "irdma"}

// least is the pause between two looks that lines of the kernel log cause: a driver may write thousands a second.
const least = time.Second

// wait returns when a driver of adapters has written something: a port may be down.
func (r *reader) wait(ctx context.Context) error {
	if r.log == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	looked := time.Now()
	for ours := false; !ours; {
		if err := r.log.Wait(ctx); err != nil {
			return err
		}
		var err error
		if ours, err = r.drain(); err != nil {
			return err
		}
	}
	select {
	case <-time.After(least - time.Since(looked)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
