package limits

import "testing"

// Only what the Node of an origin itself tells shows that its quarantine has ended.
func TestWhoHasReturned(t *testing.T) {
	hard, soft, gone := Start{At: noon, Proven: true}, Start{At: noon, Soft: true}, Start{At: noon, Proven: true, Gone: true}
	for name, test := range map[string]struct {
		peer Peer
		want bool
	}{
		"its record tells of one that has ended": {Peer{Starts: []Start{gone, hard}}, true},
		"it is quarantined":                      {Peer{Why: Quarantined, Starts: []Start{hard}}, false},
		"it was created anew":                    {Peer{Starts: []Start{gone}}, false},
		"it is gone":                             {Peer{Gone: true, Starts: []Start{hard}}, false},
		"it was only avoided":                    {Peer{Starts: []Start{soft}}, false},
		"it never was":                           {Peer{}, false},
	} {
		test.peer.Name = "origin"
		if got := PeersOf(test.peer).HasReturned("origin"); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if PeersOf(Peer{Name: "other", Starts: []Start{hard}}).HasReturned("origin") || (Peers{}).HasReturned("origin") {
		t.Error("a node that is not there has returned")
	}
}

func TestAPeerIsFoundByItsNameWhateverOthersAreCalled(t *testing.T) {
	fleet := NewFleet()
	fleet.Put(Peer{Name: "a", Why: Quarantined})
	if p := fleet.Others("a"); p.named("a") != nil || p.named("b") != nil || fleet.Others("b").named("a") == nil {
		t.Error("the node that asks is among the others, or another is not")
	}
	list := PeersOf(Peer{}, Peer{Name: "1"}, Peer{Name: "a", Rule: "first"}, Peer{Name: "a", Rule: "second"})
	if got := list.named("a"); got == nil || got.Rule != "first" || list.in("", nil).checked != 4 {
		t.Errorf("%+v of %d", got, list.in("", nil).checked)
	}
}
