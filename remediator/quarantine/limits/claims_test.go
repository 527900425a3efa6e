package limits

import (
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// A rack that others maintain has not failed.
func TestNodesThatOthersMaintainMakeNoIncident(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	domain := policy.Domain{Window: time.Minute, Incidents: &policy.Incidents{MinNodes: 2, MaxNodes: 10}}
	self := Peer{Name: "a", Domain: Domain{"rack", "1"}, Failed: Span{noon, noon}}
	other := self
	other.Name = "b"
	if found, why := PeersOf(other).IncidentOf(domain, self); found == nil {
		t.Errorf("two nodes of a rack make no incident: %s", why)
	}
	other.Claims = []node.Claim{{Why: "x", From: noon, Until: noon.Add(time.Hour)}}
	if found, _ := PeersOf(other).IncidentOf(domain, self); found != nil {
		t.Error("a node that others maintain makes an incident")
	}
	other.Claims[0].From = noon.Add(time.Second)
	if found, _ := PeersOf(other).IncidentOf(domain, self); found == nil {
		t.Error("a node that has failed before others have maintained it makes no incident")
	}
}
