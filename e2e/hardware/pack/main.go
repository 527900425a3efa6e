// Command pack makes bin/hardware-kit.tar.gz, the archive that `make hardware-kit` builds: all plugins, preflight and repair, the program
// kit, which runs them on a machine with GPUs, and run.sh, which starts it.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// most is how large the archive may be, in bytes: it shall pass through any door.
const most = 30 << 20

// folder is the one folder in the archive.
const folder = "hardware-kit"

// machines are what uname -m calls the architectures.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// fixtures are files of this repository that the kit needs, by their names in the archive.
var fixtures = map[string]string{
	"fixtures/kernel.log":                         "e2e/try/kernel.log",
	"fixtures/pods/default_train_0f2c/main/0.log": "e2e/hardware/fixtures/pod.log",
	"fixtures/proc/uptime":                        "e2e/hardware/fixtures/uptime",
	"fixtures/proc/sys/kernel/random/boot_id":     "e2e/hardware/fixtures/boot_id",
	"fixtures/libnvidia-ml.c":                     "internal/nvml/nvmltest/testdata/libnvidia-ml.c",
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hardware-kit:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	root, err := components.Root()
	if err != nil {
		return err
	}
	programs, err := build(ctx, root)
	if err != nil {
		return err
	}
	needs, err := glibc(programs)
	if err != nil {
		return err
	}
	oldest, err := imageGlibc(root)
	if err != nil {
		return err
	}
	if newer(needs, oldest) {
		return fmt.Errorf("the plugins need glibc %s, and the images have %s: compile on an older distribution", needs, oldest)
	}
	files := map[string]string{"run.sh": "e2e/hardware/run.sh", "kit": "bin/kit"}
	for name, from := range fixtures {
		files[name] = from
	}
	archive, err := pack(root, files, programs, fmt.Sprintf("%s %s %s\n", machines[runtime.GOARCH], needs, commit(ctx, root)))
	if err != nil {
		return err
	}
	if len(archive) > most {
		return fmt.Errorf("the archive has %d bytes, more than %d", len(archive), most)
	}
	path := filepath.Join(root, "bin", folder+".tar.gz")
	if err := os.WriteFile(path, archive, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %.1f MB, %d programs for %s with glibc %s or later\n",
		path, float64(len(archive))/1e6, len(programs), runtime.GOARCH, needs)
	return nil
}

// build compiles the programs, which are those of the images, and returns their paths.
func build(ctx context.Context, root string) (programs []string, err error) {
	plugins, err := filepath.Glob(filepath.Join(root, "plugins", "*"))
	if err != nil {
		return nil, err
	}
	var packages []string
	for _, plugin := range plugins {
		packages = append(packages, "./plugins/"+filepath.Base(plugin))
	}
	packages = append(packages, "./preflight", "./repair")
	if err := components.BuildOurs(ctx, root, append(packages, "./e2e/hardware/kit")...); err != nil {
		return nil, err
	}
	for _, p := range packages {
		programs = append(programs, filepath.Join(root, "bin", filepath.Base(p)))
	}
	load, source := filepath.Join(root, "bin", "cuda-load"), filepath.Join(root, "e2e", "hardware", "cuda", "load.c")
	cc := exec.CommandContext(ctx, "gcc", "-O1", "-Wall", "-Werror", "-o", load, source, "-ldl")
	if text, err := cc.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile load.c: %w\n%s", err, text)
	}
	return append(programs, load), nil
}

// glibc returns the newest version of the C library that one of the programs needs.
func glibc(programs []string) (needs string, err error) {
	needs = "2.0"
	for _, path := range programs {
		program, err := elf.Open(path)
		if err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		libraries, err := program.DynamicVersionNeeds()
		_ = program.Close()
		if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		for _, library := range libraries {
			for _, need := range library.Needs {
				if version, ok := strings.CutPrefix(need.Dep, "GLIBC_"); ok && newer(version, needs) {
					needs = version
				}
			}
		}
	}
	return needs, nil
}

// commit returns what the working tree is at.
func commit(ctx context.Context, root string) string {
	git := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty")
	git.Dir = root
	out, err := git.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

var libc6 = regexp.MustCompile(`(?m)^libc6 ` + runtime.GOARCH + ` ([0-9]+\.[0-9]+)`)

// imageGlibc returns the version of the C library in the images.
func imageGlibc(root string) (string, error) {
	lock, err := os.ReadFile(filepath.Join(root, "images", "debian.lock"))
	if err != nil {
		return "", err
	}
	m := libc6.FindSubmatch(lock)
	if m == nil {
		return "", errors.New("images/debian.lock has no libc6 of " + runtime.GOARCH)
	}
	return string(m[1]), nil
}

// newer reports whether version a is newer than b.
func newer(a, b string) bool { return slices.Compare(numbers(a), numbers(b)) > 0 }

func numbers(version string) (n []int) {
	for part := range strings.SplitSeq(version, ".") {
		// A part that is no number is a private version such as GLIBC_PRIVATE: older than all.
		number, _ := strconv.Atoi(part)
		n = append(n, number)
	}
	return n
}

// pack returns the archive. The programs are in an archive of their own, programs.tar.zst, because they have most of their code in common
// and gzip looks back 32 KiB only: with gzip alone they would be three times as large.
func pack(root string, files map[string]string, programs []string, needs string) ([]byte, error) {
	var inner bytes.Buffer
	compressed, err := zstd.NewWriter(&inner, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(128<<20))
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(compressed)
	for _, path := range programs {
		if err := add(w, filepath.Base(path), path); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(w.Close(), compressed.Close()); err != nil {
		return nil, err
	}
	var outer bytes.Buffer
	zipped := gzip.NewWriter(&outer)
	w = tar.NewWriter(zipped)
	for name, from := range files {
		if err := add(w, folder+"/"+name, filepath.Join(root, from)); err != nil {
			return nil, err
		}
	}
	for name, content := range map[string][]byte{"needs": []byte(needs), "programs.tar.zst": inner.Bytes()} {
		if err := write(w, folder+"/"+name, 0o644, content); err != nil {
			return nil, err
		}
	}
	err = errors.Join(w.Close(), zipped.Close())
	return outer.Bytes(), err
}

func add(w *tar.Writer, name, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return write(w, name, info.Mode().Perm(), content)
}

func write(w *tar.Writer, name string, mode os.FileMode, content []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), Size: int64(len(content)), ModTime: time.Now()}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
