package quarantine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

const gpuFault = "GPUXidError"

// claimants are so many other nodes that have claimed maintenance since a time.
func claimants(n int, since time.Time) (peers []limits.Peer) {
	for i := range n {
		claim := node.Claim{Why: "x", InProgress: true, From: since, Until: since.Add(node.ClaimLimit)}
		peers = append(peers, limits.Peer{Name: fmt.Sprintf("a%d", i), Claims: []node.Claim{claim}})
	}
	return peers
}

func TestMaintenanceOfOthersExplainsWhatBeganInIt(t *testing.T) {
	planned, works := says("MaintenancePlanned", "True", ""), says("MaintenanceInProgress", "True", "")
	over := says("MaintenanceInProgress", "False", "")
	for name, test := range map[string]struct {
		steps []step
		taint string
	}{
		"an absence":                          {[]step{works, silent, decide, starves(time.Hour)}, ""},
		"that was planned":                    {[]step{planned, silent, decide, starves(time.Hour)}, ""},
		"for longer than a claim holds":       {[]step{planned, silent, decide, starves(node.ClaimLimit + 2*time.Minute)}, deadTaint},
		"an absence that goes on":             {[]step{works, silent, decide, starves(time.Hour), over, decide, starves(2 * time.Minute)}, deadTaint},
		"an older absence":                    {[]step{silent, passes(time.Second), works, decide, starves(2 * time.Minute)}, deadTaint},
		"a fault":                             {[]step{works, gpu(lost), decide, lasts(time.Hour)}, ""},
		"a fault that was there before":       {[]step{gpu(lost), passes(time.Second), works, decide}, gpuTaint},
		"a fault while it is planned":         {[]step{planned, gpu(lost), decide}, gpuTaint},
		"a fault that is quarantined already": {[]step{gpu(lost), decide, works, decide, lasts(time.Hour)}, gpuTaint},
		"a fault that is back": {
			[]step{gpu(lost), decide, gpuFine, decide, works, passes(time.Second), gpu(lost), decide, lasts(time.Hour)}, gpuTaint,
		},
		"a fault that outlives it":  {[]step{works, gpu(lost), decide, lasts(node.ClaimLimit + time.Second)}, gpuTaint},
		"a claim that is made anew": {[]step{works, gpu(lost), decide, passes(time.Minute), over, passes(time.Second), works, decide}, gpuTaint},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(test.steps...)
			phase := causes.Phase("")
			if test.taint != "" {
				phase = causes.Quarantined
			}
			w.expect(phase, test.taint, test.taint != "")
		})
	}
}

func TestOnlyFewNodesAreExcusedByMaintenance(t *testing.T) {
	works := says("MaintenanceInProgress", "True", "")
	for name, test := range map[string]struct {
		claims, others int
		excused        bool
	}{
		"the second":                   {1, 0, true},
		"the third":                    {2, 0, false},
		"the second of many":           {1, 27, true},
		"the third of thirty":          {2, 27, true},
		"the fourth of thirty":         {3, 26, false},
		"the third of twenty-nine":     {2, 26, false},
		"others have claimed none yet": {0, 40, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.peers = append(claimants(test.claims, w.now), make([]limits.Peer, test.others)...)
			w.run(passes(time.Second), works, gpu(lost), decide)
			if test.excused {
				w.expect("", "", false)
			} else {
				w.expect(causes.Quarantined, gpuTaint, true)
			}
		})
	}
}

func TestNodesThatOthersMaintainAreNoSignOfACommonCause(t *testing.T) {
	for name, test := range map[string]struct {
		claims, faulty, healthy int
		suspect                 bool
	}{
		"no claim": {0, 1, 1, true}, "a claim": {1, 0, 1, false}, "more claims than count": {4, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.policy.Correlated = &policy.Correlated{MaxPercent: 50, MinNodes: 2, Window: time.Minute, Scopes: []string{""}}
			w.peers = append(claimants(test.claims, w.now), make([]limits.Peer, test.faulty+test.healthy)...)
			for i := range test.claims + test.faulty {
				w.peers[i].AddProblem(corev1.NodeCondition{Type: gpuFault, LastTransitionTime: metav1.NewTime(w.now.Add(time.Second))})
			}
			w.run(passes(2*time.Second), gpu(lost), decide)
			if got := strings.Contains(strings.Join(w.reasons, " "), causes.BlockedByDetectorSuspect); got != test.suspect {
				t.Errorf("suspect is %v: %v", got, w.reasons)
			}
		})
	}
}
