package alerts_test

import (
	"maps"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// testCase asks whether an alert fires at a time, given these series with one value for each minute.
type testCase struct {
	alert, name string
	series      map[string]string
	at          string
	want        []firing
}

// firing is an alarm: its labels, "name=value ...", and its value as the description prints it.
type firing struct{ labels, value string }

const (
	problem = `pitcrew_node_problem_timestamp_seconds{node="n1",instance="a",condition=`
	blocked = `pitcrew_node_blocked{node="n1",instance="a",rule="gpu-xid",reason=`
	restart = `pitcrew_job_restarts_total{kind="Job",instance="a",result=`
	// quarantined is the node of problem, taken out of service.
	quarantined  = `pitcrew_node_quarantine_timestamp_seconds{node="n1",instance="a",rule="gpu-xid",repair="Reboot",effect="NoSchedule"}`
	waits        = `pitcrew_job_not_restarted_timestamp_seconds{instance="a",kind="JobSet",namespace="ml",job="train",node="n1",reason=`
	failedRepair = `pitcrew_node_repair_failed_timestamp_seconds{node="n1",instance="a",kind="repair",advice=`
	paused       = `pitcrew_paused{instance="a"}`
	epoch        = "1970-01-01 00:00:00 +0000 UTC"
)

// with adds a series.
func with(series map[string]string, name, values string) map[string]string {
	all := map[string]string{name: values}
	maps.Copy(all, series)
	return all
}

// casesOfConditions are the cases of each condition's own alert.
func casesOfConditions(path string) []testCase {
	if path != "conditions.yaml" {
		return nil
	}
	var all []testCase
	for _, c := range vocabulary(conditions.All, conditions.Verdicts) {
		of := func(repair, status string) map[string]string {
			return map[string]string{problem + `"` + c + `",repair="` + repair + `",status="` + status + `"}`: "0x10"}
		}
		all = append(all,
			testCase{c, "needs a reboot", of("Reboot", "True"), "5m", []firing{{"severity=critical node=n1 handled=false repair=Reboot condition=" + c, epoch}}},
			testCase{c, "needs an inspection", of("Inspect", "True"), "5m", []firing{{"severity=warning node=n1 handled=false repair=Inspect condition=" + c, epoch}}},
			testCase{c, "needs no repair", of("Monitor", "True"), "5m", []firing{{"severity=warning node=n1 handled=false repair=Monitor condition=" + c, epoch}}},
			testCase{c, "needs a reboot and is quarantined", with(of("Reboot", "True"), quarantined, "0x10"), "5m", []firing{{"severity=warning node=n1 handled=true repair=Reboot condition=" + c, epoch}}},
			testCase{c, "needs an inspection and is quarantined", with(of("Inspect", "True"), quarantined, "0x10"), "5m", []firing{{"severity=warning node=n1 handled=true repair=Inspect condition=" + c, epoch}}},
			testCase{c, "is quarantined and has cleared", map[string]string{quarantined: "0x10"}, "5m", nil},
			testCase{c, "has just begun", of("Reboot", "True"), "0m", nil},
			testCase{c, "is stale", of("Reboot", "Stale"), "5m", nil},
			testCase{c, "is unknown", of("", "Unknown"), "5m", nil},
		)
	}
	return append(all,
		testCase{"GPUXidError", "while the leader changes", map[string]string{
			`pitcrew_node_problem_timestamp_seconds{node="n1",instance="a",condition="GPUXidError",repair="Reboot",status="True"}`: "0x5 stale",
			`pitcrew_node_problem_timestamp_seconds{node="n1",instance="b",condition="GPUXidError",repair="Reboot",status="True"}`: "_x7 0x5",
		}, "7m", []firing{{"severity=critical node=n1 handled=false repair=Reboot condition=GPUXidError", epoch}}},
		severity("is in service", nil, "critical", "false"),
		severity("waits for a job that is left alone", map[string]string{quarantined: "0x10", waits + `"Kueue"}`: "0x10"}, "critical", "false"),
		severity("waits for a job that ends by itself", map[string]string{quarantined: "0x10", waits + `"BackOff"}`: "0x10"}, "critical", "false"),
		severity("waited for a job that was restarted", map[string]string{quarantined: "0x20", waits + `"BackOff"}`: "0x2 stale"}, "warning", "true"),
		severity("waits for a job that cannot stop", map[string]string{quarantined: "0x10",
			`pitcrew_job_restart_held{instance="a",kind="JobSet",namespace="ml",job="train",pod="train-3",node="n1"}`: "1x10"}, "critical", "false"),
		severity("is only avoided", map[string]string{strings.Replace(quarantined, "NoSchedule", "PreferNoSchedule", 1): "0x10"}, "critical", "false"),
		severity("would be quarantined in a dry run", map[string]string{strings.Replace(quarantined, "NoSchedule", "", 1): "0x10"}, "critical", "false"),
		severity("another node is quarantined", map[string]string{strings.Replace(quarantined, "n1", "n2", 1): "0x10"}, "critical", "false"),
		severity("a job on another node waits", map[string]string{quarantined: "0x10", strings.Replace(waits, "n1", "n2", 1) + `"Kueue"}`: "0x10"}, "warning", "true"),
		severity("is quarantined while the leader changes", map[string]string{quarantined: "0x7 stale", strings.Replace(quarantined, `"a"`, `"b"`, 1): "_x9 0x10"}, "warning", "true"),
		severity("waited for a job when Pitcrew was paused", map[string]string{quarantined: "0x20", waits + `"BudgetPerDay"}`: "0x2 stale", paused: "0x2 1x20"}, "critical", "false"),
		severity("is quarantined, and Pitcrew is not paused any more", map[string]string{quarantined: "0x20", paused: "1x2 0x20"}, "warning", "true"),
		severity("has a job whose restart ends with an error", map[string]string{quarantined: "0x10", waits + `"Error"}`: "0x10"}, "critical", "false"),
		severity("was released", map[string]string{quarantined: "0x3 stale"}, "critical", "false"),
		// Without a leader nothing is known of any node: then PitcrewRemediatorDown or PitcrewRemediatorNoLeader fires.
		testCase{"GPUXidError", "without a leader", map[string]string{problem + `"GPUXidError",repair="Reboot",status="True"}`: "0x5 stale", quarantined: "0x5 stale"}, "10m", nil},
		testCase{"GPUXidError", "has cleared", map[string]string{problem + `"GPUXidError",repair="Reboot",status="True"}`: "0x5 stale"}, "10m", nil},
	)
}

// severity is a node that needs a reboot, with other series, after 8 minutes.
func severity(name string, more map[string]string, want, handled string) testCase {
	return testCase{"GPUXidError", name, with(more, problem+`"GPUXidError",repair="Reboot",status="True"}`, "0x10"), "8m",
		[]firing{{"severity=" + want + " node=n1 handled=" + handled + " repair=Reboot condition=GPUXidError", epoch}}}
}

var cases = map[string][]testCase{
	"third-party.yaml": {
		{"PitcrewThirdPartyCondition", "of NPD itself", map[string]string{problem + `"KernelDeadlock",repair="Reboot",status="True"}`: "0x10"}, "5m",
			[]firing{{"severity=critical node=n1 handled=false repair=Reboot condition=KernelDeadlock", epoch}}},
		{"PitcrewThirdPartyCondition", "of a quarantined node", map[string]string{problem + `"KernelDeadlock",repair="Reboot",status="True"}`: "0x10", quarantined: "0x10"}, "5m",
			[]firing{{"severity=warning node=n1 handled=true repair=Reboot condition=KernelDeadlock", epoch}}},
		{"PitcrewThirdPartyCondition", "of a quarantined node on which a job waits", map[string]string{
			problem + `"KernelDeadlock",repair="Reboot",status="True"}`: "0x10", quarantined: "0x10", waits + `"Kueue"}`: "0x10"}, "5m",
			[]firing{{"severity=critical node=n1 handled=false repair=Reboot condition=KernelDeadlock", epoch}}},
		{"PitcrewThirdPartyCondition", "of a quarantined node while Pitcrew is paused", map[string]string{
			problem + `"KernelDeadlock",repair="Reboot",status="True"}`: "0x10", quarantined: "0x10", paused: "1x10"}, "5m",
			[]firing{{"severity=critical node=n1 handled=false repair=Reboot condition=KernelDeadlock", epoch}}},
		{"PitcrewThirdPartyCondition", "of a kubelet that reports False", map[string]string{problem + `"Ready",repair="Inspect",status="False"}`: "0x10"}, "5m", nil},
		{"PitcrewThirdPartyCondition", "ours", map[string]string{problem + `"GPUXidError",repair="Reboot",status="True"}`: "0x10"}, "5m", nil},
	},
	"checks.yaml": {
		{"PitcrewCheckUnknown", "for long", map[string]string{problem + `"ClockSkewed",repair="",status="Unknown"}`: "0x40"}, "35m",
			[]firing{{"node=n1 condition=ClockSkewed", epoch}}},
		{"PitcrewCheckUnknown", "after a boot", map[string]string{problem + `"ClockSkewed",repair="",status="Unknown"}`: "0x20 stale"}, "35m", nil},
		{"PitcrewCheckUnknown", "a rule calls Unknown a problem", map[string]string{problem + `"Ready",repair="Inspect",status="Unknown"}`: "0x40"}, "35m", nil},

		{"PitcrewNodeConditionsStale", "two conditions", map[string]string{
			problem + `"ClockSkewed",repair="",status="Stale"}`:       "0x20",
			problem + `"GPUXidError",repair="Reboot",status="Stale"}`: "0x20",
		}, "10m", []firing{{"node=n1", "2"}}},
		{"PitcrewNodeConditionsStale", "on a node that does not answer", map[string]string{
			problem + `"GPUXidError",repair="",status="Stale"}`:    "0x20",
			problem + `"Ready",repair="Inspect",status="Unknown"}`: "0x20",
		}, "10m", nil},
		{"PitcrewNodeConditionsStale", "and on another one", map[string]string{
			problem + `"GPUXidError",repair="",status="Stale"}`:                                                                  "0x20",
			`pitcrew_node_problem_timestamp_seconds{node="n2",instance="a",condition="Ready",repair="Inspect",status="Unknown"}`: "0x20",
		}, "10m", []firing{{"node=n1", "1"}}},
		{"PitcrewNodeConditionsStale", "a fresh problem", map[string]string{problem + `"GPUXidError",repair="Reboot",status="True"}`: "0x20"}, "10m", nil},

		{"PitcrewCheckNeverRan", "on one of two nodes", map[string]string{
			`problem_gauge{instance="x",type="GPUXidError",reason="GPUXidSeen"}`:                      "0x40",
			`problem_gauge{instance="y",type="GPUXidError",reason="GPUXidSeen"}`:                      "0x40",
			`pitcrew_node_condition{instance="a",condition="GPUXidError",repair="",status="False"}`:   "1x40",
			`pitcrew_paused{instance="a"}`:                                                            "0x40",
			`pitcrew_node_condition{instance="a",condition="ClockSkewed",repair="",status="Unknown"}`: "2x40",
		}, "35m", []firing{{"condition=GPUXidError", "1"}}},
		{"PitcrewCheckNeverRan", "on any node", map[string]string{
			`problem_gauge{instance="x",type="GPUXidError",reason="GPUXidSeen"}`: "0x40",
			`pitcrew_paused{instance="a"}`:                                       "0x40",
		}, "35m", []firing{{"condition=GPUXidError", "1"}}},
		{"PitcrewCheckNeverRan", "each has answered", map[string]string{
			`problem_gauge{instance="x",type="GPUXidError",reason="GPUXidSeen"}`:                         "0x40",
			`problem_gauge{instance="y",type="GPUXidError",reason="GPUXidSeen"}`:                         "1x40",
			`pitcrew_node_condition{instance="a",condition="GPUXidError",repair="",status="False"}`:      "1x40",
			`pitcrew_node_condition{instance="a",condition="GPUXidError",repair="Reboot",status="True"}`: "1x40",
			`pitcrew_paused{instance="a"}`: "0x40",
		}, "35m", nil},
		{"PitcrewCheckNeverRan", "a condition of NPD's that is not ours", map[string]string{
			`problem_gauge{instance="x",type="KernelDeadlock",reason="DockerHung"}`: "0x40",
			`pitcrew_paused{instance="a"}`:                                          "0x40",
		}, "35m", nil},
		{"PitcrewCheckNeverRan", "without a leader", map[string]string{`problem_gauge{instance="x",type="GPUXidError",reason="GPUXidSeen"}`: "0x40"}, "35m", nil},

		{"PitcrewConditionFlapping", "three times back", map[string]string{
			problem + `"HCAPortDown",repair="Inspect",status="True"}`: "0x5 stale _x5 600x5 stale _x5 1200x5 stale _x5 1800x10",
		}, "40m", []firing{{"node=n1 condition=HCAPortDown", "3"}}},
		{"PitcrewConditionFlapping", "stands", map[string]string{problem + `"HCAPortDown",repair="Inspect",status="True"}`: "0x60"}, "40m", nil},
		{"PitcrewConditionFlapping", "stale on and off", map[string]string{
			problem + `"HCAPortDown",repair="Inspect",status="Stale"}`: "0x5 stale _x5 600x5 stale _x5 1200x5 stale _x5 1800x10",
		}, "40m", nil},
	},
	"remediation.yaml": {
		{"PitcrewQuarantineBlocked", "by the budget", map[string]string{blocked + `"budget"}`: "1x20"}, "15m",
			[]firing{{"node=n1 rule=gpu-xid reason=budget", "1"}}},
		{"PitcrewQuarantineBlocked", "not for long", map[string]string{blocked + `"budget"}`: "1x5 stale"}, "15m", nil},
		{"PitcrewQuarantineBlocked", "rules that observe", map[string]string{blocked + `"observe-only"}`: "1x20"}, "15m", nil},

		{"PitcrewNodeNotReady", "does not answer", map[string]string{problem + `"Ready",repair="Inspect",status="Unknown"}`: "0x10"}, "5m",
			[]firing{{"node=n1 status=Unknown", epoch}}},
		{"PitcrewNodeNotReady", "says so itself", map[string]string{problem + `"Ready",repair="Inspect",status="False"}`: "0x10"}, "5m",
			[]firing{{"node=n1 status=False", epoch}}},
		{"PitcrewNodeNotReady", "restarts", map[string]string{problem + `"Ready",repair="Inspect",status="False"}`: "0x0 stale"}, "5m", nil},
		{"PitcrewNodeNotReady", "no rule acts on it", map[string]string{problem + `"Ready",repair="",status="Unknown"}`: "0x10"}, "5m", nil},

		{"PitcrewNodeLongQuarantined", "25 hours", map[string]string{
			`pitcrew_node_quarantine_timestamp_seconds{node="n1",instance="a",rule="gpu-xid",repair="Reboot"}`: "0x1500",
		}, "25h", []firing{{"node=n1 rule=gpu-xid repair=Reboot", "1d 1h 0m 0s"}}},
		{"PitcrewNodeLongQuarantined", "23 hours", map[string]string{
			`pitcrew_node_quarantine_timestamp_seconds{node="n1",instance="a",rule="gpu-xid",repair="Reboot"}`: "0x1500",
		}, "23h", nil},

		{"PitcrewBreakerOpen", "on the leader", map[string]string{`pitcrew_breaker_open{instance="a"}`: "1x5", `pitcrew_breaker_open{instance="b"}`: "0x5"}, "2m",
			[]firing{{"", "1"}}},
		{"PitcrewBreakerOpen", "closed", map[string]string{`pitcrew_breaker_open{instance="a"}`: "0x5"}, "2m", nil},

		{"PitcrewDetectorSuspect", "two nodes", map[string]string{
			blocked + `"detector-suspect"}`: "1x10",
			`pitcrew_node_blocked{node="n2",instance="a",rule="gpu-xid",reason="detector-suspect"}`: "1x10",
		}, "5m", []firing{{"rule=gpu-xid", "2"}}},
		{"PitcrewDetectorSuspect", "blocked by something else", map[string]string{blocked + `"budget"}`: "1x10"}, "5m", nil},

		{"PitcrewPolicyInvalid", "on one replica", map[string]string{`pitcrew_policy_valid{instance="a"}`: "1x10", `pitcrew_policy_valid{instance="b"}`: "0x10"}, "5m",
			[]firing{{"", "0"}}},
		{"PitcrewPolicyInvalid", "valid", map[string]string{`pitcrew_policy_valid{instance="a"}`: "1x10"}, "5m", nil},

		{"PitcrewPausedTooLong", "5 hours, with a change of the leader", map[string]string{
			`pitcrew_paused{instance="a"}`: "1x100 stale", `pitcrew_paused{instance="b"}`: "_x102 1x300",
		}, "5h", []firing{{"", "1"}}},
		{"PitcrewPausedTooLong", "3 hours", map[string]string{`pitcrew_paused{instance="a"}`: "1x300"}, "3h", nil},
		{"PitcrewPausedTooLong", "not paused", map[string]string{`pitcrew_paused{instance="a"}`: "0x300"}, "5h", nil},

		{"PitcrewNodesSkippedTooLong", "25 hours", map[string]string{`pitcrew_skipped_nodes{instance="a"}`: "3x1500"}, "25h", []firing{{"", "3"}}},
		{"PitcrewNodesSkippedTooLong", "none", map[string]string{`pitcrew_skipped_nodes{instance="a"}`: "0x1500"}, "25h", nil},
	},
	"jobs.yaml": {
		{"PitcrewJobRestartHeld", "a pod does not end", map[string]string{
			`pitcrew_job_restart_held{instance="a",kind="JobSet",namespace="ml",job="train",pod="train-3",node="n1"}`: "1x5",
		}, "2m", []firing{{"kind=JobSet namespace=ml job=train pod=train-3 node=n1", "1"}}},
		{"PitcrewJobRestartHeld", "it has ended", map[string]string{
			`pitcrew_job_restart_held{instance="a",kind="JobSet",namespace="ml",job="train",pod="train-3",node="n1"}`: "1x5 stale",
		}, "10m", nil},

		{"PitcrewJobRestartFailed", "the first one", map[string]string{restart + `"StartTimeout"}`: "_x5 1x10"}, "8m",
			[]firing{{"kind=Job result=StartTimeout", "1"}}},
		{"PitcrewJobRestartFailed", "one more", map[string]string{restart + `"JobFailed"}`: "4x30 5x20"}, "35m",
			[]firing{{"kind=Job result=JobFailed", "1"}}},
		{"PitcrewJobRestartFailed", "long ago", map[string]string{restart + `"JobFailed"}`: "4x60"}, "40m", nil},
		{"PitcrewJobRestartFailed", "restarted", map[string]string{restart + `"Restarted"}`: "_x5 1x10"}, "8m", nil},

		{"PitcrewJobRestartFailed", "aborted by a user", map[string]string{restart + `"Aborted"}`: "_x5 1x10"}, "8m", nil},

		{"PitcrewJobNotRestarted", "managed by Kueue", map[string]string{waits + `"Kueue"}`: "0x10"}, "5m", []firing{{"kind=JobSet namespace=ml job=train reason=Kueue", epoch}}},
		{"PitcrewJobNotRestarted", "on two nodes", map[string]string{waits + `"Kueue"}`: "60x10", strings.Replace(waits, "n1", "n2", 1) + `"Kueue"}`: "0x10"}, "5m",
			[]firing{{"kind=JobSet namespace=ml job=train reason=Kueue", epoch}}},
		{"PitcrewJobNotRestarted", "two jobs", map[string]string{waits + `"Kueue"}`: "0x10", strings.Replace(waits, "train", "eval", 1) + `"ComesBack"}`: "0x10", strings.Replace(waits, "train", "x", 1) + `"BackOff"}`: "0x10"}, "5m",
			[]firing{{"kind=JobSet namespace=ml job=train reason=Kueue", epoch}, {"kind=JobSet namespace=ml job=eval reason=ComesBack", epoch}}},
		{"PitcrewJobNotRestarted", "while the leader changes", map[string]string{waits + `"Kueue"}`: "0x5 stale", strings.Replace(waits, `"a"`, `"b"`, 1) + `"Kueue"}`: "_x7 0x10"}, "7m",
			[]firing{{"kind=JobSet namespace=ml job=train reason=Kueue", epoch}}},
		{"PitcrewJobNotRestarted", "has just begun", map[string]string{waits + `"Kueue"}`: "0x10"}, "0m", nil},
		{"PitcrewJobNotRestarted", "has ended", map[string]string{waits + `"Kueue"}`: "0x5 stale"}, "10m", nil},
		{"PitcrewJobNotRestarted", "waits after its last restart", map[string]string{waits + `"BackOff"}`: "0x10"}, "5m", nil},
		{"PitcrewJobNotRestarted", "has an alert of its own", map[string]string{waits + `"Held"}`: "0x10"}, "5m", nil},
		{"PitcrewJobNotRestarted", "an error that is tried again", map[string]string{waits + `"Error"}`: "0x10"}, "5m", nil},
		{"PitcrewJobNotRestarted", "a new reason", map[string]string{waits + `"NewInTheNextRelease"}`: "0x10"}, "5m", nil},

		{"PitcrewJobStalled", "two of them", map[string]string{`pitcrew_followed_jobs{instance="a",state="stalled"}`: "2x10"}, "8m", []firing{{"", "2"}}},
		{"PitcrewJobStalled", "for a moment", map[string]string{`pitcrew_followed_jobs{instance="a",state="stalled"}`: "0x5 1x10"}, "8m", nil},
		{"PitcrewJobStalled", "they run", map[string]string{`pitcrew_followed_jobs{instance="a",state="stalled"}`: "0x10", `pitcrew_followed_jobs{instance="a",state="running"}`: "4x10"}, "8m", nil},

		{"PitcrewFabricSuspected", "a run", map[string]string{`pitcrew_preflight_runs_total{instance="a",result="fabric"}`: "_x5 1x10"}, "8m",
			[]firing{{"result=fabric", "1"}}},
		{"PitcrewFabricSuspected", "a slow node", map[string]string{`pitcrew_preflight_runs_total{instance="a",result="slow"}`: "_x5 1x10"}, "8m", nil},
	},
	"repair.yaml": {
		{"PitcrewRepairFailed", "the last action has not helped", map[string]string{failedRepair + `"replace"}`: "0x10"}, "5m",
			[]firing{{"node=n1 kind=repair advice=replace", epoch}}},
		{"PitcrewRepairFailed", "while the leader changes", map[string]string{
			failedRepair + `"replace"}`: "0x5 stale", strings.Replace(failedRepair, `"a"`, `"b"`, 1) + `"replace"}`: "_x7 0x10",
		}, "7m", []firing{{"node=n1 kind=repair advice=replace", epoch}}},
		{"PitcrewRepairFailed", "it was released", map[string]string{failedRepair + `"replace"}`: "0x5 stale"}, "10m", nil},

		{"PitcrewRepairWaitsForApproval", "5 hours", map[string]string{`pitcrew_node_repair_waits{instance="a",node="n1",reason="approval"}`: "1x300"}, "5h",
			[]firing{{"node=n1", "1"}}},
		{"PitcrewRepairWaitsForApproval", "3 hours", map[string]string{`pitcrew_node_repair_waits{instance="a",node="n1",reason="approval"}`: "1x300"}, "3h", nil},
		{"PitcrewRepairWaitsForApproval", "for pods", map[string]string{`pitcrew_node_repair_waits{instance="a",node="n1",reason="pods"}`: "1x300"}, "5h", nil},

		{"PitcrewRepairJobNotStarted", "the first check", map[string]string{`pitcrew_checks_total{instance="a",kind="sweep",result="not-started"}`: "_x5 1x10"}, "8m",
			[]firing{{"kind=sweep", "1"}}},
		{"PitcrewRepairJobNotStarted", "one more", map[string]string{`pitcrew_checks_total{instance="a",kind="sweep",result="not-started"}`: "4x40 5x40"}, "60m",
			[]firing{{"kind=sweep", "1"}}},
		{"PitcrewRepairJobNotStarted", "a repair", map[string]string{`pitcrew_repairs_total{instance="a",action="reboot",result="not-started"}`: "_x5 1x10"}, "8m",
			[]firing{{"kind=repair", "1"}}},
		{"PitcrewRepairJobNotStarted", "one more repair", map[string]string{`pitcrew_repairs_total{instance="a",action="reboot",result="not-started"}`: "4x40 5x40"}, "60m",
			[]firing{{"kind=repair", "1"}}},
		{"PitcrewRepairJobNotStarted", "long ago", map[string]string{`pitcrew_checks_total{instance="a",kind="sweep",result="not-started"}`: "4x90"}, "80m", nil},
		{"PitcrewRepairJobNotStarted", "healthy", map[string]string{
			`pitcrew_checks_total{instance="a",kind="sweep",result="healthy"}`: "_x5 1x10", `pitcrew_repairs_total{instance="a",action="reboot",result="proven"}`: "_x5 1x10",
		}, "8m", nil},

		{"PitcrewRepairHeld", "three failures", map[string]string{`pitcrew_repair_held{instance="a",action="reboot",condition="GPUXidError"}`: "3x5"}, "5m",
			[]firing{{"action=reboot condition=GPUXidError", "3"}}},
		{"PitcrewRepairHeld", "reset", map[string]string{`pitcrew_repair_held{instance="a",action="reboot",condition="GPUXidError"}`: "3x5 stale"}, "9m", nil},
		{"PitcrewFirstCheckWaits", "for a condition", map[string]string{`pitcrew_node_first_check_waits{instance="a",node="n1",waits_for="DCGMDiagFailed"}`: "1x10"}, "5m",
			[]firing{{"node=n1 waits_for=DCGMDiagFailed", "1"}}},
		{"PitcrewFirstCheckWaits", "for a place", map[string]string{`pitcrew_node_first_check_waits{instance="a",node="n1",waits_for="check"}`: "1x10"}, "5m", []firing{{"node=n1 waits_for=check", "1"}}},
		{"PitcrewFirstCheckWaits", "has passed", map[string]string{`pitcrew_node_first_check_waits{instance="a",node="n1",waits_for="check"}`: "1x5 stale"}, "10m", nil},

		{"PitcrewCheckWaitsForProof", "for 20 minutes", map[string]string{`pitcrew_node_repair_waits{instance="a",node="n1",reason="proof"}`: "1x30"}, "20m",
			[]firing{{"node=n1", "1"}}},
		{"PitcrewCheckWaitsForProof", "for 10 minutes", map[string]string{`pitcrew_node_repair_waits{instance="a",node="n1",reason="proof"}`: "1x30"}, "10m", nil},
		{"PitcrewCheckWaitsForProof", "for an approval", map[string]string{`pitcrew_node_repair_waits{instance="a",node="n1",reason="approval"}`: "1x30"}, "20m", nil},

		{"PitcrewNodesUnchecked", "for two days", map[string]string{`pitcrew_sweep_overdue_nodes{instance="a",sweep="weekly"}`: "3x2880"}, "48h", []firing{{"sweep=weekly", "3"}}},
		{"PitcrewNodesUnchecked", "for an hour", map[string]string{`pitcrew_sweep_overdue_nodes{instance="a",sweep="weekly"}`: "0x1440 3x60 0x10"}, "25h", nil},
		{"PitcrewNodesUnchecked", "none", map[string]string{`pitcrew_sweep_overdue_nodes{instance="a",sweep="weekly"}`: "0x2880"}, "48h", nil},
	},
	"remediator.yaml": {
		{"PitcrewRemediatorDown", "nothing there", nil, "10m", []firing{{"", "1"}}},
		{"PitcrewRemediatorDown", "one replica", map[string]string{`pitcrew_policy_valid{instance="a"}`: "1x20"}, "10m", nil},

		{"PitcrewRemediatorNoLeader", "two that wait", map[string]string{
			`pitcrew_policy_valid{instance="a"}`: "1x20", `pitcrew_policy_valid{instance="b"}`: "1x20",
		}, "10m", []firing{{"", "2"}}},
		{"PitcrewRemediatorNoLeader", "one leads", map[string]string{
			`pitcrew_policy_valid{instance="a"}`: "1x20", `pitcrew_policy_valid{instance="b"}`: "1x20", `pitcrew_paused{instance="b"}`: "0x20",
		}, "10m", nil},

		{"PitcrewRemediatorErrors", "every 10 seconds", map[string]string{
			`pitcrew_policy_valid{instance="a"}`: "1x60", `controller_runtime_reconcile_errors_total{instance="a",controller="node"}`: "0+6x60",
		}, "50m", []firing{{"controller=node", "100m"}}},
		{"PitcrewRemediatorErrors", "of each controller", map[string]string{
			`pitcrew_policy_valid{instance="a"}`: "1x60", `controller_runtime_reconcile_errors_total{instance="a",controller="job-progress"}`: "0+6x60",
			`controller_runtime_reconcile_errors_total{instance="a",controller="pod-failure"}`:      "0+6x60",
			`controller_runtime_reconcile_errors_total{instance="a",controller="preflight-expiry"}`: "0+6x60",
		}, "50m", []firing{{"controller=job-progress", "100m"}, {"controller=pod-failure", "100m"}, {"controller=preflight-expiry", "100m"}}},
		{"PitcrewRemediatorErrors", "of another component", map[string]string{
			`pitcrew_policy_valid{instance="a"}`: "1x60", `controller_runtime_reconcile_errors_total{instance="z",controller="node"}`: "0+6x60",
		}, "50m", nil},
		{"PitcrewRemediatorErrors", "a conflict now and then", map[string]string{
			`pitcrew_policy_valid{instance="a"}`: "1x60", `controller_runtime_reconcile_errors_total{instance="a",controller="node"}`: "0+1x60",
		}, "50m", nil},

		{"PitcrewWebhookFailing", "every minute", map[string]string{`pitcrew_webhook_deliveries_total{instance="a",webhook="pager",result="failed"}`: "0+1x60"}, "50m",
			[]firing{{"webhook=pager", "30"}}},
		{"PitcrewWebhookFailing", "twice, and then it was sent", map[string]string{
			`pitcrew_webhook_deliveries_total{instance="a",webhook="pager",result="failed"}`: "0x30 1 2x30",
			`pitcrew_webhook_deliveries_total{instance="a",webhook="pager",result="sent"}`:   "0+1x60",
		}, "50m", nil},

		{"PitcrewEvidenceNotKept", "every minute", map[string]string{`pitcrew_evidence_failed_total{instance="a"}`: "0+1x60"}, "50m", []firing{{"", "30"}}},
		{"PitcrewEvidenceNotKept", "kept", map[string]string{`pitcrew_evidence_failed_total{instance="a"}`: "0x60"}, "50m", nil},
	},
	"without-remediator/kube-state-metrics.yaml": {
		{"PitcrewNodeCondition", "true", map[string]string{`kube_node_status_condition{node="n1",instance="k",condition="GPUXidError",status="true"}`: "1x10"}, "5m",
			[]firing{{"node=n1 condition=GPUXidError", "1"}}},
		{"PitcrewNodeCondition", "false", map[string]string{`kube_node_status_condition{node="n1",instance="k",condition="GPUXidError",status="true"}`: "0x10"}, "5m", nil},
		{"PitcrewNodeCondition", "not ours", map[string]string{`kube_node_status_condition{node="n1",instance="k",condition="Ready",status="true"}`: "1x10"}, "5m", nil},

		{"PitcrewCheckUnknown", "for long", map[string]string{`kube_node_status_condition{node="n1",instance="k",condition="GPUXidError",status="unknown"}`: "1x40"}, "35m",
			[]firing{{"node=n1 condition=GPUXidError", "1"}}},
		{"PitcrewCheckUnknown", "not for long", map[string]string{`kube_node_status_condition{node="n1",instance="k",condition="GPUXidError",status="unknown"}`: "0x20 1x20"}, "35m", nil},

		{"PitcrewCheckNeverRan", "on n2", map[string]string{
			`problem_gauge{instance="x",node="n1",type="GPUXidError",reason="GPUXidSeen"}`:              "0x40",
			`problem_gauge{instance="y",node="n2",type="GPUXidError",reason="GPUXidSeen"}`:              "0x40",
			`kube_node_status_condition{node="n1",instance="k",condition="GPUXidError",status="false"}`: "1x40",
		}, "35m", []firing{{"node=n2 condition=GPUXidError", "1"}}},
		{"PitcrewCheckNeverRan", "each has answered", map[string]string{
			`problem_gauge{instance="x",node="n1",type="GPUXidError",reason="GPUXidSeen"}`:                "0x40",
			`kube_node_status_condition{node="n1",instance="k",condition="GPUXidError",status="unknown"}`: "1x40",
		}, "35m", nil},

		{"PitcrewConditionFlapping", "three times", map[string]string{
			`kube_node_status_condition{node="n1",instance="k",condition="HCAPortDown",status="true"}`: "0x5 1x5 0x5 1x5 0x5 1x5 0x5",
		}, "40m", []firing{{"node=n1 condition=HCAPortDown", "6"}}},
		{"PitcrewConditionFlapping", "once", map[string]string{
			`kube_node_status_condition{node="n1",instance="k",condition="HCAPortDown",status="true"}`: "0x5 1x40",
		}, "40m", nil},
	},
}
