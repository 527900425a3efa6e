package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/instances"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

// snapshot is all that the judge needs.
type snapshot struct {
	gpu.Reading
	Grace time.Duration `json:"grace"`
	// Expected is how many GPUs the node should have, 0 if not known.
	Expected int `json:"expected"`
	// Unlisted is the instance type that has no row although one was asked for, by -instance-type or -profiles.
	Unlisted string `json:"unlisted,omitempty"`
	// MayHaveNone reports that a node without any GPU is as expected.
	MayHaveNone bool `json:"mayHaveNone,omitempty"`
	// Seen are the GPUs that were on the PCI bus earlier in this boot.
	Seen []string `json:"seen,omitempty"`
	// Before are the GPUs that were missing before the boot and have not been well since.
	Before []string `json:"before,omitempty"`
	// MismatchFor is how long the versions of the driver's library and kernel module have been the same two different ones.
	MismatchFor time.Duration `json:"mismatchFor,omitempty"`
	// Files are the N of all /dev/nvidiaN; nil if there are none here, as in a container without the devices.
	Files []int `json:"files,omitempty"`
}

// unset is the -expect of a node that nothing is said about.
const unset = -1

type reader struct {
	plugin             *npd.Plugin
	source             nvml.Source
	dev                string
	expect             int
	instance, profiles string
	imds               string
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	s := snapshot{Grace: r.plugin.Grace, MayHaveNone: r.expect == 0}
	var err error
	if s.Expected, s.Unlisted, err = r.expected(ctx); err != nil {
		return s, err
	}
	if s.Reading, err = r.source.ReadShared(ctx); err != nil {
		return s, err
	}
	store, err := r.store()
	if err != nil {
		return s, err
	}
	known, err := store.Update(func(m *memory) bool { return m.note(s) })
	if err != nil {
		return s, err
	}
	s.Seen, s.Before, s.MismatchFor = known.Seen, known.Before, s.Uptime-known.Since
	s.Files = deviceFiles(r.dev)
	return s, nil
}

// expected asks the flag, then the profile of the instance type. unlisted names a type without one that somebody has asked for.
func (r *reader) expected(ctx context.Context) (count int, unlisted string, err error) {
	if r.expect > 0 {
		return r.expect, "", nil
	}
	rows := instances.Builtin
	if r.profiles != "" {
		data, err := os.ReadFile(r.profiles)
		if err != nil {
			return 0, "", err
		}
		rows = string(data)
	}
	instance := r.instanceType(ctx)
	i, found, err := instances.Find(rows, instance)
	if !found && err == nil && (r.instance != "" || r.profiles != "") {
		unlisted = fmt.Sprintf("no row for instance type %.60q", instance)
	}
	return i.GPUs, unlisted, err
}

// judgeListed is [judge], and Unknown where the number that was asked for is not known.
func judgeListed(s snapshot) npd.Result {
	result := judge(s)
	if s.Unlisted != "" {
		result.NotRead("gpu count", s.Unlisted)
	}
	return result
}

func deviceFiles(dev string) (minors []int) {
	paths, _ := filepath.Glob(filepath.Join(dev, "nvidia[0-9]*"))
	for _, path := range paths {
		if n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), "nvidia")); err == nil {
			minors = append(minors, n)
		}
	}
	return minors
}
