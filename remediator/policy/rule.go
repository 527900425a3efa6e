package policy

import (
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

// ByHand stands for the rule of a quarantine that a user orders. No rule may have this name.
const ByHand = "by-hand"

// MaxFlaps is the largest [Flaps.Max]: a node's record keeps MaxFlaps-1 closed quarantines, and the open one counts, too.
const MaxFlaps = 6

// Never is the UnknownAfter of a condition whose writer sends no heartbeats: its status stays current permanently.
const Never = strict.Never

// DefaultUnknownAfter is the unknownAfter of a rule that sets none: two heartbeats of the Node Problem Detector, which sends
// one every 5 minutes by default, and one minute.
const DefaultUnknownAfter = 11 * time.Minute

const defaultClearAfter = 10 * time.Minute

// defaultMaxDevices is the maxDevices of a rule that sets none: of a node with more bad GPUs, something that they share is bad.
const defaultMaxDevices = 2

// Rule is what to do about one NodeCondition.
//
//	spec:
//	  rules:
//	    gpu-xid:
//	      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
//	      clearAfter: 10m
//	      restartJobs: true
//	    gpu-xid-inspect:
//	      match: {condition: GPUXidError, repair: [Inspect]}
//	      alertOnly: true
type Rule struct {
	// Name is the key of the rule in the file.
	Name string `yaml:"-"`

	// match selects the conditions, and the nodes, that the rule is for.
	Match `yaml:"match" required:""`
	// mode is the mode of this rule.
	Observe bool `yaml:"mode" values:"enforce observe"`
	// for is how long the condition must last before the node is quarantined.
	For time.Duration `yaml:"for"`
	// clearAfter is how long the condition must be healthy, with current heartbeats, before the node is released.
	ClearAfter time.Duration `yaml:"clearAfter"`
	// unknownAfter is the age from which the last heartbeat is too old: the condition then neither quarantines nor releases a
	// node. The default is two heartbeats of the Node Problem Detector and one minute. `never` is for conditions whose writer
	// sends no heartbeats. It is always `never` for the condition Ready, and cannot be set there.
	UnknownAfter time.Duration `yaml:"unknownAfter" above:"0s" never:""`
	// taint is the taint of the quarantine.
	Taint corev1.Taint `yaml:"taint"`
	// isolate is what a quarantine by this rule keeps pods off: the node, or only the GPUs that the condition names, by a
	// DeviceTaintRule for each device of dynamic resource allocation that is one of them. Then the node stays in service without
	// taint and handOff, and only the jobs whose claims hold such a device are restarted. It uses up a place of the budgets like any
	// other. The whole node is quarantined if the fault needs a Reboot, if a GPU cannot be found in the ResourceSlices of the node for two
	// minutes, if there are more than maxDevices, or if the API server does not accept the rules. With mode observe, the
	// rules have effect None and show in their status which pods they would meet. It is only for conditions of Pitcrew, and for
	// taints of effect NoSchedule or NoExecute, and excludes the classes Monitor and RestartApp, validate and checkpointGrace. Errors of
	// applications (NVIDIA's actions RESTART_APP and IGNORE) are only reported, whatever their class.
	Isolate bool `yaml:"isolate" values:"node device"`
	// maxDevices is how many GPUs of a node may be isolated together. One more quarantines the node. It needs isolate: device.
	MaxDevices int `yaml:"maxDevices" unit:"GPUs" min:"1"`
	// handOff is what a quarantine by this rule puts on the node for other controllers, in addition to that of the policy. Its
	// keepNode and cordon replace those of the policy.
	HandOff HandOff `yaml:"handOff"`
	// alertOnly reports the condition and leaves the node as it is. It excludes taint, isolate, handOff, restartJobs, mode, budget, flaps
	// and validate.
	AlertOnly bool `yaml:"alertOnly"`
	// restartJobs restarts the opted-in jobs that have pods on the node while it is quarantined, also by another rule: a node that is
	// quarantined for a fault that leaves jobs alone may die.
	RestartJobs bool `yaml:"restartJobs"`
	// checkpointGrace is how long such a job has to save a checkpoint before it is stopped. It needs restartJobs, and is not for the
	// condition Ready: the ranks on a dead node save nothing.
	CheckpointGrace time.Duration `yaml:"checkpointGrace"`
	// budget bounds the nodes that this rule has quarantined, in addition to the budget of the policy. With a taint of effect
	// PreferNoSchedule, it replaces that of the policy.
	Budget Budget `yaml:"budget"`
	// flaps quarantines a node whose fault comes and goes. Flapping is not counted unless it is set.
	Flaps Flaps `yaml:"flaps"`
	// validate has the node checked under load before a quarantine for this rule ends, whoever has repaired it. It needs
	// spec.repair.validate, and a taint that keeps pods off the node. While the check has not passed, only a user can release the node.
	Validate bool `yaml:"validate"`
	// priority decides between rules that match the same condition: the largest wins, then the first name.
	Priority int `yaml:"priority"`
}

func (r *Rule) SetName(name string) { r.Name = name }

func (r *Rule) SetDefaults() {
	r.Status = []corev1.ConditionStatus{corev1.ConditionTrue}
	r.Nodes = labels.Everything()
	r.ClearAfter = defaultClearAfter
	r.UnknownAfter = DefaultUnknownAfter
	r.Budget = Unlimited
	r.MaxDevices = defaultMaxDevices
}

// Match selects the conditions, and the nodes, that a rule is for. All fields that are set must match.
//
//	spec:
//	  rules:
//	    driver:
//	      match:
//	        condition: AcceleratedHardwareReady
//	        status: "False"
//	        repair: [Inspect]
//	        reason: ^NvidiaXID
//	        nodeSelector: {pool: gpu}
type Match struct {
	// condition is the type of the NodeCondition.
	Condition corev1.NodeConditionType `yaml:"condition" required:""`
	// status is the status of the condition that means a fault, or a list of them. It is always True for conditions of Pitcrew.
	// Unknown is only for the condition Ready of a node, which the node controller makes Unknown when the kubelet no longer
	// reports. Such a rule needs spec.correlated, unless it is alertOnly. A rule on Ready leaves a node alone that is cordoned, that an
	// autoscaler is removing, or that has not been Ready since it was created.
	Status []corev1.ConditionStatus `yaml:"status" single:"" values:"True False Unknown"`
	// repair lists the repair classes that the rule is for. The message of a condition of Pitcrew starts with its class. The
	// messages of other conditions name none: a rule for such a condition has exactly one class, which is assumed.
	Repair []conditions.Repair `yaml:"repair" unit:"repair class" required:"the repair classes the rule is for"`
	// reason is a pattern that must match a part of the condition's reason.
	Reason *regexp.Regexp `yaml:"reason"`
	// message is a pattern that must match a part of the condition's message.
	Message *regexp.Regexp `yaml:"message"`
	// nodeSelector lists the labels that a node must have. Without it, the rule is for all nodes.
	Nodes labels.Selector `yaml:"nodeSelector"`
}

// Flaps limits how often a fault may come and go. The last time quarantines the node at once, without waiting for `for`, and
// only a user can release that quarantine. A fault that went away before `for` had passed counts, too.
//
// For condition Ready only quarantines by the rule count, and the last one waits for `for`, too: short absences, and those of many
// nodes together, are the network's.
//
//	spec:
//	  rules:
//	    hca-port:
//	      match: {condition: HCAPortDown, repair: [Inspect]}
//	      for: 60s
//	      flaps: {max: 4, window: 24h}
type Flaps struct {
	// max is the number of times that quarantines the node.
	Max int `yaml:"max" unit:"times" required:"" min:"2" max:"6" why:"a node's record keeps no more quarantines"`
	// window is the time in which the faults are counted.
	Window time.Duration `yaml:"window" required:"a duration longer than 0s" above:"0s"`
}

// IsFault reports whether a status of the condition means a fault.
func (m *Match) IsFault(status corev1.ConditionStatus) bool { return slices.Contains(m.Status, status) }

func matches(pattern *regexp.Regexp, text string) bool {
	return pattern == nil || pattern.MatchString(text)
}

func (r Rule) class(c corev1.NodeCondition) conditions.Repair {
	if !conditions.Ours(string(c.Type)) {
		return r.Repair[0]
	}
	m, err := conditions.ParseMessage(c.Message)
	if err != nil {
		return 0
	}
	return m.Repair
}
