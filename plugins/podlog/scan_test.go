package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	at := time.Date(2026, 11, 20, 14, 0, 0, 1, time.UTC)
	tests := map[string]struct {
		line string
		want record
	}{
		"whole":           {"2026-11-20T14:00:00.000000001Z stdout F a b", record{at, stdout, false, []byte("a b")}},
		"part":            {"2026-11-20T14:00:00.000000001Z stderr P a ", record{at, stderr, true, []byte("a ")}},
		"more tags":       {"2026-11-20T14:00:00.000000001Z stderr P:x:y a", record{at, stderr, true, []byte("a")}},
		"local time":      {"2026-11-20T22:00:00.000000001+08:00 stdout F a", record{at, stdout, false, []byte("a")}},
		"empty text":      {"2026-11-20T14:00:00.000000001Z stdout F ", record{at, stdout, false, []byte{}}},
		"nothing behind":  {"2026-11-20T14:00:00.000000001Z stdout F", record{at, stdout, false, nil}},
		"an unknown tag":  {"2026-11-20T14:00:00.000000001Z stdout X a", record{at, stdout, false, []byte("a")}},
		"spaces are text": {"2026-11-20T14:00:00.000000001Z stdout F  a", record{at, stdout, false, []byte(" a")}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := parse([]byte(test.line))
			got.at = got.at.UTC()
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(record{})); !ok || diff != "" {
				t.Error(ok, diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, line := range []string{
		"", " ", "a", "2026-11-20T14:00:00Z", "2026-11-20T14:00:00Z stdout", "2026-11-20T14:00:00Z stdout  a",
		"2026-11-20T14:00:00Z stdin F a", "2026-11-20 14:00:00 stdout F a", "2026-11-20T14:00:00Z stdout :F a",
		`{"log":"a\n","stream":"stdout","time":"2026-11-20T14:00:00Z"}`, "2026-11-20T14:00:00Z  stdout F a",
	} {
		if r, ok := parse([]byte(line)); ok {
			t.Errorf("%q: %+v", line, r)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("2026-11-20T14:00:00.000000001Z stdout F a b"))
	f.Add([]byte("2026-11-20T22:00:00+08:00 stderr P:x "))
	f.Add([]byte("2026-11-20T14:00:00Z stdout F"))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, ok := parse(line)
		if !ok {
			return
		}
		if !bytes.HasSuffix(line, r.text) {
			t.Fatalf("%q is not the end of %q", r.text, line)
		}
		tag := map[bool]string{false: "F", true: "P"}[r.partial]
		again := fmt.Appendf(nil, "%s %s %s %s", r.at.Format(time.RFC3339Nano), [...]string{"stdout", "stderr"}[r.stream], tag, r.text)
		back, ok := parse(again)
		if !ok || !back.at.Equal(r.at) || back.stream != r.stream || back.partial != r.partial || !bytes.Equal(back.text, r.text) {
			t.Fatalf("%q is %+v, but %q is %+v", line, r, again, back)
		}
		// The prefilter must not skip it: a part is not a complete line.
		if r.partial && !bytes.Contains(line, partials[r.stream]) {
			t.Fatalf("%q holds none of %q", line, partials)
		}
	})
}

func TestFinderFindsTheFirstOfAnyLiteral(t *testing.T) {
	f := newFinder([][]byte{[]byte("NCCL error"), []byte("GPU is lost"), []byte("ncclRemoteError")})
	for text, want := range map[string]int{
		"":                              -1,
		"NCCL erro":                     -1,
		"NCCL error":                    0,
		"x NCCL error, GPU is lost":     2,
		"GPU is lo, ncclRemoteError":    11,
		"NCCL NCCL error":               5,
		"ncclRemoteErro":                0, // no more than the window is compared
		strings.Repeat("NCCLerror ", 9): -1,
	} {
		if got := f.next([]byte(text)); got != want {
			t.Errorf("%q: at %d, want %d", text, got, want)
		}
	}
	if got := newFinder([][]byte{[]byte("abbb")}).next([]byte("aabbb")); got != 1 {
		t.Errorf("behind one that is not whole: at %d, want 1", got)
	}
}

func FuzzFinder(f *testing.F) {
	f.Add([]byte("the GPU is lost"), []byte("GPU is lost"), []byte("aaaa"))
	f.Add([]byte("aaaaaaab"), []byte("aab"), []byte("ab"))
	f.Fuzz(func(t *testing.T, text, a, b []byte) {
		if len(a) < 2 || len(b) < 2 || len(a) > 200 || len(b) > 200 {
			return
		}
		window := min(len(a), len(b))
		want := -1
		for _, l := range [][]byte{a[:window], b[:window]} {
			if at := bytes.Index(text, l); at >= 0 && (want < 0 || at < want) {
				want = at
			}
		}
		if got := newFinder([][]byte{a, b}).next(text); got != want {
			t.Fatalf("%q or %q in %q: at %d, want %d", a, b, text, got, want)
		}
	})
}

// scanAll scans a whole log and returns what the scanner reports, as text.
func scanAll(patterns []pattern, log string) (found []string, s scanner) {
	s = newScanner(patterns)
	s.report = func(m match, _ time.Time, end int64) { found = append(found, fmt.Sprintf("%s %d", m.pattern, end)) }
	s.scan([]byte(log), 0)
	return found, s
}

// lines makes a log of texts; `P ` before a text makes it a part, `out ` another stream.
func lines(texts ...string) string {
	var b strings.Builder
	for _, text := range texts {
		rest, out := strings.CutPrefix(text, "out ")
		rest, partial := strings.CutPrefix(rest, "P ")
		stream, tag := "stderr", "F"
		if out {
			stream = "stdout"
		}
		if partial {
			tag = "P"
		}
		fmt.Fprintf(&b, "2026-11-20T14:00:00Z %s %s %s\n", stream, tag, rest)
	}
	return b.String()
}

func TestScanJoinsParts(t *testing.T) {
	patterns := mustPatterns(t)
	for name, test := range map[string]struct {
		log  string
		want []string
	}{
		"cut in the text":           {lines("P GPU is", " lost"), []string{"gpu-lost"}},
		"cut twice":                 {lines("P GPU", "P  is", " lost"), []string{"gpu-lost"}},
		"cut before it":             {lines("P x ", "GPU is lost"), []string{"gpu-lost"}},
		"cut behind it":             {lines("P GPU is lost", "x"), []string{"gpu-lost"}},
		"an end without text":       {lines("P GPU is lost", ""), []string{"gpu-lost"}},
		"a start without text":      {lines("P ", "GPU is lost"), []string{"gpu-lost"}},
		"streams do not mix":        {lines("P GPU is", "out  lost", " gone"), nil},
		"streams beside each other": {lines("P GPU is", "out P NCCL", " lost", "out  error"), []string{"gpu-lost", "nccl-error"}},
		"another line between":      {lines("P GPU is", "out GPU is lost", " lost"), []string{"gpu-lost", "gpu-lost"}},
		"whole lines do not mix":    {lines("GPU is", " lost"), nil},
		"one line, one finding":     {lines("GPU is lost, uncorrectable ECC error"), []string{"cuda-ecc"}},
		"the end is not there yet":  {lines("P GPU is lost"), nil},
		"damage between":            {lines("P GPU is") + "damage\n" + lines(" lost"), []string{"gpu-lost"}},
	} {
		t.Run(name, func(t *testing.T) {
			found, _ := scanAll(patterns, test.log)
			for i := range found {
				found[i], _, _ = strings.Cut(found[i], " ")
			}
			if diff := cmp.Diff(test.want, found); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestALineWithoutEndIsMatchedInPieces(t *testing.T) {
	part := lines("P " + strings.Repeat("x", 1000))
	log := lines("P GPU is lost") + strings.Repeat(part, 2*maxJoined/len(part))
	found, s := scanAll(mustPatterns(t), log)
	if len(found) != 1 {
		t.Errorf("found %q", found)
	}
	if open := len(s.open[stderr].text); open > maxJoined {
		t.Errorf("%d bytes are kept", open)
	}
	// The same beside another stream that goes on.
	found, s = scanAll(mustPatterns(t), lines("out P GPU is lost")+strings.Repeat(lines("P x", "y"), maxJoined/50))
	if len(found) != 1 || s.resume(1<<40) != 1<<40 {
		t.Errorf("found %q, resume at %d", found, s.resume(1<<40))
	}
}

// FuzzScan compares the scanner, which skips most lines, with one that checks each line.
func FuzzScan(f *testing.F) {
	f.Add("GPU is lost", "P GPU is", "out P NCCL", " lost")
	f.Add("P ", "out NCCL error", "", "NVRM: Xid (x): 79, GPU is lost")
	f.Add("a\nb\n", "2026-11-20T14:00:00Z stdout P GPU is", " lost", "stdout P stderr P")
	patterns, err := loadPatterns("")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		log := lines(a, b, c, d, c, b, a)
		found, _ := scanAll(patterns, log)
		var want []string
		var open [streams][]byte
		end := 0
		for line := range strings.Lines(log) {
			end += len(line)
			r, ok := parse([]byte(strings.TrimSuffix(line, "\n")))
			if !ok {
				continue
			}
			open[r.stream] = append(open[r.stream], r.text...)
			if r.partial {
				continue
			}
			if m, ok := find(patterns, open[r.stream]); ok {
				want = append(want, fmt.Sprintf("%s %d", m.pattern, end))
			}
			open[r.stream] = nil
		}
		if !slices.Equal(found, want) {
			t.Fatalf("%q:\nfound %q\nwant  %q", log, found, want)
		}
	})
}
