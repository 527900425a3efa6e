// Command cost measures what one run of each plugin costs: CPU time, wall time and peak memory, its worker included,
// next to a Go hello world and, if it is installed, nvidia-smi. It prints a Markdown table. The NVML plugins run once on
// this machine as it is, and once with the tests' stand-in for the driver's library, with eight GPUs.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

//go:embed testdata/launch.c
var launcher string

const hello = "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(\"hello\") }\n"

// onNVML are the plugins that ask the driver.
var onNVML = []string{"ecc", "gpucount", "nvlink", "stall", "thermal"}

func main() {
	runs := flag.Int("runs", 50, "how often to run each")
	bin := flag.String("bin", "bin", "`folder` of the built plugins (make build)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *bin, *runs)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cost:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, runs int) (err error) {
	dir, err := os.MkdirTemp("", "pitcrew-cost-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{dir: dir, runs: runs}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	plugins, err := filepath.Glob("plugins/*/main.go")
	if err != nil {
		return err
	}
	if len(plugins) == 0 {
		return errors.New("found no plugins: run it in the root of the repository")
	}
	fmt.Println("| run | CPU time | wall time | peak memory | exit |\n|---|---|---|---|---|")
	if err := b.row(ctx, "Go hello world", filepath.Join(dir, "hello")); err != nil {
		return err
	}
	// For comparison with the NVML checks, on machines with a driver.
	if smi, err := exec.LookPath("nvidia-smi"); err == nil {
		if err := b.row(ctx, "`nvidia-smi -q -x`", smi, "-q", "-x"); err != nil {
			return err
		}
	}
	state := []string{"-state-dir", filepath.Join(dir, "state")}
	for _, plugin := range plugins {
		name := filepath.Base(filepath.Dir(plugin))
		if err := b.row(ctx, "`"+name+"`", append([]string{filepath.Join(bin, name)}, state...)...); err != nil {
			return err
		}
	}
	node := []string{"-state-dir", filepath.Join(dir, "gpus"), "-sysfs", filepath.Join(dir, "sys"), "-driver-root", filepath.Join(dir, "driver")}
	for _, name := range onNVML {
		if err := b.row(ctx, "`"+name+"`, 8 GPUs of the stand-in", append([]string{filepath.Join(bin, name)}, node...)...); err != nil {
			return err
		}
	}
	return b.row(ctx, "`thermal -min-clock 50`, 8 GPUs of the stand-in", append([]string{filepath.Join(bin, "thermal"), "-min-clock", "50"}, node...)...)
}

type bench struct {
	dir  string
	runs int
}

// prepare builds the launcher, the floor and a node with eight GPUs.
func (b *bench) prepare(ctx context.Context) error {
	files := map[string]string{"launch.c": launcher, "hello.go": hello, "sys/module/nvidia/initstate": "live\n", "driver/usr/lib64/libnvidia-ml.so.1.c": ""}
	for gpu := range 8 {
		device := fmt.Sprintf("sys/bus/pci/devices/0000:1%d:00.0/", gpu)
		files[device+"vendor"], files[device+"class"] = "0x10de\n", "0x030200\n"
	}
	for name, content := range files {
		path := filepath.Join(b.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	headers, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		return fmt.Errorf("find go-nvml's headers: %w", err)
	}
	for _, args := range [][]string{
		{"gcc", "-O1", "-o", filepath.Join(b.dir, "launch"), filepath.Join(b.dir, "launch.c")},
		{"go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(b.dir, "hello"), filepath.Join(b.dir, "hello.go")},
		{"gcc", "-shared", "-fPIC", "-O1", "-w", "-I", filepath.Join(strings.TrimSpace(string(headers)), "pkg/nvml"),
			"-o", filepath.Join(b.dir, "driver/usr/lib64/libnvidia-ml.so.1"), "internal/nvml/nvmltest/testdata/libnvidia-ml.c"},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// row measures a program and prints the medians.
func (b *bench) row(ctx context.Context, name string, program ...string) error {
	var cpu, memory, wall []int
	exit := 0
	for range b.runs {
		cmd := exec.CommandContext(ctx, filepath.Join(b.dir, "launch"), program...)
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		var c, m, w int
		if _, err := fmt.Sscan(string(out), &c, &m, &w, &exit); err != nil {
			return fmt.Errorf("%s: the launcher printed %q: %w", name, out, err)
		}
		if exit == 127 {
			return fmt.Errorf("%s cannot be run", program[0])
		}
		cpu, memory, wall = append(cpu, c), append(memory, m), append(wall, w)
	}
	micro := func(n int) string {
		return fmt.Sprintf("%.1f ms", float64(n)/float64(time.Millisecond/time.Microsecond))
	}
	fmt.Printf("| %s | %s | %s | %.1f MB | %d |\n", name, micro(median(cpu)), micro(median(wall)), float64(median(memory))/1024, exit)
	return nil
}

func median(n []int) int {
	slices.Sort(n)
	return n[len(n)/2]
}
