package hostile

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// group is a memory cgroup with a limit, in the hierarchy of version 1 or 2.
type group struct {
	dir   string
	first bool // version 1
}

// limited makes a group with the limit of the chart.
func (s *scene) limited(name string) group {
	s.Helper()
	g := group{dir: "/sys/fs/cgroup", first: true}
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); err == nil {
		g.dir += "/memory"
	} else {
		g.first = false
		s.must(os.WriteFile(g.dir+"/cgroup.subtree_control", []byte("+memory"), 0o644))
	}
	g.dir = fmt.Sprintf("%s/pitcrew-hostile-%d-%s", g.dir, os.Getpid(), name)
	s.must(os.Mkdir(g.dir, 0o755))
	s.Cleanup(func() {
		if err := os.Remove(g.dir); err != nil {
			s.Error(err)
		}
	})
	file := "memory.max"
	if g.first {
		file = "memory.limit_in_bytes"
	}
	s.must(os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.Itoa(limit)), 0o644))
	return g
}

// usage is the most memory that was used, and how often the limit was reached, which has the kernel take back pages of files.
func (g group) usage() string {
	peak, events := "memory.peak", "memory.events"
	if g.first {
		peak, events = "memory.max_usage_in_bytes", "memory.failcnt"
	}
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s, %s %s", peak, g.read(peak), events, g.read(events))), " ")
}

func (g group) read(file string) string {
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// process is a remediator under a limit.
type process struct {
	*exec.Cmd
	metrics, log string
	done         chan struct{}
	ended        error
}

// run starts a remediator with the settings of the chart.
func (s *scene) run(g group, env string) *process {
	s.Helper()
	s.must(components.BuildOurs(s.Context(), s.Root, "./remediator"))
	kubeconfig, err := s.RemediatorKubeconfig(s.Context(), "hostile", nil)
	s.must(err)
	file := filepath.Join(s.TempDir(), "policy.yaml")
	s.must(os.WriteFile(file, []byte(policy), 0o644))
	p := &process{metrics: clustertest.FreeAddress(s.T), log: filepath.Join(s.TempDir(), "log"), done: make(chan struct{})}
	//nolint:gosec // our own program
	p.Cmd = exec.CommandContext(s.Context(), "sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs"),
		filepath.Join(s.Root, "bin", "remediator"), "-kubeconfig", kubeconfig, "-policy", file, "-leader-elect=false",
		"-preflight-namespaces", tenant, "-metrics-bind-address", p.metrics, "-health-probe-bind-address", "0")
	p.Env = append(os.Environ(), "GOGC=", fmt.Sprint("GOMEMLIMIT=", limit), env)
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(p.log)
	s.must(err)
	defer log.Close()
	p.Stdout, p.Stderr = log, log
	s.must(p.Start())
	go func() {
		p.ended = p.Wait()
		close(p.done)
	}()
	s.Cleanup(p.stop)
	return p
}

// stop ends the process and waits until it is gone, and with it what its cgroup holds.
func (p *process) stop() {
	_ = p.Process.Kill()
	<-p.done
}

// err says how the process has ended; nil while it runs. One that is killed for its memory ends by SIGKILL.
func (p *process) err() error {
	select {
	case <-p.done:
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("the remediator has ended: %w\n%s", p.ended, text[max(0, len(text)-4000):])
	default:
		return nil
	}
}

// scrape returns the metrics.
func (p *process) scrape(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return cluster.Scrape(ctx, p.metrics)
}
