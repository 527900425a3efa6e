package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// said makes an episode of one line: seconds after an hour, namespace, workload, pattern.
func said(second int, namespace, workload, pattern string) episode {
	at := time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC).Add(time.Duration(second) * time.Second)
	return episode{Namespace: namespace, Workload: workload, Pattern: pattern, First: at, Last: at, Count: 1}
}

func TestJudge(t *testing.T) {
	xid := func(e episode, code int) episode { e.Xid = code; return e }
	relayed := func(e episode) episode { e.Relayed = true; return e }
	lasting := func(e episode, seconds int) episode {
		e.Last = e.First.Add(time.Duration(seconds) * time.Second)
		return e
	}
	counted := func(e episode, n int) episode { e.Count = n; return e }
	const (
		ecc    = "Inspect pod ml/a: uncorrectable ECC error"
		later  = "Monitor pod ml/a: uncorrectable ECC error, after the fault of a peer"
		remote = "Monitor pod ml/b: NCCL error of a remote process"
	)
	tests := map[string]struct {
		episodes episodes
		want     []string
	}{
		"nothing":                     {nil, nil},
		"a device's own fault":        {episodes{said(0, "ml", "a", "cuda-ecc")}, []string{ecc}},
		"a workload's error":          {episodes{said(0, "ml", "a", "nccl-error")}, []string{"Monitor pod ml/a: NCCL error"}},
		"a peer's fault":              {episodes{said(0, "ml", "b", "nccl-remote")}, []string{remote}},
		"logged first":                {episodes{said(5, "ml", "a", "cuda-ecc"), said(6, "ml", "b", "nccl-remote")}, []string{ecc, remote}},
		"logged at the same time":     {episodes{said(5, "ml", "a", "cuda-ecc"), said(5, "ml", "b", "nccl-remote")}, []string{ecc, remote}},
		"a victim first":              {episodes{said(5, "ml", "a", "cuda-ecc"), said(4, "ml", "b", "nccl-remote")}, []string{later, remote}},
		"a victim in the window":      {episodes{said(604, "ml", "a", "cuda-ecc"), said(4, "ml", "b", "nccl-remote")}, []string{later, remote}},
		"a victim before the window":  {episodes{said(605, "ml", "a", "cuda-ecc"), said(4, "ml", "b", "nccl-remote")}, []string{ecc, remote}},
		"a victim for a long time":    {episodes{said(9000, "ml", "a", "cuda-ecc"), lasting(said(4, "ml", "b", "nccl-remote"), 9100)}, []string{later, remote}},
		"a victim elsewhere":          {episodes{said(5, "ml", "a", "cuda-ecc"), said(4, "web", "b", "nccl-remote")}, []string{ecc, "Monitor pod web/b: NCCL error of a remote process"}},
		"an error that names no peer": {episodes{said(5, "ml", "a", "cuda-ecc"), said(4, "ml", "b", "nccl-watchdog")}, []string{ecc, "Monitor pod ml/b: collective operation timed out"}},
		"relayed":                     {episodes{relayed(said(5, "ml", "a", "cuda-ecc"))}, []string{"Monitor pod ml/a: uncorrectable ECC error, relayed from another process"}},
		"an Xid of the hardware":      {episodes{xid(said(0, "gpu", "dmesg", "xid"), 79)}, []string{"Inspect pod gpu/dmesg: Xid 79 GPU has fallen off the bus"}},
		"an Xid of an application":    {episodes{xid(said(0, "gpu", "dmesg", "xid"), 31)}, []string{"RestartApp pod gpu/dmesg: Xid 31 GPU memory page fault"}},
		"an Xid in no table":          {episodes{xid(said(0, "gpu", "dmesg", "xid"), 4711)}, []string{"Inspect pod gpu/dmesg: Xid 4711 not in the catalogue"}},
		"an Xid after a peer's fault": {episodes{xid(said(5, "ml", "a", "xid"), 79), said(4, "ml", "b", "nccl-remote")}, []string{"Monitor pod ml/a: Xid 79 GPU has fallen off the bus, after the fault of a peer", remote}},
		"too few lines":               {episodes{counted(said(0, "ml", "a", "nccl-ib"), 2)}, nil},
		"enough lines":                {episodes{counted(said(0, "ml", "a", "nccl-ib"), 3)}, []string{"Monitor pod ml/a: RDMA completion errors"}},
		"a pattern that is no more":   {episodes{said(0, "ml", "a", "gone")}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			result := judge(snapshot{Namespaces: namespaces{"*"}, Window: 10 * time.Minute, Patterns: mustPatterns(t), Episodes: test.episodes})
			var got []string
			for _, f := range result.Findings {
				got = append(got, fmt.Sprintf("%s %s: %s", f.Repair, f.Subject, f.Text))
			}
			slices.Sort(got)
			slices.Sort(test.want)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTooFewLinesOfAPeersFaultMakeNoVictim(t *testing.T) {
	patterns := []pattern{
		{Name: "ecc", Repair: conditions.Inspect, Count: 1, Role: hardware, Text: "ECC"},
		{Name: "remote", Repair: conditions.Monitor, Count: 2, Role: peer, Text: "remote"},
	}
	s := snapshot{Window: time.Minute, Patterns: patterns, Episodes: episodes{said(5, "ml", "a", "ecc"), said(4, "ml", "b", "remote")}}
	if got := conditions.Summarize(judge(s).Findings).String(); got != "Inspect pod ml/a: ECC" {
		t.Error(got)
	}
}

func TestLinesWithinTheWindowAreOneEpisode(t *testing.T) {
	c := newClassifier(mustPatterns(t), 10*time.Minute)
	var s episodes
	for _, second := range []int{1000, 1600, 400, 2201, -201} {
		s.add(said(second, "ml", "a", "nccl-ib"), c)
	}
	want := episodes{said(400, "ml", "a", "nccl-ib"), said(2201, "ml", "a", "nccl-ib"), said(-201, "ml", "a", "nccl-ib")}
	want[0].Last, want[0].Count = said(1600, "", "", "").Last, 3
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
}

func TestEachXidAndWhatIsRelayedAreEpisodesOfTheirOwn(t *testing.T) {
	c := newClassifier(mustPatterns(t), 10*time.Minute)
	a, b, relayed := said(0, "ml", "a", "xid"), said(1, "ml", "a", "xid"), said(2, "ml", "a", "xid")
	a.Xid, b.Xid, relayed.Xid, relayed.Relayed = 31, 79, 31, true
	var s episodes
	for _, e := range []episode{a, b, relayed} {
		s.add(e, c)
	}
	if diff := cmp.Diff(episodes{a, b, relayed}, s); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsKeptIsBoundedAndTheWorstStays(t *testing.T) {
	c := newClassifier(mustPatterns(t), 10*time.Minute)
	var s episodes
	s.add(said(0, "ml", "sick", "cuda-ecc"), c)
	for i := range 3 * maxEpisodes {
		s.add(said(i, "ml", fmt.Sprintf("crashing-%d", i), "nccl-error"), c)
	}
	if len(s) != maxEpisodes || s[0].Workload != "sick" || s[len(s)-1].Workload != fmt.Sprintf("crashing-%d", 3*maxEpisodes-1) {
		t.Errorf("%d episodes, from %+v to %+v", len(s), s[0], s[len(s)-1])
	}
	// One workload that fails for days does not displace the others.
	s = nil
	s.add(said(0, "ml", "quiet", "nccl-error"), c)
	for day := range 100 {
		s.add(said(day*86400, "ml", "crashing", "nccl-error"), c)
	}
	if len(s) != 1+maxPerText || s[0].Workload != "quiet" || s[len(s)-1].First != said(99*86400, "", "", "").First {
		t.Errorf("%+v", s)
	}
}

func TestAFloodDoesNotChangeTheMessage(t *testing.T) {
	c := newClassifier(mustPatterns(t), 10*time.Minute)
	var s episodes
	message := func() string {
		return conditions.Summarize(judge(snapshot{Window: c.window, Patterns: mustPatterns(t), Episodes: s}).Findings).String()
	}
	full := ""
	for i := range 2 * maxEpisodes {
		e := said(i, "ml", "a", "xid")
		e.Xid = 1000 + i
		s.add(e, c)
		if i == maxPerText-1 {
			full = message()
		}
		if got := message(); i >= maxPerText && got != full {
			t.Fatalf("%q, and then %q", full, got)
		}
	}
	s = nil
	for i := range 2 * maxEpisodes {
		s.add(said(i, "ml", fmt.Sprintf("w-%03d", i), "cuda-ecc"), c)
	}
	if len(s) != maxEpisodes || s[0].Workload != "w-000" || s[len(s)-1].Workload != fmt.Sprintf("w-%03d", maxEpisodes-1) {
		t.Errorf("%d episodes, from %+v to %+v", len(s), s[0], s[len(s)-1])
	}
}

func TestTheWorstOfOneWorkloadStays(t *testing.T) {
	c := newClassifier(mustPatterns(t), 10*time.Minute)
	var s episodes
	s.add(said(0, "ml", "a", "cuda-ecc"), c)
	for day := 1; day < 100; day++ { // and from then on as a victim
		s.add(said(day*86400-1, "ml", "b", "nccl-remote"), c)
		s.add(said(day*86400, "ml", "a", "cuda-ecc"), c)
	}
	worst := conditions.Summarize(judge(snapshot{Window: c.window, Patterns: mustPatterns(t), Episodes: s}).Findings)
	if got := worst.Parts[0]; worst.Repair != conditions.Inspect || got.Text != "uncorrectable ECC error" {
		t.Errorf("%s", worst)
	}
}

func TestWorkloadOf(t *testing.T) {
	for pod, want := range map[string]string{
		"train-worker-3":       "train-worker-3", // Kubeflow, StatefulSet
		"train-0-x7k2p":        "train-0",        // indexed Job
		"js-workers-0-3-qj8nt": "js-workers-0-3", // JobSet
		"web-7d9f8c6b5d-b4n9z": "web",            // Deployment
		"dmesg-qj8nt":          "dmesg",          // DaemonSet
		"web-frontend":         "web-frontend",
		"train-small":          "train-small",
		"x7k2p":                "x7k2p",
		"-x7k2p":               "-x7k2p",
		"lm-eval-7d9f8c6b5d":   "lm-eval-7d9f8c6b5d", // a ReplicaSet's own name is no pod
	} {
		if got := workloadOf(pod); got != want {
			t.Errorf("%s: %s, want %s", pod, got, want)
		}
	}
}
