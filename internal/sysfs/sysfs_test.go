package sysfs

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestOneBrokenFunctionHidesNoOther(t *testing.T) {
	root := tree(t, map[string]string{
		"bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "bus/pci/devices/0000:01:00.0/device": "0x2330\n", "bus/pci/devices/0000:01:00.0/class": "0x030200\n",
		"bus/pci/devices/0000:02:00.0/vendor": "garbage\n",
		"bus/pci/devices/0000:03:00.0/vendor": "0x8086\n",
		"bus/pci/devices/0000:04:00.1/vendor": "0x10de\n", "bus/pci/devices/0000:04:00.1/device": "0x22a3\n", "bus/pci/devices/0000:04:00.1/class": "0x068000\n",
		"bus/pci/devices/0000:04:00.1/physfn": "",
		"bus/pci/devices/0000:05:00.0/vendor": "0x10de\n", "bus/pci/devices/0000:05:00.0/device": "0x2330\n",
	})
	got, err := PCI(root, 0x10de)
	want := []Function{
		{Address: "0000:01:00.0", Vendor: 0x10de, Device: 0x2330, Class: 0x030200},
		{Address: "0000:04:00.1", Vendor: 0x10de, Device: 0x22a3, Class: 0x068000, Virtual: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err == nil || !strings.Contains(err.Error(), "0000:02:00.0/vendor") || !strings.Contains(err.Error(), "0000:05:00.0/class") {
		t.Errorf("error %v does not name what could not be read", err)
	}
}

func TestReadThisMachine(t *testing.T) {
	if got, err := Read("/sys/kernel/fscaps"); err != nil || got != "1" {
		t.Errorf("fscaps %q, %v", got, err)
	}
	if _, err := Read("/sys/nothing"); !os.IsNotExist(err) {
		t.Errorf("%v", err)
	}
}

func TestAnOpenAttributeIsReadAgain(t *testing.T) {
	packets, err := Open("/sys/class/net/lo/statistics/tx_packets")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	count := func() uint64 {
		text, err := packets.Read()
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	conn, err := new(net.Dialer).DialContext(t.Context(), "udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("packet")); err != nil {
		t.Fatal(err)
	}
	if now := count(); now <= before {
		t.Errorf("%d packets, %d before", now, before)
	}
}
