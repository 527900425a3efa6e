package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// driverRoot is the chart's default folder of NVIDIA's driver. /run belongs to the tests' namespace.
const driverRoot = "/run/nvidia/driver"

// addFaults gives the host one fault for each mount through which a pod reads it. Services are real; hardware, which
// this machine does not have, is simulated by files.
func (m *host) addFaults(t *testing.T) {
	t.Helper()
	m.systemd(t)
	m.chronyd(t)
	m.adapter(t)
	m.library(t, "libnvidia-ml.so.1", "internal/nvml/nvmltest/testdata/libnvidia-ml.c", "NVML_STANDIN", "/standin", "github.com/NVIDIA/go-nvml", "pkg/nvml")
	m.answer(t, sickGPU)
	mount(t, "raid", "/var/log/raid", "tmpfs", unix.MS_RDONLY, "")
}

func mount(t *testing.T, source, path, kind string, flags uintptr, options string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(source, path, kind, flags, options); err != nil {
		t.Fatalf("mount %s: %v", path, err)
	}
}

// systemd starts a user's systemd, because process 1 exists already, with its socket at the system's path. One unit has failed.
func (m *host) systemd(t *testing.T) {
	t.Helper()
	m.Write(t, "units/e2e.service", "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=/bin/false\n")
	m.Write(t, "units/node.target", "[Unit]\nDefaultDependencies=no\nWants=e2e.service\n")
	// It runs only on a machine that systemd has booted.
	if err := os.MkdirAll("/run/systemd/system", 0o755); err != nil {
		t.Fatal(err)
	}
	script := `for root in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
	if [ -e $root/cgroup.procs ]; then mkdir $root/` + machine.SystemdGroup + ` && echo $$ >$root/` + machine.SystemdGroup + `/cgroup.procs || exit; fi
done
exec env -i PATH="$PATH" HOME=/run XDG_RUNTIME_DIR=/run container=other SYSTEMD_UNIT_PATH=` + filepath.Join(m.Dir, "units") + `\
	unshare --cgroup /lib/systemd/systemd --user --unit=node.target --log-target=console`
	systemd := m.Start(t, "sh", "-c", script)
	clustertest.Until(t, patience, "systemd", func() error {
		select {
		case <-systemd.Ended:
			t.Fatalf("systemd has ended:\n%s", m.Logs("sh"))
		default:
		}
		if _, err := os.Stat("/run/systemd/private"); err != nil {
			return fmt.Errorf("%w\n%s", err, m.Logs("sh"))
		}
		return nil
	})
}

// chronyd starts a server of the time, and a chronyd that finds the clock wrong.
func (m *host) chronyd(t *testing.T) {
	t.Helper()
	m.startChronyd(t, "server", "local stratum 2\nallow 127.0.0.0/8\nbindaddress 127.0.0.2\nport 123\n")
	m.clock(t, "0.3")
}

// clock has a chronyd, with its socket at the system's path, find the clock wrong by that many seconds from now on.
func (m *host) clock(t *testing.T, offset string) {
	t.Helper()
	if m.chrony != nil {
		if err := syscall.Kill(m.chrony.PID, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-m.chrony.Ended
	}
	m.chrony = m.startChronyd(t, "chrony", "server 127.0.0.2 iburst minpoll -1 maxpoll -1 offset "+offset+"\nport 0\n")
}

func (m *host) startChronyd(t *testing.T, name, config string) *machine.Program {
	t.Helper()
	dir := filepath.Join("/run", name)
	// It requires that no other user may enter.
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	config += fmt.Sprintf("cmdport 0\nbindcmdaddress %s/chronyd.sock\npidfile %s/pid\n", dir, dir)
	return m.Start(t, m.Debian("usr/sbin/chronyd"), "-x", "-d", "-u", "root", "-f", m.Write(t, name+".conf", config))
}

// adapter adds an InfiniBand adapter whose port is down to sysfs.
func (m *host) adapter(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"hca_type": "MT4129", "ports/1/state": "1: DOWN", "ports/1/phys_state": "2: Polling",
		"ports/1/rate": "10 Gb/sec (4X SDR)", "ports/1/link_layer": "InfiniBand",
	} {
		m.Write(t, "class/infiniband/mlx5_0/"+name, value+"\n")
	}
	mount(t, "class", "/sys/class", "overlay", 0, "lowerdir="+filepath.Join(m.Dir, "class")+":/sys/class")
}

// library compiles a stand-in for a library of NVIDIA into the driver's root. It reads its answers from a file there: the environment
// variable that names it is replaced by where pods have the file.
func (m *host) library(t *testing.T, name, source, variable, answers, module, headers string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.Root, source))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := machine.Headers(t.Context(), m.Root, module)
	if err != nil {
		t.Fatal(err)
	}
	// NPD's pods and those of repair Jobs have the driver's root at different paths.
	path := fmt.Sprintf(`(access("/host/driver%[1]s", 0) == 0 ? "/host/driver%[1]s" : "/host%[2]s%[1]s")`, answers, driverRoot)
	file := m.Write(t, filepath.Base(source), strings.Replace(string(text), `getenv("`+variable+`")`, path, 1))
	to := filepath.Join(driverRoot, "usr/lib64", name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-O1", "-Wno-deprecated-declarations",
		"-Wl,-soname,"+name, "-I", filepath.Join(dir, headers), "-o", to, file).CombinedOutput()
	if err != nil {
		t.Fatalf("compile the stand-in: %v\n%s", err, out)
	}
}

// sickGPU is the answer for one GPU that needs replacement.
const sickGPU = "gpus 1\n0.remap.failed 1\n"

// answer sets what the stand-in for NVIDIA's library answers.
func (m *host) answer(t *testing.T, lines string) {
	t.Helper()
	if err := os.WriteFile(driverRoot+"/standin", []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
}

// gpuFiles are the files of a sysfs with an NVIDIA GPU on the PCI bus and its driver loaded.
var gpuFiles = map[string]string{
	"/sys/bus/pci/devices/0000:10:00.0/vendor": "0x10de\n", "/sys/bus/pci/devices/0000:10:00.0/class": "0x030200\n",
	"/sys/module/nvidia/initstate": "live\n", "/sys/module/nvidia/version": "550.163.01\n",
}

// pid returns the process id of a pod's only container.
func (m *host) pid(t *testing.T, pod *corev1.Pod) (pid int) {
	t.Helper()
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	for line := range strings.Lines(m.Ctr(t, "tasks", "list")) {
		if _, err := fmt.Sscanf(line, id+" %d", &pid); err == nil {
			return pid
		}
	}
	t.Fatalf("container %s does not run", id)
	return 0
}

// job runs a pod that writes a line into its log.
func (m *host) job(t *testing.T, line string) {
	t.Helper()
	if err := m.AddNamespace(t.Context(), "jobs", nil); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "jobs", Name: "train"},
		Spec: corev1.PodSpec{
			NodeName:    machine.NodeName,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "train", Image: "ghcr.io/pitcrew-dev/preflight:" + tag, ImagePullPolicy: corev1.PullNever,
				Command: []string{"/bin/sh", "-c", "echo '" + line + "'; exec /bin/busybox sleep 3600"},
			}},
		},
	}
	if err := m.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	// A pod without a controller keeps its node from a reboot.
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := m.Client.Delete(context.Background(), pod, client.GracePeriodSeconds(0)); err != nil {
			t.Error(err)
		}
	})
}

// Each of these findings needs one mount of the chart, in a pod with the chart's own security context: without
// the mount, or without a privilege that it needs, the check would be Unknown or find nothing.
func TestEveryMountIsSeenThrough(t *testing.T) {
	m := theMachine(t)
	m.install(t, tag)
	m.job(t, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
	for _, want := range []struct{ mount, condition, text string }{
		{"/host/sys", conditions.HCAPortDown, "hca mlx5_0 port 1: state DOWN, expected ACTIVE"},
		{"/host/driver", conditions.GPUMemoryError, "Replace gpu 0000:10:00: row remapping failed"},
		{"/run/systemd", conditions.NodeServiceDown, "unit e2e.service: failed"},
		{"/run/chrony", conditions.ClockSkewed, "clock: offset of more than 10ms by chronyd"},
		{"/host/proc", conditions.MountReadOnly, "mount /var/log/raid: read-only"},
		{"/var/log/pods", conditions.WorkloadGPUError, "uncorrectable ECC error"},
	} {
		t.Run(want.mount, func(t *testing.T) { m.until(t, want.condition, corev1.ConditionTrue, want.text) })
	}
}
