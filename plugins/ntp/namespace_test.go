package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

// debian returns a program of a Debian package that `make test` unpacks for the tests.
func debian(t *testing.T, program string) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/debian/" + program)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// node is a network of its own with time daemons in it, and the plugin. The daemons live in a user namespace: root
// there may do much, but not set the clock, of which there is only one for the whole machine.
type node struct {
	t           *testing.T
	binary, dir string
	enter       []string
}

func newNode(t *testing.T) *node {
	n := &node{t: t, binary: npdtest.Build(t)}
	// A unix socket's path is short: t.TempDir is not.
	dir, err := os.MkdirTemp("", "ntp")
	if err != nil {
		t.Fatal(err)
	}
	n.dir = dir
	// systemd-timesyncd becomes another user, who must reach the bus in here.
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// The namespaces live as long as this shell, which lives as long as its stdin is open.
	holder := exec.Command("sh", "-c", "ip link set lo up && mount -t tmpfs run /run && mount -t tmpfs lib /var/lib/systemd && echo && cat")
	everyone := []syscall.SysProcIDMap{{Size: 65536}}
	holder.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, UidMappings: everyone, GidMappings: everyone,
	}
	stdin, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatalf("namespaces (needs root): %v", err)
	}
	t.Cleanup(func() { stdin.Close(); holder.Wait() })
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("namespaces (needs iproute2): %v", err)
	}
	n.enter = []string{"--user", "--net", "--mount", "--target", fmt.Sprint(holder.Process.Pid), "--"}
	return n
}

func (n *node) write(name, content string) string {
	n.t.Helper()
	if err := os.WriteFile(n.path(name), []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
	return n.path(name)
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// start runs a daemon in the namespace until the test ends or stop is called.
func (n *node) start(name string, args ...string) (stop func()) {
	n.t.Helper()
	log, err := os.CreateTemp(n.dir, "log")
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command("nsenter", append(append(slices.Clone(n.enter), name), args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		// The whole group: a shell has its daemons in it.
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		if said, err := os.ReadFile(log.Name()); n.t.Failed() {
			n.t.Logf("%s %q: %v\n%s", name, args, err, said)
		}
		log.Close()
	})
	n.t.Cleanup(stop)
	return stop
}

// chronyd starts a chronyd that does not set the clock, with its command socket at <name>/chronyd.sock.
func (n *node) chronyd(name, config string) (stop func()) {
	n.t.Helper()
	dir := n.path(name)
	// chronyd requires that no other user may enter.
	if err := os.MkdirAll(dir, 0o750); err != nil {
		n.t.Fatal(err)
	}
	config += fmt.Sprintf("\nbindcmdaddress %s/chronyd.sock\npidfile %s/pid\n", dir, dir)
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte(config), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return n.start(debian(n.t, "usr/sbin/chronyd"), "-x", "-d", "-u", "root", "-f", filepath.Join(dir, "conf"))
}

// server is a chronyd whose time is this machine's.
func (n *node) server() (stop func()) {
	n.t.Helper()
	return n.chronyd("server", "local stratum 2\nallow 127.0.0.0/8\nbindaddress 127.0.0.2\nport 123\ncmdport 0")
}

// client is a chronyd that polls the server twice a second and finds its own clock off by offset seconds.
func (n *node) client(offset string) (stop func()) {
	n.t.Helper()
	return n.chronyd("client", "server 127.0.0.2 iburst minpoll -1 maxpoll -1 offset "+offset+"\nport 0")
}

func (n *node) run(args ...string) string {
	n.t.Helper()
	argv := append(append(slices.Clone(n.enter), n.binary, "-grace", "0s", "-state-dir", n.path("state"),
		"-chrony", n.path("client/chronyd.sock"), "-dbus", n.path("bus")), args...)
	return npdtest.Run(n.t, "nsenter", argv...)
}

func (n *node) want(want string, args ...string) {
	n.t.Helper()
	if got := n.run(args...); got != want {
		n.t.Errorf("got  %swant %s", got, want)
	}
}

// until waits for an answer.
func (n *node) until(want string, args ...string) {
	n.t.Helper()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	deadline := time.Now().Add(2 * time.Minute)
	got := n.run(args...)
	for got != want && time.Now().Before(deadline) {
		<-poll.C
		got = n.run(args...)
	}
	if got != want {
		n.t.Fatalf("after 2 min still\n%swant\n%s", got, want)
	}
}
