package components

import (
	"context"
	_ "embed"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// task is one run of go build.
type task struct {
	name            string
	env             []string
	dir, out        string
	flags, packages []string
	// patched is true if what is compiled imports packages that only the patched source has, idle that of a component that need not be quick.
	patched, idle bool
}

func (t task) args() []string { return append(slices.Clone(t.flags), t.packages...) }

// compile runs go build and reports each package that it compiles to e, which may be nil.
func (t task) compile(ctx context.Context, e *estimate) error {
	env := slices.Clone(t.env)
	if os.Getenv("GOGC") == "" {
		// It saves a seventh of the compiler's CPU time and costs a quarter more memory. More does not save more.
		env = append(env, "GOGC=200")
	}
	args := append([]string{"build", "-v", "-o", t.out}, t.args()...)
	m := &meter{task: t, estimate: e}
	cmd := command(ctx, env, t.dir, args...)
	cmd.Stdout, cmd.Stderr = m, m
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build in %s: %w\n%s", t.dir, err, m.other.String())
	}
	e.finish(t)
	return nil
}

// source is a package that has to be compiled.
type source struct {
	dir  string
	cost cost
}

// stale lists the packages that a task has to compile, by import path. It downloads the modules that are missing.
func (t task) stale(ctx context.Context) (packages map[string]source, err error) {
	const format = `{{if .Stale}}{{.ImportPath}}{{"\t"}}{{.Dir}}{{"\t"}}{{len .Deps}}{{range .GoFiles}}{{"\t"}}{{.}}{{end}}{{end}}`
	list := []string{"list", "-deps", "-f", format}
	if t.patched {
		list = append(list, "-e")
	}
	out, err := download(ctx, t.env, t.dir, append(list, t.args()...)...)
	if err != nil {
		return nil, err
	}
	packages = map[string]source{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		dependencies, err := strconv.Atoi(fields[2])
		if err != nil {
			return nil, fmt.Errorf("output of go list: %q: %w", line, err)
		}
		bytes := cost(dependencies) * perDependency
		for _, file := range fields[3:] {
			// A file that cannot be read is the compiler's to report.
			if info, err := os.Stat(filepath.Join(fields[1], file)); err == nil {
				bytes += cost(info.Size())
			}
		}
		if t.idle {
			bytes -= bytes / 4 // see [Component.compiler]
		}
		packages[fields[0]] = source{dir: fields[1], cost: bytes}
	}
	return packages, nil
}

// cost is how much there is to compile, in bytes of Go source.
type cost int64

// The time of a package is that of its bytes, and of reading what it depends on, directly or not: 5 ms of a core that parses 27 ns for each byte
// (see slowness) for 1,000 bytes, and as much for 7 dependencies. Measured for the 2,745 packages of Kubernetes on two cores.
const (
	perDependency = 142
	perByte       = 5000 * time.Nanosecond
)

// estimate knows what is left to do of several tasks. A nil estimate takes no reports.
type estimate struct {
	out io.Writer
	now func() time.Time
	// packages has what each task has to compile, by [task.id] and import path, and left what of that is still to do. Its keys are those of
	// [task.key]: what two tasks share is done once.
	packages        map[string]map[string]string
	left            map[string]cost
	total, done     cost
	prior           time.Duration // the time of a unit of cost until it has been measured
	begun, reported time.Time
	// order has what is done in parallel, atOnce at a time, in the order in which it begins; empty: one after the other.
	order   []string
	atOnce  int
	longest cost // of what has ended of it
	gaps    gaps // see [gaps]
}

// newEstimate reads what the tasks have to compile, and writes the names of the tasks and about how long they take.
func newEstimate(ctx context.Context, out io.Writer, tasks []task) (*estimate, error) {
	e := &estimate{
		out: out, now: time.Now, packages: map[string]map[string]string{}, left: map[string]cost{},
		prior: time.Duration(float64(perByte) * slowness() / float64(runtime.NumCPU())),
	}
	for _, t := range tasks {
		packages, err := t.stale(ctx)
		if err != nil {
			return nil, err
		}
		e.add(t, packages)
	}
	e.start(tasks)
	return e, nil
}

func (e *estimate) add(t task, packages map[string]source) {
	keys := map[string]string{}
	for path, s := range packages {
		key := t.key(s.dir)
		keys[path] = key
		if _, found := e.left[key]; !found {
			e.left[key] = s.cost
			e.total += s.cost
		}
	}
	e.packages[t.id()] = keys
}

// start writes the plan; it names no task that has nothing to compile.
func (e *estimate) start(tasks []task) {
	var names []string
	for _, t := range tasks {
		if len(e.packages[t.id()]) > 0 && !slices.Contains(names, t.name) {
			names = append(names, t.name)
		}
	}
	e.begun = e.now()
	e.reported = e.begun
	if len(names) > 0 {
		fmt.Fprintf(e.out, "to build: %s; about %s on this machine (%d cores)\n", strings.Join(names, ", "), about(e.remaining()), runtime.NumCPU())
	}
}

// id names a task among the others.
func (t task) id() string { return t.name + " " + t.dir + " " + strings.Join(t.packages, " ") }

// key names a compiled package by the folder of its source, which names the module and its version: tasks share the standard library and
// modules of one version, if both are idle or neither is. Two tasks that have different versions of what such a package imports compile it
// twice; that is not counted.
func (t task) key(dir string) string { return fmt.Sprint(t.env, t.idle, dir) }

func (e *estimate) printf(format string, args ...any) {
	if e != nil {
		fmt.Fprintf(e.out, format, args...)
	}
}

// reportEvery is the time between two lines of progress. A build may print none for longer, for example while it links.
const reportEvery = 15 * time.Second

// compiled takes the report that a package is compiled, and writes a line now and then.
func (e *estimate) compiled(t task, path string) (known bool) {
	if e == nil {
		return false
	}
	key := e.packages[t.id()][path]
	c, known := e.left[key]
	if !known {
		return false
	}
	delete(e.left, key)
	e.done += c
	if now := e.now(); now.Sub(e.reported) >= reportEvery {
		e.reported = now
		e.printf("  %s: %d %% done, %s\n", t.name, e.done*100/e.total, e.remainingText())
	}
	return true
}

// finish takes the report that a task has ended: it has nothing left to compile.
func (e *estimate) finish(t task) {
	if e == nil {
		return
	}
	for _, key := range e.packages[t.id()] {
		e.done += e.left[key]
		delete(e.left, key)
	}
}

func (e *estimate) remainingText() string {
	if len(e.left) == 0 {
		return "linking"
	}
	return fmt.Sprintf("about %s left", about(e.remaining()))
}

// remaining is the time left at the speed so far. That counts more, the more is done: a twentieth of the work weighs as much as the
// estimate made before.
func (e *estimate) remaining() time.Duration {
	before := float64(e.total)/20 + 1
	done := float64(e.done) + e.underway()
	speed := (float64(e.now().Sub(e.begun)-e.gaps.sum()) + before*float64(e.prior)) / (before + done)
	return time.Duration(speed * (float64(e.total) - done))
}

// underway is about what is done of what has begun and not ended: half of it, but no more than of the longest that has ended.
func (e *estimate) underway() (done float64) {
	begun := 0
	for _, name := range e.order {
		if c, left := e.left[name]; left && begun < e.atOnce {
			begun++
			done += min(float64(c)/2, float64(e.longest))
		}
	}
	return done
}

// about rounds a time up for people: to 10 s below two minutes, else to minutes.
func about(d time.Duration) string {
	if d <= 110*time.Second {
		return fmt.Sprintf("%d s", max(1, (d+10*time.Second-1)/(10*time.Second))*10)
	}
	return fmt.Sprintf("%d min", (d+time.Minute-1)/time.Minute)
}

//go:embed components.go
var sample string

// slowness reports how many times as long as the machine of [perByte] this machine takes to parse some Go source while all its cores do so.
// Two cores of a virtual machine can be two threads of one real core, which together compute little more than one of them alone.
func slowness() float64 {
	fastest := make([]time.Duration, runtime.NumCPU())
	var wait sync.WaitGroup
	for core := range fastest {
		wait.Go(func() { fastest[core] = parseTime() })
	}
	wait.Wait()
	var sum time.Duration
	for _, d := range fastest {
		sum += d
	}
	return float64(sum) / float64(len(fastest)) / float64(len(sample)) / parsePerByte
}

// parseTime reports the shortest of many parses of the sample: a pause of the scheduler or of the garbage collector counts in none of them.
func parseTime() time.Duration {
	fastest := time.Duration(1 << 62)
	for range 100 {
		begun := time.Now()
		_, err := parser.ParseFile(token.NewFileSet(), "", sample, parser.ParseComments)
		if err != nil {
			panic(err)
		}
		fastest = min(fastest, time.Since(begun))
	}
	return fastest
}

// parsePerByte is the fastest of 30 parses there, in nanoseconds per byte.
const parsePerByte = 27

// meter reads the output of go build -v, which prints the import path of each package when it begins to compile it.
type meter struct {
	task
	*estimate
	rest  string // a line without its end
	other strings.Builder
}

// Write takes output of go build. What is not the name of a package that had to be compiled is kept in m.other.
func (m *meter) Write(output []byte) (int, error) {
	m.rest += string(output)
	for {
		line, rest, complete := strings.Cut(m.rest, "\n")
		if !complete {
			return len(output), nil
		}
		m.rest = rest
		if !m.compiled(m.task, line) {
			m.other.WriteString(line + "\n")
		}
	}
}
