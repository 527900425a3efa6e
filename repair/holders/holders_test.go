package holders

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

	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
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

// Whose a process is follows from where the kernel has put it.
func TestUnitOf(t *testing.T) {
	for cgroup, want := range map[string]string{
		"0::/system.slice/nvidia-persistenced.service\n":                                           "nvidia-persistenced.service",
		"0::/../../../system.slice/nvidia-persistenced.service/sub\n":                              "nvidia-persistenced.service",
		"0::/system.slice/system-getty.slice/a@b.service\n":                                        "a@b.service",
		"4:memory:/\n1:name=systemd:/system.slice/dcgm.service\n":                                  "dcgm.service",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/nvidia-persistenced.service\n": "user@1000.service",
		"0::/user.slice/user-1000.slice/session-1.scope/nvidia-persistenced.service\n":             "",
		"0::/system.slice/docker-1.scope/system.slice/nvidia-persistenced.service\n":               "",
		"0::/system.slice/slurmstepd.scope/job_1/step_0/user/task_0/nvidia-persistenced.service\n": "",
		"0::/init.scope\n": "",
		"":                 "",
	} {
		if got := unitOf(cgroup); got != want {
			t.Errorf("%q: %q, want %q", cgroup, got, want)
		}
	}
}

func TestWhoMayHoldDevices(t *testing.T) {
	w := Watcher{
		Services: []string{"nvidia-fabricmanager.service"}, Tolerate: []string{"monitor"},
		Driver: []string{"nv-fabricmanager"}, DriverNamespaces: []string{"gpu-operator"},
	}
	for name, test := range map[string]struct {
		command, pod, unit string
		want               bool
	}{
		"a service of the driver":             {"nv-fabricmanage", "", "nvidia-fabricmanager.service", true},
		"another program in it":               {"sleep", "", "nvidia-fabricmanager.service", false},
		"its name elsewhere":                  {"nv-fabricmanage", "", "other.service", false},
		"its name in a login":                 {"nv-fabricmanage", "", "", false},
		"its name in a pod":                   {"nv-fabricmanage", "ml/p", "", false},
		"its name in a pod that is not known": {"nv-fabricmanage", "uid gpu-operator/", "", false},
		"its name in the driver's pod":        {"nv-fabricmanage", "gpu-operator/driver", "", true},
		"another one there":                   {"python", "gpu-operator/driver", "", false},
		"a program of the flag":               {"monitor", "", "monitor.service", true},
		"the same in a login":                 {"monitor", "", "", false},
		"the same of a user's manager":        {"monitor", "", "user@1000.service", false},
		"the same in a job of Slurm":          {"monitor", "", "slurmd.service", false},
		"the same in a pod":                   {"monitor", "ml/p", "", false},
		"the same in the driver's pod":        {"monitor", "gpu-operator/driver", "", false},
	} {
		p := process{Holder: repairresult.Holder{Command: test.command, Pod: test.pod}, unit: test.unit}
		if got := w.tolerates(p); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
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
	dir := filepath.Join(proc, strconv.Itoa(cmd.Process.Pid))
	devices := []string{device}
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for start := time.Now(); ; <-poll.C {
		held, files, err := holdsIn(dir, devices)
		if err != nil || time.Since(start) > time.Minute {
			t.Fatalf("%d files of the first thread, %t, %v", files, held, err)
		}
		if files == 0 {
			break
		}
	}
	if held, err := holds(dir, devices); !held || err != nil {
		t.Errorf("%t, %v", held, err)
	}
	if held, err := holds(dir, []string{"/dev/nvidia"}); held || err != nil {
		t.Errorf("another device: %t, %v", held, err)
	}
	if held, err := holds(filepath.Join(proc, "none"), devices); held || err != nil {
		t.Errorf("no process: %t, %v", held, err)
	}
}
