package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// Change is one thing that a command is about to do.
type Change struct {
	// Text is what is changed, as an order: "Delete ...".
	Text string
	Do   func(context.Context) error
	// Gate: if it fails, the changes after it are not made.
	Gate bool
}

// Confirmation are the flags of a command that changes the cluster.
type Confirmation struct{ DryRun, Yes bool }

func (c *Confirmation) Flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.DryRun, "dry-run", false, "only print what would be done")
	cmd.Flags().BoolVarP(&c.Yes, "yes", "y", false, "do not ask for confirmation")
}

// Apply prints the changes, asks for confirmation, and makes them. Without a terminal it cannot ask.
func (c *Confirmation) Apply(cmd *cobra.Command, changes []Change) error {
	out := cmd.OutOrStdout()
	if len(changes) == 0 {
		Fprintln(out, "There is nothing to do.")
		return nil
	}
	for _, change := range changes {
		Fprintln(out, change.Text)
	}
	if c.DryRun {
		return nil
	}
	if !c.Yes {
		if err := ask(cmd); err != nil {
			return err
		}
	}
	var errs []error
	for _, change := range changes {
		if err := change.Do(cmd.Context()); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", change.Text, err))
			if change.Gate {
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
	Fprintf(cmd.OutOrStdout(), "Continue? [y/N] ")
	answer, err := bufio.NewReader(file).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}
