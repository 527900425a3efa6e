package components

import (
	"bufio"
	_ "embed"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

//go:embed test-seconds.txt
var testSeconds string

// usualSeconds is the weight of a package of tests that is not in the table: most of it is linking.
const usualSeconds = 1

// Tests copies the output of gotestsum from in to out. Before it, it writes how many packages of tests there are and about how long they take
// on this machine; to the line of each package that has ended it adds how many have, and about how long the others take. packages are import
// paths, in the order in which they begin; atOnce of them run side by side. Their weights are seconds of a core of the machine of [perByte], from
// the table test-seconds.txt. It returns an error if tests may not have run although gotestsum takes their package for passed.
func Tests(in io.Reader, out io.Writer, atOnce int, packages []string) error {
	weights, err := testWeights(testSeconds)
	if err != nil {
		return err
	}
	e := &estimate{
		out: out, now: time.Now, left: map[string]cost{}, order: packages, atOnce: atOnce,
		prior: perWeight(slowness(), atOnce, runtime.NumCPU()),
	}
	for _, p := range packages {
		weight, found := weights[p]
		if !found {
			weight = usualSeconds
		}
		e.left[p] = weight
		e.total += weight
	}
	return e.copyTests(in)
}

// perWeight is about how long tests take for each second of their weights. Packages that run one by one leave the other cores idle.
func perWeight(slowness float64, atOnce, cores int) time.Duration {
	return time.Duration(float64(time.Second) * slowness / float64(max(1, min(atOnce, cores))))
}

// ended is the line of a package of tests: ok, FAIL or, without tests, a question mark; and how long they took, unless they are of the cache.
var ended = regexp.MustCompile(`^(ok|FAIL|\?)\s+(\S+)\s+([0-9.]+s)?`)

// gaps are the stretches of time in which none of the packages that have ended was tested: on a first run they are compiled then, for minutes.
// How long the others take does not follow from that.
type gaps []stretch

type stretch struct{ from, to time.Time }

// shortestGap is longer than a linker takes.
const shortestGap = 30 * time.Second

// tested takes that a package has been tested since then until now. Before it, the last one that ended did so at lastEnd.
func (g gaps) tested(lastEnd, since time.Time) gaps {
	var left gaps
	for _, gap := range append(g, stretch{lastEnd, since}) {
		if gap.to.After(since) {
			gap.to = since
		}
		if gap.to.Sub(gap.from) >= shortestGap {
			left = append(left, gap)
		}
	}
	return left
}

func (g gaps) sum() (all time.Duration) {
	for _, gap := range g {
		all += gap.to.Sub(gap.from)
	}
	return all
}

func (e *estimate) copyTests(in io.Reader) error {
	count := len(e.left)
	e.begun = e.now()
	e.reported = e.begun
	e.printf("%d packages of tests; about %s on this machine (%d cores), and on a first run the time to compile them\n",
		count, about(e.remaining()), runtime.NumCPU())
	lines := bufio.NewReader(in)
	var net safetyNet
	for {
		line, err := lines.ReadString('\n')
		match := ended.FindStringSubmatch(line)
		net.read(strings.TrimSpace(line), match)
		if match != nil {
			if weight, found := e.left[match[2]]; found {
				delete(e.left, match[2])
				e.done += weight
				e.longest = max(e.longest, weight)
				took, _ := time.ParseDuration(match[3]) // that of the cache took none
				now := e.now()
				e.gaps = e.gaps.tested(e.reported, now.Add(-took))
				e.reported = now
				line = fmt.Sprintf("%s\t%d of %d%s\n", strings.TrimRight(line, "\n"), count-len(e.left), count, e.othersText())
			}
		}
		e.printf("%s", line)
		if err == io.EOF {
			return net.err()
		}
		if err != nil {
			return fmt.Errorf("read the output of the tests: %w", err)
		}
	}
}

// safetyNet finds the packages whose tests did not all run. gotestsum takes such a package for passed if the second run of its failed tests
// passes, but the tests that had not begun when the process ended are in neither run.
type safetyNet struct {
	failed map[string]bool
	// died are packages and tests, as gotestsum prints them.
	died []string
}

// read takes a line, and what [ended] finds in it.
func (s *safetyNet) read(line string, match []string) {
	// A test that had not ended when its process did.
	if test, found := strings.CutPrefix(line, "=== FAIL: "); found && strings.HasSuffix(line, "(unknown)") {
		s.died = append(s.died, strings.TrimSuffix(test, " (unknown)"))
	}
	switch {
	case match == nil:
	case match[1] == "FAIL":
		if s.failed == nil {
			s.failed = map[string]bool{}
		}
		s.failed[match[2]] = true
	case s.failed[match[2]] && strings.HasSuffix(line, "[no tests to run]"): // no test had failed, so the second run had none
		s.died = append(s.died, match[2])
	}
}

func (s *safetyNet) err() error {
	if len(s.died) == 0 {
		return nil
	}
	return fmt.Errorf("a process of tests ended before its tests did, so some may not have run: %s", strings.Join(s.died, ", "))
}

func (e *estimate) othersText() string {
	if len(e.left) == 0 {
		return ""
	}
	return fmt.Sprintf(", about %s left", about(e.remaining()))
}

// testWeights reads a table with an import path and seconds in each line.
func testWeights(table string) (map[string]cost, error) {
	weights := map[string]cost{}
	for line := range strings.Lines(table) {
		path, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		seconds, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("test-seconds.txt: %q: %w", line, err)
		}
		weights[path] = cost(max(seconds, 1))
	}
	return weights, nil
}
