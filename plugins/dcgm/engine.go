package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// library is what go-dcgm loads, by this name.
const library = "libdcgm.so.4"

// preload loads the library from the driver root; the loader knows it by its name from then on.
func preload(root string) {
	if root == "" {
		root = "/run/nvidia/driver"
	}
	for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"} {
		path := filepath.Join(root, dir, library)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		name := C.CString(path)
		loaded := C.dlopen(name, C.RTLD_LAZY|C.RTLD_GLOBAL)
		C.free(unsafe.Pointer(name))
		if loaded != nil {
			return
		}
	}
}

// connect starts a host engine in this process, or connects to one.
func (r *reader) connect() (close func(), err error) {
	preload(r.source.DriverRoot)
	switch {
	case r.hostengine == "":
		close, err = dcgm.Init(dcgm.Embedded)
	case strings.HasPrefix(r.hostengine, "/"):
		close, err = dcgm.Init(dcgm.Standalone, r.hostengine, "1")
	default:
		close, err = dcgm.Init(dcgm.Standalone, r.hostengine, "0")
	}
	if err != nil {
		return nil, fmt.Errorf("DCGM: %w", err)
	}
	return close, nil
}

// runEngine runs a level through the library, which has neither a timeout nor named tests and drops the severities.
func (r *reader) runEngine() ([]result, error) {
	closeEngine, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer closeEngine()
	diag, err := dcgm.RunDiag(dcgm.DiagType(r.level), dcgm.GroupAllGPUs())
	if err != nil {
		return nil, fmt.Errorf("DCGM diag: %w", err)
	}
	var results []result
	for _, d := range diag.Software {
		s, err := parseStatus(d.Status)
		if err != nil {
			return nil, fmt.Errorf("DCGM diag, test %q: %w", d.TestName, err)
		}
		res := result{Test: d.TestName, Entity: fmt.Sprintf("gpu %d", d.EntityID), Status: s, Software: isSoftware(d.TestName)}
		if d.ErrorMessage != "" || d.ErrorCode != 0 {
			res.Warnings = []warning{{ID: int(d.ErrorCode), Text: d.ErrorMessage}}
		}
		results = append(results, res)
	}
	if len(results) == 0 {
		return nil, errors.New("DCGM diag gave no result")
	}
	// The library gives the errors of no GPU to GPU 0, and of each test and GPU the first error only.
	software := slices.ContainsFunc(results, func(r result) bool { return r.Software && len(r.Warnings) > 0 })
	for i, r := range results {
		results[i].Explained = software && r.Software && r.failing() && len(r.Warnings) == 0
	}
	return results, nil
}

// watches reads what a host engine has seen since its watches were enabled.
func (r *reader) watches() ([]incident, error) {
	closeEngine, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer closeEngine()
	systems, err := dcgm.HealthGet(dcgm.GroupAllGPUs())
	if err != nil {
		return nil, fmt.Errorf("DCGM health: %w", err)
	}
	if systems == 0 {
		return nil, errors.New("DCGM health: the host engine watches nothing")
	}
	health, err := dcgm.HealthCheck(dcgm.GroupAllGPUs())
	if err != nil {
		return nil, fmt.Errorf("DCGM health: %w", err)
	}
	var incidents []incident
	for _, i := range health.Incidents {
		incidents = append(incidents, incident{
			Entity:  fmt.Sprintf("%s %d", strings.ToLower(i.EntityInfo.EntityGroupId.String()), i.EntityInfo.EntityId),
			Failure: i.Health == dcgm.DCGM_HEALTH_RESULT_FAIL,
			Warning: warning{ID: int(i.Error.Code), Text: i.Error.Message},
		})
	}
	return incidents, nil
}
