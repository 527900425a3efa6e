package maintenance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/maintenance"
)

func want(t *testing.T, dir string, want bool) {
	t.Helper()
	if got, err := maintenance.Active("/proc", dir); err != nil || got != want {
		t.Errorf("active %v, %v, want %v", got, err, want)
	}
}

func exists(t *testing.T, dir string) bool {
	t.Helper()
	_, err := os.Stat(maintenance.Path(dir))
	return err == nil
}

func TestAProgramsMarkBeginsAndEnds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	want(t, dir, false)
	if err := maintenance.End(dir); err != nil {
		t.Errorf("nothing to end: %v", err)
	}
	if err := maintenance.Begin("/proc", dir, "repair", time.Hour); err != nil {
		t.Fatal(err)
	}
	want(t, dir, true)
	// Again, after a program that was killed.
	if err := maintenance.Begin("/proc", dir, "repair", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := maintenance.End(dir); err != nil {
		t.Fatal(err)
	}
	want(t, dir, false)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestAMarkThatWasLeftBehindEndsByItself(t *testing.T) {
	dir := t.TempDir()
	if err := maintenance.Begin("/proc", dir, "repair", 0); err != nil {
		t.Fatal(err)
	}
	want(t, dir, false)
	id, err := boot.ID("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for content, active := range map[string]bool{
		fmt.Sprintf(`{"by":"repair","bootID":%q,"until":%d}`, id, int64(1<<62)):    true,
		fmt.Sprintf(`{"by":"repair","bootID":"another","until":%d}`, int64(1<<62)): false,
	} {
		if err := os.WriteFile(maintenance.Path(dir), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		want(t, dir, active)
	}
}

func TestAPersonsMarkCountsAndStays(t *testing.T) {
	for _, content := range []string{"", "anna changes fans until tomorrow", "{}", `{"by":"anna"}`, "null"} {
		dir := t.TempDir()
		if err := os.WriteFile(maintenance.Path(dir), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		want(t, dir, true)
		if err := maintenance.Begin("/proc", dir, "repair", time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := maintenance.End(dir); err != nil {
			t.Fatal(err)
		}
		if now, err := os.ReadFile(maintenance.Path(dir)); err != nil || string(now) != content {
			t.Errorf("%q is now %q, %v", content, now, err)
		}
	}
}

func TestAMarkThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(maintenance.Path(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := maintenance.Active("/proc", dir); err == nil {
		t.Error("a directory is no mark")
	}
	if err := maintenance.Begin("/proc", dir, "repair", time.Hour); err == nil {
		t.Error("it has begun")
	}
	if err := maintenance.End(dir); err == nil || !exists(t, dir) {
		t.Errorf("it has ended: %v", err)
	}
}
