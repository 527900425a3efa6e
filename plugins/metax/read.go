package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/daily"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
	vendor "github.com/pitcrew-dev/pitcrew/internal/tool"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot boot.Boot `json:"boot"`
	// PCI are the addresses of MetaX GPUs on the bus.
	PCI    []string `json:"pci"`
	PCIErr string   `json:"pciErr,omitempty"`
	// Tool is the output of mx-smi; it is not run where there is no GPU.
	Tool   tool    `json:"tool"`
	Faults []fault `json:"faults"`
	// Unread is why the kernel log could not be read, Unshared why the state could not be kept.
	Unread   string `json:"unread,omitempty"`
	Unshared string `json:"unshared,omitempty"`
}

// tool is one run of mx-smi.
type tool struct {
	At   time.Time `json:"at"`
	GPUs []gpu     `json:"gpus"`
	// Errs say what could not be asked.
	Errs []string `json:"errs"`
}

// MetaX's PCI vendor id and the class of its GPUs, display controllers.
const (
	metax   = 0x9999
	display = 0x03
)

type reader struct {
	plugin              *npd.Plugin
	tool, sysfs, procfs string
	kmsg                string
	allowInjected       bool
	at                  daily.Schedule
	spread              time.Duration

	store npd.Store[state]
}

// state is kept from run to run.
type state struct {
	// Next is the sequence number of the next record of the kernel log.
	Next   uint64  `json:"next"`
	Faults []fault `json:"faults"`
	// Tool is the last run of mx-smi.
	Tool tool `json:"tool"`
}

// maxFaults bounds what is kept; a driver in trouble repeats itself.
const maxFaults = 64

func (r *reader) driver() string { return npd.Module(r.sysfs, "metax") }

func (r *reader) read(ctx context.Context) (snapshot, error) {
	b, err := r.open()
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Boot: b, PCI: []string{}, Tool: tool{GPUs: []gpu{}, Errs: []string{}}}
	functions, err := sysfs.PCI(r.sysfs, metax)
	if err != nil {
		s.PCIErr = err.Error()
	}
	for _, f := range functions {
		if f.Class>>16 == display && !f.Virtual {
			s.PCI = append(s.PCI, f.Address)
		}
	}
	before, _ := r.store.Update(func(*state) bool { return false })
	faults, next, err := r.follow(before.Next)
	if err != nil {
		s.Unread = err.Error()
	}
	if len(s.PCI) > 0 {
		s.Tool = r.runTool(ctx, before.Tool)
	}
	after, err := r.store.Update(func(st *state) bool {
		// Another run may have got further.
		if next > st.Next {
			st.add(faults)
			st.Next = next
		}
		if !r.allowInjected {
			st.Faults = slices.DeleteFunc(st.Faults, func(f fault) bool { return f.Injected })
		}
		st.Tool = s.Tool
		return true
	})
	if err != nil {
		s.Unshared = err.Error()
	}
	s.Faults = append([]fault{}, after.Faults...)
	return s, nil
}

func (st *state) add(faults []fault) {
	for _, f := range faults {
		if !slices.Contains(st.Faults, f) && len(st.Faults) < maxFaults {
			st.Faults = append(st.Faults, f)
		}
	}
}

// clear forgets the faults of the kernel log whose subject contains the text.
func (r *reader) clear(_ context.Context, text string) (cleared []string, err error) {
	if _, err := r.open(); err != nil {
		return nil, err
	}
	before, _ := r.store.Update(func(*state) bool { return false })
	faults, next, err := r.follow(before.Next)
	if err != nil {
		return nil, err
	}
	_, err = r.store.Update(func(st *state) bool {
		if next > st.Next {
			st.add(faults)
			st.Next = next
		}
		st.Faults = slices.DeleteFunc(st.Faults, func(f fault) bool {
			match := strings.Contains(f.subject(), text)
			if match {
				cleared = append(cleared, f.subject())
			}
			return match
		})
		return true
	})
	slices.Sort(cleared)
	return slices.Compact(cleared), err
}

// open binds the state to this boot.
func (r *reader) open() (boot.Boot, error) {
	return r.store.Open(r.procfs, r.plugin.StateDir, "metax")
}

// follow reads the kernel log from a record to its end.
func (r *reader) follow(from uint64) (faults []fault, next uint64, err error) {
	log, err := kmsg.Open(r.kmsg, from)
	if err != nil {
		return nil, from, err
	}
	defer func() { _ = log.Close() }()
	for {
		rec, err := log.Next()
		switch {
		case errors.Is(err, io.EOF):
			return faults, log.Seq(), nil
		case errors.Is(err, kmsg.ErrMalformed):
			continue
		case err != nil:
			return faults, log.Seq(), err
		}
		injected := rec.Facility != 0
		if f, ok := parseKernel(rec.Body); ok && (!injected || r.allowInjected) {
			f.Injected = injected
			faults = append(faults, f)
		}
	}
}

// runTool runs the tool, or repeats its last output if it is not due.
func (r *reader) runTool(ctx context.Context, last tool) tool {
	now := time.Now()
	// The node's name spreads the nodes; without one they run together.
	node, _ := os.Hostname()
	if !last.At.IsZero() && !r.at.Due(last.At, now, node, r.spread) {
		return last
	}
	// Less than the worker has, so that a tool that hangs but can be killed hides nothing else.
	ctx, cancel := context.WithTimeout(ctx, r.plugin.Timeout/2)
	defer cancel()
	t := tool{At: now, GPUs: []gpu{}, Errs: []string{}}
	out, err := vendor.Run(ctx, r.tool, "-L")
	if err == nil {
		t.GPUs, err = parseList(out)
	}
	if err != nil {
		t.Errs = append(t.Errs, err.Error())
		return t
	}
	r.values(ctx, &t, "--show-temperature", hotspotKey, func(g *gpu, value string) error {
		hot, err := parseHotspot(value)
		if err == nil {
			g.Hotspot = &hot
		}
		return err
	})
	r.values(ctx, &t, "--count-ecc", pagesKey, func(g *gpu, value string) error {
		pages, err := strconv.ParseUint(value, 10, 64)
		if err == nil {
			g.RetiredPages = &pages
		}
		return err
	})
	return t
}

// values asks for one value of every GPU that is available.
func (r *reader) values(ctx context.Context, t *tool, arg string, key *regexp.Regexp, take func(*gpu, string) error) {
	out, err := vendor.Run(ctx, r.tool, arg)
	var values map[string]string
	if err == nil {
		values, err = parseValues(out, key)
	}
	if err != nil {
		t.Errs = append(t.Errs, fmt.Sprintf("mx-smi %s: %v", arg, err))
		return
	}
	for i := range t.GPUs {
		g := &t.GPUs[i]
		value, found := values[g.Index]
		if !found {
			err = errors.New("not in its output")
		} else {
			err = take(g, value)
		}
		if err != nil && g.State == available {
			g.Errs = append(g.Errs, fmt.Sprintf("mx-smi %s: %v", arg, err))
		}
	}
}
