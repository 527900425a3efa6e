// Package goldentest keeps what a version has written into a cluster, so that every later one is tested to read it.
package goldentest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// folder is that of the goldens, as seen from a package of the remediator.
func folder() string {
	const near = "../testdata/19f658c"
	if _, err := os.Stat(near); err != nil {
		return filepath.Join("..", near)
	}
	return near
}

var (
	keep = flag.Bool("keep", false, "write goldens that do not exist; one that exists is never changed")
	into = flag.String("into", "", "make all goldens anew in this `folder` and compare nothing, see e2e/upgrade")
)

// Read returns the golden of a name. With -keep one that does not exist is made and written first, with -into each one is made anew.
func Read[T any](t *testing.T, name string, made func(*testing.T) T) T {
	t.Helper()
	path := filepath.Join(folder(), name+".json")
	text, err := os.ReadFile(path)
	if *into != "" {
		path, err = filepath.Join(*into, name+".json"), fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) && (*keep || *into != "") {
		text = encode(t, made(t))
		write(t, path, text)
	} else if err != nil {
		t.Fatal(err)
	}
	var v T
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return v
}

// Answer compares what was decided about a golden with the answer that was kept beside it.
func Answer(t *testing.T, name string, got any) {
	t.Helper()
	if *into != "" {
		return
	}
	path := filepath.Join(folder(), name+".answer.json")
	text := encode(t, got)
	want, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && *keep {
		write(t, path, text)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)); diff != "" {
		t.Errorf("%s (- kept, + now):\n%s", path, diff)
	}
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
