package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
)

// Exit statuses of dcgmi: the negative of a DCGM error, as a byte (dcgm_structs.h of DCGM 4.6).
const (
	exitFailed  = 226 // DCGM_ST_NVVS_ERROR: it ran and found an error
	exitIsolate = 205 // DCGM_ST_NVVS_ISOLATE_ERROR: and one of priority ISOLATE
)

// runDcgmi runs NVIDIA's program. It is in the worker's process group and ends with it.
func (r *reader) runDcgmi(ctx context.Context) (results []result, isolate bool, err error) {
	what := strconv.Itoa(r.level)
	if r.tests != "" {
		what = r.tests
	}
	args := []string{"diag", "-r", what, "-j"}
	if r.hostengine != "" {
		args = append(args, "--host", r.hostengine)
	}
	cmd := exec.CommandContext(ctx, r.dcgmi, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		return nil, false, fmt.Errorf("run dcgmi: %w", err)
	}
	if code != 0 && code != exitFailed && code != exitIsolate {
		return nil, false, fmt.Errorf("dcgmi exited %d: %.200s", code, bytes.TrimSpace(append(out, stderr.Bytes()...)))
	}
	results, err = parseDiag(out)
	if err != nil {
		return nil, false, err
	}
	if code == exitFailed && !anyFailed(results) {
		return nil, false, errors.New("dcgmi reported an error, but no test failed")
	}
	return results, code == exitIsolate, nil
}

func anyFailed(results []result) bool {
	return slices.ContainsFunc(results, result.failing)
}
