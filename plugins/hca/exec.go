package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
)

// askTool runs ibv_devinfo. It fails when one device does, but says what it knows of the others.
func (r *reader) askTool(ctx context.Context) (devinfo, error) {
	out, err := exec.CommandContext(ctx, r.tool).Output()
	d := parseDevinfo(string(out))
	if err != nil {
		d.Err = fmt.Sprintf("%s: %v", r.tool, err)
	}
	if len(d.Ports) == 0 && err != nil {
		return devinfo{}, errors.New(d.Err)
	}
	return d, nil
}
