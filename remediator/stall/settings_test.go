package stall

import (
	"math/rand/v2"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"
)

// compiled is what [sizeOf] bounds, by building it.
func compiled(t testing.TB, text string) size {
	t.Helper()
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		t.Fatal(err)
	}
	s := size{instructions: len(program.Inst)}
	for i := range program.Inst {
		s.runes += len(program.Inst[i].Rune)
	}
	return s
}

func TestTheSizeIsKnownBeforeAnythingIsBuilt(t *testing.T) {
	parts := []string{`a`, `step`, `\d+`, `[a-f]`, `.*`, `(?P<step>\d+)`, `(x|y|zz)`, `^`, `$`, `\b`, `(?i:Epoch)`, `é`, `\pL`, `(?:)`, `[^x]`, `a|b|`}
	repeats := []string{``, `?`, `*`, `+`, `{3}`, `{2,5}`, `{4,}`, `{0,7}`, `{0}`, `??`}
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		text := ""
		for range 1 + random.IntN(4) {
			inner := "(?:" + parts[random.IntN(len(parts))] + parts[random.IntN(len(parts))] + ")" + repeats[random.IntN(len(repeats))]
			text += "(?:" + inner + ")" + repeats[random.IntN(len(repeats))]
		}
		parsed, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			continue
		}
		bound, is := sizeOf(parsed), compiled(t, text)
		bound.instructions += 2
		if bound.instructions < is.instructions || bound.runes < is.runes {
			t.Errorf("%q compiles to %+v, the bound is %+v", text, is, bound)
		}
	}
}

func TestNoRefusedExpressionCostsMemory(t *testing.T) {
	for _, text := range []string{
		`(?:` + strings.Repeat(`b?`, 118) + `){0,999}`, `(?:(?:(?:a{9}){9}){9}){1,}`, strings.Repeat(`(?:`, 20) + `a` + strings.Repeat(`?){10}`, 2) + strings.Repeat(`)`, 18),
		strings.Repeat(`\pL`, 85), `(?i)` + strings.Repeat(`\pL`, 83), `[` + strings.Repeat(`\pL`, 84) + `]{500}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Compile(text)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 2<<20 {
			t.Errorf("%.40q allocated %d KiB, %v", text, used>>10, err)
		}
	}
}
