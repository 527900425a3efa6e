package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// load is the program that makes a CUDA load.
const load = "cuda-load"

// held is one run of a plugin below a process with the name of NPD.
type held struct {
	Exit    int     `json:"exit"`
	Says    string  `json:"says"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpuSeconds"`
}

// asDetector is the kit under the name of NPD: it runs a plugin twice, as NPD does. The first run answers at once, the second holds.
func asDetector(plugin string, args []string) int {
	for range 2 {
		begun := time.Now()
		cmd := exec.Command(plugin, args...) //nolint:noctx // the kit kills this process and its group
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			fmt.Fprintln(os.Stderr, err)
			return exitUnknown
		}
		line, err := json.Marshal(held{
			Exit: cmd.ProcessState.ExitCode(), Says: strings.TrimSpace(out.String()), Seconds: seconds(time.Since(begun)),
			CPU: seconds(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()),
		})
		if err != nil {
			return exitUnknown
		}
		fmt.Println(string(line))
	}
	return exitExpected
}

// loads are programs that keep GPUs busy, the heaviest first, with their arguments for a number of seconds.
func (k *kit) loads() (all []program) {
	tensor := []string{"--no-dcgm-validation", "-t", "1004", "-d"}
	for _, l := range []struct {
		name string
		args []string
	}{
		{"dcgmproftester13", tensor}, {"dcgmproftester12", tensor}, {"gpu_burn", nil}, {filepath.Join(k.programs, load), nil},
	} {
		path, err := exec.LookPath(l.name)
		if err != nil {
			continue
		}
		argv := append([]string{path}, l.args...)
		length := k.holdFor + 5*k.limit
		all = append(all, program{limit: length, argv: append(argv, fmt.Sprintf("%.0f", length.Seconds())), env: k.environment()})
	}
	return all
}

// startLoad starts the first load that does not end at once, and says in the end what it was. stop ends it.
func (k *kit) startLoad(ctx context.Context, o *outcome) (stop func()) {
	for _, l := range k.loads() {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan ran, 1)
		go func() { done <- k.run(ctx, l) }()
		select {
		case r := <-done:
			cancel()
			o.note("no load by %s: %s", filepath.Base(l.argv[0]), r.Failed+firstLine(r.stdout+r.stderr))
		case <-time.After(k.limit / 4):
			o.note("beside a load by %s", filepath.Base(l.argv[0]))
			return func() {
				cancel()
				if r := <-done; r.Exit > 0 {
					o.note("the load failed: %s", firstLine(r.stdout+r.stderr))
				}
			}
		}
	}
	o.note("without a CUDA load: nothing on this machine makes one")
	return func() {}
}

// holding runs a plugin that holds, beside a load, and looks at which times it has a device open: between two looks it must not, or no GPU
// could be reset.
func (k *kit) holding(ctx context.Context, o *outcome) {
	switch {
	case len(k.machine.GPUs) == 0:
		o.note("not run: there is no GPU")
		return
	case k.silent > 0:
		o.note("not run: NVML gives no answer")
		return
	case time.Until(k.deadline) < k.holdFor+4*k.limit:
		o.note("not run: too little time is left")
		return
	}
	stop := k.startLoad(ctx, o)
	p := k.nvmlCommand("ecc", "", "-hold", k.holdFor.String(), "-every", k.every.String())
	p.argv = append([]string{filepath.Join(k.programs, detector)}, p.argv...)
	p.limit = k.holdFor + 3*k.limit
	sampled, end := make(chan samples, 1), make(chan struct{})
	go func() { sampled <- k.sample(end) }()
	r := k.run(ctx, p)
	close(end)
	seen := <-sampled
	stop()
	r.Left = k.left()
	o.file(r)
	if r.Failed != "" {
		return
	}
	runs, err := parseHeld(r.stdout)
	if err != nil {
		o.differs("%v: %s", err, firstLine(r.stderr))
		return
	}
	first, second := runs[0], runs[1]
	o.note("at once after %.2f s, then held %.2f s with %.2f s of CPU: %s; a device was open in %d of %d samples",
		first.Seconds, second.Seconds, second.CPU, second.Says, seen.open, seen.all)
	if second.Exit != first.Exit || second.Says != first.Says || second.Exit != 0 {
		o.differs("exit %d, %s, then exit %d, %s", first.Exit, first.Says, second.Exit, second.Says)
	}
	if short := seconds(k.holdFor - k.every - time.Second); second.Seconds < short {
		o.differs("the hold of %s ended after %.2f s", k.holdFor, second.Seconds)
	}
	if seen.open*2 > seen.all {
		o.differs("a device was open most of the time: in %d of %d samples", seen.open, seen.all)
	}
}

func parseHeld(text string) (runs []held, err error) {
	for line := range strings.Lines(text) {
		var h held
		if err := json.Unmarshal([]byte(line), &h); err != nil {
			return nil, fmt.Errorf("%.80q: %w", line, err)
		}
		runs = append(runs, h)
	}
	if len(runs) != 2 {
		return nil, errors.New("the plugin did not run twice")
	}
	return runs, nil
}

// samples counts looks at the processes of the kit's plugins, and those in which one had a device open.
type samples struct{ all, open int }

func (k *kit) sample(end <-chan struct{}) (s samples) {
	for {
		s.all++
		for _, p := range programsIn(k.programs, k.devices) {
			if p.command != load && len(p.devices) > 0 {
				s.open++
				break
			}
		}
		select {
		case <-end:
			return s
		case <-time.After(200 * time.Millisecond):
		}
	}
}
