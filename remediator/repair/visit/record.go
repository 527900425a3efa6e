// Package visit is the record of visits on a Node: what a sweep, a repair, a validation or a first check remembers, and what follows from
// that alone. It is pure. The record is input: a kubelet may annotate its own Node where no admission policy forbids it.
package visit

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

const (
	// Version is that of the records that this version writes.
	Version = 1
	// lastKept is how many closed visits a record remembers.
	lastKept = 8
	// RepairsKept is how many actions it remembers, for [policy.Lemon] and for the escalation within a quarantine.
	RepairsKept = policy.MaxLemonRepairs
)

// Record is the annotation [conditions.AnnotationRepair] of a Node: all that is remembered about visits to it. Who may write it is
// limited by the same admission policy as the quarantine record, and it is input all the same.
type Record struct {
	V int `json:"v"`
	// NodeUID is the node the record is about; a node that was created again starts over.
	NodeUID types.UID `json:"nodeUID"`
	// Current is the visit under way; nil: none is.
	Current *Visit `json:"current,omitempty"`
	// Request is what a person asked for and is not done yet; nil: nothing.
	Request *Request `json:"request,omitempty"`
	// Stopped is the id of the quarantine in which a person has stopped the repair; empty: none. Until a person approves a repair, no
	// visit begins for it but a validation that a person asks for.
	Stopped string `json:"stopped,omitempty"`
	// Checked is the newest check that the node has passed; nil: none is known.
	Checked *Checked `json:"checked,omitempty"`
	// Swept is when each sweep of the policy last found out whether the node is healthy, by the name of the sweep.
	Swept map[string]time.Time `json:"swept,omitempty" max:"64"`
	// Repairs are the last actions that were begun, the oldest first.
	Repairs []Action `json:"repairs,omitempty" max:"40"`
	// Advice is what the last visit recommends for the quarantine, see [Advice]; nil: nothing.
	Advice *Advice `json:"advice,omitempty"`
	// Last holds closed visits, newest first.
	Last []Visit `json:"last,omitempty" max:"32"`
}

// Kind is why a visit is made. It is the value of the taint [conditions.TaintMaintenance], too.
type Kind string

// The kinds of visits.
const (
	Sweep      Kind = "sweep"
	Repair     Kind = conditions.MaintenanceRepair
	Validation Kind = conditions.MaintenanceValidation
	FirstCheck Kind = "first-check"
)

// Phase is where a visit stands.
type Phase string

// The phases. While Working there may be a Job. While Working or Ending, and only then, the node has the maintenance taint.
const (
	// Emptying: pods that are in the way have to end.
	Emptying Phase = "Emptying"
	// Working: the Job of the present attempt runs.
	Working Phase = "Working"
	// Ending: the attempt is over, and its Job is deleted. What it does on the node has to end.
	Ending Phase = "Ending"
	// Proving: the Job has ended; the conditions have to say what became of the node.
	Proving Phase = "Proving"
	// Passed, Failed, Refused and Yielded: closed.
	Passed  Phase = "Passed"
	Failed  Phase = "Failed"
	Refused Phase = "Refused"
	Yielded Phase = "Yielded"
)

// Visit is one stay at a node: a sweep, a repair, a validation or a first check. A repair may take several attempts.
type Visit struct {
	ID    string `json:"id"`
	Kind  Kind   `json:"kind"`
	Phase Phase  `json:"phase"`
	// Sweep is the name of the sweep in the policy.
	Sweep string `json:"sweep,omitempty"`
	// Namespace is where the Jobs of the visit are: that of the installation that has begun it. Records of earlier versions have none.
	Namespace string `json:"namespace,omitempty"`
	// Group is set on a visit to a group of nodes, which earlier versions made. Such a visit ends.
	Group *struct{} `json:"group,omitempty"`
	// Quarantine is the id of the quarantine that a repair or a validation is for.
	Quarantine string `json:"quarantine,omitempty"`
	// ApprovedBy is the person who has asked for a repair; empty: it began by itself.
	ApprovedBy string    `json:"approvedBy,omitempty"`
	StartedAt  time.Time `json:"startedAt"`
	PhaseSince time.Time `json:"phaseSince"`
	// Then is the phase that follows Ending: Emptying, or the one in which the visit is closed.
	Then    Phase     `json:"then,omitempty"`
	EndedAt time.Time `json:"endedAt,omitzero"`
	// Attempt counts the Jobs of the visit, from 1. The name of a Job follows from the node's UID, the visit and the attempt.
	Attempt int `json:"attempt,omitempty"`
	// Template and Args are those of the Job of this attempt.
	Template string   `json:"template,omitempty"`
	Args     []string `json:"args,omitempty" max:"64,text"`
	// Reboots is set if the action ends the boot: only a new boot id shows that it was done.
	Reboots bool `json:"reboots,omitempty"`
	// Pauses is set if the GPU operator's pods that hold accelerators leave the node while the attempt runs.
	Pauses bool `json:"pauses,omitempty"`
	// ActionSince is since when this action is tried: how long the node may take to become empty counts from it.
	ActionSince time.Time `json:"actionSince,omitzero"`
	// Held is what keeps the node from becoming empty or the action from beginning, although no pod is in the way: a pause, an open
	// breaker, the repair of others. No timeout passes meanwhile.
	Held string `json:"held,omitempty" max:"text"`
	// RetryAt is when a Job that was refused is tried again at the earliest.
	RetryAt time.Time `json:"retryAt,omitzero"`
	// Skipped are the templates of actions that this visit cannot do, since its last action: they need the addresses of GPUs, and none
	// are known.
	Skipped []string `json:"skipped,omitempty" max:"64,text"`
	// Failures counts the Jobs of the visit that could not run.
	Failures int `json:"failures,omitempty"`
	// JobUID is the Job of this attempt once it was seen. A Job that was seen and is gone is not created again.
	JobUID types.UID `json:"jobUID,omitempty"`
	// Verdict are the conditions that must be on the node after a validation or another check, from the template's annotation.
	Verdict []string `json:"verdict,omitempty" max:"64,text"`
	// Deadline is when the Job of this attempt has ended at the latest. While Ending, it is when the node has rebooted at the latest;
	// zero: no reboot is to come.
	Deadline time.Time `json:"deadline,omitzero"`
	// BootID is the node's boot when the attempt began.
	BootID string `json:"bootID,omitempty"`
	// JobEndedAt is when the Job of this attempt was seen to have ended, or the node to be in a new boot.
	JobEndedAt time.Time `json:"jobEndedAt,omitzero"`
	// Bundle is the name of the evidence that was written before the first action; empty: none is known.
	Bundle string `json:"bundle,omitempty" max:"text"`
	// Outcome is a sentence: what the visit waits for or, once it is closed, what became of it.
	Outcome string `json:"outcome,omitempty" max:"text"`
}

// Action is one repair that was begun.
type Action struct {
	At       time.Time `json:"at"`
	Template string    `json:"template"`
	// Quarantine is the id of the quarantine.
	Quarantine string `json:"quarantine"`
	// Skipped are the templates of the actions that were skipped right before it, see [Visit.Skipped].
	Skipped []string `json:"skipped,omitempty" max:"64,text"`
	// Proven is set when the fault had cleared afterwards.
	Proven bool `json:"proven,omitempty"`
}

// Checked is a check that a node has passed.
type Checked struct {
	At       time.Time `json:"at"`
	BootID   string    `json:"bootID"`
	Template string    `json:"template,omitempty"`
	Args     []string  `json:"args,omitempty" max:"64,text"`
	// Quarantine is the id of the quarantine that was validated; empty: the node was in service.
	Quarantine string `json:"quarantine,omitempty"`
}

// The values of [Request.Kind].
const (
	RequestRepair  = "repair"  // approves the repair of the quarantine
	RequestStop    = "stop"    // ends the visit, and begins no other for the quarantine
	RequestCheck   = "check"   // checks the node as a sweep does
	RequestRelease = "release" // validates the node and then releases it, whatever its conditions report
)

// Request is what a person asked for with `kubectl pitcrew repair`, `check` or `release`.
type Request struct {
	Kind string `json:"kind"`
	// Quarantine is the id of the quarantine that it is about; empty: the node was in service.
	Quarantine string    `json:"quarantine,omitempty"`
	At         time.Time `json:"at"`
	User       string    `json:"user,omitempty"`
	Reason     string    `json:"reason,omitempty" max:"text"`
}

// The values of [Advice.Do], as in the AWS GPU health check suite.
const (
	AdviseReturn  = "return"
	AdviseReboot  = "reboot"
	AdviseReplace = "replace"
)

// Advice is what the visits so far recommend to a person or a provider.
type Advice struct {
	Quarantine string    `json:"quarantine"`
	Do         string    `json:"do"`
	Why        string    `json:"why" max:"text"`
	At         time.Time `json:"at"`
}
