package explain

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

func TestEveryClassAndReasonIsExplained(t *testing.T) {
	names := []string{
		quarantine.NodeQuarantined, quarantine.QuarantineUpgraded, quarantine.QuarantineBlocked, quarantine.WouldQuarantine, quarantine.TaintRestored,
		quarantine.NodeReleased, quarantine.ReleaseByHand, quarantine.UncordonedByHand, quarantine.DriverUpgradeStale, quarantine.DetectorSuspect,
		quarantine.BreakerOpen, quarantine.BreakerClosed, quarantine.PolicyInvalid,
		quarantine.BlockedByObserve, quarantine.BlockedByBudget, quarantine.BlockedByBreaker, quarantine.BlockedByDetectorSuspect, quarantine.BlockedByStale,
		quarantine.BlockedByPause, quarantine.BlockedByManualRelease, quarantine.BlockedByUnreadableRecord, quarantine.BlockedByMissingRule, quarantine.BlockedByUnconfirmed,
		quarantine.BlockedByValidation, quarantine.BlockedByOrigin, quarantine.BlockedByDevices,
		repair.RepairStarted, repair.RepairSucceeded, repair.RepairFailed, repair.RepairRefused, repair.RepairWaiting,
		repair.SweepStarted, repair.SweepYielded, repair.NodeChecked,
		string(repair.Emptying), string(repair.Working), string(repair.Ending), string(repair.Proving),
		string(repair.Passed), string(repair.Failed), string(repair.Refused), string(repair.Yielded),
		string(repair.Sweep), string(repair.Repair), string(repair.Validation), string(repair.FirstCheck), conditions.StatusRepairing, conditions.StatusValidating,
	}
	for _, reason := range cli.EventRequested {
		names = append(names, reason)
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

// What an alert or an Event names, an operator can have explained.
func TestEveryAlertAndEventIsExplained(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var names []string
	for _, pattern := range []string{"../../../manifests/alerts/*.yaml", "../../../manifests/alerts/without-remediator/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, m := range regexp.MustCompile(`(?m)^ *- alert: (\S+)$`).FindAllStringSubmatch(read(file), -1) {
				names = append(names, m[1])
			}
		}
	}
	alerts := len(names)
	_, tables, _ := strings.Cut(read("../../../docs/troubleshooting.md"), "## What the words mean")
	tables, _, _ = strings.Cut(tables, "**`STATUS`")
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(tables, -1) {
		for _, m := range quoted.FindAllStringSubmatch(row[1], -1) {
			names = append(names, m[1])
		}
	}
	if alerts < 35 || len(names)-alerts < 20 {
		t.Errorf("found %d alerts and %d reasons of Events", alerts, len(names)-alerts)
	}
	for _, name := range append(names, "Settling") {
		text, err := explain([]string{name})
		if err != nil {
			t.Errorf("%s is not explained: %v", name, err)
		}
		if strings.Contains(text, "](") {
			t.Errorf("%s is explained with a link in Markdown: %s", name, text)
		}
	}
}
