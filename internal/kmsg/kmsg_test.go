package kmsg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		line string
		want Record
	}{
		"kernel record": {
			"3,1234,5000007,-;NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.\n",
			Record{Severity: 3, Seq: 1234, Time: 5000007 * time.Microsecond, Body: "NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus."},
		},
		"user record keeps its facility": {
			"12,7,1,-;hello", Record{Facility: 1, Severity: 4, Seq: 7, Time: time.Microsecond, Body: "hello"},
		},
		"more header fields": {
			"6,9,0,c,caller=T42,later=x;body; with a semicolon", Record{Severity: 6, Seq: 9, Body: "body; with a semicolon"},
		},
		"several lines in one record": {
			`4,1,0,-;one\x0atwo \x5cx0a three`, Record{Severity: 4, Seq: 1, Body: "one\ntwo \\x0a three"},
		},
		"broken escapes stay": {`4,1,0,-;a\x\xg1\x4`, Record{Severity: 4, Seq: 1, Body: `a\x\xg1\x4`}},
		"empty body":          {"4,1,0,-;", Record{Severity: 4, Seq: 1}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(test.line)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, line := range []string{"", ";", "3,1,2;x", "3,1,2,-", "a,1,2,-;x", "3,-1,2,-;x", "3,1,2.5,-;x", "NVRM: Xid (PCI:0000:4e:00): 79"} {
		if rec, err := Parse(line); !errors.Is(err, ErrMalformed) {
			t.Errorf("Parse(%q) = %+v, %v, want ErrMalformed", line, rec, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("3,1234,5000007,-,caller=T1;NVRM: Xid\\x0a (PCI:0000:4e:00): 79")
	f.Fuzz(func(t *testing.T, line string) {
		rec, err := Parse(line)
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Fatal(err)
		}
		if rec.Severity < 0 || rec.Severity > 7 || rec.Facility < 0 || rec.Time < 0 || len(rec.Body) > len(line) {
			t.Fatalf("%+v", rec)
		}
	})
}

// drain reads all that is there and returns the bodies; malformed lines appear as "!".
func drain(t *testing.T, r *Reader) []string {
	t.Helper()
	var bodies []string
	for {
		rec, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return bodies
		case errors.Is(err, ErrMalformed):
			bodies = append(bodies, "!")
		case err != nil:
			t.Fatal(err)
		default:
			bodies = append(bodies, rec.Body)
		}
	}
}

func open(t *testing.T, path string, next uint64) *Reader {
	t.Helper()
	r, err := Open(path, next)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestReaderOnAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	text := "6,0,1,-;zero\n SUBSYSTEM=pci\n DEVICE=+pci:0000:4e:00.0\ngarbage\n6,1,2,-;one\n6,5,3,-;five\n6,6,4,-;half writ"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	r := open(t, path, 0)
	if diff := cmp.Diff([]string{"zero", "!", "one", "five"}, drain(t, r)); diff != "" {
		t.Error(diff)
	}
	if r.Lost() != 3 || r.Seq() != 6 {
		t.Errorf("lost %d, next %d; want 3 lost (2, 3, 4) and 6 next", r.Lost(), r.Seq())
	}

	later := open(t, path, 1)
	if diff := cmp.Diff([]string{"!", "one", "five"}, drain(t, later)); diff != "" {
		t.Error("from sequence number 1:", diff)
	}
}

func TestReaderOnAFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(t, path, 0)
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if got := drain(t, r); got != nil {
		t.Fatalf("empty FIFO gave %q", got)
	}

	waited := make(chan error, 1)
	go func() { waited <- r.Wait(context.Background()) }()
	fmt.Fprint(w, "6,0,1,-;zero\n6,1,")
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"zero"}, drain(t, r)); diff != "" {
		t.Error(diff)
	}
	fmt.Fprint(w, "2,-;one\n")
	if diff := cmp.Diff([]string{"one"}, drain(t, r)); diff != "" {
		t.Error("the second half of a line:", diff)
	}

	ctx, cancel := context.WithCancel(context.Background())
	go func() { waited <- r.Wait(ctx) }()
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Errorf("Wait after cancel = %v", err)
	}
	fmt.Fprint(w, "6,2,3,-;two\n")
	if err := r.Wait(context.Background()); err != nil {
		t.Errorf("Wait after a cancelled Wait = %v", err)
	}
	if diff := cmp.Diff([]string{"two"}, drain(t, r)); diff != "" {
		t.Error(diff)
	}
}

func TestReaderDropsAnEndlessLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 20*maxRecord)+"\n6,0,1,-;zero\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := drain(t, open(t, path, 0))
	if len(got) == 0 || got[len(got)-1] != "zero" {
		t.Errorf("got %q, want the record after the endless line", got)
	}
}

func TestOpenNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent")
	if _, err := Open(path, 0); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("Open = %v", err)
	}
}

// The tests below write to this machine's kernel log, with a text that no other test and no check looks for.

func kernelLog(t *testing.T) *os.File {
	t.Helper()
	w, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Fatalf("these tests need root and /dev/kmsg: %v", err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func TestReaderOnTheKernelLog(t *testing.T) {
	w := kernelLog(t)
	r := open(t, "/dev/kmsg", 0)
	drain(t, r)
	marker := fmt.Sprintf("pitcrew test %d", time.Now().UnixNano())
	fmt.Fprintf(w, "<5>%s one\ntwo\n", marker)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		if err := r.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		rec, err := r.Next()
		if err != nil || !strings.HasPrefix(rec.Body, marker) {
			continue
		}
		if rec.Facility == 0 {
			t.Error("a user's record has the kernel's facility")
		}
		if want := marker + " one\ntwo"; rec.Body != want {
			t.Errorf("body %q, want %q", rec.Body, want)
		}
		return
	}
}

func TestReaderSurvivesAnOverrun(t *testing.T) {
	kernelLog(t)
	r := open(t, "/dev/kmsg", 0)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	behind, before := r.Seq(), r.Lost()
	for i := 0; r.Lost() == before; i++ {
		if i > 200 {
			t.Fatal("200 floods of the ring and no overrun")
		}
		// A new file for each batch: printk_devkmsg limits the records of one open file.
		for range 200 {
			w := kernelLog(t)
			for range 9 {
				fmt.Fprintln(w, "<7>pitcrew flood "+strings.Repeat("x", 900))
			}
			w.Close()
		}
		if i%5 == 4 {
			drain(t, r)
		}
	}
	marker := fmt.Sprintf("pitcrew after the flood %d", time.Now().UnixNano())
	fmt.Fprintln(kernelLog(t), marker)
	bodies := drain(t, r)
	if !slices.Contains(bodies, marker) { // others may write to the log, too
		t.Errorf("the record after the overrun is missing; %d records read, %d lost", len(bodies), r.Lost())
	}
	if lost, written := r.Lost()-before, r.Seq()-behind; lost >= written {
		t.Errorf("lost %d of %d records", lost, written)
	}
}
