package quarantine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// keptStores are the values of ConfigMaps at a time.
type keptStores struct {
	Now                    time.Time
	Breaker, Starts, Known string
}

func TestGoldenStores(t *testing.T) {
	k := goldentest.Read(t, "stores/open", func(t *testing.T) keptStores {
		w := newWorld(t)
		w.policy = policyOf(t, cordonPolicy)
		memory, opened := limits.Memory{}, limits.BreakerState{OpenedAt: w.now}
		for _, s := range []limits.Start{{Rule: "gpu", At: w.now}, {Rule: "disk", At: w.now.Add(-time.Minute), Soft: true}} {
			memory, _ = memory.With(s.EntryOf(w.policy, w.node), time.Hour, w.now)
		}
		return keptStores{w.now, opened.String(), memory.String(), handoff.KnownOf(w.policy).String()}
	})
	if got := limits.ParseBreaker(k.Breaker, k.Now.Add(time.Minute)).String(); got != k.Breaker || got == "" {
		t.Errorf("breaker %q, want %q", got, k.Breaker)
	}
	if got, err := limits.ParseMemory(k.Starts, k.Now); err != nil || got.String() != k.Starts || len(got) != 1 {
		t.Errorf("starts %q, want %q: %v", got, k.Starts, err)
	}
	known := handoff.ParseKnown(k.Known)
	if known.String() != k.Known || !known.CanCordon() {
		t.Errorf("known %q, want %q", known, k.Known)
	}
}

// The policies that 19f658c shipped are read, and act by the same rules.
func TestGoldenPolicies(t *testing.T) {
	for _, name := range []string{"policy", "policy-third-party"} {
		t.Run(name, func(t *testing.T) {
			text := goldentest.Read(t, "policies/"+name, func(t *testing.T) string {
				data, err := os.ReadFile(filepath.Join("../../manifests", name+".yaml"))
				if err != nil {
					t.Fatal(err)
				}
				return string(data)
			})
			p, err := policy.Parse([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			var rules []string
			for _, r := range p.Rules {
				rules = append(rules, r.Name)
			}
			goldentest.Answer(t, "policies/"+name, rules)
		})
	}
}
