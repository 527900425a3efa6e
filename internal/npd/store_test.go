package npd

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

type counter struct {
	N int `json:"n"`
}

func add(t *testing.T, s *Store[counter], n int) int {
	t.Helper()
	state, err := s.Update(func(c *counter) bool { c.N += n; return true })
	if err != nil {
		t.Fatal(err)
	}
	return state.N
}

func TestStoreIsSharedByAllRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "dir", "c.json")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			s := &Store[counter]{Path: path, BootID: "boot"}
			for range 50 {
				add(t, s, 1)
			}
		})
	}
	all.Wait()
	if got := add(t, &Store[counter]{Path: path, BootID: "boot"}, 0); got != 400 {
		t.Errorf("%d of 400 updates arrived", got)
	}
}

func TestStoreBelongsToOneBoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.json")
	add(t, &Store[counter]{Path: path, BootID: "old"}, 7)
	if got := add(t, &Store[counter]{Path: path, BootID: "new"}, 1); got != 1 {
		t.Errorf("state of another boot was used: %d", got)
	}
}

func TestStoreKeepsWhatItDoesNotUnderstandAside(t *testing.T) {
	for name, content := range map[string]string{
		"half written":  `{"v":1,"bootID":"boot","state":{"n":`,
		"foreign":       `{"hello":"world"}`,
		"later version": `{"v":2,"bootID":"boot","state":{"n":7}}`,
		"empty":         "",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.json")
			write(t, path, content)
			if got := add(t, &Store[counter]{Path: path, BootID: "boot"}, 1); got != 1 {
				t.Errorf("counted to %d, want a fresh start", got)
			}
			if aside, err := os.ReadFile(path + ".corrupt"); err != nil || string(aside) != content {
				t.Errorf("kept aside: %q, %v", aside, err)
			}
		})
	}
}

// A run that is killed between its write and the rename leaves a part of a file behind.
func TestStoreKeepsNothingOfARunThatWasKilled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.json")
	write(t, filepath.Join(dir, ".c.json.new"), `{"v":1,"bootID":"boot","state":{"n":70000000}} and more that is longer`)
	add(t, &Store[counter]{Path: path, BootID: "boot"}, 1)
	if got := add(t, &Store[counter]{Path: path, BootID: "boot"}, 1); got != 2 {
		t.Errorf("counted to %d, want 2", got)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range left {
		if name := file.Name(); name != "c.json" && name != "c.json.lock" {
			t.Errorf("%s is left", name)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestStoreGoesOnInMemory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	s := &Store[counter]{Path: filepath.Join(file, "c.json"), BootID: "boot"}
	for want := 1; want <= 3; want++ {
		state, err := s.Update(func(c *counter) bool { c.N++; return true })
		if err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("error %v does not name %s", err, file)
		}
		if state.N != want {
			t.Errorf("counted to %d, want %d", state.N, want)
		}
	}
}

func TestWhatLastsKeepsItsTime(t *testing.T) {
	type fault struct {
		Name  string
		Since time.Duration
	}
	path := filepath.Join(t.TempDir(), "l.json")
	look := func(at time.Duration, p *Plugin, names ...string) (since string) {
		var now []fault
		for _, name := range names {
			now = append(now, fault{name, at})
		}
		// Each look is a run of its own.
		err := Lasting(&Store[[]fault]{Path: path, BootID: "boot"}, p, now,
			func(b, f fault) bool { return b.Name == f.Name }, func(f *fault) *time.Duration { return &f.Since })
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range now {
			since += f.Name + " " + f.Since.String() + ", "
		}
		return since
	}
	check, dump := &Plugin{}, &Plugin{dump: true}
	for _, test := range []struct{ got, want string }{
		{look(1, check, "a"), "a 1ns, "},
		{look(2, check, "a", "b"), "a 1ns, b 2ns, "},
		{look(3, dump, "b", "c"), "b 2ns, c 3ns, "},
		{look(4, check, "a", "c"), "a 1ns, c 4ns, "},
		{look(5, check), ""},
		{look(6, check, "a"), "a 6ns, "},
		{look(2, check, "a"), "a 2ns, "}, // what is said of the future
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
