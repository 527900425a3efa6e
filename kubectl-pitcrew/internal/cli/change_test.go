package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestTextOfTheClusterDoesNotControlTheTerminal(t *testing.T) {
	var out strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	if err := (&Confirmation{DryRun: true}).Apply(cmd, []Change{{Text: "run \x1b[2Jx\nClear y"}}); err != nil || out.String() != "run �[2Jx Clear y\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	out.Reset()
	if PrintError(&out, errors.Join(errors.New("a\x1b[2J"), errors.New("b"))); out.String() != "Error: a�[2J\n  b\n" {
		t.Errorf("%q", out.String())
	}
}
