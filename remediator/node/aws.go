package node

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// The marks of the AWS GPU cluster health check suite, which schedulers and scripts may know
// (awsome-distributed-training, gpu-cluster-healthcheck/kubernetes).
const (
	awsDomain   = "gpu-healthcheck.aws-samples.io"
	awsStatus   = awsDomain + "/status"
	awsSeverity = awsDomain + "/severity"
	awsResults  = awsDomain + "/results"
	// awsSuite marks results as ours.
	awsSuite = "pitcrew"
)

// awsResult is the suite's annotation. Its timestamp is when the result changed: a node is not written to say the same again.
type awsResult struct {
	Timestamp    string     `json:"timestamp"`
	Hostname     string     `json:"hostname"`
	InstanceType string     `json:"instance_type"`
	Suite        string     `json:"suite"`
	Status       string     `json:"status"`
	Severity     string     `json:"severity"`
	Checks       []awsCheck `json:"checks"`
}

type awsCheck struct {
	Check    string `json:"check"`
	Status   string `json:"status"`
	Severity string `json:"severity"`
}

// awsSeverities are the suite's, the mildest first.
var awsSeverities = []string{"", "MONITOR", "RESET", "REBOOT", "ISOLATE"}

func awsSeverityOf(class conditions.Repair) string {
	switch class {
	case conditions.ResetGPU:
		return "RESET"
	case conditions.Reboot:
		return "REBOOT"
	case conditions.Inspect, conditions.Replace: // out of service until somebody has looked
		return "ISOLATE"
	case conditions.Monitor, conditions.RestartApp:
	}
	return "MONITOR"
}

// showAWS keeps the suite's marks in step with the node, if the policy wants them and nobody else writes them.
func (d *decider) showAWS() {
	last, marked := d.marks.aws()
	if marked && last.Suite != awsSuite {
		return
	}
	if !d.policy.Output.AWS {
		d.marks.unmarkAWS()
		return
	}
	if maintained(d.Node) {
		return
	}
	result := d.awsResult()
	if len(result.Checks) == 0 {
		return
	}
	result.Timestamp = last.Timestamp
	if !marked || !equal(result, last) {
		result.Timestamp = d.now.Format(time.RFC3339)
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		panic(err) // It holds nothing but text.
	}
	d.marks.Annotations = set(d.marks.Annotations, awsResults, string(encoded))
	d.marks.Labels = set(d.marks.Labels, awsStatus, result.Status)
	severity := result.Severity
	if result.Status == "pass" {
		severity = "PASS"
	}
	d.marks.Labels = with(d.marks.Labels, awsSeverity, severity)
}

func equal(a, b awsResult) bool {
	return a.Hostname == b.Hostname && a.InstanceType == b.InstanceType && a.Status == b.Status && a.Severity == b.Severity &&
		slices.Equal(a.Checks, b.Checks)
}

// awsResult is what the conditions that the policy knows come to. What nobody confirms is skipped, and if that is all of them
// nobody checks the node.
func (d *decider) awsResult() awsResult {
	result := awsResult{Hostname: d.Node.Name, InstanceType: d.Node.Labels[corev1.LabelInstanceTypeStable], Suite: awsSuite, Status: "agent-stopped"}
	worst := 0
	for _, c := range d.Node.Status.Conditions {
		limit, named := d.policy.UnknownAfter(c.Type)
		if !named {
			continue
		}
		check := awsCheck{Check: string(c.Type), Status: "PASS"}
		p, stands := d.standing[c.Type]
		switch {
		case stands && actionable(p):
			check.Status, check.Severity = "FAIL", awsSeverityOf(p.class)
		case stands:
			check.Status, check.Severity = "WARN", "MONITOR"
		case c.Status == corev1.ConditionUnknown || d.now.Sub(c.LastHeartbeatTime.Time) > limit:
			check.Status = "SKIP"
		}
		result.Checks = append(result.Checks, check)
		worst = max(worst, slices.Index(awsSeverities, check.Severity))
		if check.Status != "SKIP" && result.Status == "agent-stopped" {
			result.Status = "pass"
		}
	}
	slices.SortFunc(result.Checks, func(a, b awsCheck) int { return strings.Compare(a.Check, b.Check) })
	failed := slices.ContainsFunc(result.Checks, func(c awsCheck) bool { return c.Status == "FAIL" })
	if d.record != nil && d.record.Phase == Quarantined {
		failed, worst = true, max(worst, slices.Index(awsSeverities, awsSeverityOf(d.record.worst())))
	}
	if result.Severity = awsSeverities[worst]; failed {
		result.Status = "fail"
	} else if worst > 0 {
		result.Status = "warn"
	}
	return result
}

// aws reads the suite's annotation. One that cannot be read is nobody's, and not ours.
func (m *Marks) aws() (last awsResult, marked bool) {
	text, marked := m.Annotations[awsResults]
	if err := json.Unmarshal([]byte(text), &last); err != nil {
		return awsResult{}, marked
	}
	return last, marked
}

// unmarkAWS removes the suite's marks if they are ours.
func (m *Marks) unmarkAWS() {
	if last, _ := m.aws(); last.Suite != awsSuite {
		return
	}
	delete(m.Annotations, awsResults)
	delete(m.Labels, awsStatus)
	delete(m.Labels, awsSeverity)
}
