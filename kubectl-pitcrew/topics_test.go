package main

import (
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

func TestEveryClassAndReasonIsExplained(t *testing.T) {
	names := []string{
		quarantine.NodeQuarantined, quarantine.QuarantineUpgraded, quarantine.QuarantineBlocked, quarantine.WouldQuarantine, quarantine.TaintRestored,
		quarantine.NodeReleased, quarantine.ReleaseByHand, quarantine.UncordonedByHand, quarantine.DriverUpgradeStale, quarantine.DetectorSuspect,
		quarantine.BreakerOpen, quarantine.BreakerClosed, quarantine.PolicyInvalid,
		quarantine.BlockedByObserve, quarantine.BlockedByBudget, quarantine.BlockedByBreaker, quarantine.BlockedByDetectorSuspect, quarantine.BlockedByStale,
		quarantine.BlockedByPause, quarantine.BlockedByManualRelease, quarantine.BlockedByUnreadableRecord, quarantine.BlockedByMissingRule, quarantine.BlockedByUnconfirmed,
	}
	for class := conditions.Monitor; class <= conditions.Replace; class++ {
		names = append(names, class.String())
	}
	for _, name := range names {
		if text, _ := topic(name); text == "" {
			t.Errorf("%s is not explained", name)
		}
	}
}
