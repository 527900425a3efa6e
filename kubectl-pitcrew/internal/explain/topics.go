package explain

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/docs"
	"github.com/pitcrew-dev/pitcrew/docs/runbooks"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

// topics are the words of Pitcrew's output that have no page of their own.
var topics = map[string]string{
	conditions.Monitor.String():    "Repair class. The fault needs nothing now; watch whether it comes back.",
	conditions.RestartApp.String(): "Repair class. The workload has to be restarted; the hardware is not at fault.",
	conditions.Inspect.String():    "Repair class. A person has to find out what the node needs.",
	conditions.ResetGPU.String():   "Repair class. The GPU has to be reset, without any process on it. Then the node is released by itself.",
	conditions.Reboot.String():     "Repair class. The node has to be rebooted. It is released after a new boot with healthy checks.",
	conditions.Replace.String():    "Repair class. Hardware has to be replaced. Only `kubectl pitcrew release NODE` releases the node.",

	quarantine.NodeQuarantined:    "Event on a Node: it was tainted, by a rule or by a person.",
	quarantine.QuarantineUpgraded: "Event on a Node: a worse fault came during the quarantine, and the taint follows it.",
	quarantine.QuarantineBlocked:  "Event on a Node: a quarantine or a release is due and something holds it back. The message says what.",
	quarantine.WouldQuarantine:    "Event on a Node: a rule in observe mode would quarantine it. Nothing is done. To act: mode: enforce in the policy.",
	quarantine.TaintRestored:      "Event on a Node: the taint was removed during the quarantine and was put back once. A second removal is a manual release.",
	quarantine.NodeReleased:       "Event on a Node: the fault has cleared for as long as the rule asks, and the taint was removed.",
	quarantine.DeviceIsolated:     "Event on a Node: single GPUs take no new pods, by a rule with isolate: device. The node stays in service.",
	quarantine.DeviceReleased:     "Event on a Node: the fault of single GPUs has cleared for as long as the rule asks, and they take pods again.",
	quarantine.ReleaseByHand:      "Event on a Node: a person released it. The faults of then do not quarantine it before they have cleared; a new fault does.",
	quarantine.UncordonedByHand:   "Event on a Node: others have undone the cordon of the quarantine. The taint stays.",
	quarantine.DriverUpgradeStale: "Event on a Node: a driver upgrade of the GPU operator does not go on, and is ignored: faults count again.",
	quarantine.DetectorSuspect:    "Event on the namespace: many nodes show the same fault together, so the rule is suspended. See PitcrewDetectorSuspect.",
	quarantine.BreakerOpen:        "Event on the namespace: too many quarantines began, so no new one does. See PitcrewBreakerOpen.",
	quarantine.BreakerClosed:      "Event on the namespace: new quarantines may begin again.",
	quarantine.PolicyInvalid:      "Event on the namespace: the policy file is invalid, and the last valid one is in force. See PitcrewPolicyInvalid.",
	cli.EventFaultCleared:         "Event on a Node: a person had a plugin forget faults, by `kubectl pitcrew clear`.",
	cli.EventAbortWanted:          "Event on a job: a person asked to abort its restart, by `kubectl pitcrew abort`.",
	cli.EventPauseEnded:           "Event on the namespace: a person ended the pause.",
	"JobRestarting":               "Event on a job and its Node: the job is stopped and will be started on other nodes. See JobRestart.",
	"JobRestarted":                "Event on a job and its Node: all ranks run again. See JobRestart.",
	"JobRestartBlocked":           "Event on a job and its Node: the job is not restarted, or not yet. The reason in brackets, such as BackOff, can be explained, too. See JobRestart.",
	"JobRestartFailed":            "Event on a job and its Node: the restart was given up. See JobRestart.",
	"RestartNotOptedIn":           "Event on a job: it has pods on a quarantined node and is not opted in. The text names the label, or the misspelt one. See JobRestart.",
	"JobStalled":                  "Event on a job: all of its ranks run and none has made progress for longer than the job says. The text names the ranks behind, and their nodes.",
	"JobProgressUnknown":          "Event on a job: whether it makes progress cannot be told. The text says why.",
	"PolicyWarning":               "Event on the namespace: the policy is in force, but something in it is probably a mistake. On a job: it has an annotation that this version ignores. The text names it.",
	"PreflightVerdict":            "Event on a Node and the job of a preflight run: the result. `kubectl pitcrew preflight RUN` shows every pair. See SlowNode.",
	"PreflightIncomplete":         "Event on the job of a preflight run: not all ranks have reported. See SlowNode.",
	"PreflightRefused":            "Event on the ConfigMap of a preflight report: it does not count. The text says why.",

	repair.RepairStarted:                      "Event on a Node: the Job of a repair or of a validation has begun. `kubectl pitcrew describe NODE` shows each step.",
	repair.RepairSucceeded:                    "Event on a Node: after the repair, its conditions have proven that the fault is gone.",
	repair.RepairFailed:                       "Event on a Node: an action has not helped, or the repair was given up. The message names the next action, or says that the node waits for a person. See PitcrewRepairFailed.",
	repair.RepairRefused:                      "Event on a Node: its Job must not act now, for example because a process has a GPU open, and is tried again; or the policy does not allow what a person has asked for. The message says which.",
	repair.RepairWaiting:                      "Event on a Node: a repair, a validation or a first check is due and waits: for an approval, for pods that have to end, for a limit, for conditions or for the end of a pause. The message says for what.",
	repair.SweepStarted:                       "Event on a Node: a sweep checks it, because it is idle and was not checked for the longest time.",
	repair.SweepYielded:                       "Event on a Node: a sweep has ended early, because a pending pod could run on the node, or a fault has come. It is not a failure.",
	repair.NodeChecked:                        "Event on a Node: a sweep, a validation or a first check has ended. The message has the result.",
	cli.EventRequested[repair.RequestRepair]:  "Event on a Node: a person has approved its repair, by `kubectl pitcrew repair NODE --approve`.",
	cli.EventRequested[repair.RequestStop]:    "Event on a Node: a person has stopped its repair or its check, by `kubectl pitcrew repair NODE --stop`.",
	cli.EventRequested[repair.RequestCheck]:   "Event on a Node: a person has asked for a check of it, by `kubectl pitcrew check`.",
	cli.EventRequested[repair.RequestRelease]: "Event on a Node: a person released it, by `kubectl pitcrew release`; it returns when it has passed its check under load.",

	status.Repairing:  "Status of a node: quarantined, and a repair or a driver upgrade works on it. Its conditions do not count meanwhile.",
	status.Validating: "Status of a node: quarantined, and checked under load. When it passes, it is released.",

	string(repair.Sweep):      "Kind of a visit: an idle node is checked, so that a fault is found before a job meets it.",
	string(repair.Repair):     "Kind of a visit: a quarantined node is repaired, by the actions that the policy names for its repair class, one after the other until one helps.",
	string(repair.Validation): "Kind of a visit: a quarantined node without a fault is checked under load before it returns.",
	string(repair.FirstCheck): "Kind of a visit: a new node is checked before its first job.",

	string(repair.Emptying): "Phase of a visit: it waits for pods that have to end, and for limits. Nothing is done on the node yet.",
	string(repair.Working):  "Phase of a visit: its Job runs. The node has the taint pitcrew.dev/maintenance, and its conditions do not count.",
	string(repair.Ending):   "Phase of a visit: its Job is deleted before it has ended, and its pod has to end. The taint stays until then, for the pod's grace period and 30 s at most; for a sweep 10 s.",
	string(repair.Proving):  "Phase of a visit: its Job has ended, and the node's conditions have to show what became of the fault.",
	string(repair.Passed):   "End of a visit: the fault is gone, or the check has found none.",
	string(repair.Failed):   "End of a visit: the fault is still there, the check has found one, or the Job could not run. The outcome says which.",
	string(repair.Refused):  "End of a visit: the Job found that it must not act now.",
	string(repair.Yielded):  "End of a visit: a pending pod could use the node, so that the sweep made room.",

	"PitcrewNodeCondition": "Alert of an installation without the remediator: a condition of a node is True. Its label condition names the page: explain that.",

	quarantine.BlockedByObserve:         "Reason of a block: the rule is in observe mode. To act: mode: enforce in the policy.",
	quarantine.BlockedByPause:           "Reason of a block: everything is paused. `kubectl pitcrew resume` ends the pause.",
	quarantine.BlockedByStale:           "Reason of a block: the condition has no heartbeat any more. See PitcrewNodeConditionsStale.",
	quarantine.BlockedByValidation:      "Reason of a block: the fault has cleared, and the node has to pass its check under load before it returns (validate: true of the rule).",
	quarantine.BlockedByOrigin:          "Reason of a block: the fault is taken for a consequence of another node's broken link, and that node is not quarantined yet (spec.domains).",
	quarantine.BlockedByDevices:         "Reason of a block: the devices of a GPU are not known yet, or their rules cannot be read (isolate: device of the rule). After a minute the node is quarantined.",
	quarantine.BlockedByDetectorSuspect: "Reason of a block: many nodes show the same fault together. See PitcrewDetectorSuspect.",
}

// tablesOf are the pages whose tables and lists begin with the names of reasons and metrics.
func tablesOf() map[string]string {
	pages := map[string]string{"docs/alerting.md": docs.Alerting}
	for _, name := range []string{"JobRestart", "PitcrewQuarantineBlocked"} {
		text, err := runbooks.Page(name)
		if err != nil {
			panic(err) // it is embedded
		}
		pages["kubectl pitcrew explain "+name] = text
	}
	return pages
}

var (
	// tableRow is a row of a table or an entry of a list whose first cell has names in backquotes.
	tableRow = regexp.MustCompile("(?m)^(?:\\| *((?:`[^`|]+`[ *,]*)+)\\|(.*)\\| *$|- ((?:`[^`]+`[ ,]*)+)[^:`]*: *((?:.|\n  )*))")
	quoted   = regexp.MustCompile("`([^`]+)`")
)

// topic is the text about a name that is no page: a repair class, an Event, the reason of a block or a metric. names are all such names.
func topic(wanted string) (text string, names []string) {
	names = slices.Sorted(maps.Keys(topics))
	if i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, wanted) }); i >= 0 {
		text = fmt.Sprintf("%s: %s\n", names[i], topics[names[i]])
	}
	pages := tablesOf()
	for _, page := range slices.Sorted(maps.Keys(pages)) {
		for _, row := range tableRow.FindAllStringSubmatch(pages[page], -1) {
			var cells []string
			for cell := range strings.SplitSeq(row[2]+strings.ReplaceAll(row[4], "\n ", ""), "|") {
				if cell = strings.TrimSpace(cell); cell != "" {
					cells = append(cells, cell)
				}
			}
			says := plain(strings.Join(cells, "; "), folderOf(page))
			for _, m := range quoted.FindAllStringSubmatch(row[1]+row[3], -1) {
				names = append(names, m[1])
				if strings.EqualFold(m[1], wanted) {
					text += fmt.Sprintf("%s: %s\nMore: %s\n", m[1], says, page)
				}
			}
		}
	}
	return text, names
}

// link is a link in Markdown.
var link = regexp.MustCompile(`\[([^]]+)\]\(([^)\s]+)\)`)

// folderOf is the folder of the page that a topic was found on, for its links.
func folderOf(page string) string {
	if strings.HasPrefix(page, "docs/") {
		return path.Dir(page)
	}
	return "docs/runbooks"
}

// plain is a text in Markdown with its links written out, for a terminal. A link to the page of a name is only the name.
func plain(text, folder string) string {
	return link.ReplaceAllStringFunc(text, func(found string) string {
		m := link.FindStringSubmatch(found)
		switch to := m[2]; {
		case to == m[1]+".md" || strings.HasPrefix(to, "#"):
			return m[1]
		case strings.Contains(to, "://"):
			return m[1] + " (" + to + ")"
		default:
			return m[1] + " (" + path.Join(folder, to) + ")"
		}
	})
}
