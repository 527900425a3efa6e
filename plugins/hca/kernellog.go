package main

import (
	"errors"
	"io"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

// follow reads the kernel log to its end, from where the look before got to.
func (r *reader) follow(from uint64) (modules map[string]string, next uint64, err error) {
	if r.log == nil {
		if r.log, err = kmsg.Open(r.kmsg, from); err != nil {
			return nil, from, err
		}
	}
	modules = map[string]string{}
	for {
		rec, err := r.log.Next()
		switch {
		case errors.Is(err, io.EOF):
			return modules, r.log.Seq(), nil
		case errors.Is(err, kmsg.ErrMalformed):
			continue
		case err != nil:
			return modules, r.log.Seq(), err
		}
		// User space can write the same text, but never with the kernel's facility, 0.
		if address, event, ok := parseModuleEvent(rec.Body); ok && rec.Facility == 0 {
			modules[address] = event
		}
	}
}
