package npd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// The tests run a real plugin process: this test binary with TEST_PLUGIN set. Where it must believe that its parent is
// NPD, a second process stands between, which has NPD's name: this binary with TEST_PLUGIN_PARENT set.

func TestMain(m *testing.M) {
	switch {
	case os.Getenv("TEST_PLUGIN_PARENT") != "":
		actAsNPD()
	case strings.HasPrefix(os.Getenv("TEST_PLUGIN"), "iso-"):
		isolatedPlugin()
	case os.Getenv("TEST_PLUGIN") != "":
		testPlugin()
	}
	os.Exit(m.Run())
}

// testPlugin reports what a file says: "sick", "unread", "both", "unconfirmed", "error", "panic", "judge panic", "stuck", else healthy.
func testPlugin() {
	p := New("test", "checks a file")
	path := p.String("file", "", "what to report")
	Main(p, Check[string]{
		Read: func(context.Context) (string, error) {
			data, err := os.ReadFile(*path)
			switch text := string(data); {
			case err != nil:
				return "", err
			case text == "error":
				return "", errors.New("bus 100% gone;\nreally")
			case text == "panic":
				panic("at the disco")
			case text == "stuck":
				select {}
			default:
				return text, nil
			}
		},
		Judge: func(s string) Result {
			r := Result{Healthy: "all is well", Unconfirmed: s == "unconfirmed"}
			if s == "judge panic" {
				panic(s)
			}
			if strings.HasPrefix(s, "sick") || s == "both" {
				r.Findings = append(r.Findings, conditions.Finding{Repair: conditions.Reboot, Subject: "disk 1", Text: s})
			}
			if s == "app" {
				r.Findings = append(r.Findings, conditions.Finding{Repair: conditions.RestartApp, Subject: "disk 1", Text: s})
			}
			if s == "unread" || s == "both" {
				r.Unread = append(r.Unread, Unread{"disk 2", "timeout"})
			}
			return r
		},
		Clear: func(_ context.Context, subject string) ([]string, error) {
			return []string{"[" + subject + "]"}, os.WriteFile(*path, nil, 0o600)
		},
	})
}

// actAsNPD takes NPD's name and runs the plugin once for every line on stdin, until stdin ends.
func actAsNPD() {
	if err := os.WriteFile("/proc/self/comm", []byte(comm), 0); err != nil {
		panic(err)
	}
	os.Unsetenv("TEST_PLUGIN_PARENT")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			panic(err)
		}
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		fmt.Println("pid", cmd.Process.Pid)
		message, _ := bufio.NewReader(out).ReadString('\n')
		_ = cmd.Wait()
		fmt.Println(cmd.ProcessState.ExitCode(), strings.TrimSuffix(message, "\n"))
	}
	os.Exit(0)
}

// once runs the plugin by hand.
func once(t *testing.T, content string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if content != "absent" {
		write(t, file, content)
	}
	cmd := exec.Command("/proc/self/exe", append([]string{"-file", file, "-state-dir", t.TempDir(), "-timeout", patience.String()}, args...)...)
	cmd.Env = append(os.Environ(), "TEST_PLUGIN=1")
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := writeFile(path, []byte(content)); err != nil {
		t.Fatal(err)
	}
}

func TestOneLineAndAnExitCode(t *testing.T) {
	tests := map[string]struct {
		file   string
		args   []string
		code   int
		stdout string
	}{
		"healthy":                   {"fine", nil, 0, "all is well"},
		"sick":                      {"sick", nil, 1, "Reboot disk 1: sick"},
		"unread":                    {"unread", nil, 2, "unknown: disk 2: timeout"},
		"sick wins over unread":     {"both", nil, 1, "Reboot disk 1: both; disk 2: not read: timeout"},
		"read error":                {"error", nil, 2, "unknown: bus 100/ gone, really"},
		"panic in Read":             {"panic", nil, 2, "unknown: panic: at the disco"},
		"panic in Judge":            {"judge panic", nil, 2, "unknown: panic: judge panic"},
		"Read that never returns":   {"stuck", []string{"-timeout", "50ms"}, 2, "unknown: no answer within 50ms"},
		"bad flag":                  {"fine", []string{"-no-such-flag"}, 2, "unknown: flag provided but not defined: -no-such-flag"},
		"bad value":                 {"fine", []string{"-min-repair", "Explode"}, 2, ""},
		"stray argument":            {"fine", []string{"hold"}, 2, `unknown: unexpected argument "hold"`},
		"weak class is healthy":     {"app", nil, 0, "all is well"},
		"weak class asked for":      {"app", []string{"-min-repair", "RestartApp"}, 1, "RestartApp disk 1: app"},
		"dump":                      {"sick", []string{"-dump"}, 0, `"sick"`},
		"dump of what is not there": {"error", []string{"-dump"}, 2, "unknown: bus 100/ gone, really"},
		"clear":                     {"sick", []string{"-clear"}, 0, "cleared []"},
		"clear a subject":           {"sick", []string{"-clear", "disk", "1"}, 0, "cleared [disk 1]"},
		"hold by hand":              {"fine", []string{"-hold", "1h"}, 0, "all is well"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := once(t, test.file, test.args...)
			if code != test.code || test.stdout != "" && stdout != test.stdout+"\n" {
				t.Errorf("exit %d, stdout %q; want exit %d, %q\nstderr: %s", code, stdout, test.code, test.stdout, stderr)
			}
			if strings.Count(stdout, "\n") != 1 || strings.Contains(stdout, "%") {
				t.Errorf("stdout is not one safe line: %q", stdout)
			}
		})
	}
}

func TestQuietWhenHealthy(t *testing.T) {
	if _, _, stderr := once(t, "fine"); stderr != "" {
		t.Errorf("stderr of a healthy run: %s", stderr)
	}
}

func TestSnapshotJudgesADump(t *testing.T) {
	_, dumped, _ := once(t, "sick", "-dump")
	file := filepath.Join(t.TempDir(), "dump.json")
	write(t, file, dumped)
	if code, stdout, _ := once(t, "absent", "-snapshot", file); code != 1 || stdout != "Reboot disk 1: sick\n" {
		t.Errorf("exit %d, %q", code, stdout)
	}
	write(t, file, dumped[:3])
	if code, stdout, _ := once(t, "absent", "-snapshot", file); code != 2 || !strings.Contains(stdout, file) {
		t.Errorf("half a dump: exit %d, %q", code, stdout)
	}
}

// aNPD is a process with NPD's name that runs the plugin when told to.
type aNPD struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    *os.File
	lines chan string
	pid   int // of the last plugin run
	file  string
	state string
	errs  *strings.Builder
}

func startNPD(t *testing.T, state, file string, args ...string) *aNPD {
	t.Helper()
	n := &aNPD{t: t, file: file, state: state, lines: make(chan string, 16), errs: &strings.Builder{}}
	n.cmd = exec.Command("/proc/self/exe", append([]string{"-file", file, "-state-dir", state, "-every", "5ms"}, args...)...)
	n.cmd.Env = append(os.Environ(), "TEST_PLUGIN=1", "TEST_PLUGIN_PARENT=1")
	n.cmd.Stderr = n.errs
	in, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	n.cmd.Stdin, n.in = in, w
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	go func() {
		for scan := bufio.NewScanner(out); scan.Scan(); {
			n.lines <- scan.Text()
		}
		close(n.lines)
	}()
	t.Cleanup(n.stop)
	return n
}

func (n *aNPD) stop() {
	n.in.Close()
	_ = n.cmd.Process.Kill()
	if n.pid > 0 {
		_ = syscall.Kill(n.pid, syscall.SIGKILL)
	}
	for range n.lines {
	}
	_ = n.cmd.Wait()
}

// run starts the plugin and returns its process id.
func (n *aNPD) run() (pid int) {
	n.t.Helper()
	fmt.Fprintln(n.in)
	if _, err := fmt.Sscanf(n.line(), "pid %d", &pid); err != nil {
		n.t.Fatal(err)
	}
	n.pid = pid
	return pid
}

func (n *aNPD) line() string {
	n.t.Helper()
	select {
	case line, ok := <-n.lines:
		if !ok {
			n.t.Fatal("NPD ended")
		}
		return line
	case <-time.After(patience):
		n.t.Fatalf("no answer in %s", patience)
	}
	return ""
}

// answers fails the test unless the plugin answers so; with a hold of an hour, any answer is an early one.
func (n *aNPD) answers(want string) {
	n.t.Helper()
	if got := n.line(); got != want {
		n.t.Fatalf("answer %q, want %q\nstderr: %s", got, want, n.errs)
	}
}

// holding waits until the plugin has begun its hold.
func (n *aNPD) holding() {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		files, _ := filepath.Glob(filepath.Join(n.state, "told-test-*.json"))
		for _, f := range files {
			if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), "begun") {
				return
			}
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("no hold has begun; files of last answers: %q", files)
		}
	}
}

func TestHold(t *testing.T) {
	state, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	write(t, file, "fine")
	npd := startNPD(t, state, file, "-hold", "1h")

	npd.run()
	npd.answers("0 all is well") // a new NPD is answered at once

	npd.run()
	npd.holding()
	write(t, file, "sick")
	npd.answers("1 Reboot disk 1: sick") // a change ends the hold

	npd.run()
	npd.holding()
	write(t, file, "sick more")
	npd.answers("1 Reboot disk 1: sick more") // another message is a change

	npd.run()
	npd.holding()
	write(t, file, "unread")
	npd.answers("2 unknown: disk 2: timeout")

	pid := npd.run()
	npd.holding() // Unknown holds too
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	npd.answers("-1 ")
	npd.run()
	npd.answers("2 unknown: disk 2: timeout") // after a killed run at once

	pid = npd.run()
	npd.holding()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	npd.answers("2 unknown: disk 2: timeout") // SIGTERM repeats the answer

	write(t, file, "sick")
	startNPD(t, state, file, "-hold", "1h").run()
	other := startNPD(t, state, file, "-hold", "1h")
	other.run()
	other.answers("1 Reboot disk 1: sick") // each NPD process is answered at once
}

func TestHoldRepeatsTheAnswerWhenItEnds(t *testing.T) {
	const hold = 300 * time.Millisecond
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "fine")
	npd := startNPD(t, t.TempDir(), file, "-hold", hold.String())
	npd.run()
	npd.answers("0 all is well")
	begin := time.Now()
	npd.run()
	npd.answers("0 all is well")
	const every = 5 * time.Millisecond // see startNPD; the hold ends with the last look before it is over
	if took := time.Since(begin); took < hold-every {
		t.Errorf("held %s, want %s less %s at most", took, hold, every)
	}
}

func TestHoldWithoutAStateDirectory(t *testing.T) {
	const hold = 300 * time.Millisecond
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "fine")
	npd := startNPD(t, file+"/no/directory", file, "-hold", hold.String())
	begin := time.Now()
	npd.run()
	npd.answers("0 all is well")
	if took := time.Since(begin); took < hold/2 {
		t.Errorf("held %s, want %s: this would be a hot loop", took, hold)
	}
	npd.stop()
	if got := strings.Count(npd.errs.String(), "\n"); got != 1 {
		t.Errorf("%d lines on stderr, want 1:\n%s", got, npd.errs)
	}
}

func TestHoldAnswersAtOnceAfterACorruptFile(t *testing.T) {
	state, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	write(t, file, "fine")
	npd := startNPD(t, state, file, "-hold", "1h")
	npd.run()
	npd.answers("0 all is well")
	told, err := filepath.Glob(filepath.Join(state, "told-*"))
	if err != nil || len(told) != 1 {
		t.Fatalf("files of last answers %q, %v", told, err)
	}
	write(t, told[0], `{"told":{"status":`)
	npd.run()
	npd.answers("0 all is well")
}

func TestStuckReadIsNotJoinedByAnother(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "stuck")
	npd := startNPD(t, t.TempDir(), file, "-hold", "300ms", "-timeout", "20ms")
	npd.run()
	npd.answers("2 unknown: no answer within 20ms")
	begin := time.Now()
	npd.run()
	npd.answers("2 unknown: no answer within 20ms")
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("held %s", took)
	}
}

func TestPluginDiesWithNPD(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "fine")
	npd := startNPD(t, t.TempDir(), file, "-hold", "1h", "-every", "1h")
	npd.run()
	npd.answers("0 all is well")
	pid := npd.run()
	npd.holding()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	if err := npd.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// A pidfd becomes readable when its process ends.
	n, err := 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
	}
	if n != 1 {
		t.Errorf("the plugin outlives its NPD: %v", err)
	}
}

func TestRunByHandLeavesNoToldState(t *testing.T) {
	state, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	write(t, file, "fine")
	cmd := exec.Command("/proc/self/exe", "-file", file, "-state-dir", state, "-hold", "1h")
	cmd.Env = append(os.Environ(), "TEST_PLUGIN=1")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if files, _ := os.ReadDir(state); len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestParseStat(t *testing.T) {
	fields := strings.Repeat(" 7", 18)
	got, err := parseStat("12 (a) b (c) S" + fields + " 4711 9")
	if want := (stat{"a) b (c", "S", 7, "4711"}); err != nil || got != want {
		t.Errorf("%+v, want %+v, %v", got, want, err)
	}
	for _, bad := range []string{"", "12 S 1", "12 )x( S", "12 (x) S 1 2", "12 (x) S 1 x" + fields} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("parseStat(%q) found no error", bad)
		}
	}
}

func TestHelpIsOnStdoutAndABadFlagIsOneLine(t *testing.T) {
	t.Parallel()
	const usage = "exit 0 healthy, 1 problem, 2 cannot tell"
	if code, stdout, stderr := once(t, "fine", "-h"); code != 0 || !strings.Contains(stdout, usage) || strings.Contains(stdout, "unknown:") || stderr != "" {
		t.Errorf("-h: exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if code, stdout, stderr := once(t, "fine", "-no-such-flag"); code != 2 || strings.Count(stdout, "\n") != 1 || stderr != "" {
		t.Errorf("bad flag: exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestTheNextLookIsSoonerUnlessTheLastFoundNothing(t *testing.T) {
	const soon, late = time.Millisecond, 10000 * time.Hour
	finding := conditions.Finding{Repair: conditions.Reboot, Subject: "disk 1", Text: "gone"}
	var result Result
	var failed error
	p := New("test", "")
	p.StateDir = t.TempDir()
	r := &runner[string]{p: p, c: Check[string]{
		Read:  func(context.Context) (string, error) { return "", failed },
		Judge: func(string) Result { return result },
	}}
	for _, test := range []struct {
		name         string
		result       Result
		err          error
		minRepair    conditions.Repair
		healthyEvery time.Duration
		late         bool
	}{
		{"healthy", Result{Healthy: "well"}, nil, conditions.Inspect, late, true},
		{"sick", Result{Findings: []conditions.Finding{finding}}, nil, conditions.Inspect, late, false},
		{"sick below -min-repair", Result{Findings: []conditions.Finding{finding}}, nil, conditions.Replace, late, true},
		{"unread", Result{Unread: []Unread{{"disk 1", "timeout"}}}, nil, conditions.Inspect, late, false},
		{"healthy again", Result{Healthy: "well"}, nil, conditions.Inspect, late, true},
		{"a read that fails", Result{Healthy: "well"}, errors.New("gone"), conditions.Inspect, late, false},
		{"unconfirmed", Result{Healthy: "well", Unconfirmed: true}, nil, conditions.Inspect, late, false},
		{"without -healthy-every", Result{Healthy: "well"}, nil, conditions.Inspect, 0, false},
	} {
		result, failed, p.MinRepair, p.Every, p.HealthyEvery = test.result, test.err, test.minRepair, soon, test.healthyEvery
		r.look(t.Context())
		if pause := r.pause(); pause > soon != test.late {
			t.Errorf("%s: the next look after %s", test.name, pause)
		}
	}
	p.Every, p.HealthyEvery = late, soon
	if longest := p.longest(); longest != late {
		t.Errorf("with a shorter -healthy-every: %s", longest)
	}
	p.Every, p.HealthyEvery, p.Hold = soon, late, 2*late
	if length := p.length(); length > p.Hold-time.Second {
		t.Errorf("a hold of %s ends after %s, at no look of a healthy node", p.Hold, length)
	}
}

func TestWhatTheNextLookMayConfirmDoesNotWaitLonger(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "unconfirmed")
	npd := startNPD(t, t.TempDir(), file, "-hold", "1h", "-healthy-every", "1h")
	npd.run()
	npd.answers("0 all is well")
	npd.run()
	npd.holding()
	write(t, file, "sick")
	npd.answers("1 Reboot disk 1: sick")
}

func TestChecksLookAtTheSameMoments(t *testing.T) {
	const s = time.Second
	for _, test := range []struct{ now, hold, every, pause, length time.Duration }{
		{100 * s, 300 * s, 30 * s, 20 * s, 290 * s},
		{120 * s, 300 * s, 30 * s, 30 * s, 300 * s},
		{100 * s, 300 * s, 60 * s, 20 * s, 260 * s},
		{100*s + 1, 20 * s, s, s - 1, 20*s - 1},
		{100 * s, 20 * s, 3600 * s, 3500 * s, 20 * s}, // a hold without a second look
		{100 * s, 20 * s, 0, 0, 20 * s},
	} {
		if pause, length := toNext(test.now, test.every), whole(test.now, test.hold, test.every); pause != test.pause || length != test.length {
			t.Errorf("at %s, hold %s, every %s: pause %s, length %s; want %s, %s", test.now, test.hold, test.every, pause, length, test.pause, test.length)
		}
	}
}
