package gpu

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAddress(t *testing.T) {
	for from, want := range map[string]string{
		"00000000:4E:00.0": "0000:4e:00", "0000:4e:00.0": "0000:4e:00", "0000:4e:00": "0000:4e:00",
		"00001234:01:1F.7": "1234:01:1f", "": "", "?": "?",
		"00010000:01:00.0": "10000:01:00", "10000:01:00.0": "10000:01:00",
	} {
		if got := Address(from); got != want {
			t.Errorf("Address(%q) = %q, want %q", from, got, want)
		}
	}
}

func TestReadBusListsGPUsOnly(t *testing.T) {
	sysfs := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(sysfs, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// plug adds a device below a port and its link in bus/pci/devices.
	plug := func(port, address string, attributes map[string]string) {
		t.Helper()
		for name, value := range attributes {
			write(filepath.Join("devices", port, address, name), value+"\n")
		}
		link := filepath.Join(sysfs, "bus/pci/devices", address)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("../../../devices", port, address), link); err != nil {
			t.Fatal(err)
		}
	}
	gpu := func(class, width, most string) map[string]string {
		return map[string]string{"vendor": "0x10de", "class": class, "current_link_width": width, "max_link_width": most}
	}
	plug("port16", "0000:10:00.0", gpu("0x030200", "8", "16"))
	plug("port8", "0000:11:00.0", gpu("0x030000", "8", "16"))
	plug("port16", "0000:12:00.0", gpu("0x030200", "Unknown", "255"))
	plug("port16", "0000:13:00.0", gpu("0x068000", "2", "2")) // NVSwitch
	plug("port16", "0000:14:00.0", map[string]string{"vendor": "0x8086", "class": "0x030000"})
	vf := gpu("0x030200", "0", "0")
	vf["physfn"] = ""
	plug("port16", "0000:10:00.4", vf)
	write("devices/port16/max_link_width", "16\n")
	write("devices/port8/max_link_width", "8\n")
	write("bus/pci/drivers/nvidia/bind", "")
	if err := os.Symlink("../../../bus/pci/drivers/nvidia", filepath.Join(sysfs, "devices/port8/0000:11:00.0/driver")); err != nil {
		t.Fatal(err)
	}

	got, err := ReadBus(sysfs)
	want := []BusDevice{
		{Address: "0000:10:00", Width: 8, MaxWidth: 16},
		{Address: "0000:11:00", Driver: "nvidia", Width: 8, MaxWidth: 8},
		{Address: "0000:12:00"},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestRecoveriesNoteOnlyTransitions(t *testing.T) {
	none, reset := RecoveryNone, RecoveryReset
	look := func(step int, g GPU) Reading {
		g.Address = "a"
		return Reading{Uptime: time.Duration(step), GPUs: []GPU{g}}
	}
	fine, asks := GPU{Memory: &Memory{Recovery: &none}}, GPU{Memory: &Memory{Recovery: &reset}}
	silent := GPU{Memory: &Memory{}} // has no recovery action
	r := Recoveries{}
	steps := []struct {
		g       GPU
		changed bool
		needed  bool
	}{
		{fine, false, false}, {asks, true, true}, {asks, false, true},
		{GPU{Unread: "timeout"}, false, true},                                      // cannot be asked
		{silent, false, true},                                                      // the driver asked for an action, and does not say now that it is over
		{GPU{Lost: true}, false, true}, {silent, false, true}, {fine, true, false}, // back
		{GPU{NeedsReset: true}, true, true}, {fine, true, false}, // reset
		// Drivers without the question: lost and back is the proof.
		{GPU{Lost: true}, true, true}, {GPU{NotInNVML: true}, false, true}, {GPU{Unread: "timeout", Memory: &Memory{}}, false, true},
		{GPU{}, false, true}, // was not asked about its memory
		{silent, true, false}, {silent, false, false},
		{GPU{NeedsReset: true}, true, true}, {silent, true, false},
	}
	for i, step := range steps {
		changed := r.Note(look(i, step.g))
		if recovered := r["a"].Recovered; changed && !step.needed && recovered != time.Duration(i) {
			t.Errorf("step %d: recovered at %d", i, recovered)
		}
		if changed != step.changed || r["a"].Needed != step.needed {
			t.Errorf("step %d: changed %v, %+v", i, changed, r["a"])
		}
	}
}
