package limits

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// The record of a victim may name an origin for whatever reason; a label that hundreds of nodes have still closes none of them.
func TestAVictimOfADomainThatIsTooLargeHasNoPlace(t *testing.T) {
	p := &policy.Policy{Domains: []policy.Domain{{Label: "clique", Window: time.Minute}}}
	fault := func(role LinkRole) LinkFault { return LinkFault{Role: role, Since: noon, Seen: noon} }
	origin := Peer{
		Name: "origin", Labels: map[string]string{"clique": "a"}, Domain: cliqueA, Link: fault(Origin), OutOfService: true, Why: Quarantined,
		Starts: []Start{{Rule: "gpu", At: noon, Proven: true}},
	}
	for nodes, want := range map[int]string{maxDomain - 2: "", maxDomain + 7: "", maxDomain + 8: "more nodes than a domain can have"} {
		all := []Peer{origin}
		for i := range nodes {
			all = append(all, Peer{Name: fmt.Sprint("n", i), Labels: origin.Labels, Domain: cliqueA})
		}
		q := Question{Policy: p, Unit: Unit{Origin: "origin", Self: Peer{Labels: origin.Labels, Domain: cliqueA, Link: fault(Victim)}}}
		if got := PeersOf(all...).Ask(q, noon).Why; want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%d nodes beside: refused with %q, want %q", nodes, got, want)
		}
	}
}
