package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestRedact(t *testing.T) {
	k := &kit{work: "/home/alice/out/work-1", out: "/home/alice/out", home: "/home/alice/kit", programs: "/home/alice/kit/programs-7"}
	r := k.redactor()
	r.host = []string{"gpu-node-7", "gpu-node-7.example.com"}
	r.learn("    Serial Number                     : 1652823050123\n    Board Serial                      : N/A\n    Module ID : 4\n")
	for in, want := range map[string]string{
		"    Serial Number                     : 1652823050123":                 "    Serial Number                     : SERIAL-1",
		"GPU 1652823050123 is lost":                                             "GPU SERIAL-1 is lost",
		"    Serial Number                     : N/A":                           "    Serial Number                     : N/A",
		`  "serial": "1652823050123",`:                                          `  "serial": "SERIAL-1",`,
		"    Board Part Number                 : 692-2G520-0200-000":            "    Board Part Number                 : 692-2G520-0200-000",
		"    GPU UUID : GPU-3f0e4c9a-7a55-4c13-9be2-0b7a6a3f5d21":               "    GPU UUID : GPU-00000000-0000-0000-0000-000000000001",
		"MIG-3F0E4C9A-7a55-4c13-9be2-0b7a6a3f5d21":                              "MIG-00000000-0000-0000-0000-000000000001",
		"mac 7c:c2:55:11:22:33.":                                                "mac 00:00:00:00:00:01.",
		"guid a088:c203:0012:3456":                                              "guid 0000:0000:0000:0001",
		"from 10.1.2.3 to 10.1.2.4, 127.0.0.1":                                  "from 192.0.2.1 to 192.0.2.2, 127.0.0.1",
		"fe80::1234:5678 and ::1":                                               "2001:db8::1 and ::1",
		"library 12.580.95.05, VBIOS 96.00.61.00.01":                            "library 12.580.95.05, VBIOS 96.00.61.00.01",
		"at 12:34:56 of 0000:4e:00":                                             "at 12:34:56 of 0000:4e:00",
		"GPU 00000000:4E:00.0, 5.15.0-1":                                        "GPU 00000000:4E:00.0, 5.15.0-1",
		"gpu-node-7.example.com, gpu-node-7, gpu-node-71":                       "this-machine, this-machine, gpu-node-71",
		"/home/alice/out/work-1/a, /home/alice/kit/programs-7/ecc":              "$WORK/a, $PROGRAMS/ecc",
		"machine 0123456789abcdef0123456789abcdef":                              "machine 00000000000000000000000000000001",
		"            Name                          : /usr/bin/python3 train.py": "            Name                          : (a program)",
	} {
		if got := r.redact(in); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
}

func TestHolders(t *testing.T) {
	device := filepath.Join(t.TempDir(), "nvidia0")
	file, err := os.Create(device)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, found := range map[string][]process{
		"holders": holdersOf(strings.TrimSuffix(device, "0")), "programs": programsIn(filepath.Dir(self), device),
	} {
		i := slices.IndexFunc(found, func(p process) bool { return p.pid == fmt.Sprint(os.Getpid()) })
		if i < 0 || !slices.Equal(found[i].devices, []string{device}) {
			t.Errorf("%s: %v", name, found)
		}
	}
	// What is found here is killed.
	for _, folder := range []string{"", ".", "/none", filepath.Dir(filepath.Dir(self))} {
		if found := programsIn(folder, ""); len(found) > 0 {
			t.Errorf("in folder %q: %v", folder, found)
		}
	}
}

// What a program has started in a group of its own ends with it.
func TestNothingIsLeft(t *testing.T) {
	k := &kit{programs: t.TempDir(), work: t.TempDir(), stuck: map[string]bool{}}
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.Open(sleep)
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	own := filepath.Join(k.programs, "sleep")
	if err := writeFile(own, 0o755, content); err != nil {
		t.Fatal(err)
	}
	r := k.try(t.Context(), program{limit: 500 * time.Millisecond, argv: []string{"sh", "-c", "echo begun; setsid " + own + " 60 & wait"}})
	if r.Says != "begun" || !r.Hung || len(r.Left) > 0 {
		t.Errorf("%+v", r)
	}
}

// A program that needs a newer C library ends with exit 1 and the loader's words, which is no answer of a check.
func TestAProgramThatDoesNotStart(t *testing.T) {
	k := &kit{programs: t.TempDir(), work: t.TempDir(), stuck: map[string]bool{}}
	const words = "ecc: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by ecc)"
	script := "#!/bin/sh\ncat >&2 <<'END'\n" + words + "\nEND\nexit 1\n"
	if err := os.WriteFile(filepath.Join(k.programs, "ecc"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var o outcome
	k.versions(t.Context(), &o)
	if want := "ecc does not start: " + words; !slices.Equal(o.Differs, []string{want}) {
		t.Errorf("%q, want %q", o.Differs, want)
	}
}

// The persistence modes are put back when the run is over, too.
func TestRestoreAfterTheEnd(t *testing.T) {
	k := &kit{programs: t.TempDir(), work: t.TempDir(), limit: time.Second, stuck: map[string]bool{}}
	for name, mode := range map[string]string{"pm-00000000:10:00.0": "Disabled", "pm-00000000:11:00.0": "Disabled"} {
		if err := os.WriteFile(filepath.Join(k.work, name), []byte(mode+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	smi, err := filepath.Abs("../testdata/nvidia-smi")
	if err != nil {
		t.Fatal(err)
	}
	k.machine.SMI = smi
	t.Setenv("SMI_STANDIN", k.work)
	for _, before := range []map[string]string{
		{"00000000:10:00.0": "Enabled", "00000000:11:00.0": "Disabled"}, {"00000000:10:00.0": "Enabled", "00000000:11:00.0": "Enabled"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var o outcome
		k.restore(ctx, &o, before)
		for address, want := range before {
			if got := text(filepath.Join(k.work, "pm-"+address)); got != want || len(o.Differs) > 0 {
				t.Errorf("%s is %s, want %s; %q", address, got, want, o.Differs)
			}
		}
	}
}

func TestAnswersForNPD(t *testing.T) {
	for text, wrong := range map[string]bool{
		"all is well\n": false, "": true, "two\nlines\n": true, "50% of it\n": true, "caf\u00e9\n": true, strings.Repeat("x", 513) + "\n": true,
	} {
		var o outcome
		o.answered(ran{Argv: []string{"/x/ecc"}, stdout: text})
		if len(o.Differs) > 0 != wrong {
			t.Errorf("%q: %q", text, o.Differs)
		}
	}
	for exit, wrong := range map[int]bool{0: false, 1: false, 2: false, 3: true, 127: true} {
		var o outcome
		o.answered(ran{Argv: []string{"/x/ecc"}, Exit: exit, stdout: "text\n"})
		if len(o.Differs) > 0 != wrong {
			t.Errorf("exit %d: %q", exit, o.Differs)
		}
	}
	var o outcome
	o.file(ran{Argv: []string{"/x/ecc"}, Left: []string{"ecc (pid 7) holds /dev/nvidia0"}})
	if !slices.Equal(o.Differs, []string{"ecc has left ecc (pid 7) holds /dev/nvidia0"}) {
		t.Errorf("%q", o.Differs)
	}
}
