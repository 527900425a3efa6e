package flags_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

var update = flag.Bool("update", false, "write the golden file")

var (
	flagInHelp = regexp.MustCompile(`(?m)^  -([a-z-]+)`)
	bounds     = regexp.MustCompile(`: not from (\S+ to [^"\n\s]+)`)
)

// TestProgramsRefuseNumbersOutOfBounds gives each number and duration of each program values that make no sense. testdata/bounds.txt has
// their bounds.
func TestProgramsRefuseNumbersOutOfBounds(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	plugins, err := filepath.Glob(filepath.Join(root, "plugins", "*"))
	if err != nil {
		t.Fatal(err)
	}
	packages, programs := []string{"./preflight", "./repair"}, []string{"preflight", "repair check", "repair collect", "repair print-bundle", "repair reboot", "repair reset-gpu"}
	for _, plugin := range plugins {
		packages, programs = append(packages, "./plugins/"+filepath.Base(plugin)), append(programs, filepath.Base(plugin))
	}
	if err := components.BuildOurs(t.Context(), root, packages...); err != nil {
		t.Fatal(err)
	}
	// What npd gives each plugin is checked with one of them.
	const plugin = "hung"
	common := []string{"timeout", "hold", "every", "healthy-every", "grace", "hung-after"}
	var table strings.Builder
	for _, name := range slices.Sorted(slices.Values(programs)) {
		p := program{t, filepath.Join(root, "bin"), strings.Fields(name)}
		_, help := p.run("-h")
		for _, m := range flagInHelp.FindAllStringSubmatch(help, -1) {
			isCommon := len(p.args) == 1 && name != "preflight" && name != plugin && slices.Contains(common, m[1])
			if isCommon || !strings.Contains(p.refusal(m[1], "x"), fmt.Sprintf("invalid value \"x\" for flag -%s: parse error", m[1])) {
				continue
			}
			fmt.Fprintf(&table, "%s -%s: %s\n", name, m[1], p.bounds(m[1]))
		}
	}
	golden := filepath.Join("testdata", "bounds.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), table.String()); diff != "" {
		t.Error(diff)
	}
}

// program is a program, with its command.
type program struct {
	t    *testing.T
	bin  string
	args []string
}

// run runs the program so that it does nothing if it accepts the flags.
func (p program) run(args ...string) (code int, output string) {
	p.t.Helper()
	args = append(slices.Clone(p.args[1:]), args...)
	if len(p.args) == 1 {
		args = append(args, "-version")
	} else {
		args = append(args, "-termination-log=", "unexpected")
	}
	out, err := exec.CommandContext(p.t.Context(), filepath.Join(p.bin, p.args[0]), args...).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), string(out)
	} else if err != nil {
		p.t.Fatal(err)
	}
	return 0, string(out)
}

// refusal returns what the program says of a value of a flag that it has to refuse, with exit 2, "cannot tell" or "refused".
func (p program) refusal(name, value string) string {
	p.t.Helper()
	code, out := p.run("-" + name + "=" + value)
	if code != 2 || strings.Count(out, "\n") != 1 {
		return fmt.Sprintf("exit %d\n%s", code, out)
	}
	return strings.ReplaceAll(out, `\"`, `"`)
}

// bounds returns the bounds of a flag after values that are out of them.
func (p program) bounds(name string) string {
	p.t.Helper()
	found := ""
	for _, value := range []string{"NaN", "Inf", "-2", "-2s", "1e300", "18446744073709551615", "8761h", "9e9h"} {
		out := p.refusal(name, value)
		if !strings.Contains(out, "-"+name+": ") || !strings.Contains(out, "invalid value ") {
			p.t.Errorf("%s -%s=%s: %s", strings.Join(p.args, " "), name, value, out)
		}
		if m := bounds.FindStringSubmatch(out); m != nil {
			found = m[1]
		}
	}
	zero := p.refusal(name, "0")
	if refused := strings.Contains(zero, "invalid value"); refused != !regexp.MustCompile(`^(0|-1|0s) to `).MatchString(found) {
		p.t.Errorf("%s -%s=0, which is from %s: %s", strings.Join(p.args, " "), name, found, zero)
	}
	return found
}
