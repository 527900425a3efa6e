package stall

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var start = time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)

var asked = Asked{Lines: 200, Bytes: 128 << 10}

// settings are those of a job that prints its steps, and that it saves its state.
func settings(t testing.TB, change ...func(*Annotations)) Settings {
	t.Helper()
	a := Annotations{Progress: `step[ =](?P<step>\d+)`, Pause: `saving checkpoint|evaluating`, StalledAfter: "15m"}
	for _, f := range change {
		f(&a)
	}
	s, err := Parse(a, Compile)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// node is a rank and the node under it: a log that is rotated, and a clock that may be wrong.
type node struct {
	pod   Pod
	skew  time.Duration
	lines []string
	dead  bool
}

// world is a job under test and the follower of it.
type world struct {
	testing.TB
	now   time.Time
	s     Settings
	nodes []*node
	job   Job
	asked Asked
	reads int
	lists int
	v     Verdict
}

func newWorld(t testing.TB, ranks int, change ...func(*Annotations)) *world {
	w := &world{TB: t, now: start, s: settings(t, change...), asked: asked}
	for i := range ranks {
		w.nodes = append(w.nodes, &node{pod: Pod{
			Name: fmt.Sprintf("train-%d", i), Node: fmt.Sprintf("node-%d", i), Container: "main", UID: types.UID(fmt.Sprintf("uid-%d", i)),
			Running: true, StartedAt: start, ClockTrusted: true,
		}})
	}
	return w
}

// skewed sets the clock of the node of a rank.
func (w *world) skewed(i int, by time.Duration) {
	n := w.nodes[i]
	n.skew = by
	n.pod.StartedAt = start.Add(by)
	n.pod.ClockTrusted = by > -30*time.Second
}

// print has ranks print a line; none: all.
func (w *world) print(text string, ranks ...int) {
	for i, n := range w.nodes {
		if len(ranks) == 0 || slices.Contains(ranks, i) {
			n.lines = append(n.lines, w.now.Add(n.skew).Format(time.RFC3339Nano)+" "+text+"\n")
		}
	}
}

// log is what a kubelet answers.
func (n *node) log(asked Asked) []byte {
	text := strings.Join(n.lines[max(0, len(n.lines)-asked.Lines):], "")
	return []byte(text[:min(len(text), asked.Bytes)])
}

// look takes one look at the job, as the controller does.
func (w *world) look() Verdict {
	w.Helper()
	if w.job.NeedsPods(w.s, w.now) {
		w.lists++
		w.list(true)
	}
	for _, l := range w.job.Wanted(w.s, w.now) {
		w.reads++
		n := w.nodes[l.Rank]
		if n.dead {
			w.job.Failed(l.Rank, "dead", w.now)
			continue
		}
		text := n.log(w.asked)
		seen := Read(text, w.asked, w.s, l.Anchor)
		if seen.Missed() {
			more := Asked{Lines: 20 * w.asked.Lines, Bytes: 8 * w.asked.Bytes}
			seen = Read(n.log(more), more, w.s, l.Anchor)
		}
		w.job.Answer(l.Rank, seen, w.now)
	}
	w.v = w.job.Judge(w.s, w.now)
	return w.v
}

func (w *world) list(complete bool) {
	var pods []Pod
	for _, n := range w.nodes {
		pods = append(pods, n.pod)
	}
	w.job.Observe(pods, complete, w.now)
}

// until looks, when the judge says so, until some time has passed or the job is in a state.
func (w *world) until(d time.Duration, states ...State) Verdict {
	w.Helper()
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(w.v.Next) {
		if v := w.look(); slices.Contains(states, v.State) {
			return v
		}
	}
	return w.look()
}

// steps prints a step in each minute, and looks.
func (w *world) steps(from, n int) {
	w.Helper()
	for i := range n {
		w.print(fmt.Sprintf("step %d loss 0.1", from+i))
		w.now = w.now.Add(time.Minute)
		if v := w.look(); v.State != Running {
			w.Fatalf("step %d: %+v", from+i, v)
		}
	}
}

func TestNamesTheRankThatStopped(t *testing.T) {
	w := newWorld(t, 64)
	w.steps(1100, 100)
	w.print("step 1200", 37)
	w.print("step 1201", slices.DeleteFunc(seq(64), func(i int) bool { return i == 37 })...)
	stopped := w.now
	v := w.until(time.Hour, Stalled)
	if v.State != Stalled || !slices.Equal(v.Behind, []int{37}) || v.Step != 1201 {
		t.Fatalf("%+v", v)
	}
	if took := w.now.Sub(stopped); took > 16*time.Minute {
		t.Errorf("found after %s", took)
	}
	if r := w.job.Ranks()[37]; *r.Step != 1200 || r.Node != "node-37" {
		t.Errorf("%+v", r)
	}
}

func seq(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func TestCalmReadsOneLog(t *testing.T) {
	w := newWorld(t, 64)
	w.steps(0, 60)
	if w.reads != 60 {
		t.Errorf("%d reads in an hour", w.reads)
	}
}

func TestReportedJobIsReadLessOften(t *testing.T) {
	w := newWorld(t, 64)
	w.steps(0, 5)
	w.until(time.Hour, Stalled)
	before := w.reads
	w.until(time.Hour)
	if n := w.reads - before; w.v.State != Stalled || n > 60+7*64 || n < 60+5*63 {
		t.Errorf("%s, %d reads in an hour", w.v.State, n)
	}
	w.print("step 6", 20) // another one speaks first
	w.until(11*time.Minute, Running)
	if w.v.State != Running {
		t.Errorf("%+v", w.v)
	}
	if w.job.reported {
		t.Error("it is read as a stalled job")
	}
	if w.until(17*time.Minute, Stalled); w.v.State != Stalled || !slices.Equal(w.v.Behind, []int{20}) {
		t.Errorf("the next stall is not found: %+v", w.v)
	}
}

// A day with all that is no stall. Each thing comes again and again, one after the other.
func TestNoFalseAlarmInADay(t *testing.T) {
	for _, skew := range []time.Duration{-24 * time.Hour, -time.Hour, -time.Minute, 0, time.Hour, 24 * time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			w := newWorld(t, 8)
			w.skewed(0, skew)
			w.skewed(3, -skew)
			number, busy, printed := 0, start.Add(25*time.Minute), start // a slow start
			things := []struct {
				name         string
				every, quiet time.Duration
				do           func()
			}{
				{"rank 0 saves", 240 * time.Minute, 40 * time.Minute, func() { w.print("saving checkpoint of step 7", 0) }},
				{"rank 5 evaluates", 350 * time.Minute, 30 * time.Minute, func() { w.print("evaluating", 5) }},
				{"another rank prints", 200 * time.Minute, 14 * time.Minute, func() { number++; w.print(fmt.Sprintf("step=%d", number), 5) }},
				{"new log of rank 0", 190 * time.Minute, 10 * time.Minute, func() { w.nodes[0].lines = nil }},
				{"next incarnation", 310 * time.Minute, 20 * time.Minute, func() {
					for i, n := range w.nodes {
						n.lines, n.pod.UID, n.pod.StartedAt = nil, types.UID(fmt.Sprintf("%d-%s", i, w.now)), w.now.Add(n.skew)
					}
					number = max(0, number-30)
				}},
				{"new leader", 130 * time.Minute, 0, func() { w.job = Job{} }},
			}
			ran, due := map[string]int{}, map[string]time.Time{}
			for w.now = start; w.now.Before(start.Add(24 * time.Hour)); w.now = w.now.Add(time.Minute) {
				minute, idle := int(w.now.Sub(start)/time.Minute), !w.now.Before(busy)
				for _, thing := range things {
					if due[thing.name].IsZero() {
						due[thing.name] = start.Add(thing.every)
					}
					if idle && !printed.Before(busy) && !w.now.Before(due[thing.name]) { // a step comes between two things
						idle = false
						thing.do()
						ran[thing.name]++
						due[thing.name], busy = w.now.Add(thing.every), w.now.Add(max(thing.quiet, time.Minute))
					}
				}
				if idle && (printed.Before(busy) || w.now.Sub(printed) >= 3*time.Minute) {
					printed = w.now
					number = (number + 1) % 50 // epochs
					w.print(fmt.Sprintf("step=%d", number), 0, 1, 2, 3)
				}
				if minute%90 == 0 {
					for _, n := range w.nodes { // rotation
						n.lines = n.lines[max(0, len(n.lines)-1):]
					}
				}
				if v := w.look(); v.State == Stalled || v.State == Unknown {
					t.Fatalf("after %d minutes: %+v (%v)", minute, v, ran)
				}
			}
			for _, thing := range things {
				if ran[thing.name] < 3 {
					t.Errorf("%s: %d times in a day", thing.name, ran[thing.name])
				}
			}
		})
	}
}

func TestANewEpochIsProgress(t *testing.T) {
	w := newWorld(t, 2)
	w.steps(900, 10)
	w.now = w.now.Add(14 * time.Minute)
	w.look()
	w.print("step 0")
	w.now = w.now.Add(time.Minute)
	if v := w.look(); v.State != Running || w.now.Sub(w.job.QuietSince()) > 0 {
		t.Errorf("%+v", v)
	}
}

func TestTheSameStepIsNoProgress(t *testing.T) {
	w := newWorld(t, 2)
	w.steps(900, 10)
	for range 20 {
		w.print("retry of step 909")
		w.now = w.now.Add(time.Minute)
		w.look()
	}
	if w.v.State != Stalled {
		t.Errorf("%+v", w.v)
	}
}

func TestALineWithoutAStepIsProgressWhenItIsNew(t *testing.T) {
	w := newWorld(t, 2, func(a *Annotations) { a.Progress = "iteration done" })
	for range 30 {
		w.print("iteration done")
		w.now = w.now.Add(time.Minute)
		if v := w.look(); v.State != Running {
			t.Fatalf("%+v", v)
		}
	}
	if v := w.until(17*time.Minute, Stalled); v.State != Stalled || v.HasStep {
		t.Errorf("%+v", v)
	}
}

func TestHiddenLinesAreNoSilence(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for name, noise := range map[string]func(w *world, minute int){
		"a burst of lines":      func(w *world, minute int) { w.print(fmt.Sprintf("step %d", minute)); w.burst(300) },
		"a burst over all":      func(w *world, minute int) { w.print(fmt.Sprintf("step %d", minute)); w.burst(5000) },
		"long lines":            func(w *world, _ int) { w.print(long) },
		"rotation":              func(w *world, _ int) { w.replace("hello") },
		"an empty file":         func(w *world, minute int) { w.replace(""); w.emptyIf(minute%2 == 0) },
		"an unfinished line":    func(w *world, _ int) { w.unfinished("loading " + long[:100]) },
		"an unfinished step":    func(w *world, _ int) { w.unfinished("step 9") },
		"an expensive log":      func(w *world, _ int) { w.s = settings(w, worst); w.print(long[:100<<10]) },
		"a progress bar":        func(w *world, _ int) { w.replace("step 1\rstep 9\r") },
		"a progress bar's tail": func(w *world, _ int) { w.replace("step 1\rstep 9") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			w.steps(0, 10)
			unknown := false
			for minute := range 90 {
				noise(w, minute)
				w.now = w.now.Add(time.Minute)
				v := w.look()
				unknown = unknown || v.State == Unknown
				if v.State == Stalled {
					t.Fatalf("after %d minutes: %+v", minute, v)
				}
			}
			if name == "long lines" || strings.Contains(name, "bar") {
				if !unknown || w.v.Why == "" {
					t.Errorf("it was not said that nothing is known: %+v", w.v)
				}
			}
		})
	}
}

func worst(a *Annotations) { a.Progress = `(x{1,20}){1,10}y step (?P<step>\d+)`; a.Pause = "" }

func (w *world) burst(n int) {
	for range n {
		w.print("debug")
	}
}

func (w *world) replace(text string) {
	for _, n := range w.nodes {
		n.lines = nil
	}
	w.print(text)
}

func (w *world) emptyIf(empty bool) {
	if empty {
		for _, n := range w.nodes {
			n.lines = nil
		}
	}
}

func (w *world) unfinished(text string) {
	for _, n := range w.nodes {
		n.lines = append(n.lines[:max(0, min(len(n.lines), 10))], w.now.Format(time.RFC3339Nano)+" "+text)
	}
}

func TestWindowsLineEndsAreNoProgressBar(t *testing.T) {
	w := newWorld(t, 2)
	w.print("step 5\r")
	if w.until(18*time.Minute, Stalled); w.v.State != Stalled {
		t.Errorf("%+v", w.v)
	}
}

func TestPauseHolds(t *testing.T) {
	for name, during := range map[string]func(w *world){
		"":                   func(*world) {},
		"new leader":         func(w *world) { w.job = Job{} },
		"edited annotation":  func(w *world) { w.job = Job{}; w.s.StalledAfter = 5 * time.Minute },
		"other output":       func(w *world) { w.burst(3) },
		"many lines, unseen": func(w *world) { w.burst(5000); w.job = Job{} },
		"fast clock":         func(w *world) { w.skewed(0, time.Hour); w.job = Job{} },
		"slow clock":         func(w *world) { w.skewed(2, -time.Hour); w.job = Job{} },
		"output of the tail": func(w *world) { w.burst(250); w.job = Job{} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.steps(0, 10)
			w.print("saving checkpoint of step 10", 2) // not the one that is read in time of calm
			w.until(10 * time.Minute)
			for range 12 {
				during(w)
				if v := w.until(10 * time.Minute); v.State == Stalled || v.State == Unknown {
					t.Fatalf("%+v", v)
				}
			}
			w.print("step 10")
			w.until(3 * time.Minute)
			if w.v.State != Running {
				t.Fatalf("the pause has ended: %+v", w.v)
			}
			if w.until(20*time.Minute, Stalled); w.v.State != Stalled {
				t.Errorf("%+v", w.v)
			}
		})
	}
}

// A pause of long ago, by a rank that prints no steps, does not hide a stall.
func TestAPauseThatIsOverIsNone(t *testing.T) {
	w := newWorld(t, 4)
	w.print("evaluating", 2)
	for i := range 35 {
		w.print(fmt.Sprintf("step %d", i), 0, 1, 3)
		w.now = w.now.Add(time.Minute)
		w.look()
	}
	if w.until(20*time.Minute, Stalled); w.v.State != Stalled {
		t.Errorf("%+v", w.v)
	}
}

func TestANewLeaderCountsWhatTheLogShows(t *testing.T) {
	w := newWorld(t, 4)
	w.steps(0, 10)
	w.until(12 * time.Minute)
	w.job = Job{}
	began := w.now
	if w.until(time.Hour, Stalled); w.v.State != Stalled || w.now.Sub(began) > 6*time.Minute {
		t.Errorf("%s after %s", w.v.State, w.now.Sub(began))
	}
	// But not where the node's clock was wrong when the pod began.
	w = newWorld(t, 4)
	w.skewed(0, -time.Hour)
	w.steps(0, 10)
	w.job = Job{}
	began = w.now
	if w.until(time.Hour, Stalled); w.v.State != Stalled || w.now.Sub(began) < 15*time.Minute {
		t.Errorf("%s after %s", w.v.State, w.now.Sub(began))
	}
}

// One look proves nothing, whatever the log shows.
func TestTheFirstLookIsNoProof(t *testing.T) {
	w := newWorld(t, 2)
	w.print("step 3")
	w.now = w.now.Add(10 * time.Hour)
	for range 2 { // the second is the first of rank 1
		if v := w.look(); v.State == Stalled {
			t.Errorf("%+v", v)
		}
		w.now = w.now.Add(time.Minute)
	}
	if v := w.look(); v.State != Stalled {
		t.Errorf("%+v", v)
	}
}

func TestOnlyWhileAllRanksRun(t *testing.T) {
	w := newWorld(t, 4)
	w.steps(0, 10)
	w.nodes[2].pod.Running = false
	if w.until(time.Hour, Stalled, NotRunning); w.v.State != NotRunning {
		t.Fatalf("%+v", w.v)
	}
	w.until(time.Hour)
	w.nodes[2].pod.Running = true
	began := w.now
	if w.until(time.Hour, Stalled); w.now.Sub(began) < 15*time.Minute {
		t.Errorf("found after %s", w.now.Sub(began))
	}
	// One that was replaced in the middle of the silence.
	w = newWorld(t, 4)
	w.steps(0, 10)
	w.until(13 * time.Minute)
	w.nodes[2].pod.UID = "another"
	w.nodes[2].pod.StartedAt = w.now
	w.nodes[2].lines = nil
	began = w.now
	if w.until(time.Hour, Stalled); w.v.State != Stalled || w.now.Sub(began) < 15*time.Minute {
		t.Errorf("%s after %s", w.v.State, w.now.Sub(began))
	}
	// One that is missing.
	w = newWorld(t, 4)
	w.print("step 1")
	w.list(false)
	if w.job.Wanted(w.s, w.now) != nil || w.job.Judge(w.s, w.now).State != NotRunning {
		t.Error("a gang without all of its ranks is judged")
	}
}

func TestADeadNodeIsNoSilenceAndKeepsNobodyWaiting(t *testing.T) {
	w := newWorld(t, 300)
	w.steps(0, 10)
	for i := range 128 {
		w.nodes[i+1].dead = true
	}
	w.until(40 * time.Minute)
	if w.v.State != Unknown || !strings.Contains(w.v.Why, "train-1 on node node-1 cannot be read: dead") {
		t.Fatalf("%+v", w.v)
	}
	if last := w.job.ranks[299].last; last.Sub(w.job.QuietSince()) < 15*time.Minute {
		t.Errorf("the last rank was read at %s", last)
	}
	for i := range 128 {
		w.nodes[i+1].dead = false
	}
	if w.until(30*time.Minute, Stalled); w.v.State != Stalled {
		t.Errorf("%+v", w.v)
	}
}

func TestAtMostSoManyLogsAreRead(t *testing.T) {
	w := newWorld(t, 1000)
	w.steps(0, 3)
	w.now = w.now.Add(10 * time.Minute)
	first := w.job.Wanted(w.s, w.now)
	w.look()
	w.now = w.now.Add(time.Minute)
	second := w.job.Wanted(w.s, w.now)
	if len(first) != MaxLooks || len(second) != MaxLooks || second[1].Rank != MaxLooks {
		t.Errorf("%d, then %d from rank %d", len(first), len(second), second[1].Rank)
	}
}

func TestAJobThatNeverPrintsAStep(t *testing.T) {
	w := newWorld(t, 4)
	w.print("hello")
	if v := w.until(3*time.Hour, Unknown, Stalled); v.State != Unknown || w.now.Sub(start) < DefaultStartupGrace+often {
		t.Errorf("%+v", v)
	}
	w = newWorld(t, 4, func(a *Annotations) { a.StartupGrace = "1h" })
	w.print("hello")
	if v := w.until(3*time.Hour, Unknown, Stalled); v.State != Stalled || w.now.Sub(start) < time.Hour || w.now.Sub(start) > 62*time.Minute {
		t.Errorf("%+v after %s", v, w.now.Sub(start))
	}
}

func TestBehind(t *testing.T) {
	for _, c := range []struct {
		steps string // of the ranks; x: none
		want  string
	}{
		{"5 5 4", "[2]"}, {"5 5 5", "[]"}, {"x x 5", "[]"}, {"5 4", "[1]"}, {"1 2 3 4", "[]"}, {"3 3 3 1200", "[3]"}, {"0 0 1", "[2]"}, {"x x", "[]"},
	} {
		var j Job
		for text := range strings.FieldsSeq(c.steps) {
			var r rank
			if text != "x" {
				r.hasStep = true
				fmt.Sscan(text, &r.step)
			}
			j.ranks = append(j.ranks, r)
		}
		behind, _, _ := j.behind()
		if got := fmt.Sprint(behind); got != c.want {
			t.Errorf("%s: %s, want %s", c.steps, got, c.want)
		}
	}
}

func TestParse(t *testing.T) {
	good := Annotations{Progress: `step (?P<step>\d+)`, StalledAfter: "15m"}
	for name, change := range map[string]func(*Annotations){
		`annotation pitcrew.dev/stalled-after: "" is no duration between 2m0s and 24h0m0s, such as 15m`:   func(a *Annotations) { a.StalledAfter = "" },
		`annotation pitcrew.dev/stalled-after: "1m" is no duration`:                                       func(a *Annotations) { a.StalledAfter = "1m" },
		`annotation pitcrew.dev/stalled-after: "25h" is no duration`:                                      func(a *Annotations) { a.StalledAfter = "25h" },
		`annotation pitcrew.dev/startup-grace: "soon" is no duration`:                                     func(a *Annotations) { a.StartupGrace = "soon" },
		`annotation pitcrew.dev/progress: "(": error parsing regexp: missing closing )`:                   func(a *Annotations) { a.Progress = "(" },
		`annotation pitcrew.dev/progress: an expression of 257 bytes; at most 256 are allowed`:            func(a *Annotations) { a.Progress = strings.Repeat("a", 257) },
		`annotation pitcrew.dev/progress: "a*" matches every line`:                                        func(a *Annotations) { a.Progress = "a*" },
		`annotation pitcrew.dev/progress-pause: "a{1000}" is too large: it compiles to 1002 instructions`: func(a *Annotations) { a.Pause = "a{1000}" },
		`is too large: it compiles to 22 instructions with`:                                               func(a *Annotations) { a.Pause = strings.Repeat(`\pL`, 20) },
	} {
		a := good
		change(&a)
		if _, err := Parse(a, Compile); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %s", err, name)
		}
	}
	if _, err := Parse(good, Compile); err != nil {
		t.Error(err)
	}
	if AnnotationsOf(map[string]string{"pitcrew.dev/stalled-after": "15m"}).OptIn() {
		t.Error("opted in without an expression")
	}
}

// The cost of a look does not depend on what a tenant writes.
func TestTheWorstLogAndExpression(t *testing.T) {
	s := settings(t, func(a *Annotations) { a.Progress, a.Pause = `(x+x+){1,30}y`, `(a|x|xx){1,40}z` })
	for name, text := range map[string][]byte{
		"one line":    bytes.Repeat([]byte("x"), 1<<20),
		"many lines":  bytes.Repeat([]byte("2026-11-01T08:00:00Z xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n"), 3900),
		"empty lines": bytes.Repeat([]byte("\n"), 1<<20), "short lines": bytes.Repeat([]byte("2026-11-01T08:00:00Z x\n"), 4000),
		"returns": bytes.Repeat([]byte("\r"), 1<<20),
	} {
		began := time.Now()
		seen := Read(text, Asked{Lines: 4000, Bytes: 2 << 20}, s, "")
		took := time.Since(began)
		t.Logf("%s: %s", name, took)
		if !seen.hidden || took > 5*time.Second {
			t.Errorf("%s: hidden %t after %s", name, seen.hidden, took)
		}
	}
}

func TestStepsAreNumbersOnly(t *testing.T) {
	s := settings(t, func(a *Annotations) { a.Progress = `step (?P<step>\S+)` })
	for text, want := range map[string]bool{
		"step 12": true, "step secret": false, "step 1234567890123456789": false, "step -1": false, "step 000000000000000001": true,
	} {
		seen := Read([]byte("2026-11-01T08:00:00Z "+text+"\n"), asked, s, "")
		if seen.Found() != want {
			t.Errorf("%s: %t", text, seen.Found())
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("2026-11-01T08:00:00Z step 5\r\n"), "2026-11-01T08:00:00Z")
	f.Add([]byte("x\r\rstep 5\n\n"), "")
	s := settings(f)
	f.Fuzz(func(t *testing.T, text []byte, anchor string) {
		seen := Read(text, asked, s, anchor)
		if len(text) >= asked.Bytes && !seen.hidden {
			t.Error("cut, and nothing is hidden")
		}
	})
}

// A thousand gangs of 64 that have all been looked at take tens of MiB.
func TestMemoryOfARank(t *testing.T) {
	const n = 20_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w := newWorld(t, n)
	w.asked = Asked{Lines: 2, Bytes: 1 << 10}
	w.print("step 1")
	w.look()
	for i, node := range w.nodes {
		w.job.Answer(i, Read(node.log(asked), asked, w.s, ""), w.now)
		node.lines = nil
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (after.HeapAlloc - before.HeapAlloc) / n
	t.Logf("%d bytes for each rank, the pod of the test included", each)
	if each > 1200 {
		t.Errorf("%d bytes for each rank", each)
	}
	runtime.KeepAlive(w)
}

func TestATimeOfAnyLengthIsNone(t *testing.T) {
	long := "2026-11-01T08:00:00." + strings.Repeat("0", 10_000) + "Z"
	seen := Read([]byte(long+" step 5\n"), asked, settings(t), "")
	if seen.Anchor() != "" || !seen.Found() {
		t.Errorf("%+v", seen)
	}
}

func TestTheOneThatPrintsIsRead(t *testing.T) {
	w := newWorld(t, 64)
	hour := func(from int, ranks ...int) int {
		before := w.reads
		for i := range 60 {
			w.print(fmt.Sprintf("step %d", from+i), ranks...)
			w.now = w.now.Add(time.Minute)
			w.look()
		}
		return w.reads - before
	}
	if n := hour(0, 5); n > 60+64 { // rank 0 prints nothing
		t.Errorf("%d reads in the first hour", n)
	}
	if n := hour(60, 5); n != 60 {
		t.Errorf("%d reads in an hour", n)
	}
	hour(120, 7) // another one goes on
	if n := hour(180, 7); n != 60 {
		t.Errorf("%d reads in an hour", n)
	}
}

func TestAPauseIsReadLittle(t *testing.T) {
	w := newWorld(t, 64)
	w.steps(0, 5)
	w.print("saving checkpoint", 0)
	w.until(time.Hour)
	if w.v.State != Paused || w.reads > 70 {
		t.Errorf("%s, %d reads", w.v.State, w.reads)
	}
}

// What was hidden is no silence when it is seen again.
func TestSilenceBeginsAnewAfterLinesWereHidden(t *testing.T) {
	w := newWorld(t, 2)
	w.steps(0, 5)
	kept := w.nodes[0].lines
	for range 14 { // the line that was read last is there each time
		w.print(strings.Repeat("x", 200<<10), 0)
		w.now = w.now.Add(time.Minute)
		w.look()
	}
	w.nodes[0].lines = slices.Concat(kept, []string{w.job.ranks[0].anchor + " short\n"})
	if w.until(10*time.Minute, Stalled); w.v.State != Running {
		t.Errorf("%+v", w.v)
	}
}

func TestAContainerThatRestartsBeginsAnew(t *testing.T) {
	w := newWorld(t, 2)
	w.steps(0, 5)
	w.until(12 * time.Minute)
	w.nodes[1].pod.Restarts++
	w.nodes[1].pod.StartedAt = w.now
	w.list(true)
	if w.until(10*time.Minute, Stalled); w.v.State != Running {
		t.Errorf("%+v", w.v)
	}
}

func TestRead(t *testing.T) {
	const stamp = "2026-11-01T08:00:00Z"
	few := Asked{Lines: 3, Bytes: 1 << 10}
	line := func(text string) string { return stamp + " " + text + "\n" }
	for _, c := range []struct {
		text, anchor string
		asked        Asked
		want         string
	}{
		{"", "", asked, "found=false hidden=false whole=true contiguous=true bar=false missed=false"},
		{line("a"), "", asked, "found=false hidden=false whole=true contiguous=true bar=false missed=false"},
		{line("a") + line("b") + line("c"), "", few, "found=false hidden=false whole=false contiguous=false bar=false missed=true"},
		{line("a") + line("b") + line("c"), stamp, few, "found=false hidden=false whole=false contiguous=true bar=false missed=false"},
		{line("step 1"), "2026-11-01T07:00:00Z", asked, "found=true hidden=false whole=true contiguous=false bar=false missed=false"},
		{line("step 1") + stamp + " loading", "", asked, "found=false hidden=true whole=true contiguous=true bar=true missed=false"},
		{line("step 1") + line(strings.Repeat("x", 1<<10)), "", few, "found=true hidden=true whole=false contiguous=false bar=false missed=false"},
		{line("a") + line("b") + line("c") + line("d"), "", few, "found=false hidden=true whole=false contiguous=false bar=false missed=false"},
		{line("x\rstep 1\r x"), "", asked, "found=true hidden=false whole=true contiguous=true bar=true missed=false"},
	} {
		s := Read([]byte(c.text), c.asked, settings(t), c.anchor)
		got := fmt.Sprintf("found=%t hidden=%t whole=%t contiguous=%t bar=%t missed=%t", s.Found(), s.hidden, s.whole, s.contiguous, s.bar, s.Missed())
		if got != c.want {
			t.Errorf("%.60q after %q:\n%s, want\n%s", c.text, c.anchor, got, c.want)
		}
	}
}

func TestCredit(t *testing.T) {
	trusted, wrong := Pod{ClockTrusted: true}, Pod{}
	for _, c := range []struct {
		pod  Pod
		at   time.Duration
		want time.Duration
	}{{trusted, -time.Hour, -time.Hour + clockError}, {trusted, time.Hour, 0}, {trusted, 0, 0}, {wrong, -time.Hour, 0}} {
		if got := credit(c.pod, start.Add(c.at), start).Sub(start); got != c.want {
			t.Errorf("%t, %s: %s, want %s", c.pod.ClockTrusted, c.at, got, c.want)
		}
	}
}

// A clock that goes wrong after the pod began makes no new step older than the look before.
func TestANewStepIsNoOlderThanTheLookBefore(t *testing.T) {
	w := newWorld(t, 1)
	w.steps(0, 30)
	before := w.now
	w.nodes[0].skew = -time.Hour
	w.steps(30, 1)
	if since := w.job.QuietSince(); since.Before(before) {
		t.Errorf("quiet since %s, and the look before was at %s", since, before)
	}
}

func TestTheLookThatDecidesIsOnTime(t *testing.T) {
	w := newWorld(t, 2)
	w.steps(0, 5)
	w.now = w.now.Add(14*time.Minute + 30*time.Second)
	if v := w.look(); v.Next != 30*time.Second {
		t.Errorf("the next look is after %s", v.Next)
	}
}

// A new leader knows no order of the lines of two nodes whose clocks differ.
func TestAPauseOnAnotherClockHolds(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, time.Hour} {
		for rank := range 2 {
			w := newWorld(t, 2)
			w.skewed(rank, skew)
			w.steps(0, 70)
			w.print("saving checkpoint", 1)
			w.now = w.now.Add(70 * time.Minute)
			w.job = Job{}
			if w.until(40*time.Minute, Stalled); w.v.State == Stalled {
				t.Errorf("clock of rank %d off by %s: %+v", rank, skew, w.v)
			}
		}
	}
}

// Ranks that print that they save, and no steps, hide no stall that comes later.
func TestPausesOfRanksWithoutStepsEnd(t *testing.T) {
	w := newWorld(t, 4)
	for i := range 200 {
		if i%50 == 1 {
			w.print("saving checkpoint")
		}
		w.print(fmt.Sprintf("step %d", i), 0)
		w.now = w.now.Add(time.Minute)
		w.look()
		if i == 60 {
			w.job = Job{}
		}
	}
	if w.until(30*time.Minute, Stalled); w.v.State != Stalled {
		t.Errorf("%+v", w.v)
	}
}

// A pause before lines that were missed is not taken for silence.
func TestAMissedPauseIsADoubt(t *testing.T) {
	w := newWorld(t, 2)
	w.steps(0, 10)
	w.print("saving checkpoint")
	w.burst(5000)
	if w.until(40*time.Minute, Stalled); w.v.State == Stalled {
		t.Errorf("%+v", w.v)
	}
}

// Lines before those that an answer of few lines shows may begin a pause.
func TestAPauseBeforeAnAnswerThatWasCutIsADoubt(t *testing.T) {
	w := newWorld(t, 1)
	w.print("hello")
	w.list(true)
	w.job.Answer(0, Sighting{kind: nothing, first: w.nodes[0].lines[0][:20], last: "x", hidden: true}, w.now)
	w.now = w.now.Add(time.Minute)
	w.job.Answer(0, Sighting{kind: nothing, contiguous: true, last: "x"}, w.now)
	if w.job.ranks[0].missed.IsZero() {
		t.Error("it is forgotten that lines were missed")
	}
}

// An empty log may have been rotated just now: it is silent from the first read of it on.
func TestAnEmptyLogWasNotSilentBeforeItWasRead(t *testing.T) {
	w := newWorld(t, 2)
	for i := range 60 {
		w.print(fmt.Sprintf("step %d", i), 0)
		w.now = w.now.Add(time.Minute)
		w.look()
	}
	stopped := w.now
	w.until(time.Hour, Stalled)
	if took := w.now.Sub(stopped); w.v.State != Stalled || took < 22*time.Minute || took > 24*time.Minute {
		t.Errorf("%s after %s", w.v.State, took)
	}
}

// A hang in a pause is not found, but it is said that nothing is known; also by a new leader, for which all of it is a pause.
func TestAPauseOfHoursIsTold(t *testing.T) {
	w := newWorld(t, 4)
	w.steps(0, 5)
	w.print("saving checkpoint", 2)
	w.until(90 * time.Minute)
	w.job = Job{}
	began := w.now
	w.until(5*time.Hour, Unknown, Stalled)
	if took := w.now.Sub(began); w.v.State != Unknown || took < longPause || took > longPause+15*time.Minute || !strings.Contains(w.v.Why, "train-2 on node node-2 that begins a pause") {
		t.Errorf("%+v after %s", w.v, took)
	}
	w.steps(6, 5)
	w.print("saving checkpoint", 2)
	w.until(time.Hour, Unknown, Stalled)
	if w.v.State != Paused {
		t.Errorf("the next pause: %+v", w.v)
	}
}

// The time of a pause ends with the pods that were in it.
func TestAPauseOfPodsBeforeTheseIsNotTold(t *testing.T) {
	w := newWorld(t, 2)
	w.steps(0, 5)
	w.print("saving checkpoint", 0)
	w.until(2 * time.Hour)
	if w.v.State != Paused {
		t.Fatalf("%+v", w.v)
	}
	for _, n := range w.nodes {
		n.pod.Running = false
	}
	w.list(true)
	w.look()
	for i, n := range w.nodes {
		n.pod.Running, n.pod.UID, n.pod.StartedAt = true, types.UID(fmt.Sprint("next-", i)), w.now
	}
	w.list(true)
	w.print("saving checkpoint", 0)
	w.until(2*time.Hour, Unknown, Stalled)
	if w.v.State != Paused {
		t.Errorf("%+v", w.v)
	}
}

// A job that waits in a queue costs little, and is found soon when it runs.
func TestAJobThatDoesNotRunIsSeldomListed(t *testing.T) {
	w := newWorld(t, 4)
	w.steps(0, 5)
	for _, n := range w.nodes {
		n.pod.Running = false
	}
	w.lists = 0
	w.until(24 * time.Hour)
	if w.v.State != NotRunning || w.lists < 24*6 || w.lists > 24*6+10+20 {
		t.Errorf("%s, %d lists in a day", w.v.State, w.lists)
	}
	w.nodes[0].pod.Running = true
	if v := w.look(); v.State != NotRunning || v.Next != Interval {
		t.Errorf("after one pod began: %+v", v)
	}
	for _, n := range w.nodes {
		n.pod.Running = true
	}
	if v := w.look(); v.State != Running || v.Next != Interval {
		t.Errorf("all run: %+v", v)
	}
	w.now = w.now.Add(time.Minute)
	w.nodes[1].pod.Running = false
	w.list(true)
	if v := w.look(); v.State != NotRunning || v.Next != Interval {
		t.Errorf("one stopped again: %+v", v)
	}
}

// What was in a log before it was rotated, and is empty since, is a doubt only until another rank has printed a step after that.
func TestAnEmptyLogHidesNoStallForEver(t *testing.T) {
	w := newWorld(t, 4)
	w.steps(0, 10)
	w.nodes[0].lines = nil
	w.until(12*time.Minute, Stalled)
	w.print("step 10", 1)
	stopped := w.now
	w.until(22*time.Minute, Stalled)
	if w.v.State != Stalled || !w.v.Since.Before(stopped.Add(2*time.Minute)) {
		t.Errorf("%+v, stopped at %s", w.v, stopped)
	}
}
