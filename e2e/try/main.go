// Command try shows in less than a minute what Pitcrew finds: a fault in a sample kernel log, what an Xid means, and a slow
// node in the reports of a preflight run. It compiles nothing of Kubernetes and needs no cluster, no GPU and no root.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/view"
	"github.com/pitcrew-dev/pitcrew/internal/xid/explain"
)

// kernelLog has lines as the driver and the kernel write them: an application's fault on one GPU, then the loss of another.
//
//go:embed kernel.log
var kernelLog string

// lost is the Xid in the sample that means a lost GPU.
const lost = 79

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "try:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	root, err := components.Root()
	if err != nil {
		return err
	}
	if err := components.BuildOurs(ctx, root, "./plugins/xid"); err != nil {
		return err
	}
	if err := fault(ctx, out, root); err != nil {
		return err
	}
	fmt.Fprintf(out, `
== 2. What the fault means

The kubectl plugin answers this. It takes minutes to compile, so this program prints the same text from the same package.

$ kubectl pitcrew explain %d
%s`, lost, explain.Xid(lost))
	if err := heatmap(out, root); err != nil {
		return err
	}
	fmt.Fprint(out, "\nNext: `make demo` shows the whole path, from the kernel log to a restarted training job, on a real control plane.\n")
	return nil
}

// fault runs the xid plugin on the sample and prints what NPD makes of its answer.
func fault(ctx context.Context, out io.Writer, root string) error {
	fmt.Fprintf(out, "== 1. A fault in a kernel log\n\n$ cat e2e/try/kernel.log\n%s", kernelLog)
	args := []string{"-log", filepath.Join("e2e", "try", "kernel.log")}
	cmd := exec.CommandContext(ctx, filepath.Join("bin", "xid"), args...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	line, err := cmd.Output()
	if exited := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exited) {
		return fmt.Errorf("run the plugin: %w", err)
	}
	code := cmd.ProcessState.ExitCode()
	fmt.Fprintf(out, "\n$ bin/xid %s\n%sexit code %d\n", strings.Join(args, " "), line, code)
	message, err := conditions.ParseMessage(strings.TrimSpace(string(line)))
	if err != nil {
		return fmt.Errorf("the plugin's answer: %w", err)
	}
	if code != 1 {
		return fmt.Errorf("the plugin ended with exit code %d, not with 1, a problem", code)
	}
	i := slices.IndexFunc(conditions.All, func(c conditions.Condition) bool { return c.Type == conditions.GPUXidError })
	condition := conditions.All[i]
	fmt.Fprintf(out, `
On a node, the Node Problem Detector (NPD) runs the plugin. Exit code 1 is a problem: NPD makes the line the message of a condition
of the Node, and an Event.

  type          status  reason      message
  %-12s  True    %-10s  %s

The first word is the repair that the node needs: %s. Xid 31 is not in the message: it is an application's own fault.
`, condition.Type, condition.Problem, message, message.Repair)
	return nil
}

// heatmap makes the reports of a run with a slow node, judges them and writes the page.
func heatmap(out io.Writer, root string) error {
	const nodes, rounds, seed = 16, 15, 5 // each pair once
	reports := simulate.New(simulate.Scenario{Nodes: nodes, Slow: 1, Drop: 0.3, Noise: 0.02}, seed).Reports(rounds)
	folder := filepath.Join("bin", "try", "reports")
	if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
		return fmt.Errorf("write the reports: %w", err)
	}
	var written time.Time // the date of a run whose reports are files
	for _, r := range reports {
		data, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("write the reports: %w", err)
		}
		path := filepath.Join(root, folder, r.Node+".json")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return fmt.Errorf("write the reports: %w", err)
		}
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("write the reports: %w", err)
		}
		written = info.ModTime()
	}
	run := view.Run{Graph: verdict.NewGraph(reports), Verdict: verdict.Judge(reports[0].RunID, reports, verdict.Options{}), Date: written}
	var page strings.Builder
	if err := view.HTML(&page, run); err != nil {
		return fmt.Errorf("write the heatmap: %w", err)
	}
	path := filepath.Join(root, "bin", "try", "heatmap.html")
	if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
		return fmt.Errorf("write the heatmap: %w", err)
	}
	fmt.Fprintf(out, `
== 3. A slow node, before the job starts

Before a training job starts, its nodes can measure their bandwidth pair by pair. These are simulated reports of %d nodes, judged
and drawn by the package that the kubectl plugin uses.

$ kubectl pitcrew preflight -f %s -o html >bin/try/heatmap.html
  %s

Open it in a browser: %s
`, nodes, folder, strings.Join(run.Reasons(), "\n  "), path)
	return nil
}
