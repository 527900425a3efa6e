package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/tool"
)

// noDevice is what ibv_devinfo of rdma-core prints where there is no adapter.
const noDevice = "No IB devices found"

// askTool runs ibv_devinfo. It fails when one device does, but says what it knows of the others.
func (r *reader) askTool(ctx context.Context) (devinfo, error) {
	out, err := tool.Run(ctx, r.tool)
	d := parseDevinfo(out)
	if err != nil && strings.Contains(err.Error(), noDevice) {
		return d, nil // an answer, although the tool fails
	}
	if err != nil {
		d.Err = err.Error()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(d.Ports) > 0 && len(exit.Stderr) == 0 {
		// Its output is judged below, and is no reason.
		d.Err = fmt.Sprintf("%s: %v", r.tool, exit)
	}
	switch {
	case len(d.Ports) > 0:
	case err != nil:
		return devinfo{}, errors.New(d.Err)
	default: // such as a list of ibv_devinfo -l: it says where there is no adapter, and fails
		return devinfo{}, fmt.Errorf("%s printed no adapter: %.80q", r.tool, out)
	}
	return d, nil
}
