package explain

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/request"
)

func TestEveryClassAndReasonIsExplained(t *testing.T) {
	names := []string{
		causes.NodeQuarantined, causes.QuarantineUpgraded, causes.QuarantineBlocked, causes.WouldQuarantine, causes.TaintRestored,
		causes.NodeReleased, causes.ReleaseByHand, causes.UncordonedByHand, causes.DriverUpgradeStale, causes.DetectorSuspect,
		causes.BreakerOpen, causes.BreakerClosed, causes.PolicyInvalid,
		causes.BlockedByObserve, causes.BlockedByBudget, causes.BlockedByBreaker, causes.BlockedByDetectorSuspect, causes.BlockedByStale,
		causes.BlockedByPause, causes.BlockedByManualRelease, causes.BlockedByUnreadableRecord, causes.BlockedByMissingRule, causes.BlockedByUnconfirmed,
		causes.BlockedByValidation, causes.BlockedByOrigin, causes.BlockedByDevices, causes.BlockedByTooLarge,
		repair.RepairStarted, repair.RepairSucceeded, repair.RepairFailed, repair.RepairRefused, repair.RepairWaiting,
		repair.SweepStarted, repair.SweepYielded, repair.NodeChecked,
		string(visit.Emptying), string(visit.Working), string(visit.Ending), string(visit.Proving),
		string(visit.Passed), string(visit.Failed), string(visit.Refused), string(visit.Yielded),
		string(visit.Sweep), string(visit.Repair), string(visit.Validation), string(visit.FirstCheck), conditions.StatusRepairing, conditions.StatusValidating,
	}
	names = append(names, request.RepairRequested, request.RepairStopRequested, request.CheckRequested, request.ReleaseRequested)
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
	tables, _, _ := strings.Cut(read("../../../docs/words.md"), "**`STATUS`")
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
