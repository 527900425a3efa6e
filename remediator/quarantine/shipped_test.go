package quarantine

import (
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// newShippedWorld has the policy that ships, enforced.
func newShippedWorld(t *testing.T) *world {
	t.Helper()
	text, err := os.ReadFile("../../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const observe = "\n  mode: observe\n"
	if !strings.Contains(string(text), observe) {
		t.Fatal("the shipped policy does not observe")
	}
	w := newReadyWorld(t)
	w.policy = policyOf(t, strings.Replace(string(text), observe, "\n  mode: enforce\n", 1))
	return w
}

// restarts are the quarantines for which jobs are restarted. Only one of each is.
func restarts(w *world, steps ...step) (ids []string) {
	for _, s := range steps {
		w.run(s)
		if r := w.record(); w.last.RestartJobs && (len(ids) == 0 || ids[len(ids)-1] != r.ID) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// NCCL gives up some 7 s after a port is down, so the job has failed, and been restarted by its operator, long before the rule fires.
func TestAPortThatFlapsForTenSecondsRestartsNoJobOnceMore(t *testing.T) {
	const port = "HCAPortDown"
	down, up := says(port, "True", "Inspect hca mlx5_3 port 1: state DOWN, expected ACTIVE"), says(port, "False", "")
	flap := []step{down, decide, passes(10 * time.Second), decide, up, decide, lasts(time.Hour)}
	w := newShippedWorld(t)
	for n := range 3 {
		if ids := restarts(w, flap...); len(ids) > 0 || w.record() != nil && w.record().Phase == causes.Quarantined {
			t.Errorf("flap %d restarts jobs for %v", n+1, ids)
		}
	}
	if ids := restarts(w, flap...); len(ids) != 1 {
		t.Errorf("the fourth flap of a day restarts jobs for %v", ids)
	}
	w = newShippedWorld(t)
	if ids := restarts(w, down, decide, lasts(59*time.Second)); len(ids) > 0 {
		t.Errorf("after 59 s jobs are restarted for %v", ids)
	}
	if ids := restarts(w, lasts(time.Second), lasts(time.Hour)); len(ids) != 1 {
		t.Errorf("a port that stays down restarts jobs for %v", ids)
	}
}

func TestABurstOfXidsIsOneQuarantineOfTheWorstClass(t *testing.T) {
	const reset, reboot = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error", "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	for name, messages := range map[string][]string{
		"worse":  {reset, reset + "; gpu 0000:2a:00: Xid 119 GSP RPC timeout", reboot + "; gpu 0000:1b:00: Xid 95 uncontained ECC error"},
		"milder": {reboot, reset, reset},
	} {
		t.Run(name, func(t *testing.T) {
			w := newShippedWorld(t)
			ids := map[string]bool{}
			for _, message := range messages {
				for _, s := range []step{gpu(message), decide, lasts(time.Minute)} {
					w.run(s)
					if r := w.record(); r != nil && r.Phase == causes.Quarantined {
						ids[r.ID] = true
					}
				}
			}
			if r := w.record(); r == nil || r.Phase != causes.Quarantined || len(r.Last) > 0 || len(r.Causes) != 1 || len(ids) != 1 {
				t.Fatalf("%d quarantines, %+v", len(ids), r)
			}
			if o := w.outcome(); o.Repair != "Reboot" {
				t.Errorf("class %s: %v", o.Repair, w.reasons)
			}
		})
	}
}

// Attack 3: a failed check that one tenant reports has the node avoided, by the policy that ships, and restarts nothing until it is confirmed.
func TestOneTenantsFailedCheckOnlyHasTheNodeAvoided(t *testing.T) {
	w := newShippedWorld(t)
	reports := func(verdict string) step {
		return says(conditions.PreflightFailed, "True", "Inspect node: "+verdict+" failure of gpu check by run a/r")
	}
	if ids := restarts(w, reports("suspected"), decide, lasts(time.Hour)); len(ids) > 0 || w.outcome().Taints != "pitcrew.dev/unhealthy=PreflightFailed:PreferNoSchedule" {
		t.Errorf("suspected: %+v", w.outcome())
	}
	if ids := restarts(w, reports("confirmed"), decide, lasts(time.Hour)); len(ids) != 1 || w.outcome().Taints != "pitcrew.dev/unhealthy=PreflightFailed:NoSchedule" {
		t.Errorf("confirmed: %+v", w.outcome())
	}
}

// A remediator that starts over what a cluster wrote a year ago acts on none of it.
func TestWhatIsAYearOldQuarantinesNothing(t *testing.T) {
	w := newShippedWorld(t)
	for _, s := range []step{gpu(lost), says("HCAPortDown", "True", "Inspect hca mlx5_3 port 1: state DOWN, expected ACTIVE"), says("DCGMDiagFailed", "True", "Replace gpu 0: x")} {
		s(w)
	}
	old := metav1.NewTime(w.now.AddDate(-1, 0, 0))
	for i := range w.node.Status.Conditions {
		c := &w.node.Status.Conditions[i]
		if c.LastTransitionTime = old; c.Type != corev1.NodeReady {
			c.LastHeartbeatTime = old
		}
	}
	w.node.CreationTimestamp, w.leadingSince = old, w.now
	if ids := restarts(w, decide, starves(2*time.Hour)); len(ids) > 0 {
		t.Errorf("restarts for %v", ids)
	}
	w.expect("", "", false)
}
