package boot

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestRead(t *testing.T) {
	proc := t.TempDir()
	random := filepath.Join(proc, "sys/kernel/random")
	if err := os.MkdirAll(random, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(random, "boot_id"), "0f2c\n")
	if _, err := Read(proc); err == nil {
		t.Error("no error without uptime")
	}
	write(filepath.Join(proc, "uptime"), "1234.50 4000.00\n")
	want := Boot{ID: "0f2c", Uptime: 1234*time.Second + 500*time.Millisecond}
	if got, err := Read(proc); got != want || err != nil {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	write(filepath.Join(proc, "uptime"), "soon\n")
	if b, err := Read(proc); err == nil {
		t.Errorf("read %+v from garbage", b)
	}
	if b, err := Read("/proc"); err != nil || b.ID == "" || b.Uptime <= 0 {
		t.Errorf("this node: %+v, %v", b, err)
	}
}
