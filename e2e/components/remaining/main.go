// Command remaining copies the output of gotestsum, and adds to the line of each package of tests how many have ended and about how long the
// others take. Its arguments are the import paths of the packages.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

func main() {
	// After Ctrl-C the tests say what they did; they end this program by the end of their output.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	if err := components.Tests(os.Stdin, os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
