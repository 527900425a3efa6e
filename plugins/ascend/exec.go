package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

func run(ctx context.Context, tool string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, tool, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", tool, strings.Join(args, " "), err)
	}
	return string(out), nil
}
