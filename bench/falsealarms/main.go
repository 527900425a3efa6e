// Command falsealarms counts what the checks and the shipped policy report and do on healthy nodes: alarms of each check, and actions, in
// 1,000 node-days. It runs the built plugins with the arguments of the shipped monitors on the files of testdata/machines, one file a
// machine, changes these files as testdata/noise.txtar says, at the rates that it gives with their sources, and lets the real decision,
// with the shipped policy in mode enforce, decide about the conditions. It prints Markdown tables.
//
// It is a simulation: the times are simulated, and the machines are files in the form of what such machines print.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	days := flag.Int("days", 200, "days to play on each machine")
	seed := flag.Uint64("seed", 1, "seed of the noise")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, ".", *days, *seed, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "falsealarms:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, days int, seed uint64, out io.Writer) (err error) {
	w, err := newWorld(ctx, root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	once, err := w.playOnce(ctx)
	if err != nil {
		return err
	}
	drawn, err := w.playDays(ctx, days, seed)
	if err != nil {
		return err
	}
	w.print(out, once, drawn)
	return nil
}

// world is what all nodes share.
type world struct {
	dir      string
	machines []*machine
	noise    []*noise
	policy   string
	// mutants are arguments that a test adds to those of a check, by condition.
	mutants map[string][]string
}

// newWorld builds the plugins, and reads the machines, the noise and the shipped policy and monitors below the root of the repository.
func newWorld(ctx context.Context, root string) (*world, error) {
	dir, err := os.MkdirTemp("", "falsealarms-")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, mutants: map[string][]string{}}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", dir+"/", "./plugins/...")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=1") // some load NVIDIA's libraries
	if out, err := build.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("go build: %w\n%s", err, out), w.close())
	}
	if err := w.read(root); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) close() error { return os.RemoveAll(w.dir) }

func (w *world) read(root string) error {
	data, err := os.ReadFile(filepath.Join(root, "manifests/policy.yaml"))
	if err != nil {
		return err
	}
	w.policy = string(data)
	here := filepath.Join(root, "bench/falsealarms/testdata")
	if w.noise, err = readNoise(filepath.Join(here, "noise.txtar")); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(here, "machines/*.txtar"))
	if err != nil {
		return err
	}
	for _, file := range files {
		m, err := readMachine(root, file)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		w.machines = append(w.machines, m)
	}
	return nil
}
