package tool

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestAnErrorHasTheToolsOwnWords(t *testing.T) {
	for name, test := range map[string]struct{ script, out, err string }{
		"works":            {"echo fine; echo noise >&2", "fine\n", ""},
		"standard error":   {"echo part; echo 'Failed to get IB devices list: Function not implemented' >&2; exit 255", "part\n", "exit status 255: Failed to get IB devices list: Function not implemented"},
		"standard output":  {"echo 'dcmi module initialize failed. ret is -8005'; exit 1", "dcmi module initialize failed. ret is -8005\n", "exit status 1: dcmi module initialize failed. ret is -8005"},
		"blank error line": {"echo words; echo >&2; exit 2", "words\n", "exit status 2: words"},
		"several lines":    {"printf 'a\\n\\tb\\n' >&2; exit 3", "", "exit status 3: a b"},
		"no words":         {"exit 4", "", "exit status 4"},
	} {
		out, err := Run(t.Context(), "sh", "-c", test.script)
		text := ""
		if err != nil {
			text = err.Error()[len("sh -c "+test.script+": "):]
		}
		if out != test.out || text != test.err {
			t.Errorf("%s: %q, %q; want %q, %q", name, out, text, test.out, test.err)
		}
	}
}

func TestAToolThatHangsHidesNoOther(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	// The child of the shell keeps the output open after the shell is killed.
	if _, err := Run(ctx, "sh", "-c", "sleep 60; :"); err == nil || err.Error() != "sh -c sleep 60; :: did not answer in time" {
		t.Errorf("hangs: %v", err)
	}
	if out, err := Run(ctx, "echo", "fine"); out != "fine\n" || err != nil {
		t.Errorf("the next one: %q, %v", out, err)
	}
}

// A tool that sleeps in the kernel cannot be killed.
func TestAToolThatCannotBeKilledHidesNoOther(t *testing.T) {
	frozen := npdtest.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := Run(ctx, "sh", "-c", "echo > "+filepath.Join(frozen.Dir, "file")); err == nil || !strings.HasSuffix(err.Error(), ": did not answer in time") {
		t.Errorf("hangs: %v", err)
	}
	if out, err := Run(ctx, "echo", "fine"); out != "fine\n" || err != nil {
		t.Errorf("the next one: %q, %v", out, err)
	}
}
