package version

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

func TestTheReleaseComesBeforeWhatTheGoCommandRecorded(t *testing.T) {
	info := func(version string) *debug.BuildInfo { return &debug.BuildInfo{Main: debug.Module{Version: version}} }
	for _, test := range []struct {
		name, release string
		info          *debug.BuildInfo
		want          string
	}{
		{"a release", "v0.2.0", info("v0.1.1-0.20261120120000-0123456789ab"), "v0.2.0"},
		{"go install", "", info("v0.2.0"), "v0.2.0"},
		{"a clone", "", info("v0.1.1-0.20261120120000-0123456789ab+dirty"), "v0.1.1-0.20261120120000-0123456789ab+dirty"},
		{"an older go command", "", info(""), "(devel)"},
		{"no build information", "", nil, "(devel)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := from(test.release, test.info, test.info != nil); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestEveryProgramPrintsItsRelease builds the programs as `make build VERSION=v1.2.3` does.
func TestEveryProgramPrintsItsRelease(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	// With other flags than those of the components all of Kubernetes' libraries would compile once more.
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w -X=github.com/pitcrew-dev/pitcrew/internal/version.release=v1.2.3",
		"-o", bin+"/", "./remediator", "./preflight", "./kubectl-pitcrew", "./plugins/xid")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for command, want := range map[string]string{
		"remediator -version":       "v1.2.3\n",
		"preflight -version":        "v1.2.3\n",
		"xid -version":              "xid v1.2.3\n",
		"kubectl-pitcrew --version": "kubectl-pitcrew v1.2.3\n",
	} {
		program, flag, _ := strings.Cut(command, " ")
		if out, err := exec.CommandContext(t.Context(), filepath.Join(bin, program), flag).CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("%s: %v, %q", command, err, out)
		}
	}
	// It also asks the cluster, and says that there is none.
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl-pitcrew"), "version", "--kubeconfig", filepath.Join(bin, "none"))
	if out, err := cmd.Output(); err != nil || !strings.HasPrefix(string(out), "kubectl-pitcrew v1.2.3\nnot known: find a cluster: ") {
		t.Errorf("kubectl-pitcrew version: %v, %q", err, out)
	}
}
