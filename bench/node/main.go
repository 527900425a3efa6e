// Command node measures what it costs a node to be watched: the real node-problem-detector runs the checks of the chart's preset
// nvidia-roce on a node with eight GPUs of the tests' stand-in for the driver's library and eight RoCE ports. It prints a Markdown
// table: CPU time by check, process starts, initialisations of NVML and memory. Opt-in checks (-with), other checkouts of this repository
// (-beside) and GPUd (-gpud) run at the same time on the same node, so that the noise of the machine is the same for all.
//
// It needs root, for the cgroups in which it counts and for the kernel log, and a C compiler. Nothing of it reaches a cluster: NPD
// runs without its exporter to Kubernetes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// settle is how long the programs may start before the measurement begins.
const settle = 10 * time.Second

func main() {
	var o options
	flag.DurationVar(&o.length, "for", 10*time.Minute, "how long to measure")
	flag.Func("beside", "`folder` of another checkout to measure in the same run; may be given more than once", func(dir string) error {
		o.beside = append(o.beside, dir)
		return nil
	})
	flag.Func("with", "`condition` of an opt-in check, such as GPUStalled, that a second set of this checkout runs besides; may be given more than once", func(check string) error {
		o.with = append(o.with, check)
		return nil
	})
	flag.StringVar(&o.gpud, "gpud", "", "`path` of a built GPUd to measure in the same run; without it the table has its figures of an earlier run")
	flag.BoolVar(&o.reread, "reread", false, "let the stand-in read its file at every question, as it did in the run with GPUd's published figures")
	flag.DurationVar(&o.init, "nvml-init", 0, "how much CPU time nvmlInit burns in the stand-in, in whole milliseconds")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

type options struct {
	length, init time.Duration
	beside, with []string
	gpud         string
	reread       bool
}

func run(ctx context.Context, o options, out, progress io.Writer) (err error) {
	// A tmpfs, as the state directory is on a node.
	dir, err := os.MkdirTemp("/dev/shm", "pitcrew-node-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	n, err := newNode(ctx, dir, o.init, o.reread)
	if err != nil {
		return err
	}
	var all []*variant
	defer func() {
		for _, v := range all {
			err = errors.Join(err, v.close())
		}
	}()
	type set struct {
		name, root string
		with       []string
	}
	sets := []set{{name: "this checkout", root: "."}}
	if len(o.with) > 0 {
		sets = append(sets, set{"with " + strings.Join(o.with, ", "), ".", o.with})
	}
	for _, root := range o.beside {
		sets = append(sets, set{name: filepath.Base(root), root: root})
	}
	for i, s := range sets {
		root, err := filepath.Abs(s.root)
		if err != nil {
			return err
		}
		fmt.Fprintf(progress, "building the plugins of %s\n", root)
		v, err := n.npd(ctx, s.name, fmt.Sprint(i), root, s.with)
		if v != nil {
			all = append(all, v)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", root, err)
		}
	}
	if o.gpud != "" {
		v, err := n.gpud(o.gpud)
		if v != nil {
			all = append(all, v)
		}
		if err != nil {
			return fmt.Errorf("GPUd: %w", err)
		}
	}
	for _, v := range all {
		if err := v.start(); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	if err := cluster.Pause(ctx, settle); err != nil {
		return err
	}
	fmt.Fprintf(progress, "measuring for %s\n", o.length)
	for _, v := range all {
		if err := v.begin(); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	const sample = 5 * time.Second
	start := time.Now()
	for time.Since(start) < o.length {
		if err := cluster.Pause(ctx, min(sample, o.length-time.Since(start))); err != nil {
			return err
		}
		for _, v := range all {
			if err := v.sample(); err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
		}
	}
	for _, v := range all {
		if err := v.end(time.Since(start)); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		for _, answer := range v.unhealthy() {
			fmt.Fprintf(progress, "%s: not healthy: %s\n", v.name, answer)
		}
	}
	_, err = io.WriteString(out, strings.Join(table(all), "\n")+"\n")
	return err
}
