package stall

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func slowAfter(k string) func(*Annotations) { return func(a *Annotations) { a.SlowAfter = k } }

// trainer is a job that prints steps, at times between the looks.
type trainer struct {
	*world
	// each is how long a step takes. A line comes after each stride of them, and is printed when as many are held back as hold.
	each         time.Duration
	stride, hold int
	// epoch is at which number the steps begin anew; 0: never.
	epoch int
	// lines are those of one step.
	lines []string
	// every is the time between two looks.
	every time.Duration
	// ranks print; none: all.
	ranks []int

	number int
	held   []string
	next   time.Time
	pieces []float64
	alarms []Slow
}

func newTrainer(t testing.TB, ranks int, change ...func(*Annotations)) *trainer {
	r := &trainer{world: newWorld(t, ranks, change...), each: 2 * time.Second, stride: 1, hold: 1, every: time.Minute, lines: []string{"step %d"}}
	r.next = r.now.Add(r.each)
	return r
}

// train lets time pass in which there are steps, and looks in each minute.
func (r *trainer) train(d time.Duration) {
	r.Helper()
	for end := r.now.Add(d); r.now.Before(end); {
		at := r.now.Add(r.every)
		for ; !r.next.After(at); r.next = r.next.Add(time.Duration(r.stride) * r.each) {
			r.now = r.next
			if r.number += r.stride; r.epoch > 0 {
				r.number %= r.epoch
			}
			for _, line := range r.lines {
				r.held = append(r.held, fmt.Sprintf(line, r.number))
			}
			if len(r.held) >= r.hold {
				for _, line := range r.held {
					r.print(line, r.ranks...)
				}
				r.held = nil
			}
		}
		r.now = at
		r.observe()
	}
}

// rest lets time pass without steps. None is under way then.
func (r *trainer) rest(d time.Duration) {
	r.Helper()
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(min(time.Minute, end.Sub(r.now)))
		r.observe()
	}
	r.next = r.now.Add(r.each)
}

func (r *trainer) observe() {
	r.Helper()
	r.look()
	seconds, slow := r.job.StepTime(r.s)
	if seconds > 0 {
		r.pieces = append(r.pieces, seconds)
	}
	if slow != nil {
		r.alarms = append(r.alarms, *slow)
	}
	if n, m := len(r.job.steps.recent), len(r.job.steps.hour); n > window || m > 120 {
		r.Fatalf("%d and %d pieces are kept", n, m)
	}
}

// want checks how often the job was reported as slow so far.
func (r *trainer) want(alarms int) {
	r.Helper()
	if len(r.alarms) != alarms {
		r.Fatalf("after %s: %+v, want %d", r.now.Sub(start), r.alarms, alarms)
	}
}

func TestSlowStepsAreReportedOnceUntilTheyRecover(t *testing.T) {
	r := newTrainer(t, 4, slowAfter("2"))
	r.train(70 * time.Minute)
	r.want(0)
	r.each *= 3
	r.train(7 * time.Minute)
	r.want(0) // it may be one thing that takes long
	r.train(2 * time.Minute)
	r.want(1)
	if slow := r.alarms[0]; math.Abs(slow.Now-6) > 0.5 || math.Abs(slow.Best-2) > 0.05 {
		t.Errorf("%+v", slow)
	}
	r.train(3 * time.Hour)
	r.want(1)
	r.each /= 3
	r.train(20 * time.Minute)
	r.each *= 3
	r.train(20 * time.Minute)
	r.want(2)
}

func TestSlowIsAFactorOfTheBestHour(t *testing.T) {
	for each, alarms := range map[time.Duration]int{2900 * time.Millisecond: 0, 3 * time.Second: 1} {
		r := newTrainer(t, 1, slowAfter("1.5"))
		r.train(61 * time.Minute)
		r.each = 5 * time.Second // not the best
		r.train(65 * time.Minute)
		r.want(1)
		r.each = 2 * time.Second
		r.train(time.Hour)
		r.each = each
		r.train(time.Hour)
		r.want(1 + alarms)
	}
}

func TestALaterHourMayBeTheBest(t *testing.T) {
	r := newTrainer(t, 1, slowAfter("1.5"))
	r.each *= 3
	r.train(70 * time.Minute)
	r.each /= 3
	r.train(2 * time.Hour)
	r.want(0)
	r.each *= 2
	r.train(15 * time.Minute)
	r.want(1)
}

// Steps that take about k times as long are reported once, and not each time that they take a little less.
func TestStepsHaveToRecoverByHalf(t *testing.T) {
	r := newTrainer(t, 1, slowAfter("1.5"))
	r.train(70 * time.Minute)
	for _, c := range []struct {
		each   time.Duration
		alarms int
	}{{4 * time.Second, 1}, {2600 * time.Millisecond, 1}, {4 * time.Second, 1}, {2400 * time.Millisecond, 1}, {4 * time.Second, 2}} {
		r.each = c.each
		r.train(30 * time.Minute)
		r.want(c.alarms)
	}
}

func TestSlowNeedsABestHour(t *testing.T) {
	r := newTrainer(t, 1, slowAfter("1.5"))
	r.train(35 * time.Minute)
	r.each *= 3
	r.train(24 * time.Minute)
	r.want(0)
	r.train(5 * time.Minute)
	r.want(1) // most of the hour was good
	// With few lines an hour is longer: 15 pieces.
	r = newTrainer(t, 1, slowAfter("1.5"))
	r.each = 10 * time.Minute
	r.next = r.now.Add(r.each)
	r.train(130 * time.Minute)
	r.each *= 3
	r.s.StalledAfter = time.Hour
	r.train(time.Hour)
	r.want(0)
	if r.job.steps.best != 0 || len(r.pieces) < 12 {
		t.Errorf("%+v, pieces %v", r.job.steps, r.pieces)
	}
}

// Whatever happens, a step takes as long as it takes, or nothing follows.
func TestTheTimeOfAStep(t *testing.T) {
	for name, c := range map[string]struct {
		begin     func(*trainer)
		every     time.Duration // of then; 0: 10 minutes
		then      func(r *trainer, i int)
		low, high int     // how many pieces in three hours; 0: almost as many as minutes
		want      float64 // seconds; 0: 2
	}{
		"one line for each step":       {},
		"every ten steps":              {begin: func(r *trainer) { r.stride = 10 }},
		"two lines for each step":      {begin: func(r *trainer) { r.lines = []string{"step %d forward", "step %d backward"} }},
		"a step in four minutes":       {begin: func(r *trainer) { r.each = 4 * time.Minute; r.next = r.now.Add(r.each) }, want: 240, low: 40, high: 45},
		"a line in four minutes":       {begin: func(r *trainer) { r.stride = 120 }, low: 40, high: 45},
		"epochs":                       {begin: func(r *trainer) { r.epoch = 50 }},
		"lines that are held back":     {begin: func(r *trainer) { r.hold = 90 }, low: 55, high: 60},
		"these with the end of epochs": {begin: func(r *trainer) { r.hold, r.epoch, r.number = 90, 90, 89 }, high: -1},
		"more of these than are read":  {begin: func(r *trainer) { r.hold = 300 }, high: -1},
		"more lines than are read":     {begin: func(r *trainer) { r.each /= 8 }, want: 0.25, low: 150, high: 180},
		"many more lines":              {begin: func(r *trainer) { r.each /= 10 }, high: -1},
		"looks that follow fast":       {begin: func(r *trainer) { r.every = 10 * time.Second }, low: 350, high: 360},
		"lines that are repeated": {
			begin: func(r *trainer) { r.print("step 0"); r.each = 4 * time.Minute; r.next = r.now.Add(r.each) }, want: 240, low: 40, high: 45,
			every: time.Minute, then: func(r *trainer, _ int) { r.print(fmt.Sprintf("retry of step %d", r.number)) },
		},
		"a progress bar": {begin: func(r *trainer) { r.lines = []string{"step 0\rstep %d"} }, high: -1},
		"pauses":         {then: func(r *trainer, _ int) { r.print("saving checkpoint"); r.rest(3 * time.Minute) }},
		"a short pause in each minute": {
			every: time.Minute, low: 160, high: 180,
			then: func(r *trainer, _ int) { r.print("saving checkpoint"); r.next = r.next.Add(10 * time.Second) },
		},
		"a long pause in each minute": {
			every: time.Minute, high: -1,
			then: func(r *trainer, _ int) { r.print("saving checkpoint"); r.next = r.next.Add(30 * time.Second) },
		},
		"a pause of another rank":     {then: func(r *trainer, _ int) { r.print("evaluating", 1); r.rest(10 * time.Minute) }},
		"rotation":                    {then: func(r *trainer, _ int) { r.nodes[0].lines = nil }},
		"a clock that is set forward": {then: func(r *trainer, i int) { r.nodes[0].skew = time.Duration(i) * time.Hour }},
		"a clock that is set back":    {then: func(r *trainer, i int) { r.nodes[0].skew = -time.Duration(i) * time.Hour }},
		"a clock that is set after the first look": {
			begin: func(r *trainer) { r.print("step 0"); r.look(); r.nodes[0].skew = 10 * time.Hour },
		},
		"another rank prints": {every: time.Hour, then: func(r *trainer, i int) { r.ranks = []int{i % 2} }, low: 140, high: 180},
		"new leaders":         {then: func(r *trainer, _ int) { r.job = Job{} }, low: 120, high: 180},
		"containers that restart": {
			low: 120, high: 180,
			then: func(r *trainer, _ int) {
				r.nodes[0].pod.Restarts++
				r.nodes[0].lines, r.nodes[0].pod.StartedAt, r.number = nil, r.now, 0
				r.list(true)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTrainer(t, 2, slowAfter("1.5"))
			if c.begin != nil {
				c.begin(r)
			}
			if c.every == 0 {
				c.every = 10 * time.Minute
			}
			for i := range int(3 * time.Hour / c.every) {
				r.train(c.every)
				if c.then != nil {
					c.then(r, i+1)
				}
			}
			if c.want == 0 {
				c.want = 2
			}
			if c.high == 0 {
				c.low, c.high = 150, 180
			}
			for i, seconds := range r.pieces {
				if math.Abs(seconds-c.want) > c.want/20 {
					t.Fatalf("piece %d: %v, want %v: %v", i, seconds, c.want, r.pieces)
				}
			}
			if n := len(r.pieces); n < c.low || n > max(c.high, 0) {
				t.Errorf("%d pieces", n)
			}
			r.want(0)
		})
	}
}

// The steps of two ranks are the same ones.
func TestOneRankIsMeasured(t *testing.T) {
	r := newTrainer(t, 2, slowAfter("1.5"))
	r.train(10 * time.Minute)
	r.job.Answer(1, Sighting{kind: step, steps: stepSpan{40 * time.Second, 1, true}}, r.now)
	if seconds, _ := r.job.StepTime(r.s); seconds > 0 {
		t.Errorf("%v", seconds)
	}
	r.job.Answer(0, Sighting{kind: step, steps: stepSpan{40 * time.Second, 1, true}}, r.now)
	if seconds, _ := r.job.StepTime(r.s); seconds != 40 {
		t.Errorf("%v", seconds)
	}
}

// Each incarnation is measured for itself: it may do other work.
func TestOtherPodsHaveAnotherBestHour(t *testing.T) {
	r := newTrainer(t, 2, slowAfter("1.5"))
	r.train(70 * time.Minute)
	for i, n := range r.nodes {
		n.lines, n.pod.UID, n.pod.StartedAt = nil, types.UID(fmt.Sprint("next-", i)), r.now
	}
	r.list(true)
	r.each *= 3
	r.train(90 * time.Minute)
	r.want(0)
	r.each *= 2
	r.train(20 * time.Minute)
	r.want(1)
}

// A day of steps that take one time and another, with all that takes time besides, announced or not. What is slow in the end is found.
func TestADayWithoutAFalseAlarmOfSlowSteps(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	r := newTrainer(t, 8, slowAfter("1.5"))
	r.skewed(0, -time.Hour)
	r.epoch = 400
	r.each = 10 * time.Second // a slow start
	r.train(25 * time.Minute)
	for i := range 140 { // some ten minutes each
		for range 8 {
			r.each = time.Duration((1 + random.Float64()) * float64(time.Second)) // by the third
			r.train(time.Minute)
		}
		for every, do := range map[int]func(){
			3:  func() { r.print("saving checkpoint", 0); r.rest(90 * time.Second) },
			5:  func() { r.rest(2 * time.Minute) }, // a checkpoint that is not announced
			11: func() { r.print("evaluating", 5); r.rest(10 * time.Minute) },
			13: func() { r.rest(9 * time.Minute) },
			7:  func() { r.nodes[0].lines = nil },
			17: func() { r.nodes[0].skew += time.Duration(random.IntN(7200)-3600) * time.Second },
		} {
			if i%every == every-1 {
				do()
			}
		}
		if i == 70 {
			for k, n := range r.nodes {
				n.lines, n.pod.UID, n.pod.StartedAt = nil, types.UID(fmt.Sprint("next-", k)), r.now.Add(n.skew)
			}
			r.list(true)
			r.each = 10 * time.Second
			r.train(10 * time.Minute)
		}
	}
	r.want(0)
	if r.now.Sub(start) < 24*time.Hour || r.job.steps.best == 0 || len(r.pieces) < 800 {
		t.Errorf("%s, best %v, %d pieces", r.now.Sub(start), r.job.steps.best, len(r.pieces))
	}
	for range 120 {
		r.each = time.Duration(3 * (1 + random.Float64()) * float64(time.Second))
		r.train(time.Minute)
	}
	r.want(1)
	if slow := r.alarms[0]; slow.Now < 3 || slow.Now > 6 || slow.Best > 2 {
		t.Errorf("%+v", slow)
	}
}

// Nothing of it is done without the annotation, and with it nothing else is seen in a log.
func TestMeasuringChangesNothingElse(t *testing.T) {
	r, measured := newTrainer(t, 4), newTrainer(t, 4, slowAfter("2"))
	r.train(2 * time.Hour)
	measured.train(2 * time.Hour)
	if len(r.pieces) > 0 || r.job.steps.best > 0 {
		t.Errorf("measured without being asked: %+v", r.job.steps)
	}
	if r.reads != 120 || measured.reads != 120 {
		t.Errorf("%d and %d reads in two hours", r.reads, measured.reads)
	}
}

func FuzzMeasuringChangesNothingElse(f *testing.F) {
	const stamp = "2026-11-01T08:00:00Z"
	for _, text := range []string{"step 5\n", "step 5\rstep 6\n", "saving checkpoint\n", "step 5", strings.Repeat("x", 300<<10) + "\n", "step 3\n2026-11-01T08:00:02Z step 4\n2026-11-01T08:00:03Z step 3\n2026-11-01T08:00:04Z step 4\n"} {
		f.Add([]byte(stamp+" step 4\n2026-11-01T08:00:01Z "+text), stamp)
	}
	plain := settings(f)
	measured := plain
	measured.SlowAfter = 2
	f.Fuzz(func(t *testing.T, text []byte, anchor string) {
		got := Read(text, asked, measured, anchor)
		if span := got.steps; span.took < 0 || span.steps < 0 {
			t.Errorf("%+v", span)
		}
		got.steps = stepSpan{}
		if want := Read(text, asked, plain, anchor); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

func TestReadAddsUpTheTimeOfSteps(t *testing.T) {
	for _, c := range []struct {
		lines string // STEP@SECOND, p: a pause, x: another line, *: the last one that the look before has read
		want  string
	}{
		{"*10@0 11@60", "1m0s 1 true"},
		{"*10@0 10@60 11@120", "2m0s 1 true"},
		{"*10@0 20@60 p@70", "1m0s 10 true"},
		{"10@0 *p@10 11@60", "0s 0 false"},
		{"10@0 *p@10 11@60 12@70", "10s 1 false"},
		{"*0@0 p@10 1@60", "0s 0 false"},
		{"10@0 11@10 *x@15 12@20 x@21", "10s 1 true"},
		{"10@0 11@10 12@20", "20s 2 false"},
		{"9@0 *10@10 x@20", "0s 0 true"},
		{"*10@60 11@0", "0s 0 false"},
		{"*10@0 3@10 4@20", "10s 1 false"},
	} {
		text, anchor := "", ""
		for line := range strings.FieldsSeq(c.lines) {
			what, second, _ := strings.Cut(strings.TrimPrefix(line, "*"), "@")
			after, err := time.ParseDuration(second + "s")
			if err != nil {
				t.Fatal(err)
			}
			stamp := start.Add(after).Format(time.RFC3339)
			if strings.HasPrefix(line, "*") {
				anchor = stamp
			}
			content, other := map[string]string{"p": "evaluating", "x": "loss 1"}[what]
			if !other {
				content = "step " + what
			}
			text += stamp + " " + content + "\n"
		}
		span := Read([]byte(text), asked, settings(t, slowAfter("2")), anchor).steps
		if got := fmt.Sprint(span.took, span.steps, span.whole); got != c.want {
			t.Errorf("%s: %s, want %s", c.lines, got, c.want)
		}
	}
}

// A number that is not written to its end may be another one.
func TestAnUnfinishedStepIsNotMeasured(t *testing.T) {
	text := start.Format(time.RFC3339) + " step 10\n" + start.Add(time.Minute).Format(time.RFC3339) + " step 12"
	for end, want := range map[string]float64{"": 0, "\n": 2, "00\n": 1190} {
		if seen := Read([]byte(text+end), asked, settings(t, slowAfter("2")), start.Format(time.RFC3339)); seen.steps.steps != want {
			t.Errorf("%q: %+v", end, seen)
		}
	}
}

// Matching stops when it has taken too long, and what is not matched is not counted as if it were.
func TestMeasuringIsBounded(t *testing.T) {
	s := settings(t, func(a *Annotations) { a.Progress, a.SlowAfter = `(x+x+){1,30}step (?P<step>\d+)`, "2" })
	var text strings.Builder
	for i := range 100 {
		fmt.Fprintf(&text, "%s %sstep %d\n", start.Add(time.Duration(i)*time.Second).Format(time.RFC3339), strings.Repeat("x", 1000), i)
	}
	seen := Read([]byte(text.String()), asked, s, start.Format(time.RFC3339))
	if seen.hidden || seen.number != 99 || !seen.contiguous || seen.steps.whole || seen.steps.steps < 1 || seen.steps.steps > 90 {
		t.Errorf("%+v", seen)
	}
}

func TestParseSlowAfter(t *testing.T) {
	good := Annotations{Progress: `step (?P<step>\d+)`, StalledAfter: "15m"}
	for value, ok := range map[string]bool{
		"1.1": true, "100": true, "2": true, "1.09": false, "100.1": false, "NaN": false, "Inf": false, "-2": false, "2x": false, "1,5": false,
	} {
		a := good
		a.SlowAfter = value
		s, err := Parse(a, Compile)
		switch want := fmt.Sprintf("annotation pitcrew.dev/slow-after: %q is no number from 1.1 to 100, such as 1.5", value); {
		case ok && (err != nil || fmt.Sprint(s.SlowAfter) != value):
			t.Errorf("%s: %v, %v", value, s.SlowAfter, err)
		case !ok && (err == nil || err.Error() != want):
			t.Errorf("%s: %v", value, err)
		}
	}
	if s, err := Parse(good, Compile); err != nil || s.SlowAfter != 0 {
		t.Errorf("%v, %v", s.SlowAfter, err)
	}
	a := Annotations{Progress: "iteration done", StalledAfter: "15m", SlowAfter: "2"}
	if _, err := Parse(a, Compile); err == nil || err.Error() != "annotation pitcrew.dev/slow-after: the expression of pitcrew.dev/progress has no group step" {
		t.Errorf("%v", err)
	}
}
