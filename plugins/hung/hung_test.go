package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

// TestAServerThatDoesNotAnswer mounts a FUSE filesystem whose server never answers, and then ends.
func TestAServerThatDoesNotAnswer(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	cmd := exec.Command("sh", "-c", "set -e; cd "+dir+"; mount --make-rprivate /; mount -t proc proc /proc; mkdir data other; "+
		"mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 nas:/export data; mount -t tmpfs scratch other\n"+
		"p='"+binary+" -procfs /proc -state-dir "+dir+"/state -timeout 8s -types fuse,tmpfs'\n"+
		"for after in 1h 0s; do $p -mount-after $after 3>&- || true; done; grep -l '^hung-ask$' /proc/[0-9]*/comm | wc -l\n"+
		"read _\nexec 3>&-; while grep -q '^hung-ask$' /proc/[0-9]*/comm; do :; done 2>/dev/null; $p || true")
	cmd.ExtraFiles = []*os.File{server}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	server.Close() // the shell has the last one
	fmt.Fprintln(stdin)
	err = cmd.Wait()
	want := "the servers of all mounts answer\n" +
		"Inspect mount " + dir + "/data: nas:/export (fuse) has not answered for more than 0s\n" +
		"1\n" +
		"Inspect mount " + dir + "/data: nas:/export (fuse): transport endpoint is not connected\n"
	if out.String() != want || err != nil {
		t.Errorf("%v, got\n%swant\n%s", err, out.String(), want)
	}
}

// TestAServiceInTheKernel lets a process sleep on a filesystem that is frozen.
func TestAServiceInTheKernel(t *testing.T) {
	binary, state := npdtest.Build(t), t.TempDir()
	frozen := npdtest.Freeze(t)
	name := fmt.Sprintf("kubelet-%d", os.Getpid())
	kubelet := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("cp", "/bin/sh", kubelet).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	service := exec.Command(kubelet, "-c", "echo >"+frozen.Dir+"/file")
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		frozen.Thaw()
		if err := service.Wait(); err != nil {
			t.Error(err)
		}
	})
	look := func(args ...string) string {
		args = append([]string{"-state-dir", state, "-types", "none", "-services", name}, args...)
		out, _ := exec.Command(binary, args...).Output()
		return string(out)
	}
	for end := time.Now().Add(time.Minute); !strings.Contains(look("-dump"), `"since"`); {
		if time.Now().After(end) {
			t.Fatal("the process is not seen asleep")
		}
	}
	healthy, sick := "no mount of a server\n", "Inspect service "+name+": a thread has slept"
	if got := look(); got != healthy {
		t.Errorf("at first: %s", got)
	}
	file := filepath.Join(state, "hung.json")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	asleep := func(ago time.Duration, switches string) {
		var s struct {
			V      int     `json:"v"`
			BootID string  `json:"bootID"`
			State  []sleep `json:"state"`
		}
		if err := json.Unmarshal(data, &s); err != nil || len(s.State) != 1 {
			t.Fatalf("%v: %s", err, data)
		}
		s.State[0].Since -= ago
		s.State[0].Switches += switches
		out, err := json.Marshal(s)
		if err == nil {
			err = os.WriteFile(file, out, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	asleep(2*time.Minute, "")
	if got := look(); !strings.HasPrefix(got, sick) || !strings.HasSuffix(got, " for more than 2m0s without a break (state D)\n") {
		t.Errorf("after two minutes: %s", got)
	}
	// It has run since.
	asleep(2*time.Minute, "nonvoluntary_ctxt_switches: 9 ")
	if got := look(); got != healthy {
		t.Errorf("after a break: %s", got)
	}
}

func TestWhenAQuestionIsAFault(t *testing.T) {
	l := limits{mount: 3 * time.Minute, service: 2 * time.Minute}
	const uptime = time.Hour
	since := func(ago time.Duration) answer { return answer{Since: uptime - ago} }
	tests := map[string]struct {
		answer              answer
		point               string
		found, unread, soon bool
	}{
		"answered":                  {},
		"load":                      {answer: since(29 * time.Second), soon: true},
		"slow":                      {answer: since(30 * time.Second), unread: true, soon: true},
		"slow for long":             {answer: since(3*time.Minute - 1), unread: true, soon: true},
		"three minutes":             {answer: since(3 * time.Minute), found: true},
		"stale":                     {answer: answer{Errno: syscall.ESTALE}, found: true},
		"stale, of a pod":           {answer: answer{Errno: syscall.ESTALE}, point: "/var/lib/kubelet/pods/1/volumes/x"},
		"no answer, of a pod":       {answer: since(3 * time.Minute), point: "/var/lib/kubelet/pods/1/volumes/x", found: true},
		"not for root":              {answer: answer{Errno: syscall.EACCES}},
		"unmounted since":           {answer: answer{Errno: syscall.ENOENT}},
		"nobody could ask":          {answer: answer{Unasked: "fork: no memory"}, unread: true},
		"asked, who knows how long": {answer: answer{Unasked: "it is being asked"}, unread: true},
	}
	for name, test := range tests {
		m := mount{Point: test.point, Type: "nfs4", Source: "10.0.0.5:/export", answer: test.answer}
		if m.Point == "" {
			m.Point = "/data"
		}
		r := l.judge(snapshot{Boot: boot.Boot{Uptime: uptime}, Kubelet: "/var/lib/kubelet", Mounts: []mount{m}})
		found := false
		for _, f := range r.Findings {
			found = found || f.Repair.String() == "Inspect"
		}
		if found != test.found || (len(r.Unread) > 0) != test.unread || r.Unconfirmed != test.soon {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for ago, want := range map[time.Duration]int{2*time.Minute - 1: 0, 2 * time.Minute: 1} {
		s := sleep{Service: "kubelet", Since: uptime - ago}
		if r := l.judge(snapshot{Boot: boot.Boot{Uptime: uptime}, Asleep: []sleep{s, s}}); len(r.Findings) != want || !r.Unconfirmed {
			t.Errorf("asleep for %s: %+v", ago, r)
		}
	}
}
