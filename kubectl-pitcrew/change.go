package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
)

// change is one thing that a command is about to do.
type change struct {
	// text says what, as an order: "Delete ...".
	text string
	do   func(context.Context) error
	// gate: if it fails, the changes after it are not made.
	gate bool
	// about is the object that is changed, for an Event; zero for changes without one.
	about corev1.ObjectReference
}

// confirmation are the flags of a command that changes the cluster.
type confirmation struct{ dryRun, yes bool }

func (c *confirmation) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "only print what would be done")
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "do not ask for confirmation")
}

// apply prints the changes, asks for confirmation, and makes them. Without a terminal it cannot ask.
func (c *confirmation) apply(cmd *cobra.Command, changes []change) error {
	out := cmd.OutOrStdout()
	if len(changes) == 0 {
		cli.Fprintln(out, "There is nothing to do.")
		return nil
	}
	for _, change := range changes {
		cli.Fprintln(out, change.text)
	}
	if c.dryRun {
		return nil
	}
	if !c.yes {
		if err := ask(cmd); err != nil {
			return err
		}
	}
	var errs []error
	for _, change := range changes {
		if err := change.do(cmd.Context()); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", change.text, err))
			if change.gate {
				break
			}
		}
	}
	return errors.Join(errs...)
}

func ask(cmd *cobra.Command) error {
	file, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return errors.New("there is no terminal to ask for confirmation: use -y or --dry-run")
	}
	cli.Fprintf(cmd.OutOrStdout(), "Continue? [y/N] ")
	answer, err := bufio.NewReader(file).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}
