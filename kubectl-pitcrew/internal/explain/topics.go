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
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// topics are the words of Pitcrew's output that neither a page nor a table of one explains.
var topics = map[string]string{
	conditions.Monitor.String():    "Repair class. The fault needs nothing now; watch whether it comes back.",
	conditions.RestartApp.String(): "Repair class. The workload has to be restarted; the hardware is not at fault.",
	conditions.Inspect.String():    "Repair class. A person has to find out what the node needs.",
	conditions.ResetGPU.String():   "Repair class. The GPU has to be reset, without any process on it. Then the node is released by itself.",
	conditions.Reboot.String():     "Repair class. The node has to be rebooted. It is released after a new boot with healthy checks.",
	conditions.Replace.String():    "Repair class. Hardware has to be replaced. Only `kubectl pitcrew release NODE` releases the node.",

	string(visit.Sweep):      "Kind of a visit: an idle node is checked, so that a fault is found before a job meets it.",
	string(visit.Repair):     "Kind of a visit: a quarantined node is repaired, by the actions of the policy in turn, until one helps.",
	string(visit.Validation): "Kind of a visit: a quarantined node without a fault is checked under load before it returns.",
	string(visit.FirstCheck): "Kind of a visit: a new node is checked before its first job.",

	string(visit.Emptying): "Phase of a visit: it waits for pods that have to end, and for limits. Nothing is done on the node yet.",
	string(visit.Working):  "Phase of a visit: its Job runs. The node has taint pitcrew.dev/maintenance, and its conditions do not count.",
	string(visit.Ending): "Phase of a visit: its Job is deleted before it has ended. The taint stays until its pod has ended, " +
		"for at most the pod's grace period and 30 s; for a sweep 10 s.",
	string(visit.Proving): "Phase of a visit: its Job has ended, and the node's conditions have to show what became of the fault.",
	string(visit.Passed):  "End of a visit: the fault is gone, or the check has found none.",
	string(visit.Failed):  "End of a visit: the fault is still there, the check has found one, or the Job could not run: see its outcome.",
	string(visit.Refused): "End of a visit: the Job found that it must not act now.",
	string(visit.Yielded): "End of a visit: a pending pod could use the node, so that the sweep yielded.",

	"PitcrewNodeCondition": "Alert of an installation without the remediator: a condition of a node is True. " +
		"Its label condition names the page: explain that.",
}

// tablesOf are the pages whose tables and lists begin with the names of Events, reasons, statuses and metrics.
func tablesOf() map[string]string {
	pages := map[string]string{"docs/alerting.md": docs.Alerting, "docs/metrics.md": docs.Metrics, "docs/words.md": docs.Words}
	for _, name := range []string{"JobRestart", "PitcrewJobRestartHeld", "PitcrewQuarantineBlocked"} {
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
