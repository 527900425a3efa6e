package main

import (
	"os"
	"strings"
	"testing"
)

// A program that has ended uses no memory and no CPU. That is no result.
func TestAProgramThatHasEndedIsNoResult(t *testing.T) {
	v := &variant{dir: t.TempDir(), group: t.TempDir(), args: []string{"sh", "-c", "echo begins; echo 'address in use' >&2; exit 3"}}
	v.inits = v.dir + "/inits"
	if err := os.WriteFile(v.inits, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := v.start(); err != nil {
		t.Fatal(err)
	}
	<-v.ended
	for name, measure := range map[string]func() error{"begin": v.begin, "sample": v.sample, "end": func() error { return v.end(1) }} {
		if err := measure(); err == nil || !strings.Contains(err.Error(), `exit status 3), its last line is "address in use"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := v.close(); err != nil {
		t.Error(err)
	}
	v = &variant{dir: t.TempDir(), group: t.TempDir(), inits: v.inits, args: []string{"sleep", "infinity"}}
	if err := v.start(); err != nil {
		t.Fatal(err)
	}
	if err := v.sample(); err != nil {
		t.Error(err)
	}
	if err := v.process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := v.close(); err != nil {
		t.Error(err)
	}
}
