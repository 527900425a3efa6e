package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

// TestRealMounts lets the kernel of this machine mount what the plugin then reads.
func TestRealMounts(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	for _, name := range []string{"kubelet", "raid"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kubelet, raid := filepath.Join(dir, "kubelet"), filepath.Join(dir, "raid")
	plugin := binary + " -procfs /proc -grace 0s -kubelet-dir " + kubelet + " -mounted " + raid
	tests := map[string]struct{ script, want string }{
		"mounted and writable": {
			"mount -t tmpfs k " + kubelet + " && mount -t tmpfs r " + raid + " && " + plugin,
			"exit 0\nmounts are as expected\n",
		},
		"the kubelet's directory is read-only": {
			"mount -t tmpfs -o ro k " + kubelet + " && mount -t tmpfs r " + raid + " && " + plugin,
			"exit 1\nInspect mount " + kubelet + ": read-only\n",
		},
		"hidden by a later mount": {
			"mount -t tmpfs -o ro k " + kubelet + " && mount -t tmpfs k " + kubelet + " && mount -t tmpfs r " + raid + " && " + plugin,
			"exit 0\nmounts are as expected\n",
		},
		"not mounted": {
			"mount -t tmpfs k " + kubelet + " && " + plugin,
			"exit 1\nInspect mount " + raid + ": not mounted\n",
		},
		"no room": {
			"mount -t tmpfs -o size=64k,nr_inodes=10 k " + kubelet + " && mount -t tmpfs r " + raid +
				" && head -c 60000 /dev/zero >" + kubelet + "/f && touch " + kubelet + "/1 && " + plugin + " -root / -min-free 20",
			"exit 1\nInspect mount " + kubelet + ": less than 20 percent of space free\n",
		},
		"no inodes": {
			"mount -t tmpfs -o size=64k,nr_inodes=10 k " + kubelet + " && mount -t tmpfs r " + raid +
				" && cd " + kubelet + " && touch 1 2 3 4 5 6 7 8 && " + plugin + " -root / -min-inodes 20",
			"exit 1\nInspect mount " + kubelet + ": less than 20 percent of inodes free\n",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			// Process 1 of a PID namespace with mounts of its own.
			cmd := exec.Command("sh", "-c", "mount --make-rprivate / && mount -t proc proc /proc && "+test.script)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
			out, _ := cmd.Output()
			if got := fmt.Sprintf("exit %d\n%s", cmd.ProcessState.ExitCode(), out); got != test.want {
				t.Errorf("got %swant %s", got, test.want)
			}
		})
	}
}

// TestAMountThatHangsHidesNoOther mounts a FUSE filesystem whose server never answers.
func TestAMountThatHangsHidesNoOther(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	plugin := binary + " -procfs /proc -root / -timeout 2s -kubelet-dir " + dir + "/kubelet -writable " + dir + "/sick -mounted " + dir + "/data"
	cmd := exec.Command("sh", "-c", "set -e; cd "+dir+"; mount --make-rprivate /; mount -t proc proc /proc; mkdir kubelet sick data; "+
		"mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 f kubelet; mount -t tmpfs d data; "+
		plugin+" || true; mount -t tmpfs -o ro s sick; "+plugin+" || true")
	cmd.ExtraFiles = []*os.File{server}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	want := "unknown: mount " + dir + "/kubelet: did not answer in time\n" +
		"Inspect mount " + dir + "/sick: read-only; mount " + dir + "/kubelet: not read: did not answer in time\n"
	if string(out) != want || err != nil {
		t.Errorf("%v, got\n%swant\n%s", err, out, want)
	}
}

// TestRealExt4 lets this machine's kernel give up writing to an ext4 filesystem. It needs root, a loop device and ext4 in the kernel; without
// them mount fails, and the test says so.
func TestRealExt4(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	script := `set -e
mount --make-rprivate /; mount -t proc proc /proc
truncate -s 16M ` + dir + `/disk; mkfs.ext4 -q -F ` + dir + `/disk; mkdir ` + dir + `/m
mount -o loop,errors=remount-ro ` + dir + `/disk ` + dir + `/m
p="` + binary + ` -procfs /proc -kubelet-dir ` + dir + `/m"
$p
echo 1 >/sys/fs/ext4/$(basename $(readlink /sys/dev/block/$(mountpoint -d ` + dir + `/m)))/trigger_fs_error
$p || true
umount ` + dir + `/m`
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("this kernel cannot mount ext4 on a loop device: %v\n%s", err, out)
	}
	healthy, sick, _ := strings.Cut(string(out), "\n")
	// Which of the three texts depends on the kernel.
	if healthy != "mounts are as expected" || !strings.HasPrefix(sick, "Inspect mount "+dir+"/m: ") {
		t.Errorf("before the error: %s\nafter it: %s", healthy, sick)
	}
}

// TestRealXFS shuts an XFS filesystem down, as its kernel does after an error of its log. No kernel shows that in the mount table: the
// filesystem itself has to be asked.
func TestRealXFS(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	script := `set -e
mount --make-rprivate /; mount -t proc proc /proc
truncate -s 320M ` + dir + `/disk; mkfs.xfs -q ` + dir + `/disk; mkdir ` + dir + `/m
mount -o loop ` + dir + `/disk ` + dir + `/m
p="` + binary + ` -procfs /proc -kubelet-dir ` + dir + `/m"
$p
xfs_io -x -c 'shutdown -f' ` + dir + `/m
$p || true
umount ` + dir + `/m`
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	want := "mounts are as expected\nInspect mount " + dir + "/m: input/output error\n"
	if err != nil || string(out) != want {
		t.Fatalf("%v: got\n%swant\n%s", err, out, want)
	}
}

func TestKernelsThatHaveAWord(t *testing.T) {
	for release, want := range map[string]bool{
		"6.15.0": true, "6.18.44-x": true, "7.0.1": true, "6.14.11": false, "6.12.48+deb13-amd64": false, "5.15.0-160-generic": false, "": false,
	} {
		if got := hasWords(release); got != want {
			t.Errorf("%q: %t", release, got)
		}
	}
}

func TestAMountPointMayHoldAnything(t *testing.T) {
	got, err := parseMount(`60 29 8:1 / /my\040data\134x ro,relatime master:1 shared:2 - ext4 /dev/disk\011a rw`)
	want := mount{Point: `/my data\x`, Device: "8:1", Type: "ext4", Source: "/dev/disk\ta", ReadOnly: true}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func FuzzParseMount(f *testing.F) {
	f.Add("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue")
	f.Add(`1 2 3:4 / /a\040b ro - tmpfs t ro`)
	f.Add("1 2 3:4 / - - - - - -")
	f.Fuzz(func(t *testing.T, line string) {
		m, err := parseMount(line)
		if err == nil && (m.Point == "" || m.Type == "" || strings.Count(line, "ro") < 1 && (m.ReadOnly || m.SuperReadOnly)) {
			t.Errorf("%+v from %q", m, line)
		}
	})
}
