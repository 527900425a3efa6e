package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/preflighttest"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

// NVIDIA's Cluster Readiness Engine had verdicts from logs that were cut off. Here the test of one node is killed in each round, after the
// first digit of its bandwidth: the kernel is out of memory, or the pod is being deleted. Its peers see their end fail.
func TestATestThatIsKilledInMidOutputConvictsNobody(t *testing.T) {
	const n, killed = 6, 3
	const half = `printf '# Avg bus bandwidth    : 4'; `
	for name, test := range map[string]struct {
		dies string
		// runs: the killed rank itself goes on, and reports.
		runs bool
	}{
		"by the kernel":                    {half + `kill -KILL $$`, true},
		"below a shell":                    {`sh -c "` + half + `kill -KILL \$\$"; exit $?`, true},
		"in a pipe whose end has not seen": {`sh -c "` + half + `kill -KILL \$\$" | cat`, true},
		"with its pod":                     {half + `kill -TERM $PPID; sleep 1000`, false},
	} {
		t.Run(name, func(t *testing.T) {
			names := preflighttest.Networks(t, n, -1, "400mbit", "")
			folder, binary := t.TempDir(), built(t)
			command := fmt.Sprintf(`case $PREFLIGHT_SELF,$PREFLIGHT_PEER in 10.77.0.%[1]d,*) %[2]s;; *,10.77.0.%[1]d) exit 1;; *) echo '# Avg bus bandwidth    : 42.9'; esac`,
				killed+1, test.dies)
			codes := make([]int, n)
			var running sync.WaitGroup
			for i := range n {
				running.Go(func() {
					cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", names[i], binary, "-rank", fmt.Sprint(i), "-size", fmt.Sprint(n),
						"-leader", "10.77.0.1", "-node", fmt.Sprintf("node-%d", i), "-command", command, "-out", folder)
					cmd.Env = append(os.Environ(), "POD_NAMESPACE=team", "WORKLOAD=train")
					var exit *exec.ExitError
					if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
						t.Error(err)
					}
					codes[i] = cmd.ProcessState.ExitCode()
				})
			}
			running.Wait()
			if slices.Contains(codes, exitNodeBad) || test.runs && codes[killed] != exitOK {
				t.Errorf("exit codes %v", codes)
			}
			var reports []report.Report
			for i := range n {
				data, err := os.ReadFile(filepath.Join(folder, "team", fmt.Sprintf("train-%d.json", i)))
				if err != nil {
					t.Fatal(err)
				}
				r, err := report.Parse(data)
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range r.Batches {
					if i == killed && b.Status != report.Skip {
						t.Errorf("the killed test is a measurement: %+v", b)
					}
				}
				reports = append(reports, r)
			}
			v := verdict.Judge(reports[0].RunID, reports, verdict.Options{})
			if len(v.Slow)+len(v.Failed)+len(v.Fabric) > 0 || slices.Contains(v.Healthy, fmt.Sprintf("node-%d", killed)) {
				t.Errorf("verdict %+v", v)
			}
		})
	}
}

func TestWhoHasEndedATest(t *testing.T) {
	for command, want := range map[string]report.Status{
		`kill -KILL $$`: report.Skip, `kill -TERM $$`: report.Skip, `exit 137`: report.Skip, `exit 143`: report.Skip,
		`kill -SEGV $$`: report.Fail, `exit 139`: report.Fail, `exit 9`: report.Fail, `sleep 1000`: report.Fail,
		`printf bw=4`: report.Skip, `echo bw=4`: report.OK,
	} {
		tester := tester{command: command, pattern: regexp.MustCompile(`bw=(\S+)`), scale: 1, timeout: time.Minute}
		if strings.HasPrefix(command, "sleep") {
			tester.timeout = 200 * time.Millisecond
		}
		if got := tester.test(t.Context(), nil, order{}.Peer.Addr(), order{}); got.Status != want {
			t.Errorf("%s: status %d, want %d", command, got.Status, want)
		}
	}
	o, err := parse([]string{"-rank", "0", "-size", "2", "-leader", "a", "-node", "n", "-figure", "cut=printf 3", "-figure", "whole=echo 3"},
		func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if got := o.measureFigures(t.Context()); len(got) != 1 || got["whole"] != 3 {
		t.Errorf("figures %v", got)
	}
}
