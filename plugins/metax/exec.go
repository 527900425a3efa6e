package main

import (
	"context"
	"fmt"
	"os/exec"
)

func (r *reader) run(ctx context.Context, arg string) (string, error) {
	out, err := exec.CommandContext(ctx, r.tool, arg).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", r.tool, arg, err)
	}
	return string(out), nil
}
