// Command remaining copies the output of gotestsum, and adds to the line of each package of tests how many have ended and about how long the
// others take. Its arguments are the number of packages that run at once, and the import paths of the packages in their order.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

func main() {
	// After Ctrl-C the tests say what they did; they end this program by the end of their output.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: remaining AT-ONCE PACKAGES")
	}
	atOnce, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("packages at once: %w", err)
	}
	return components.Tests(os.Stdin, os.Stdout, atOnce, args[1:])
}
