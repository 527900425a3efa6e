package status

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestTheScreenIsDrawnInPlace(t *testing.T) {
	var out strings.Builder
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	s := screen{out: &out, size: func() (int, int, error) { return 80, 5, nil }}
	s.show(now, []byte("a\nb\n"), nil)
	if want := "\x1b[H\x1b[?7l12:00:00\x1b[K\r\na\x1b[K\r\nb\x1b[K\x1b[J\x1b[?7h"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	s.show(now, nil, errors.New("connection\nrefused"))
	for _, want := range []string{"ERROR at 12:00:00, trying again: connection refused", "\r\na"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
	out.Reset()
	s.show(now, []byte("1\n2\n3\n4\n5\n6\n"), nil)
	if lines := strings.Split(out.String(), "\r\n"); len(lines) != 5 || !strings.HasPrefix(lines[4], "... 3 lines more") {
		t.Errorf("%q", lines)
	}
}

func TestWithoutATerminalOnlyChangesArePrinted(t *testing.T) {
	var out strings.Builder
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	s := screen{out: &out}
	for _, text := range []string{"renewed 2s ago", "renewed 4s ago", "quarantined 1h5m"} {
		s.show(now, []byte(text+"\n"), nil)
	}
	for range 2 {
		s.show(now, nil, errors.New("connection refused"))
	}
	s.show(now, []byte("quarantined 1h5m\n"), nil)
	const want = "12:00:00\nrenewed 2s ago\n\n12:00:00\nquarantined 1h5m\n\n12:00:00\nERROR at 12:00:00, trying again: connection refused\n\n12:00:00\nquarantined 1h5m\n\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
