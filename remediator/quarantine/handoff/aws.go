package handoff

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// The labels and the annotation of the AWS GPU cluster health check suite, which schedulers and scripts may read
// (awsome-distributed-training, gpu-cluster-healthcheck/kubernetes).
const (
	awsDomain   = "gpu-healthcheck.aws-samples.io"
	awsStatus   = awsDomain + "/status"
	awsSeverity = awsDomain + "/severity"
	// AWSResults is the suite's annotation, JSON.
	AWSResults = awsDomain + "/results"
	// AWSQuarantineResult is the suite's annotation with what its check of a node out of service recommends, JSON.
	AWSQuarantineResult = awsDomain + "/quarantine-result"
	// awsSuite marks results that we have written.
	awsSuite = "pitcrew"
)

// Values of the label status.
const (
	awsPass    = "pass"
	awsWarn    = "warn"
	awsFail    = "fail"
	awsStopped = "agent-stopped"
)

// Outcome is the state of a condition, in the words of the AWS suite.
type Outcome string

// The outcomes. Warn is a problem that is only worth an alert, Skip a condition that is Unknown or has no current heartbeat.
const (
	Pass Outcome = "PASS"
	Warn Outcome = "WARN"
	Fail Outcome = "FAIL"
	Skip Outcome = "SKIP"
)

// Check is a condition of a node that the policy names.
type Check struct {
	Condition corev1.NodeConditionType
	Outcome   Outcome
	// Repair is what a failed check needs.
	Repair conditions.Repair
}

// Health is what the AWS suite's labels and annotations are to show about a node.
type Health struct {
	// Off: nothing of ours.
	Off    bool
	Checks []Check
	// Quarantined reports whether the node is quarantined, Repair for which class at worst.
	Quarantined bool
	Repair      conditions.Repair
	// Advice is what is recommended for a node out of service since AdvisedAt; empty: nothing new.
	Advice    string
	AdvisedAt time.Time
}

// Show changes the labels and annotations of a node object into those that show its health.
func (h Health) Show(n *corev1.Node, now time.Time) {
	c := Of(n)
	if h.Off {
		c.RemoveAWS()
	} else {
		c.setAWS(n, h, now)
		c.setAWSRecommendation(n, h.Advice, h.AdvisedAt)
	}
	n.Labels, n.Annotations = c.Labels, c.Annotations
}

// Changes reports whether a node shows anything else than its health. When that changed is not compared.
func (h Health) Changes(n *corev1.Node) bool {
	shown := *n
	h.Show(&shown, time.Time{})
	return !maps.Equal(shown.Labels, n.Labels) || !maps.Equal(shown.Annotations, n.Annotations)
}

// awsResult is the suite's annotation. Its timestamp is when the result changed: a node is not written when nothing has changed.
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
	Check    string  `json:"check"`
	Status   Outcome `json:"status"`
	Severity string  `json:"severity"`
}

// awsSeverities are the suite's, the mildest first.
var awsSeverities = []string{"", "MONITOR", "RESET", "REBOOT", "ISOLATE"}

func awsSeverityOf(class conditions.Repair) string {
	switch class {
	case conditions.ResetGPU:
		return "RESET"
	case conditions.Reboot:
		return "REBOOT"
	case conditions.Inspect, conditions.Replace: // out of service until a person has looked at it
		return "ISOLATE"
	case conditions.Monitor, conditions.RestartApp:
	}
	return "MONITOR"
}

// setAWS shows a node's health as the AWS suite shows it. It changes nothing when there are no checks, or when the suite
// itself writes to the node.
func (c *NodeChanges) setAWS(n *corev1.Node, health Health, now time.Time) {
	last, exists := c.awsResult()
	if exists && last.Suite != awsSuite || len(health.Checks) == 0 {
		return
	}
	result := awsResultOf(n, health)
	result.Timestamp = last.Timestamp
	if !exists || !result.equals(last) {
		result.Timestamp = now.Format(time.RFC3339)
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		return // never: it holds nothing but text
	}
	c.SetAnnotation(AWSResults, string(encoded))
	c.SetLabel(awsStatus, result.Status)
	severity := result.Severity
	if result.Status == awsPass {
		severity = string(Pass)
	}
	c.SetLabel(awsSeverity, severity)
}

// awsQuarantineResult is the suite's annotation about a node out of service.
type awsQuarantineResult struct {
	Timestamp      string `json:"timestamp"`
	Node           string `json:"node"`
	Suite          string `json:"suite"`
	Status         string `json:"status"`
	Severity       string `json:"severity"`
	Recommendation string `json:"recommendation"`
}

// awsRecommendations are what a recommendation says in the words of the suite: passed or failed, and how severe.
var awsRecommendations = map[string][2]string{
	"return": {awsPass, ""}, "reboot": {awsFail, awsSeverityOf(conditions.Reboot)}, "replace": {awsFail, awsSeverityOf(conditions.Replace)},
}

// setAWSRecommendation shows what is recommended for a node out of service, and since when. As that of the suite, it stays when the node
// is back in service, until the next one. It changes nothing if the suite itself writes to the node, or without a recommendation.
func (c *NodeChanges) setAWSRecommendation(n *corev1.Node, recommendation string, at time.Time) {
	says, known := awsRecommendations[recommendation]
	if _, exists := c.Annotations[AWSQuarantineResult]; !known || exists && !c.hasAWSRecommendation() {
		return
	}
	encoded, err := json.Marshal(awsQuarantineResult{at.UTC().Format(time.RFC3339), n.Name, awsSuite, says[0], says[1], recommendation})
	if err != nil {
		return // never: it holds nothing but text
	}
	c.SetAnnotation(AWSQuarantineResult, string(encoded))
}

// hasAWSRecommendation reports whether the recommendation is ours. One that cannot be read is not.
func (c *NodeChanges) hasAWSRecommendation() bool {
	var last awsQuarantineResult
	return json.Unmarshal([]byte(c.Annotations[AWSQuarantineResult]), &last) == nil && last.Suite == awsSuite
}

// RemoveAWS removes the suite's labels and annotations, unless the suite itself has written them.
func (c *NodeChanges) RemoveAWS() {
	if c.hasAWSRecommendation() {
		delete(c.Annotations, AWSQuarantineResult)
	}
	if last, _ := c.awsResult(); last.Suite != awsSuite {
		return
	}
	delete(c.Annotations, AWSResults)
	delete(c.Labels, awsStatus)
	delete(c.Labels, awsSeverity)
}

// awsResult reads the suite's annotation. One that cannot be read is not ours.
func (c *NodeChanges) awsResult() (last awsResult, exists bool) {
	text, exists := c.Annotations[AWSResults]
	if err := json.Unmarshal([]byte(text), &last); err != nil {
		return awsResult{}, exists
	}
	return last, exists
}

// equals compares everything but the timestamp.
func (r awsResult) equals(other awsResult) bool {
	return r.Hostname == other.Hostname && r.InstanceType == other.InstanceType && r.Status == other.Status && r.Severity == other.Severity &&
		slices.Equal(r.Checks, other.Checks)
}

// awsResultOf sums up the checks. If all of them are skipped, the detectors do not run.
func awsResultOf(n *corev1.Node, health Health) awsResult {
	result := awsResult{Hostname: n.Name, InstanceType: n.Labels[corev1.LabelInstanceTypeStable], Suite: awsSuite, Status: awsStopped}
	worst, failed := 0, health.Quarantined
	for _, h := range health.Checks {
		check := awsCheck{Check: string(h.Condition), Status: h.Outcome}
		switch h.Outcome {
		case Fail:
			check.Severity, failed = awsSeverityOf(h.Repair), true
		case Warn:
			check.Severity = "MONITOR"
		case Pass, Skip:
		}
		result.Checks = append(result.Checks, check)
		worst = max(worst, slices.Index(awsSeverities, check.Severity))
		if h.Outcome != Skip {
			result.Status = awsPass
		}
	}
	slices.SortFunc(result.Checks, func(a, b awsCheck) int { return strings.Compare(a.Check, b.Check) })
	if health.Quarantined {
		worst = max(worst, slices.Index(awsSeverities, awsSeverityOf(health.Repair)))
	}
	if result.Severity = awsSeverities[worst]; failed {
		result.Status = awsFail
	} else if worst > 0 {
		result.Status = awsWarn
	}
	return result
}
