package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// write makes the files of a tree; those in bin are programs.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := fs.FileMode(0o644)
		if filepath.Dir(name) == "bin" {
			mode = 0o755
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
}

// read returns mode and content of every file below dir.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = info.Mode().String() + " " + string(content)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

func TestAnInstallationReplacesWhatItBringsAndLeavesTheRest(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	write(t, source, map[string]string{"bin/xid": "new", "bin/ecc": "ecc", "monitors/GPUXidError.json": "{}"})
	write(t, target, map[string]string{"bin/xid": "old", "bin/mine": "mine"})
	if _, err := install(source, target); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"bin/xid": "-rwxr-xr-x new", "bin/ecc": "-rwxr-xr-x ecc", "bin/mine": "-rwxr-xr-x mine",
		"monitors/GPUXidError.json": "-rw-r--r-- {}",
	}
	if diff := cmp.Diff(want, read(t, target)); diff != "" {
		t.Error(diff)
	}
}

// Writing into the file of a running program fails with ETXTBSY, and NPD's plugins hold for most of the time.
func TestARunningPluginIsReplaced(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	source, target := t.TempDir(), t.TempDir()
	write(t, source, map[string]string{"bin/xid": "new"})
	write(t, target, map[string]string{"bin/xid": string(program)})
	running := exec.CommandContext(t.Context(), filepath.Join(target, "bin/xid"), "60")
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := install(source, target); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{"bin/xid": "-rwxr-xr-x new"}, read(t, target)); diff != "" {
		t.Error(diff)
	}
}

func TestAFailedInstallationReportsItAndLeavesNoPartialFile(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	write(t, source, map[string]string{"bin/xid": "new"})
	write(t, target, map[string]string{"bin/xid/folder": ""})
	if _, err := install(source, target); err == nil {
		t.Error("no error")
	}
	if diff := cmp.Diff(map[string]string{"bin/xid/folder": "-rw-r--r-- "}, read(t, target)); diff != "" {
		t.Error(diff)
	}
}
