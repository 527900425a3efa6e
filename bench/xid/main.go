// Command xid measures the cost of the kernel log reader: a scan of a million records of which one percent are the
// driver's, compared with `grep -c` over the same file, and a hold of 20 s without new records.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

const (
	records = 1_000_000
	hold    = 20 * time.Second
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	root, err := components.Root()
	if err != nil {
		return err
	}
	if err := components.BuildOurs(ctx, root, "./plugins/xid"); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pitcrew-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	kmsg, apart := filepath.Join(dir, "kmsg"), filepath.Join(dir, "apart")
	if err := errors.Join(write(kmsg, 10*time.Microsecond), write(apart, 2*time.Second)); err != nil {
		return err
	}
	xid := filepath.Join(root, "bin/xid")
	fmt.Printf("| what | CPU | peak memory |\n|---|---|---|\n")
	show := func(what string, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		// Not /dev/null: grep would stop at the first match.
		cmd.Stdout = &strings.Builder{}
		// Exit 1 is a finding.
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		fmt.Printf("| %s | %d ms | %.1f MB |\n", what, cpu.Milliseconds(), float64(usage.Maxrss)/1024)
		return nil
	}
	if err := show("`xid`: 1,000,000 records, 1 % of them the driver's", xid, "-kmsg", kmsg, "-state-dir", filepath.Join(dir, "a")); err != nil {
		return err
	}
	if err := show("the same, no two of the driver's within 3 minutes", xid, "-kmsg", apart, "-state-dir", filepath.Join(dir, "c")); err != nil {
		return err
	}
	if err := show("`grep -cE 'NVRM: Xid\\|SXid'` over the first file", "grep", "-cE", "NVRM: Xid|SXid", kmsg); err != nil {
		return err
	}
	// A plugin holds only for a parent of this name, and from its second run on.
	if err := os.WriteFile("/proc/self/comm", []byte("node-problem-detector"), 0); err != nil {
		return err
	}
	args := []string{"-hold", hold.String(), "-state-dir", filepath.Join(dir, "b")}
	if err := exec.CommandContext(ctx, xid, append(args, "-clear")...).Run(); err != nil {
		return fmt.Errorf("clear: %w", err)
	}
	// Its answer does not matter here.
	_ = exec.CommandContext(ctx, xid, args...).Run()
	return show(fmt.Sprintf("`xid`: a quiet hold of %s on /dev/kmsg", hold), xid, args...)
}

// write makes a kernel log whose records have the given time between them.
func write(path string, between time.Duration) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	for i := range records {
		body := fmt.Sprintf("usb 1-1.%d: new high-speed USB device number %d using xhci_hcd", i%7, i)
		if i%100 == 0 {
			body = fmt.Sprintf("NVRM: Xid (PCI:0000:%02x:00): 31, pid=%d, name=python3, Ch %08x, intr 00000000. MMU Fault", i/100%8, i, i)
		}
		fmt.Fprintf(w, "6,%d,%d,-;%s\n SUBSYSTEM=usb\n DEVICE=+usb:1-1.%d\n", i, (time.Duration(i) * between).Microseconds(), body, i%7)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}
