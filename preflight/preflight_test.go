package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/preflighttest"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

func TestFlags(t *testing.T) {
	tests := map[string]struct {
		args  string
		env   map[string]string
		want  group
		wrong string
	}{
		"flags":                 {args: "-rank 1 -size 4 -leader a -node n", want: group{1, 4, "a:29400"}},
		"peers":                 {args: "-rank 2 -peers a,b,c -node n", want: group{2, 3, "a:29400"}},
		"a peer without a name": {args: "-rank 2 -peers a,,c -node n", wrong: "-peers"},
		"an indexed Job":        {args: "-size 4 -leader train-0.train", env: map[string]string{"JOB_COMPLETION_INDEX": "3", "NODE_NAME": "n"}, want: group{3, 4, "train-0.train:29400"}},
		"LeaderWorkerSet":       {env: map[string]string{"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "l", "NODE_NAME": "n"}, want: group{1, 2, "l:29400"}},
		"Kubeflow":              {env: map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "m", "NODE_NAME": "n"}, want: group{1, 2, "m:29400"}},
		"Kubeflow, elastic":     {env: map[string]string{"RANK": "8", "WORLD_SIZE": "16", "PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "m", "NODE_NAME": "n"}, want: group{1, 2, "m:29400"}},
		"JAXJob":                {env: map[string]string{"PROCESS_ID": "1", "NUM_PROCESSES": "2", "COORDINATOR_ADDRESS": "c", "NODE_NAME": "n"}, want: group{1, 2, "c:29400"}},
		"by its pod":            {args: "-from-pod -node n"},
		"by its pod, no node":   {args: "-from-pod", wrong: "-node"},
		"help":                  {args: "-h", wrong: flag.ErrHelp.Error()},
		"no rank":               {args: "-size 4 -leader a -node n", wrong: "-rank"},
		"a rank too many":       {args: "-rank 4 -size 4 -leader a -node n", wrong: "-rank 4 of -size 4"},
		"no leader":             {args: "-rank 1 -size 4 -node n", wrong: "-leader"},
		"no node":               {args: "-rank 1 -size 4 -leader a", wrong: "-node"},
		"six rounds":            {args: "-rank 1 -size 4 -leader a -node n -rounds 6", wrong: "-rounds"},
		"a regexp without":      {args: "-rank 1 -size 4 -leader a -node n -bandwidth x", wrong: "-bandwidth"},
		"a figure without name": {args: "-rank 1 -size 4 -leader a -node n -figure =true", wrong: "-figure"},
		"no figure pattern":     {args: "-rank 1 -size 4 -leader a -node n -figure-pattern x", wrong: "-figure-pattern"},
		"a unit of bytes":       {args: "-rank 1 -size 4 -leader a -node n -unit MB", wrong: "-unit"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o, err := parse(strings.Fields(tt.args), func(key string) string { return tt.env[key] })
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("error %v, want one with %q", err, tt.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if o.group != tt.want {
				t.Errorf("%+v, want %+v", o.group, tt.want)
			}
		})
	}
}

func TestTheFigureOfACommandIsReadInItsUnit(t *testing.T) {
	// The last lines of nccl-tests' all_reduce_perf.
	const out = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 42.9497 \n#\n"
	for unit, want := range map[string]float64{"GiB/s": 42.9497, "GB/s": 40.0, "Gb/s": 5.0} {
		o, err := parse([]string{"-rank", "0", "-size", "2", "-leader", "a", "-node", "n", "-unit", unit}, func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		got, err := o.pair.read([]byte(out))
		if err != nil || math.Abs(got-want) > 0.001 {
			t.Errorf("%s: %g GiB/s, %v, want %g", unit, got, err, want)
		}
	}
	tester := tester{pattern: regexp.MustCompile(`bw=(\S+)`), scale: 1}
	for out, want := range map[string]string{"nothing": "no bandwidth", "bw=0": "bandwidth is", "bw=NaN": "bandwidth is", "bw=-1": "bandwidth is", "bw=1e99": "bandwidth is"} {
		if got, err := tester.read([]byte(out + "\n")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %g, %v", out, got, err)
		}
	}
}

func TestAPairCommandFailsSkipsOrMeasures(t *testing.T) {
	const hangs = `sleep 1000`
	for command, want := range map[string]result{
		`test $PREFLIGHT_PEER = 10.0.0.2 && test $PREFLIGHT_SELF = 10.0.0.1 && test $PREFLIGHT_SERVER = true && echo bw=$PREFLIGHT_ROUND`: {report.OK, 3},
		`true`:   {report.Skip, 0},
		`exit 3`: {report.Fail, 0},
		hangs:    {report.Fail, 0},
	} {
		tester := tester{command: command, pattern: regexp.MustCompile(`bw=(\S+)`), scale: 1, timeout: time.Minute}
		if command == hangs {
			tester.timeout = time.Second
		}
		got := tester.test(t.Context(), nil, netip.MustParseAddr("10.0.0.1"), order{Round: 3, Serve: true, Peer: netip.MustParseAddrPort("10.0.0.2:1")})
		if got != want {
			t.Errorf("%s: %+v, want %+v", command, got, want)
		}
	}
}

func TestLocalChecks(t *testing.T) {
	tests := map[string]struct {
		commands []string
		want     report.Check
	}{
		"none":                    {nil, report.Skipped},
		"all pass":                {[]string{"true", "exit 0"}, report.Passed},
		"one is bad":              {[]string{"true", "echo lost; exit 1"}, report.Failed},
		"one is unknown":          {[]string{"exit 2", "true"}, report.Skipped},
		"bad outweighs unknown":   {[]string{"exit 2", "exit 1"}, report.Failed},
		"one that does not exist": {[]string{"/no/such/plugin"}, report.Skipped},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := runChecks(t.Context(), tt.commands, time.Minute); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

func TestACheckThatHangsIsUnknown(t *testing.T) {
	if got := runChecks(t.Context(), []string{"sleep 1000"}, 200*time.Millisecond); got != report.Skipped {
		t.Errorf("%d, want %d", got, report.Skipped)
	}
}

func TestFiguresAreMeasuredOrLeftOut(t *testing.T) {
	arguments := []string{
		"-rank", "0", "-size", "2", "-leader", "a", "-node", "n", "-pair-timeout", "1m",
		"-figure", `gemm=printf 'warm-up 12\nTFLOPS: 612.5\n'`, "-figure", "hbm=echo 3.3e3", "-figure", "says-nothing=true",
		"-figure", "fails=echo 1; exit 1", "-figure", "zero=echo 0",
	}
	o, err := parse(arguments, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]float64{"gemm": 612.5, "hbm": 3300}, o.measureFigures(t.Context())); diff != "" {
		t.Error(diff)
	}
	o, err = parse(append(arguments, "-figure-pattern", `warm-up (\d+)`), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	o.figures = o.figures[:2]
	if diff := cmp.Diff(map[string]float64{"gemm": 12}, o.measureFigures(t.Context())); diff != "" {
		t.Error(diff)
	}
	o, err = parse(append(arguments[:8:8], "-pair-timeout", "1s", "-figure", "hangs=sleep 1000"), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if got := o.measureFigures(t.Context()); len(got) > 0 {
		t.Errorf("a command that hangs has measured %v", got)
	}
}

func TestStorage(t *testing.T) {
	folder := t.TempDir()
	if got := checkStorage(folder); got != report.Passed {
		t.Errorf("a good folder: %d", got)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if got := checkStorage(filepath.Join(folder, "gone")); got != report.Failed {
		t.Errorf("no folder: %d", got)
	}
}

func TestAForeignConnectionDoesNotDelayTheRanks(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	o := options{group: group{size: 2, leader: address}, meetTimeout: 3 * time.Minute}
	for _, message := range []string{"GET / HTTP/1.1\r\n\r\n", `{"Rank":7,"Port":1}`} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, message)
	}
	silent, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for rank := range 2 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, `{"Rank":%d,"Node":"n%d","Port":1}`, rank, rank)
	}
	members, err := gather(t.Context(), l, o)
	if err != nil || len(members) != 2 || members[1].Node != "n1" {
		t.Errorf("%+v, %v", members, err)
	}
}

// Six processes on six network stacks, of which one sends at half of the rate: the whole program over the TCP test.
func TestTheNodeWithTheSlowLinkIsFound(t *testing.T) {
	const n, slow = 6, 3
	names := preflighttest.Networks(t, n, slow, "400mbit", "200mbit")
	folder := t.TempDir()
	binary := built(t)
	codes := make([]int, n)
	logs := make([]bytes.Buffer, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", names[i], binary, "-rank", fmt.Sprint(i), "-size", fmt.Sprint(n),
				"-leader", "10.77.0.1", "-node", fmt.Sprintf("node-%d", i), "-tcp-duration", "1s", "-check", "true", "-storage", folder, "-out", folder)
			cmd.Env = append(os.Environ(), "POD_NAMESPACE=team", "WORKLOAD=train")
			cmd.Stderr = &logs[i]
			err := cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Error(err)
			}
			codes[i] = cmd.ProcessState.ExitCode()
		})
	}
	running.Wait()
	var reports []report.Report
	for i := range n {
		data, err := os.ReadFile(filepath.Join(folder, "team", fmt.Sprintf("train-%d.json", i)))
		if err != nil {
			t.Fatalf("%v\n%s", err, &logs[i])
		}
		r, err := report.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if r.RunID == "" || r.GPU != report.Passed || r.Storage != report.Passed || len(r.Batches) < 5 {
			t.Errorf("report %+v", r)
		}
		reports = append(reports, r)
	}
	v := verdict.Judge(reports[0].RunID, reports, verdict.Options{})
	if len(v.Slow) != 1 || v.Slow[0].Node != fmt.Sprintf("node-%d", slow) || math.Abs(v.Slow[0].Drop-0.5) > 0.1 || !v.Complete {
		t.Errorf("%+v\n%s", v, &logs[0])
	}
	want := make([]int, n)
	want[slow] = exitNodeBad
	if diff := cmp.Diff(want, codes); diff != "" {
		t.Errorf("exit codes: %s\n%s", diff, &logs[slow])
	}
}

// built returns the path of the built program.
func built(t *testing.T) string {
	t.Helper()
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), root, "./preflight"); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "bin", "preflight")
}

// A node with a failed local check takes no part in the pair tests, and the others continue.
func TestANodeThatFailsItsLocalCheckReportsIt(t *testing.T) {
	const n, bad = 4, 2
	names := preflighttest.Networks(t, n, -1, "400mbit", "")
	folder := t.TempDir()
	binary := built(t)
	codes := make([]int, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() {
			check := "true"
			if i == bad {
				check = "echo 7 of 8 GPUs; exit 1"
			}
			cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", names[i], binary, "-rank", fmt.Sprint(i), "-size", fmt.Sprint(n),
				"-leader", "10.77.0.1", "-node", fmt.Sprintf("node-%d", i), "-check", check, "-out", folder,
				"-command", "echo Avg bus bandwidth : 40") // on a busy machine a network is not always as fast
			cmd.Env = append(os.Environ(), "POD_NAMESPACE=team", "WORKLOAD=train")
			_ = cmd.Run() // the exit code is checked below
			codes[i] = cmd.ProcessState.ExitCode()
		})
	}
	running.Wait()
	if diff := cmp.Diff([]int{0, 0, exitNodeBad, 0}, codes); diff != "" {
		t.Error(diff)
	}
	data, err := os.ReadFile(filepath.Join(folder, "team", fmt.Sprintf("train-%d.json", bad)))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := report.Parse(data); err != nil || r.GPU != report.Failed || len(r.Batches) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWithoutRank0TheResultIsUnknown(t *testing.T) {
	o, err := parse([]string{"-rank", "1", "-size", "2", "-leader", "127.0.0.1", "-port", "1", "-node", "n", "-meet-timeout", "300ms"}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if code, err := run(t.Context(), o); code != exitUnknown || err == nil {
		t.Errorf("code %d, %v", code, err)
	}
}

func TestBestEffortLetsTheJobStartUnlessTheNodeIsBad(t *testing.T) {
	for code, want := range map[int]int{exitOK: exitOK, exitNodeBad: exitNodeBad, exitUnknown: exitOK} {
		if got := (options{bestEffort: true}).exitCode(code); got != want {
			t.Errorf("exit %d instead of %d: %d", want, code, got)
		}
		if got := (options{}).exitCode(code); got != code {
			t.Errorf("without it: exit %d instead of %d", got, code)
		}
	}
	before := os.Args
	defer func() { os.Args = before }()
	os.Args = []string{"preflight", "-best-effort", "-no-such-flag"}
	if code := start(); code != exitOK {
		t.Errorf("a wrong flag: exit %d", code)
	}
}
