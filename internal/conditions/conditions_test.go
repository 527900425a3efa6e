package conditions

import "testing"

func TestVerdictsAreTheConditionsOfTheRemediator(t *testing.T) {
	for _, c := range Verdicts {
		if !IsVerdict(c.Type) || !Ours(c.Type) {
			t.Errorf("%s: verdict %t, ours %t", c.Type, IsVerdict(c.Type), Ours(c.Type))
		}
	}
	for _, c := range All {
		if IsVerdict(c.Type) || !Ours(c.Type) {
			t.Errorf("%s: verdict %t, ours %t", c.Type, IsVerdict(c.Type), Ours(c.Type))
		}
	}
	if IsVerdict("Ready") || Ours("Ready") {
		t.Error("the kubelet's condition Ready is ours")
	}
}

func TestOnlyQuarantinedNodesAreOutOfService(t *testing.T) {
	for status, want := range map[string]bool{
		"": false, StatusHealthy: false, StatusSuspect: false, StatusQuarantined: true, StatusRepairing: true, StatusValidating: true, "else": false,
	} {
		if got := OutOfService(status); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
}
