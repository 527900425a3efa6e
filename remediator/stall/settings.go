package stall

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	// maxExpression is the longest expression, in bytes.
	maxExpression = 256
	// maxInstructions and maxRunes bound what an expression is compiled to: `\pL` is three bytes and more than a thousand runes.
	maxInstructions, maxRunes = 500, 4000
	// stepGroup is the group of an expression that has the number of the step.
	stepGroup = "step"
)

// The bounds of the times that an annotation may name, and what holds without [conditions.AnnotationStartupGrace].
const (
	MinStalledAfter     = 2 * time.Minute
	MaxStalledAfter     = 24 * time.Hour
	DefaultStartupGrace = 30 * time.Minute
)

// Annotations are those of a job, or of its namespace, that say how to see that the job makes progress. They can be compared.
type Annotations struct {
	Progress, Pause, StalledAfter, StartupGrace string
	// Removed are the names of those that earlier versions have read, see [conditions.RemovedAnnotations].
	Removed string
}

// AnnotationsOf reads the annotations of an object. Only those with [conditions.AnnotationProgress] count.
func AnnotationsOf(all map[string]string) Annotations {
	removed := slices.DeleteFunc(slices.Clone(conditions.RemovedAnnotations), func(key string) bool { _, there := all[key]; return !there })
	return Annotations{
		all[conditions.AnnotationProgress], all[conditions.AnnotationProgressPause],
		all[conditions.AnnotationStalledAfter], all[conditions.AnnotationStartupGrace], strings.Join(removed, ", "),
	}
}

// OptIn reports whether they ask for the job to be followed.
func (a Annotations) OptIn() bool { return a.Progress != "" }

// Settings are how the progress of a job is seen.
type Settings struct {
	progress, pause *Expression
	// StalledAfter is how long no rank may make progress. StartupGrace is the same until the first step.
	StalledAfter, StartupGrace time.Duration
	// GraceNamed: the job itself names the grace, so a job that never prints a step is stalled after it.
	GraceNamed bool
}

// Parse reads the annotations. compile makes the expressions, [Compile] or a cache of it. An error names the annotation and its value.
func Parse(a Annotations, compile func(string) (*Expression, error)) (Settings, error) {
	var s Settings
	var err error
	if s.progress, err = compile(a.Progress); err != nil {
		return s, fmt.Errorf("annotation %s: %w", conditions.AnnotationProgress, err)
	}
	if a.Pause != "" {
		if s.pause, err = compile(a.Pause); err != nil {
			return s, fmt.Errorf("annotation %s: %w", conditions.AnnotationProgressPause, err)
		}
	}
	if s.StalledAfter, err = duration(conditions.AnnotationStalledAfter, a.StalledAfter); err != nil {
		return s, err
	}
	s.StartupGrace = max(DefaultStartupGrace, s.StalledAfter)
	if a.StartupGrace != "" {
		s.GraceNamed = true
		s.StartupGrace, err = duration(conditions.AnnotationStartupGrace, a.StartupGrace)
	}
	return s, err
}

func duration(key, value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < MinStalledAfter || d > MaxStalledAfter {
		return 0, fmt.Errorf("annotation %s: %.64q is no duration between %s and %s, such as 15m", key, value, MinStalledAfter, MaxStalledAfter)
	}
	return d, nil
}

// Expression is a compiled expression of bounded size.
type Expression struct {
	re *regexp.Regexp
	// step is the index of the group with the step; negative: there is none.
	step int
	// cost is how many instructions one byte may take: matching takes time proportional to the product.
	cost int
}

// Compile compiles an expression in the syntax of RE2. An error says why it is refused.
func Compile(text string) (*Expression, error) {
	if len(text) > maxExpression {
		return nil, fmt.Errorf("an expression of %d bytes; at most %d are allowed", len(text), maxExpression)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	// Before anything is built from it: 250 bytes such as (?:b?...){0,999} compile to 50 MiB.
	cost := sizeOf(parsed)
	cost.instructions += 2 // the match and the failure
	if cost.instructions > maxInstructions || cost.runes > maxRunes {
		return nil, fmt.Errorf("%q is too large: it compiles to %d instructions with %d characters; at most %d and %d are allowed",
			text, cost.instructions, cost.runes, maxInstructions, maxRunes)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	if re.MatchString("") {
		return nil, fmt.Errorf("%q matches every line", text)
	}
	return &Expression{re, re.SubexpIndex(stepGroup), cost.instructions}, nil
}

// size is what an expression compiles to, at most: runes are the characters and bounds of its character classes.
type size struct{ instructions, runes int }

// sizeOf bounds what an expression compiles to, without building it. A repeated part is compiled as often as it may repeat (regexp/syntax
// Simplify); what it contains is counted once. The parser allows no more than 1,000 repeats of a part, nested ones multiplied.
func sizeOf(re *syntax.Regexp) (s size) {
	for _, part := range re.Sub {
		inner := sizeOf(part)
		s.instructions += inner.instructions
		s.runes += inner.runes
	}
	switch re.Op {
	case syntax.OpLiteral:
		return size{len(re.Rune), len(re.Rune)}
	case syntax.OpCharClass:
		return size{1, len(re.Rune)}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return size{1, 4}
	case syntax.OpConcat:
	case syntax.OpAlternate:
		s.instructions += len(re.Sub)
	case syntax.OpStar:
		s.instructions++
		switch re.Sub[0].Op {
		case syntax.OpLiteral, syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		default: // a star over what may be empty is a plus in a question mark
			s.instructions++
		}
	case syntax.OpCapture:
		s.instructions += 2
	case syntax.OpRepeat:
		loops := 2
		if re.Max >= 0 {
			loops = re.Max - re.Min
		}
		times := max(re.Min, re.Max, 1)
		return size{s.instructions*times + loops, s.runes * times}
	default:
		s.instructions++
	}
	return s
}
