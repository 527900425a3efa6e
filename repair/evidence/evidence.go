// Package evidence reads what a vendor asks for when a node or a part of it is to be replaced: the kernel log, the journal of the driver's
// units, the vendor's own reports, and the snapshots of the plugins. What it runs may hang.
package evidence

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
	"github.com/pitcrew-dev/pitcrew/repair/collect"
	"github.com/pitcrew-dev/pitcrew/repair/program"
)

// Node is where things are on the node.
type Node struct {
	// Self is this program, Plugins the directory of the plugins and StateDir their state directory.
	Self, Plugins, StateDir string
	// Sysfs, Kmsg and Systemd are those of the host.
	Sysfs, Kmsg, Systemd string
	// Root is the directory below which the tools are, NvidiaSMI and BugReport where they are there; empty: where drivers install them.
	Root, NvidiaSMI, BugReport string

	minFree int
}

// driverUnits are the units of systemd whose journal is in the bundle.
var driverUnits = []string{
	"nvidia-persistenced", "nvidia-fabricmanager", "nvidia-imex", "nvidia-dcgm", "nv-hostengine", "dcgm-exporter", "nvlsm", "openibd",
	"nvidia-peermem", "systemd-modules-load", "kubelet", "containerd",
}

// Parts returns the parts of a bundle: what is quick and cannot hang comes first, what needs most of the time last. The vendor's report is
// not written where a disk would have less free than so many percent.
func (n *Node) Parts(minFree int) []collect.Part {
	n.minFree = minFree
	units := []string{"-b", "-n", "20000"}
	for _, unit := range driverUnits {
		units = append(units, "-u", unit)
	}
	parts := []collect.Part{
		{Name: "dmesg.txt", Limit: 5 * time.Second, Read: n.readKmsg},
		{Name: "dcgm-report.json", Limit: 5 * time.Second, Read: n.readReport},
		{Name: "journal-kernel.txt", Limit: 10 * time.Second, Read: n.journal("-k", "-b", "-n", "100000")},
		{Name: "journal-units.txt", Limit: 10 * time.Second, Read: n.journal(units...)},
		{Name: "sysfs-infiniband.txt", Limit: 10 * time.Second, Read: func(ctx context.Context, w io.Writer) error {
			return printing(ctx, program.Command{Path: n.Self}, w, PrintHCAs, n.Sysfs)
		}},
	}
	for _, name := range dumps {
		parts = append(parts, collect.Part{Name: "plugins/" + name + ".json", Limit: 8 * time.Second, Read: n.dump(name)})
	}
	return append(parts,
		collect.Part{Name: "nvidia-smi-q.txt", Limit: 20 * time.Second, Read: func(ctx context.Context, w io.Writer) error {
			tool, err := program.Find("nvidia-smi", n.NvidiaSMI, n.Root)
			if err != nil {
				return err
			}
			return printing(ctx, tool, w, "-q")
		}},
		collect.Part{Name: "nvidia-bug-report.log.gz", Limit: time.Hour, Read: n.readBugReport},
	)
}

// printing runs a program that prints a part. Its time is that of ctx.
func printing(ctx context.Context, c program.Command, w io.Writer, args ...string) error {
	c.Out = w
	limit := time.Hour
	if deadline, ok := ctx.Deadline(); ok {
		limit = time.Until(deadline).Round(100 * time.Millisecond)
	}
	_, err := c.With(limit, args...).Run(ctx)
	return err
}

// readKmsg prints the records that the kernel still has of this boot.
func (n *Node) readKmsg(ctx context.Context, w io.Writer) error {
	r, err := kmsg.Open(n.Kmsg, 0)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // only read
	for ctx.Err() == nil {
		record, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, kmsg.ErrMalformed):
			continue
		case err != nil:
			return err
		}
		if _, err := fmt.Fprintf(w, "[%12.6f] <%d,%d> %s\n", record.Time.Seconds(), record.Facility, record.Severity, record.Body); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// readReport prints the last report of DCGM's diagnostics, which the plugin dcgm has left.
func (n *Node) readReport(_ context.Context, w io.Writer) error {
	file, err := os.Open(filepath.Join(n.StateDir, "dcgm-report.json"))
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(w, file)
	return err
}

// journal reads the host's journal with the host's program: its format changes with its version.
func (n *Node) journal(args ...string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		tool, err := program.Find("journalctl", "", n.Root)
		if err != nil {
			return err
		}
		return printing(ctx, tool, w, append([]string{"--no-pager", "-q", "-o", "short-iso-precise"}, args...)...)
	}
}

// dumps are the plugins whose snapshots are in the bundle.
var dumps = []string{"xid", "units", "hca", "fabric", "gpucount", "ecc", "nvlink", "thermal", "dcgm"}

func (n *Node) dump(name string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, w io.Writer) error {
		args := []string{"-dump", "-timeout", "6s", "-state-dir", n.StateDir}
		switch name {
		case "xid":
			args = append(args, "-kmsg", n.Kmsg)
		case "units":
			args = append(args, "-systemd", n.Systemd, "-sysfs", n.Sysfs)
		case "hca", "fabric":
			args = append(args, "-sysfs", n.Sysfs)
		case "gpucount", "ecc", "nvlink", "thermal":
			// Where the driver's tool is, its libraries are.
			if tool, err := program.Find("nvidia-smi", n.NvidiaSMI, n.Root); err == nil && tool.Root != "" {
				args = append(args, "-driver-root", tool.Root)
			}
		}
		return printing(ctx, program.Command{Path: filepath.Join(n.Plugins, name)}, w, args...)
	}
}

// reportLimit is how large the file of the vendor's report may become, in blocks of 512 bytes: sh ends what writes more.
const reportLimit = 64 << 20 / 512

// readBugReport runs the vendor's program, which can only write into a file: one below the root that it takes for its own.
func (n *Node) readBugReport(ctx context.Context, w io.Writer) (err error) {
	tool, err := program.Find("nvidia-bug-report.sh", n.BugReport, n.Root)
	if err != nil {
		return err
	}
	var dir string
	for _, folder := range []string{"run", "tmp"} {
		parent := filepath.Join("/", tool.Root, folder)
		if err = collect.Room(parent, reportLimit*512, n.minFree); err != nil {
			continue
		}
		if dir, err = os.MkdirTemp(parent, "pitcrew-bug-report-"); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("no place for the report: %w", err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			slog.Warn("The vendor's report is left behind", "dir", dir, "err", err)
		}
	}()
	file := filepath.Join(dir, "report.log")
	inside := strings.TrimPrefix(file, strings.TrimRight(tool.Root, "/"))
	shell := program.Command{Root: tool.Root, Path: "/bin/sh"}
	script := fmt.Sprintf(`ulimit -f %d; exec "$@"`, reportLimit)
	runErr := printing(ctx, shell, io.Discard, "-c", script, "sh", tool.Path, "--output-file", inside)
	if runErr != nil {
		runErr = fmt.Errorf("%s: %w", filepath.Base(tool.Path), runErr)
	}
	return errors.Join(runErr, copyReport(file, w))
}

// copyReport copies what there is of the vendor's report. One that was killed has left a beginning.
func copyReport(path string, w io.Writer) error {
	file, err := os.Open(path + ".gz")
	if errors.Is(err, fs.ErrNotExist) {
		if file, err = os.Open(path); err == nil {
			defer file.Close()
			_, err = io.Copy(w, file)
		}
		return err
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return collect.Unzip(w, file)
}

// PrintHCAs is the command that prints the attributes of adapters. It is a process of its own: a read may hang in the firmware.
const PrintHCAs = "print-hcas"

// PrintAdapters is its main function: its argument is the path of the sysfs.
func PrintAdapters(args []string, stdout io.Writer) int {
	if len(args) != 1 {
		return repairresult.Refused.ExitCode()
	}
	printed := false
	for _, pattern := range []string{"*/*", "*/device/uevent", "*/ports/*/*", "*/ports/*/*counters/*"} {
		// The pattern is well formed.
		files, _ := filepath.Glob(filepath.Join(args[0], "class/infiniband", pattern))
		for _, path := range files {
			if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || info.Mode()&0o444 == 0 {
				continue
			}
			text, err := sysfs.Read(path)
			if err != nil {
				text = "error: " + err.Error()
			}
			for line := range strings.Lines(text) {
				fmt.Fprintf(stdout, "%s: %s\n", strings.TrimPrefix(path, args[0]), strings.TrimRight(line, "\n"))
			}
			printed = true
		}
	}
	if !printed {
		fmt.Fprintln(os.Stderr, "there is no adapter below "+args[0])
		return repairresult.Failed.ExitCode()
	}
	return 0
}
