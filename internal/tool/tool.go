// Package tool runs the vendors' command line tools.
package tool

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/bounded"
)

// ErrNoAnswer is in the error of a tool that did not end in time.
var ErrNoAnswer = errors.New("did not answer in time")

// longest is how many bytes of a tool's words an error has.
const longest = 200

// Run returns what a tool prints to its standard output, also when it fails. The error has the tool's own words, which people search
// for: npu-smi prints them to its standard output, ibv_devinfo to its standard error. A call has half of the time that is left, so that
// one that hangs hides no other.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := bounded.Share(ctx, 2)
	defer cancel()
	out, err := output(ctx, name, args)
	if err == nil {
		return string(out), nil
	}
	if ctx.Err() != nil {
		err = ErrNoAnswer
	}
	words := out
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(strings.Fields(string(exit.Stderr))) > 0 {
		words = exit.Stderr
	}
	text := strings.Join(strings.Fields(string(words)), " ")
	if text == "" {
		return string(out), fmt.Errorf("%s: %w", strings.Join(append([]string{name}, args...), " "), err)
	}
	return string(out), fmt.Errorf("%s: %w: %.*s", strings.Join(append([]string{name}, args...), " "), err, longest, text)
}

// output returns what a tool prints. One that sleeps in the kernel survives its kill: it is left behind.
func output(ctx context.Context, name string, args []string) ([]byte, error) {
	const patience = 100 * time.Millisecond
	cmd := exec.CommandContext(ctx, name, args...)
	// A child that holds the output open must not keep us.
	cmd.WaitDelay = patience
	var out []byte
	done := make(chan error, 1)
	go func() {
		var err error
		out, err = cmd.Output()
		done <- err
	}()
	select {
	case err := <-done:
		return out, err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return out, err
	case <-time.After(2 * patience):
		return nil, ctx.Err()
	}
}
