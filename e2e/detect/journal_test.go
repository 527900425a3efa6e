package detect

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/kernellog"
)

// startJournald runs the real systemd-journald with a /run of its own and returns the folder with its journal.
func startJournald(t *testing.T) string {
	t.Helper()
	machineID, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(machineID))
	script := `mount --make-rprivate / && mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal /run/log/journal/` + id +
		` && exec /lib/systemd/systemd-journald`
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return fmt.Sprintf("/proc/%d/root/run/log/journal/%s", cmd.Process.Pid, id)
}

func TestTheJournalFillsWhatTheRingHasLost(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), root, "./plugins/xid"); err != nil {
		t.Fatal(err)
	}
	log, err := kernellog.OpenNFT()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	journal := startJournald(t)

	// A GPU of its own for each run: what an earlier one has written may still be in the ring.
	gpu := fmt.Sprintf("7e57:%02x:%02x", time.Now().UnixNano()>>8&0xff, time.Now().UnixNano()>>16&0x1f)
	fault := func(line string) {
		t.Helper()
		if _, err := log.Write(t.Context(), fmt.Sprintf("NVRM: Xid (PCI:%s): %s", gpu, line)); err != nil {
			t.Fatal(err)
		}
	}
	xid := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(filepath.Join(root, "bin/xid"), append([]string{"-state-dir", t.TempDir(), "-dump"}, args...)...).Output()
		if err != nil {
			t.Fatalf("xid %q: %v: %s", args, err, out)
		}
		return string(out)
	}

	// The first records of the journal are none of the fault, even if the ring had no other.
	for range cutAfter {
		fault("31, harmless for the node")
	}
	marker := fmt.Sprintf("%d", time.Now().UnixNano())
	fault("119, Timeout " + marker)
	clustertest.Until(t, patience, "journald sees the record", func() error {
		out, err := exec.Command("journalctl", "--quiet", "--no-pager", "--directory="+journal, "_TRANSPORT=kernel").Output()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if !strings.Contains(string(out), marker) {
			return errors.New("it has not")
		}
		return nil
	})
	if both := xid("-journal", "-journal-dir", journal); strings.Count(both, marker) != 1 {
		t.Errorf("a record that stands in ring and journal counts %d times", strings.Count(both, marker))
	}
	flood(t)
	if alone := xid(); strings.Contains(alone, marker) {
		t.Fatal("the flood has not driven the record out of the ring")
	}
	fault("95, after " + marker)
	with := xid("-journal", "-journal-dir", journal)
	if first, second := strings.Index(with, "Timeout "+marker), strings.Index(with, "after "+marker); first < 0 || second < first {
		t.Errorf("the journal's record does not stand before the ring's:\n%s", with)
	}
	if !strings.Contains(with, `"text": "Xid 119 GSP RPC timeout"`) {
		t.Errorf("the journal's record is not judged:\n%s", with)
	}
	readOnByCursor(t, filepath.Join(root, "bin/xid"), journal, marker)
}

// cutAfter is how many records the first run of readOnByCursor gets.
const cutAfter = 3

// readOnByCursor has the first run get the first records of the journal only, and the second read on from there with the real journalctl.
func readOnByCursor(t *testing.T, xid, journal, marker string) {
	t.Helper()
	dir := t.TempDir()
	journalctl := filepath.Join(dir, "journalctl")
	const script = `#!/bin/sh
echo "$*" >>"$0.args"
[ -e "$0.cut" ] && exec journalctl "$@"
: >"$0.cut"
journalctl "$@" | head -n %d
exec sleep 60
`
	if err := os.WriteFile(journalctl, fmt.Appendf(nil, script, cutAfter), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"-state-dir", filepath.Join(dir, "state"), "-journal", "-journal-dir", journal, "-journalctl", journalctl, "-timeout", "12s"}
	if out, _ := exec.Command(xid, args...).Output(); !strings.Contains(string(out), "still reading the journal") {
		t.Errorf("the first run has answered %q", out)
	}
	out, err := exec.Command(xid, append(args, "-timeout", "1m", "-dump")...).Output()
	if err != nil || strings.Count(string(out), "Timeout "+marker) != 1 || strings.Contains(string(out), `"unread"`) {
		t.Errorf("the second run has read (%v):\n%s", err, out)
	}
	asked, err := os.ReadFile(journalctl + ".args")
	if calls := strings.Split(strings.TrimSpace(string(asked)), "\n"); err != nil || len(calls) != 2 ||
		strings.Contains(calls[0], "--after-cursor=") || !strings.Contains(calls[1], "--after-cursor=s=") {
		t.Errorf("journalctl was asked (%v):\n%s", err, asked)
	}
}
