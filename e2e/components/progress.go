package components

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// plan says what [Build] is going to build and about how long that takes.
func plan(missing []recipe, cores int) string {
	var names []string
	var cpu time.Duration
	for _, r := range missing {
		names = append(names, r.Name)
		cpu += r.CPU
	}
	return fmt.Sprintf("to build: %s; about %s with empty caches on this machine (%d cores), and the download of the sources\n",
		strings.Join(names, ", "), about(cpu/time.Duration(cores)), cores)
}

// about rounds a time up for people: to 10 s below two minutes, else to minutes.
func about(d time.Duration) string {
	if d <= 110*time.Second {
		return fmt.Sprintf("%d s", max(1, (d+10*time.Second-1)/(10*time.Second))*10)
	}
	return fmt.Sprintf("%d min", (d+time.Minute-1)/time.Minute)
}

// compile runs go build in a folder and writes to progress, unless it is nil, how much is left.
func compile(ctx context.Context, progress io.Writer, name string, env []string, dir, out string, flags []string, packages ...string) error {
	if os.Getenv("GOGC") == "" {
		// It saves a seventh of the compiler's CPU time and costs a quarter more memory. More does not save more.
		env = append(env[:len(env):len(env)], "GOGC=200")
	}
	args := append(append([]string{"-o", out}, flags...), packages...)
	if progress == nil {
		_, err := runWith(ctx, env, dir, append([]string{"build"}, args...)...)
		return err
	}
	sizes, err := stale(ctx, env, dir, args[2:]...)
	if err != nil {
		return err
	}
	m := newMeter(progress, name, sizes, time.Now)
	cmd := command(ctx, env, dir, append([]string{"build", "-v"}, args...)...)
	cmd.Stdout, cmd.Stderr = m, m
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build in %s: %w\n%s", dir, err, m.other.String())
	}
	return nil
}

// stale lists the packages that a build has to compile and the size of their Go files in bytes, by import path. It downloads
// the modules that are missing.
func stale(ctx context.Context, env []string, dir string, args ...string) (map[string]int64, error) {
	const format = `{{if .Stale}}{{.ImportPath}}{{"\t"}}{{.Dir}}{{range .GoFiles}}{{"\t"}}{{.}}{{end}}{{end}}`
	out, err := download(ctx, env, dir, append([]string{"list", "-deps", "-f", format}, args...)...)
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		sizes[fields[0]] = 0
		for _, file := range fields[2:] {
			// A file that cannot be read is the compiler's to report.
			if info, err := os.Stat(filepath.Join(fields[1], file)); err == nil {
				sizes[fields[0]] += info.Size()
			}
		}
	}
	return sizes, nil
}

// reportEvery is the time between two lines of progress. A build may print none for longer, for example while it links.
const reportEvery = 15 * time.Second

// meter reads the output of go build -v, which prints the import path of each package when it begins to compile it.
type meter struct {
	out  io.Writer
	name string
	now  func() time.Time
	// sizes are the bytes of the packages that are still to compile, by import path. The time that a package takes is roughly
	// proportional to them.
	sizes map[string]int64
	// total is the sum of all sizes, left of those still to compile, count the number of all packages.
	total, left     int64
	count           int
	begun, reported time.Time
	rest            string // a line without its end
	other           strings.Builder
}

func newMeter(out io.Writer, name string, sizes map[string]int64, now func() time.Time) *meter {
	m := &meter{out: out, name: name, sizes: sizes, now: now, count: len(sizes), begun: now()}
	m.reported = m.begun
	for _, size := range sizes {
		m.total += size
	}
	m.left = m.total
	return m
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
		size, compiled := m.sizes[line]
		if !compiled {
			m.other.WriteString(line + "\n")
			continue
		}
		delete(m.sizes, line)
		m.left -= size
		if now := m.now(); now.Sub(m.reported) >= reportEvery {
			m.reported = now
			fmt.Fprintf(m.out, "  %s: %d of %d packages, %s\n", m.name, m.count-len(m.sizes), m.count, m.remaining(now))
		}
	}
}

// remaining is the time left, if the packages left take as much time per byte as those before.
func (m *meter) remaining(now time.Time) string {
	if m.left == 0 {
		return "linking"
	}
	perByte := float64(now.Sub(m.begun)) / float64(max(m.total-m.left, 1))
	return fmt.Sprintf("about %s left", about(time.Duration(perByte*float64(m.left))))
}
