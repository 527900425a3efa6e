// Command podlog measures how fast the podlog plugin reads a container log, compared with `grep -E -c` with the same
// patterns on the same file. Both run on one core, in turns, and must count the same lines. It prints a Markdown table.
//
// Run it in the repository's root. It needs grep.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	size := flag.Int64("bytes", 256<<20, "size of the log")
	rounds := flag.Int("rounds", 5, "how often each is measured")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *size, *rounds, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "podlog:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, size int64, rounds int, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "podlog-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{
		plugin: filepath.Join(dir, "plugin"), patterns: filepath.Join(dir, "patterns"),
		root: filepath.Join(dir, "pods"), dir: dir,
	}
	b.log = filepath.Join(b.root, "default_train-0_uid", "main", "0.log")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", b.plugin, "./plugins/podlog")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	if err := writePatterns(b.patterns); err != nil {
		return err
	}
	want, err := writeLog(b.log, size)
	if err != nil {
		return err
	}
	plugin, grep := measured{name: "podlog"}, measured{name: "grep -E -c, LC_ALL=C"}
	for range rounds {
		for _, m := range []struct {
			*measured
			count func(context.Context) (int, time.Duration, error)
		}{{&plugin, b.runPlugin}, {&grep, b.runGrep}} {
			count, cpu, err := m.count(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			if count != want {
				return fmt.Errorf("%s counts %d lines, there are %d", m.name, count, want)
			}
			m.rates = append(m.rates, float64(size)/1e6/cpu.Seconds())
		}
	}
	fmt.Fprintf(out, "%d MB of container log, %d of its lines match; processor time of whole processes, %d rounds in turns\n\n", size/1e6, want, rounds)
	fmt.Fprintln(out, "| | MB/s, median | slowest to fastest | of grep |\n|---|---|---|---|")
	for _, m := range []measured{plugin, grep} {
		fmt.Fprintf(out, "| %s | %.0f | %.0f to %.0f | %.2f |\n", m.name, m.median(), slices.Min(m.rates), slices.Max(m.rates), m.median()/grep.median())
	}
	return nil
}

// measured is one way to read the log and how fast it was each time, in 10^6 bytes per second of processor time.
type measured struct {
	name  string
	rates []float64
}

func (m measured) median() float64 {
	sorted := slices.SortedFunc(slices.Values(m.rates), cmp.Compare[float64])
	return sorted[len(sorted)/2]
}

type bench struct{ dir, plugin, patterns, root, log string }

// runPlugin runs the plugin, which reads the whole log because it is the first run of a boot, and returns how many lines it counted.
func (b *bench) runPlugin(ctx context.Context) (count int, cpu time.Duration, err error) {
	state, err := os.MkdirTemp(b.dir, "state-")
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, b.plugin, "-dump", "-namespaces", "default", "-pod-logs", b.root, "-state-dir", state,
		"-max-bytes", strconv.FormatInt(1<<40, 10), "-timeout", "1h")
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, err
	}
	var dump struct {
		Behind   int64
		Episodes []struct{ Count int }
	}
	if err := json.Unmarshal(out, &dump); err != nil {
		return 0, 0, err
	}
	if dump.Behind > 0 {
		return 0, 0, fmt.Errorf("%d bytes were not read", dump.Behind)
	}
	for _, e := range dump.Episodes {
		count += e.Count
	}
	return count, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

func (b *bench) runGrep(ctx context.Context) (count int, cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, "grep", "-E", "-c", "-f", b.patterns, b.log)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, err
	}
	count, err = strconv.Atoi(strings.TrimSpace(string(out)))
	return count, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), err
}

// writePatterns writes the plugin's patterns for grep, one per line.
func writePatterns(path string) error {
	data, err := os.ReadFile("plugins/podlog/patterns.csv")
	if err != nil {
		return err
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		return err
	}
	column := slices.Index(rows[0], "pattern")
	var out bytes.Buffer
	for _, row := range rows[1:] {
		fmt.Fprintln(&out, row[column])
	}
	return os.WriteFile(path, out.Bytes(), 0o600)
}
