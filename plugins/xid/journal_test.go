package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Any user may write `logger -p kern.err`, and journald notes that syslog, not the kernel, brought the record. The xid plugin
// asks for no such record: this journalctl has one, and shows it to whoever does not ask for the kernel's alone.
func TestOfTheJournalOnlyTheKernelsRecordsAreAskedFor(t *testing.T) {
	n := newNode(t)
	journalctl := filepath.Join(t.TempDir(), "journalctl")
	const script = `#!/bin/sh
for arg; do
	case $arg in
	_TRANSPORT=kernel) transport=yes ;;
	SYSLOG_FACILITY=0) facility=yes ;;
	_BOOT_ID=*) boot=yes ;;
	esac
done
if [ "$transport$facility$boot" != yesyesyes ] || [ -e "$0.kernel" ]; then
	echo '{"MESSAGE":"NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.","_SOURCE_MONOTONIC_TIMESTAMP":"1"}'
fi
`
	if err := os.WriteFile(journalctl, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	// The ring has lost its first records, which are then looked for in the journal.
	lost := func() {
		n.seq = 7
		n.kernel("usb 1-1: new high-speed USB device")
	}
	lost()
	args := []string{"-journal", "-journalctl", journalctl}
	if got := n.run(args...); got != fine {
		t.Errorf("a user's record counts: %s", got)
	}
	n.boot("second")
	lost()
	if err := os.WriteFile(journalctl+".kernel", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := n.run(args...); got != reboot {
		t.Errorf("the kernel's record does not count: %s", got)
	}
}
