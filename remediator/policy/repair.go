package policy

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

// Repair is how quarantined nodes are repaired, proven healthy and returned. Nothing is repaired unless it is set. It needs
// `repair.enabled` of the chart.
//
//	spec:
//	  repair:
//	    mode: approve
//	    maxConcurrent: 1
//	    maxPerDay: 10
//	    actions:
//	      ResetGPU: [{template: reset-gpu, timeout: 10m}, {template: reboot, timeout: 20m}]
//	      Reboot: [{template: reboot, timeout: 20m}]
//	    drain: {mode: wait, timeout: 30m}
//	    validate: {template: check, args: [-level, "3"], timeout: 45m}
type Repair struct {
	// mode is who decides. `off`, which may be written as false: nothing is repaired. `approve`: a repair waits for
	// `kubectl pitcrew repair NODE --approve`. `auto`: a repair begins by itself. Validations begin by themselves in each of them.
	Mode RepairMode `yaml:"mode" values:"off approve auto"`
	// maxConcurrent is how many nodes are repaired or validated at the same time.
	MaxConcurrent int `yaml:"maxConcurrent" unit:"nodes" min:"1"`
	// maxPerDay is how many repairs may begin within 24 hours. 0 sets no bound. The default is enough for 1,000 nodes.
	MaxPerDay int `yaml:"maxPerDay" unit:"repairs" min:"0"`
	// maxFailures is on how many nodes in a row an action may fail for a condition until `kubectl pitcrew reset`. 0 sets no bound.
	MaxFailures int `yaml:"maxFailures" unit:"nodes" min:"0" max:"64" why:"no more are remembered"`
	// scope is the key of a node label. maxConcurrent and maxPerDay are then for each of its values.
	Scope string `yaml:"scope" unit:"label key"`
	// actions are what is done for a repair class, the mildest first. The next one follows when the fault is still there afterwards. After
	// the last one the node waits for a person.
	Actions RepairActions `yaml:"actions"`
	// drain is how the node becomes empty before an action.
	Drain Drain `yaml:"drain"`
	// nextIfRefused goes on with the next action, such as a reboot, where a process held a GPU until drain.timeout was over.
	NextIfRefused bool `yaml:"nextIfRefused"`
	// proofTimeout is how long after an action the fault may take to clear. Unknown gets three times as long: plugins wait after a boot.
	ProofTimeout time.Duration `yaml:"proofTimeout" above:"0s"`
	// validate is the check under load before a node returns, for rules with `validate: true`.
	Validate *Check `yaml:"validate"`
	// lemon stops the repair of a node that needed too many.
	Lemon Lemon `yaml:"lemon"`
	// collect keeps what a vendor asks for before the first action of a repair wipes it. It needs `repair.collect.enabled` of the chart.
	Collect *Collect `yaml:"collect"`
}

// RepairMode is who decides about a repair.
type RepairMode string

// The values of [RepairMode].
const (
	RepairOff     RepairMode = "off"
	RepairApprove RepairMode = "approve"
	RepairAuto    RepairMode = "auto"
)

// RepairActions are what is done for a repair class, the mildest first.
type RepairActions struct {
	// ResetGPU is for causes of class ResetGPU.
	ResetGPU []Check `yaml:"ResetGPU"`
	// Reboot is for causes of class Reboot.
	Reboot []Check `yaml:"Reboot"`
}

// Check is a Job on a node, from a PodTemplate.
type Check struct {
	// template is the name of a PodTemplate in namespace pitcrew-repair. It is a DNS label.
	Template string `yaml:"template" required:""`
	// args are appended to the arguments of the first container. There are at most 32. They have no control characters, and at most
	// 1024 bytes together.
	Args []string `yaml:"args"`
	// timeout is how long the Job may run.
	Timeout time.Duration `yaml:"timeout" above:"0s"`
}

// Drain is how a node becomes empty before it is repaired.
type Drain struct {
	// mode `wait` waits until the pods that are in the way have ended. `evict` evicts them, which respects PodDisruptionBudgets.
	Mode DrainMode `yaml:"mode" values:"wait evict"`
	// timeout is how long the node may take to become empty. Then the repair is given up until a person asks for it.
	Timeout time.Duration `yaml:"timeout" above:"0s"`
}

// DrainMode is how a node becomes empty.
type DrainMode string

// The values of [DrainMode].
const (
	DrainWait  DrainMode = "wait"
	DrainEvict DrainMode = "evict"
)

// Collect is the Job that writes what is known about the faults of a node into a bundle. The first action of a repair begins when it has
// ended, whatever became of it, or when its timeout is over.
type Collect struct {
	// handOff also collects when a node is quarantined that others repair: its class is not repaired here, or its rule has handOff.
	HandOff bool `yaml:"handOff"`
	// The Job that collects.
	Check `yaml:",inline"`
}

const (
	// defaultCollectTimeout is longer than what the program takes by default, 2 minutes.
	defaultCollectTimeout = 3 * time.Minute
	// maxCollectTimeout leaves the Job of the action a minute: it has to begin within five.
	maxCollectTimeout = 4 * time.Minute
)

func (c *Collect) SetDefaults() { c.Timeout = defaultCollectTimeout }

func (c *Collect) complete(d *strict.Decoder, at *field.Path) {
	c.check(d, at)
	if c.Timeout > maxCollectTimeout {
		d.Invalid(at.Child("timeout"), c.Timeout.String(), fmt.Sprintf("must be at most %s: a repair waits for it", maxCollectTimeout))
	}
}

// Lemon bounds the repairs of one node: a node that needs more has a fault that they do not fix.
type Lemon struct {
	// repairs is how many repairs a node may have within the window. 0 sets no bound.
	Repairs int `yaml:"repairs" unit:"repairs" min:"0" max:"20" why:"the record of a node keeps no more"`
	// window is the time in which they are counted.
	Window time.Duration `yaml:"window" above:"0s"`
}

// DefaultProofTimeout is the proofTimeout of a policy that sets none.
const DefaultProofTimeout = 10 * time.Minute

// MaxLemonRepairs is the largest [Lemon.Repairs]: the record of a node keeps that many repairs.
const MaxLemonRepairs = 20

// Sweep checks idle nodes, so that a fault is found before a job meets it. The node that was unchecked for longest goes first,
// and one with a suspicion before it. A sweep ends within 15 s when a pending pod could run on the node. The checks are spread over
// the time: of n nodes, one is checked every nth part of `every`, earlier than it had to be if need be.
//
//	spec:
//	  sweeps:
//	    weekly:
//	      nodeSelector: {pool: gpu}
//	      every: 168h
//	      idleFor: 10m
//	      maxNodes: 2
//	      template: check
//	      args: [-level, "2"]
type Sweep struct {
	// Name is the key of the sweep in the file.
	Name string `yaml:"-"`
	// nodeSelector lists the labels that a node must have. Without it, the sweep is for all nodes with an accelerator.
	Nodes labels.Selector `yaml:"nodeSelector"`
	// every is the longest time between two checks of a node that is idle often enough.
	Every time.Duration `yaml:"every" required:"a duration longer than 0s" above:"0s"`
	// idleFor is how long no pod on the node may have had an accelerator.
	IdleFor time.Duration `yaml:"idleFor"`
	// maxNodes is how many nodes this sweep checks at the same time. With maxPercent alone it sets no bound.
	MaxNodes int `yaml:"maxNodes" unit:"nodes" min:"1"`
	// maxPercent is the largest share of the sweep's nodes that it checks at the same time, rounded down, and at least one.
	MaxPercent int `yaml:"maxPercent" unit:"percent of the sweep's nodes" min:"1" max:"100"`
	// pairwise is no longer supported: a sweep that has it does nothing. The next release refuses it.
	Pairwise *Pairwise `yaml:"pairwise"`
	// The Job that checks the node.
	Check `yaml:",inline"`
}

// Pairwise was the size of a group of idle nodes that a sweep checked together. It is ignored.
type Pairwise struct {
	// rounds is ignored.
	Rounds int `yaml:"rounds"`
	// minNodes is ignored.
	MinNodes int `yaml:"minNodes"`
	// maxNodes is ignored.
	MaxNodes int `yaml:"maxNodes"`
}

// dropPairwise drops the sweeps of groups with a warning, so that a policy of an earlier version stays valid.
func (p *Policy) dropPairwise(d *strict.Decoder, at *field.Path) {
	p.Sweeps = slices.DeleteFunc(p.Sweeps, func(s Sweep) bool {
		if s.Pairwise != nil {
			d.Warn(at.Key(s.Name).Child("pairwise"), "is no longer supported, so this sweep does nothing: see docs/preflight-idle.md, and remove it")
		}
		return s.Pairwise != nil
	})
}

// MaxArgs is the most bytes of [Check.Args] together, and maxArgs their most entries: the record of a node keeps those of several visits.
const (
	MaxArgs = 1024
	maxArgs = 32
)

func (s *Sweep) SetName(name string) { s.Name = name }

// FirstCheck removes the taint with which the kubelet registers a new node, when the node has proven to be healthy.
//
//	spec:
//	  firstCheck: {taint: pitcrew.dev/unchecked, conditions: [all], template: check}
type FirstCheck struct {
	// taint is the key of the taint. It must be that of no rule and no hand-off, and not be in the domains kubernetes.io and k8s.io.
	Taint string `yaml:"taint"`
	// nodeSelector lists the labels that a node must have. Without it, the first check is for all nodes with the taint.
	Nodes labels.Selector `yaml:"nodeSelector"`
	// conditions are the types that must be healthy, with a heartbeat in this boot. `all`: each that the pools of the node report, and
	// that a rule names which is not alertOnly and selects the node. If no pool has the node, it is each of these rules, but for
	// those of Ready, SlowNode and PreflightFailed.
	Conditions []string `yaml:"conditions" single:""`
	// maxNodes is how many nodes are checked under load at the same time.
	MaxNodes int `yaml:"maxNodes" unit:"nodes" min:"1"`
	// The Job that checks the node under load. Without a template the conditions are enough.
	Check `yaml:",inline"`
}

// AllConditions, in [FirstCheck.Conditions], stands for each that the node reports and a rule names.
const AllConditions = "all"

const (
	defaultActionTimeout = 20 * time.Minute
	defaultCheckTimeout  = 45 * time.Minute
	defaultDrainTimeout  = 30 * time.Minute
	defaultLemonRepairs  = 3
	defaultLemonWindow   = 30 * 24 * time.Hour
	defaultIdleFor       = 10 * time.Minute
	defaultFirstChecks   = 10
)

func (r *Repair) SetDefaults() {
	r.Mode, r.MaxConcurrent, r.MaxPerDay, r.MaxFailures, r.ProofTimeout = RepairApprove, 1, 20, 3, DefaultProofTimeout
	r.Drain = Drain{Mode: DrainWait, Timeout: defaultDrainTimeout}
	r.Lemon = Lemon{Repairs: defaultLemonRepairs, Window: defaultLemonWindow}
}

func (c *Check) SetDefaults() { c.Timeout = defaultCheckTimeout }

func (s *Sweep) SetDefaults() {
	s.Nodes, s.IdleFor, s.MaxNodes, s.MaxPercent, s.Timeout = labels.Everything(), defaultIdleFor, 1, 100, defaultCheckTimeout
}

func (f *FirstCheck) SetDefaults() {
	f.Taint, f.Nodes, f.Conditions, f.Timeout = conditions.TaintUnchecked, labels.Everything(), []string{AllConditions}, defaultCheckTimeout
	f.MaxNodes = defaultFirstChecks
}

func (r *Repair) complete(d *strict.Decoder, at *field.Path) {
	strict.CheckLabel(d, at.Child("scope"), r.Scope)
	completeActions(d, at.Child("actions", "ResetGPU"), r.Actions.ResetGPU)
	completeActions(d, at.Child("actions", "Reboot"), r.Actions.Reboot)
	if r.Validate != nil {
		r.Validate.check(d, at.Child("validate"))
	}
	if r.Collect != nil {
		r.Collect.complete(d, at.Child("collect"))
	}
}

func completeActions(d *strict.Decoder, at *field.Path, actions []Check) {
	for i := range actions {
		if !d.IsSet(at.Index(i).Child("timeout")) {
			actions[i].Timeout = defaultActionTimeout
		}
		actions[i].check(d, at.Index(i))
	}
}

// warn warns of a repair that does nothing, of one without a proof under load, and of arguments that are not admitted.
func (r *Repair) warn(d *strict.Decoder, at *field.Path, rules []Rule) {
	if r.Mode != RepairOff && len(r.Actions.ResetGPU)+len(r.Actions.Reboot) == 0 && d.IsSet(at.Child("mode")) {
		d.Warn(at.Child("mode"), fmt.Sprintf("%s repairs nothing without actions", r.Mode))
	}
	for i := range r.Actions.ResetGPU {
		r.Actions.ResetGPU[i].warnArgs(d, at.Child("actions", "ResetGPU").Index(i))
	}
	for i := range r.Actions.Reboot {
		r.Actions.Reboot[i].warnArgs(d, at.Child("actions", "Reboot").Index(i))
	}
	if r.Validate != nil {
		r.Validate.warnArgs(d, at.Child("validate"))
	}
	if r.Collect != nil {
		r.Collect.warnArgs(d, at.Child("collect"))
	}
	switch {
	case slices.ContainsFunc(rules, func(r Rule) bool { return r.Validate }):
	case r.Validate != nil:
		d.Warn(at.Child("validate"), "has no effect: no rule has validate: true")
	case r.Mode == RepairAuto:
		d.Warn(at.Child("mode"), "no rule has validate: true, so a repaired node returns without a check under load")
	}
}

func (s *Sweep) complete(d *strict.Decoder, at *field.Path) {
	d.InvalidFor(at, s.Name, validation.IsDNS1123Label(s.Name))
	s.check(d, at)
	if !d.IsSet(at.Child("maxNodes")) && d.IsSet(at.Child("maxPercent")) {
		s.MaxNodes = math.MaxInt
	}
}

func (f *FirstCheck) complete(d *strict.Decoder, at *field.Path, p *Policy) {
	key := at.Child("taint")
	strict.CheckTaintKey(d, key, f.Taint)
	if f.Taint == conditions.TaintUnhealthy {
		d.Invalid(key, f.Taint, "is the taint of quarantines")
	}
	for _, r := range p.Rules {
		if r.Taint.Key == f.Taint || slices.ContainsFunc(r.HandOff.Taints, func(t corev1.Taint) bool { return t.Key == f.Taint }) {
			d.Invalid(key, f.Taint, "is a taint of rule "+r.Name+": a quarantine would be taken for a new node")
			break
		}
	}
	for i, name := range f.Conditions {
		d.InvalidFor(at.Child("conditions").Index(i), name, validation.IsQualifiedName(name))
	}
	if f.Template != "" {
		f.check(d, at)
		return
	}
	for _, name := range []string{"args", "timeout", "maxNodes"} {
		if d.IsSet(at.Child(name)) {
			d.Add(field.Forbidden(at.Child(name), "has no effect without template"))
		}
	}
}

func (c *Check) check(d *strict.Decoder, at *field.Path) {
	if c.Template == "" {
		d.Add(field.Required(at.Child("template"), "the name of a PodTemplate in namespace "+conditions.RepairNamespace))
	} else {
		d.InvalidFor(at.Child("template"), c.Template, validation.IsDNS1123Label(c.Template))
	}
	if len(c.Args) > maxArgs {
		d.Invalid(at.Child("args"), len(c.Args), fmt.Sprintf("must be at most %d: the record of a node keeps them", maxArgs))
	}
	size := 0
	for i, arg := range c.Args {
		if strings.ContainsFunc(arg, unicode.IsControl) || !utf8.ValidString(arg) {
			d.Invalid(at.Child("args").Index(i), arg, "must be text without control characters")
		}
		size += len(arg)
	}
	if size > MaxArgs {
		d.Invalid(at.Child("args"), fmt.Sprintf("%d bytes", size),
			fmt.Sprintf("must be at most %d bytes together: the record of a node keeps them", MaxArgs))
	}
}
