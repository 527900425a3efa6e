package main

import (
	"slices"
	"strings"
	"testing"
)

func newTestWorld(t *testing.T) *world {
	t.Helper()
	w, err := newWorld(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// tolerated are the alarms that bench/results/false-alarms.md names, by check or rule and noise.
var tolerated = map[string]string{"ClockSkewed": "ntp-offset-40ms-slewed-by-ntpd"}

// Every machine is looked at, and each noise is played on three of those that it fits; the command plays it on all of them.
func TestNoiseRaisesNoAlarm(t *testing.T) {
	w := newTestWorld(t)
	chosen := map[*machine][]*noise{}
	for i, n := range w.noise {
		fits := slices.DeleteFunc(slices.Clone(w.machines), func(m *machine) bool { return !n.fits(m) })
		for k := range min(3, len(fits)) {
			m := fits[(i+k)%len(fits)]
			chosen[m] = append(chosen[m], n)
		}
	}
	all := &result{played: map[string]int{}}
	for _, m := range w.machines {
		few := &world{dir: w.dir, policy: w.policy, mutants: w.mutants, noise: chosen[m]}
		if err := few.playMachine(t.Context(), m, all); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range all.alarms {
		if a.kind == "action" || tolerated[a.by] != a.during {
			t.Errorf("%s: %s by %s during %s: %s", a.machine, a.kind, a.by, a.during, a.message)
		}
	}
	for _, n := range w.noise {
		if all.played[n.name] == 0 {
			t.Errorf("%s was played on no machine", n.name)
		}
	}
	seen := map[string]string{}
	for _, m := range w.machines {
		if other, ok := seen[m.files["dmesg"]]; ok && m.files["dmesg"] != "" {
			t.Errorf("%s is %s once more", m.name, other)
		}
		seen[m.files["dmesg"]] = m.name
	}
}

// Each mutant is a threshold that is too low. The bench has to find it.
func TestAThresholdThatIsTooLowIsFound(t *testing.T) {
	shared := newTestWorld(t)
	for name, test := range map[string]struct {
		condition, argument string // of the check
		old, new            string // in the policy
		want                alarm
	}{
		"a single flap makes a port unreliable": {"HCAPortDown", "-flaps=1", "", "", alarm{kind: "action", by: "hca-port", during: "ib-flap-2s"}},
		"an offset of 1 ms is one too many":     {"ClockSkewed", "-max-offset=1ms", "", "", alarm{kind: "alert", by: "ClockSkewed", during: "nothing"}},
		"errors of applications are problems": {"GPUXidError", "-min-repair=RestartApp", "", "",
			alarm{kind: "alert", by: "GPUXidError", during: "xid-31-of-an-application"}},
		"corrected errors are problems": {"KernelHardwareError", "-min-repair=Monitor", "", "",
			alarm{kind: "alert", by: "KernelHardwareError", during: "pcie-corrected-errors"}},
		"a single restart of a service is a fault": {"NodeServiceDown", "-restarts=1", "", "",
			alarm{kind: "action", by: "node-service", during: "services-restart-in-an-upgrade"}},
		"one lost heartbeat is a dead node": {"", "", "for: 2m\n      clearAfter: 5m", "for: 1s\n      clearAfter: 5m",
			alarm{kind: "action", by: "node-not-ready", during: "kubelet-restart"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{dir: shared.dir, policy: strings.Replace(shared.policy, test.old, test.new, 1), mutants: map[string][]string{}}
			if test.condition != "" {
				w.mutants[test.condition] = []string{test.argument}
			}
			w.machines = slices.DeleteFunc(slices.Clone(shared.machines), func(m *machine) bool {
				return m.name != "h100-sxm-ubuntu-22.04" && m.name != "a100-pcie-rocky-8"
			})
			w.noise = slices.DeleteFunc(slices.Clone(shared.noise), func(n *noise) bool { return n.name != test.want.during })
			all, err := w.playOnce(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			found := slices.ContainsFunc(all.alarms, func(a alarm) bool {
				return a.kind == test.want.kind && a.by == test.want.by && a.during == test.want.during
			})
			if !found {
				t.Errorf("not found: %+v", all.alarms)
			}
		})
	}
}

func TestNoiseThatCannotBeReadIsRefused(t *testing.T) {
	for _, line := range []string{"rate: often", "log dmesg x 1s: text", "log dmesg 1 soon: text", "add file: many", "wait long", "explode"} {
		if err := new(noise).parse(line); err == nil {
			t.Errorf("%q is read", line)
		}
	}
}
