package main

/*
#cgo CFLAGS: -O2
#cgo LDFLAGS: -ldl
#include "libdcgm.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unsafe"
)

// page is what to do where DCGM cannot be run.
const page = "see docs/dcgm.md"

// engine is a host engine, in this process or another.
type engine struct {
	handle   C.uintptr_t
	embedded bool
	// remove removes what it needed on disk.
	remove func()
}

func (e *engine) close() {
	stopped := C.int(0)
	if e.embedded {
		stopped = 1
	}
	C.stop(e.handle, stopped)
	e.remove()
}

// loadLibrary loads a library for the whole process.
func loadLibrary(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if text := C.load(name); text != nil {
		return fmt.Errorf("DCGM: %s (%s)", C.GoString(text), page)
	}
	return nil
}

// bindLibrary looks up the functions of libdcgm.
func bindLibrary(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if symbol := C.bind(name); symbol != nil {
		return fmt.Errorf("DCGM: %s has no %s (%s)", path, C.GoString(symbol), page)
	}
	return nil
}

// failure is what DCGM says of a status, with what to do about those that an incomplete installation gives.
func failure(status C.int) error {
	text := fmt.Sprintf("status %d", int(status))
	if known := C.text(status); known != nil {
		text = C.GoString(known)
	}
	switch status {
	case -33: // MODULE_NOT_LOADED
		text += ": " + module + " does not load (" + page + ")"
	case -41, -52, -56, -62: // DIAG_BAD_LAUNCH, NVVS_BINARY_NOT_FOUND, NVML_NOT_LOADED, CHILD_SPAWN_FAILED
		text = strings.TrimSuffix(text, ".") + " (" + page + ")"
	}
	return errors.New(text)
}

// connect starts a host engine in this process, or connects to one.
func (r *reader) connect() (e *engine, err error) {
	found, err := r.install()
	if err != nil {
		return nil, err
	}
	if err := found.load(); err != nil {
		return nil, err
	}
	e = &engine{embedded: r.hostengine == "", remove: func() {}}
	if !e.embedded {
		return e, e.connectTo(r.hostengine, r.procfs)
	}
	if e.remove, err = found.environment(r.plugin.StateDir); err != nil {
		return nil, err
	}
	if status := C.start(&e.handle); status != 0 {
		e.remove()
		return nil, fmt.Errorf("DCGM: start a host engine: %w", failure(status))
	}
	return e, nil
}

func (e *engine) connectTo(address, procfs string) error {
	name := C.CString(address)
	defer C.free(unsafe.Pointer(name))
	socket := C.int(0)
	if strings.HasPrefix(address, "/") {
		socket = 1
	}
	if status := C.connect_to(name, socket, &e.handle); status != 0 {
		return fmt.Errorf("DCGM: no connection to the host engine at %s: %w (%s)", address, failure(status), page)
	}
	if err := e.own(address, procfs); err != nil {
		e.close()
		return err
	}
	return nil
}

// own returns an error if the host engine has GPUs that are not this node's: a Service may lead to any node.
func (e *engine) own(address, procfs string) error {
	files, err := filepath.Glob(filepath.Join(procfs, "driver/nvidia/gpus/*/information"))
	if err != nil {
		return err
	}
	ours := map[string]bool{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("DCGM: whether the host engine at %s is this node's: %w", address, err)
		}
		for _, m := range uuidLine.FindAllSubmatch(data, -1) {
			ours[strings.ToLower(string(m[1]))] = true
		}
	}
	var ids [C.MAX_GPUS]C.uint
	var count C.int
	if status := C.devices(e.handle, &ids[0], &count); status != 0 {
		return fmt.Errorf("DCGM: list the GPUs of the host engine at %s: %w", address, failure(status))
	}
	for _, id := range ids[:min(max(int(count), 0), len(ids))] {
		var text [C.UUID_SIZE]C.char
		if status := C.uuid(e.handle, id, &text[0]); status != 0 {
			return fmt.Errorf("DCGM: ask the host engine at %s for GPU %d: %w", address, uint(id), failure(status))
		}
		if uuid := C.GoString(&text[0]); !ours[strings.ToLower(uuid)] {
			return fmt.Errorf("DCGM: the host engine at %s has GPU %q, which is not one of the %d of this node: it must be this node's (%s)",
				address, uuid, len(ours), page)
		}
	}
	return nil
}

var uuidLine = regexp.MustCompile(`(?m)^GPU UUID:\s*(\S+)`)

// runEngine runs a level through the library, which has neither a timeout nor named tests.
func (r *reader) runEngine() ([]result, error) {
	e, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer e.close()
	response := (*C.diag_t)(C.calloc(1, C.sizeof_diag_t))
	defer C.free(unsafe.Pointer(response))
	status := C.run(e.handle, C.int(10*r.level), response)
	for _, e := range response.error[:min(int(response.errors), len(response.error))] {
		if e.test == C.SYSTEM_ERROR {
			return nil, fmt.Errorf("DCGM diag: %s (%s)", strings.Join(strings.Fields(C.GoString(&e.text[0])), " "), page)
		}
	}
	if status != 0 {
		return nil, fmt.Errorf("DCGM diag: %w", failure(status))
	}
	results, err := results(response)
	if err == nil && len(results) == 0 {
		err = errors.New("DCGM diag gave no result")
	}
	return results, err
}

// results are those of all tests, each with all errors that are about it, as dcgmi prints them.
func results(response *C.diag_t) (all []result, err error) {
	for i := range min(int(response.tests), len(response.test)) {
		test := &response.test[i]
		category := ""
		if int(test.category) < len(response.category) {
			category = C.GoString(&response.category[test.category][0])
		}
		summary := result{Test: strings.ToLower(C.GoString(&test.name[0])), Entity: ""}
		summary.Software = strings.EqualFold(category, "Deployment") || isSoftware(summary.Test)
		if summary.Status, err = statusOf(test.result); err != nil {
			return nil, fmt.Errorf("DCGM diag, test %q: %w", summary.Test, err)
		}
		own, of := []result{}, map[string][]warning{}
		for _, at := range test.error[:min(int(test.errors), len(test.error))] {
			if int(at) >= len(response.error) {
				return nil, fmt.Errorf("DCGM diag, test %q: no error %d", summary.Test, int(at))
			}
			e := &response.error[at]
			severity := int(e.severity)
			w := warning{ID: int(e.code), Severity: &severity, Text: C.GoString(&e.text[0])}
			of[entityName(e.entity)] = append(of[entityName(e.entity)], w)
			summary.Warnings = append(summary.Warnings, w)
		}
		for _, at := range test.at[:min(int(test.results), len(test.at))] {
			if int(at) >= len(response.result) {
				return nil, fmt.Errorf("DCGM diag, test %q: no result %d", summary.Test, int(at))
			}
			from := &response.result[at]
			one := result{Test: summary.Test, Entity: entityName(from.entity), Software: summary.Software}
			if one.Status, err = statusOf(from.result); err != nil {
				return nil, fmt.Errorf("DCGM diag, test %q: %w", summary.Test, err)
			}
			if one.Entity != "" {
				one.Warnings = of[one.Entity]
			}
			own = append(own, one)
		}
		all = append(all, explain(own, summary)...)
	}
	return all, nil
}

// statusOf is the status of a DCGM_DIAG_RESULT_* number.
func statusOf(number C.int) (status, error) {
	words := []status{passed, skipped, warned, failed, notRun}
	if number < 0 || int(number) >= len(words) {
		return "", fmt.Errorf("unknown status %d", int(number))
	}
	return words[number], nil
}

// groups are the names of DCGM_FE_* (dcgm_fields.h) that dcgmi prints, too.
var groups = []string{"", "gpu", "vgpu", "switch", "gpu instance", "compute instance", "link", "cpu", "cpu core", "connectx"}

func entityName(e C.entity_t) string {
	switch {
	case e.group == 0:
		return ""
	case e.group < 0 || int(e.group) >= len(groups):
		return fmt.Sprintf("entity %d.%d", int(e.group), uint(e.id))
	}
	return fmt.Sprintf("%s %d", groups[e.group], uint(e.id))
}

// watches reads what a host engine has seen since its watches were enabled.
func (r *reader) watches() ([]incident, error) {
	e, err := r.connect()
	if err != nil {
		return nil, err
	}
	defer e.close()
	var systems C.uint
	if status := C.watched(e.handle, &systems); status != 0 {
		return nil, fmt.Errorf("DCGM health: %w", failure(status))
	}
	if systems == 0 {
		return nil, errors.New("DCGM health: the host engine watches nothing")
	}
	response := (*C.health_t)(C.calloc(1, C.sizeof_health_t))
	defer C.free(unsafe.Pointer(response))
	if status := C.health(e.handle, response); status != 0 {
		return nil, fmt.Errorf("DCGM health: %w", failure(status))
	}
	var incidents []incident
	for i := range min(int(response.incidents), len(response.incident)) {
		from := &response.incident[i]
		incidents = append(incidents, incident{
			Entity:  entityName(from.entity),
			Failure: from.health == 20, // DCGM_HEALTH_RESULT_FAIL
			Warning: warning{ID: int(from.code), Text: C.GoString(&from.text[0])},
		})
	}
	return incidents, nil
}
