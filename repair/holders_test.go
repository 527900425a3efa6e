package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// keepOpen makes the process of the test open a file and end its first thread.
const keepOpen = "KEEP_OPEN"

func init() {
	path := os.Getenv(keepOpen)
	if path == "" {
		return
	}
	file, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	go func() {
		os.Stdout.WriteString("open\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
		runtime.KeepAlive(file)
	}()
	unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // init runs on the first thread
}

// After SIGKILL the first thread of a process is a zombie while another hangs in the driver: the process still holds the GPU.
func TestAProcessWhoseFirstThreadHasEndedHoldsItsFiles(t *testing.T) {
	device := filepath.Join(t.TempDir(), "nvidia0")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), keepOpen+"="+device)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("%q, %v", line, err)
	}
	dir := filepath.Join(procfs, strconv.Itoa(cmd.Process.Pid))
	w := watcher{devices: []string{device}}
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for start := time.Now(); ; <-poll.C {
		held, files, err := w.holdsIn(dir)
		if err != nil || time.Since(start) > time.Minute {
			t.Fatalf("%d files of the first thread, %t, %v", files, held, err)
		}
		if files == 0 {
			break
		}
	}
	if held, err := w.holds(dir); !held || err != nil {
		t.Errorf("%t, %v", held, err)
	}
	if held, err := (&watcher{devices: []string{"/dev/nvidia"}}).holds(dir); held || err != nil {
		t.Errorf("another device: %t, %v", held, err)
	}
	if held, err := w.holds(filepath.Join(procfs, "none")); held || err != nil {
		t.Errorf("no process: %t, %v", held, err)
	}
}
