package main

import (
	"os"
	"testing"
)

func TestNewer(t *testing.T) {
	for _, v := range []struct {
		a, b string
		want bool
	}{
		{"2.34", "2.36", false}, {"2.36", "2.36", false}, {"2.100", "2.36", true}, {"2.3.4", "2.3", true}, {"2.2.5", "2.34", false},
		{"PRIVATE", "2.0", false},
	} {
		if got := newer(v.a, v.b); got != v.want {
			t.Errorf("%s newer than %s: %v", v.a, v.b, got)
		}
	}
}

func TestGlibcOfAProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The test may be static.
	for _, program := range []string{self, "/bin/sh"} {
		if got, err := glibc([]string{program}); err != nil || newer("2.0", got) {
			t.Errorf("%s: %q, %v", program, got, err)
		}
	}
	if got, err := glibc([]string{"main.go"}); err == nil {
		t.Errorf("a file that is no program needs glibc %s", got)
	}
}
