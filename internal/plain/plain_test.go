package plain_test

import (
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/plain"
)

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"gpu-1: Ürün 温度 🙂":   "gpu-1: Ürün 温度 🙂",
		"a\tb\nc\u2028d":     "a b c d",
		"\x1b[2J\u009b\x7f":  "\uFFFD[2J\uFFFD\uFFFD",
		"a\u202eb\u200bc":    "a\uFFFDb\uFFFDc",
		"a\u3164\ufe0fb\xff": "a\uFFFD\uFFFDb\uFFFD",
		"\U000e0041\u00ad":   "\uFFFD\uFFFD",
	} {
		if got := plain.Line(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := plain.Lines("a\tb\n\u202ec\n"); got != "a b\n\uFFFDc\n" {
		t.Errorf("lines: %q", got)
	}
}
