package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
else
	echo '{"MESSAGE":"Linux version 6.8.0-90-generic","_SOURCE_MONOTONIC_TIMESTAMP":"0"}'
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

// journaled has the ring lose its first records, and a journalctl that runs a script with the argument --after-cursor as $after.
func (n *node) journaled(script string) (args []string) {
	n.t.Helper()
	n.seq = 7
	n.write("kmsg", "")
	n.kernel("usb 1-1: new high-speed USB device")
	path := filepath.Join(n.dir, "journalctl")
	script = "#!/bin/sh\nfor arg; do case $arg in --after-cursor=*) after=${arg#*=} ;; esac; done\n" + script
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		n.t.Fatal(err)
	}
	return []string{"-journal", "-journalctl", path, "-timeout", "2s"}
}

// record is a line of `journalctl -o json`; a cursor may be empty.
func record(cursor string, usec int, body string) string {
	return fmt.Sprintf(`{"__CURSOR":%q,"MESSAGE":%q,"_SOURCE_MONOTONIC_TIMESTAMP":"%d"}`, cursor, body, usec)
}

const stillReading = "still reading the journal of this boot, which has lines that the kernel's ring has lost"

func TestAJournalIsReadOnByTheNextLook(t *testing.T) {
	n := newNode(t)
	args := n.journaled(`case $after in
"") echo '` + record("a", 1, "Linux version 6.8.0-1018 (buildd@host)") + `' ;;
a) echo '` + record("b", 2, gspGone) + `' ;;
b) echo '` + record("c", 3, lostGPU) + `'; exit ;;
*) echo "read again after $after" >&2; exit 1 ;;
esac
exec sleep 60
`)
	n.want("exit 2\nunknown: kernel log: "+stillReading+"\n", args...)
	n.want(strings.TrimSuffix(reset, "\n")+"; kernel log: not read: "+stillReading+"\n", args...)
	n.want(reboot, args...)
	n.want(reboot, args...)
	if s := n.dump(); s.Gap || len(s.Events) != 2 {
		t.Errorf("the journal is whole and was read to its end: %+v", s)
	}
}

// What prints no cursors is read from its start each time, and the records that were read are counted.
func TestAJournalWithoutCursorsIsReadOn(t *testing.T) {
	n := newNode(t)
	args := n.journaled(`echo '` + record("", 1, gspGone) + `'
echo '` + record("", 2, gspGone) + `'
[ -e "$0.once" ] || { >"$0.once"; exec sleep 60; }
echo '` + record("", 3, gspGone) + `'
`)
	n.want(strings.TrimSuffix(reset, "\n")+"; kernel log: not read: "+stillReading+"\n", args...)
	n.want(reset, args...)
	if s := n.dump(); len(s.Events) != 1 || s.Events[0].Count != 3 {
		t.Errorf("%+v", s.Events)
	}
}

func TestAMessageOfSeveralRecordsIsReadOn(t *testing.T) {
	n := newNode(t)
	args := n.journaled(`case $after in
"") echo '` + record("a", 1, "NVRM: The NVIDIA GPU 0000:4e:00.0") + `'; exec sleep 60 ;;
a) echo '` + record("b", 2, "NVRM: (PCI ID: 10de:26b5) installed in this system has") + `'
   echo '` + record("c", 3, "NVRM: fallen off the bus and is not responding to commands.") + `' ;;
esac
`)
	n.want("exit 2\nunknown: kernel log: "+stillReading+"\n", args...)
	n.want("exit 1\nReboot gpu 0000:4e:00: GPU has fallen off the bus\n", args...)
}

func TestAJournalThatCannotBeReadHidesNoFault(t *testing.T) {
	n := newNode(t)
	args := n.journaled(`echo '` + record("a", 1, gspGone) + `'; echo "Failed to open files: Bad message" >&2; exit 1`)
	why := args[2] + ": exit status 1: Failed to open files: Bad message"
	n.want(strings.TrimSuffix(reset, "\n")+"; kernel log: not read: "+why+"\n", args...)
	if err := os.Remove(args[2]); err != nil {
		t.Fatal(err)
	}
	n.want(strings.TrimSuffix(reset, "\n")+"; kernel log: not read: fork/exec "+args[2]+": no such file or directory\n", args...)
	args = n.journaled("exit 0")
	n.want(reset, args...)
}

// A journal that is not kept, or may not be read, has no record of the boot: nothing is known, at no look.
func TestAJournalWithoutARecordIsNotHealthy(t *testing.T) {
	n := newNode(t)
	const want = "exit 2\nunknown: kernel log: journalctl prints no record of this boot's kernel\n"
	for _, script := range []string{"true", "echo '-- No entries --'"} {
		args := n.journaled(script)
		for range 2 {
			if got := n.run(args...); got != want {
				t.Errorf("%s: got %swant %s", script, got, want)
			}
		}
	}
	args := n.journaled("cat <<'E'\n" + record("a", 0, "Linux version 6.8.0-90-generic") + "\nE\n")
	if got := n.run(args...); got != fine {
		t.Error(got)
	}
}

func TestAJournalThatHangsHidesNoFault(t *testing.T) {
	n := newNode(t)
	args := n.journaled("exec sleep 60")
	n.kernel(gspGone)
	n.want(strings.TrimSuffix(reset, "\n")+"; kernel log: not read: "+stillReading+"\n", args...)
}

func TestALineOfTheJournalThatIsNotUnderstood(t *testing.T) {
	n := newNode(t)
	args := n.journaled(`echo '{"MESSAGE":"usb'; head -c 600000 /dev/zero | tr '\0' x; echo
echo '{"MESSAGE":"NVRM: Xid (PCI:0000:1b:00): 79' ; echo '` + record("a", 1, gspGone) + `'
`)
	const doubt = `a line has words of the driver and is not understood: "{\"MESSAGE\":\"NVRM: Xid (PCI:0000:1b:00): 79"`
	n.want(strings.TrimSuffix(reset, "\n")+"; kernel log: not read: "+doubt+"\n", args...)
	n.want("exit 0\ncleared gpu 0000:4e:00\n", "-clear")
	n.want(fine, args...)
	// A message of several values, as a client of journald may write it.
	n.boot("second")
	args = n.journaled(`echo '{"MESSAGE":["NVRM: Xid (PCI:0000:1b:00): 79, x","y"],"_SOURCE_MONOTONIC_TIMESTAMP":"1"}'`)
	n.want("exit 2\nunknown: kernel log: a line has words of the driver and is not understood: "+
		`"[\"NVRM: Xid (PCI:0000:1b:00): 79, x\",\"y\"]"`+"\n", args...)
}

func TestWhatWasClearedIsNotReadFromTheJournal(t *testing.T) {
	n := newNode(t)
	args := n.journaled(`[ "$after" ] || { echo '` + record("a", 1, gspGone) + `'; exec sleep 60; }
echo '` + record("b", 2, gspGone) + `'
echo '` + record("c", 3, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.") + `'
`)
	n.want(strings.TrimSuffix(reset, "\n")+"; kernel log: not read: "+stillReading+"\n", args...)
	n.want("exit 0\ncleared gpu 0000:4e:00\n", "-clear", "0000:4e:00")
	n.want("exit 1\nReboot gpu 0000:1b:00: Xid 79 GPU has fallen off the bus\n", args...)
}

// TestAMillionLinesOfTheJournal reads what a broken GPU has written in a day: NVSentinel#1120 has 800,000 lines of Xid 95.
func TestAMillionLinesOfTheJournal(t *testing.T) {
	n := newNode(t)
	line := strings.ReplaceAll(record("", 0, "NVRM: Xid (PCI:0000:%02x:00): %d, pid=%d, name=p%d, Uncontained: LTC TAG"), `"0"`, `"%d"`)
	args := n.journaled(`line='` + line + `\n'
awk -v line="$line" 'BEGIN { for (i = 0; i < 1000000; i++) printf line, i % 8, i % 9 ? 95 : 31, i, i % 99 ? i % 5 : i, i / 1000 }'
grep VmHWM /proc/$PPID/status >"$0.peak"
`)
	got := n.run(append(args, "-timeout", "5m")...)
	const want = "exit 1\nResetGPU gpu 0000:00:00: Xid 95 uncontained ECC error; gpu 0000:01:00"
	if !strings.HasPrefix(got, want) || strings.Contains(got, "not read") {
		t.Errorf("got %s", got)
	}
	peak, err := os.ReadFile(args[2] + ".peak")
	if err != nil {
		t.Fatal(err)
	}
	var kiB int
	if _, err := fmt.Sscanf(string(peak), "VmHWM: %d kB", &kiB); err != nil || kiB > 64<<10 {
		t.Errorf("the plugin needed %s, want at most 64 MiB (%v)", peak, err)
	}
	t.Logf("peak of the plugin's memory: %d KiB", kiB)
}
