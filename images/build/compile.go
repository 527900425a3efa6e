package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// platform is what all images of one architecture are made from.
type platform struct {
	architecture string
	root         string
	// version is the release that the programs print.
	version string
	// debs holds the .deb files of packages, or other versions of them if unpinned.
	debs     string
	packages []debianPackage
	unpinned bool
	// bin holds this repository's programs and the Node Problem Detector.
	bin string
}

// compilers are Debian's names for the C compilers of the plugins that load NVIDIA's libraries.
var compilers = map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}

// nodeProblemDetector is the name of the component in e2e/components, where its version is pinned.
const nodeProblemDetector = "node-problem-detector"

// compile builds the programs.
func (p *platform) compile(ctx context.Context) error {
	compiler, ok := compilers[p.architecture]
	if !ok {
		return fmt.Errorf("platform linux/%s: the build knows no C compiler for it", p.architecture)
	}
	if p.architecture == runtime.GOARCH {
		compiler = "gcc"
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return fmt.Errorf("platform linux/%s: %w (Debian has it in gcc-%s)", p.architecture, err, strings.TrimSuffix(compiler, "-gcc"))
	}
	if err := p.detector(ctx); err != nil {
		return err
	}
	var err error
	if p.bin, err = os.MkdirTemp("", "pitcrew-images-"); err != nil {
		return err
	}
	// The tags keep the standard library out of cgo: what does not load a library is static.
	// The flag of the compiler is that of the tests, which have compiled most of it for this machine; the linker would drop the tables.
	args := []string{"build", "-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false", "-tags=netgo,osusergo", "-o", p.bin + "/",
		"-ldflags=-s -w -X=github.com/pitcrew-dev/pitcrew/internal/version.release=" + p.version,
		"./plugins/...", "./remediator", "./preflight", "./repair", "./kubectl-pitcrew", "./images/install"}
	// The linker records these in the program.
	env := []string{"CGO_ENABLED=1", "CC=" + compiler, "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations", "GOFLAGS=",
		"GOARCH=" + p.architecture, "GOAMD64=v1", "GOARM64=v8.0"}
	if err := p.goCommand(ctx, args, env...); err != nil {
		return errors.Join(err, os.RemoveAll(p.bin))
	}
	return nil
}

// detector builds the Node Problem Detector as the tests do without a network: the released one is linked against the C library.
func (p *platform) detector(ctx context.Context) error {
	return p.goCommand(ctx, []string{"run", "./e2e/components/build", "-arch", p.architecture, nodeProblemDetector}, "COMPONENTS=build")
}

func (p *platform) goCommand(ctx context.Context, args []string, env ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = p.root
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go %s for linux/%s: %w", args[0], p.architecture, err)
	}
	return nil
}

// program returns a program of this repository, or the Node Problem Detector, as a file of an image.
func (p *platform) program(name, to string) (file, error) {
	from := filepath.Join(p.bin, name)
	if name == nodeProblemDetector {
		other := p.architecture
		if other == runtime.GOARCH {
			other = "" // as [components.Component.Path] has it
		}
		from = filepath.Join(p.root, "bin", "components", other, name)
	}
	content, err := os.ReadFile(from)
	return file{path: to, mode: 0o755, content: content}, err
}
