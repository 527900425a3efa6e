// Package policy reads the remediator's policy: what to do about a NodeCondition. A policy is one strictly decoded YAML file
// and no custom resource. Its shape (apiVersion, kind, metadata, spec) would fit one, should it ever be needed.
//
// The types are the file and the policy in one. A comment on a field starts with the field's name in the file.
// docs/policy.md and manifests/policy.schema.json are written from these types and their comments by
//
//	go test ./remediator/policy -run Page -update
//
// They take the first paragraph of a comment on a field, and of a comment on a type what is before and in its example. What
// follows is for readers of the Go code.
package policy

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/pool"
)

// Policy is the content of a policy file.
//
//	spec:
//	  mode: observe
//	  budget: {maxNodes: 3, maxPercent: 10}
//	  rules:
//	    disk:
//	      match: {condition: ReadonlyFilesystem, repair: [Reboot]}
//	      for: 60s
//	      restartJobs: true
//
// [Parse] has checked it and filled in the defaults.
type Policy struct {
	// Warnings are the mistakes that are likely and not certain, each with its line, in the order of the lines.
	Warnings []string `yaml:"-"`
	// mode is the mode of every rule that sets none. A rule in mode observe records what it would do and reports it in
	// Events, and changes no taint and no job. A rule in mode enforce acts.
	Observe bool `yaml:"mode" values:"enforce observe"`
	// budget bounds all rules together. Every node counts that is quarantined, and every cordoned or not Ready one that has a
	// condition of a rule. It must set maxNodes, maxPercent or both: only the owner of a cluster knows how many nodes it can
	// spare.
	Budget Budget `yaml:"budget" required:""`
	// breaker stops new quarantines when too many start. There is no breaker unless it is set.
	Breaker *Breaker `yaml:"breaker"`
	// correlated blocks quarantines for faults that appear on many nodes together. No fault is blocked unless it is set.
	Correlated *Correlated `yaml:"correlated"`
	// domains are the groups of nodes that fail together, such as the racks that one NVLink fabric joins. A node is in the domain of
	// the first of these labels that it has. No fault is put down to another node unless it is set.
	Domains []Domain `yaml:"domains"`
	// restart limits the restarts of jobs.
	Restart Restart `yaml:"restart"`
	// jobKinds are kinds of training jobs that can be restarted in addition to the built-in kinds.
	JobKinds []jobkind.Kind `yaml:"jobKinds"`
	// handOff is what every quarantine puts on the node for other controllers.
	HandOff HandOff `yaml:"handOff"`
	// output shows the state of nodes in the forms of other projects.
	Output Output `yaml:"output"`
	// webhooks are the receivers of notifications about quarantines, by name. A name is a DNS label.
	Webhooks []Webhook `yaml:"webhooks"`
	// repair is how quarantined nodes are repaired and validated. Nothing is repaired unless it is set.
	Repair *Repair `yaml:"repair"`
	// sweeps check idle nodes, by name. A name is a DNS label.
	Sweeps []Sweep `yaml:"sweeps"`
	// pools are the conditions that the nodes report, by name. A name is a DNS label. `firstCheck` waits for these, and sweeps and
	// validations need the condition that proves their check.
	Pools []pool.Pool `yaml:"pools"`
	// firstCheck removes the taint of new nodes when they have proven to be healthy.
	FirstCheck *FirstCheck `yaml:"firstCheck"`
	// rules are what to do about each condition, by name. A name is a DNS label. A condition without a rule has no consequence.
	//
	// They are in the order in which they are tried: by priority, then by name.
	Rules []Rule `yaml:"rules"`
}

func (p *Policy) SetDefaults() {
	p.Observe = true
	p.Budget = Unlimited
	p.Restart.SetDefaults()
}

// Budget bounds how many nodes may be out of service at the same time. The smaller limit counts, but at least one node is
// always allowed, so that a pool of three nodes gets help, too. Only maxNodes 0 allows none.
//
// It is about the nodes that have the checked hardware: those with a condition that a rule names which is not alertOnly and
// selects the node.
//
// A quarantine with effect PreferNoSchedule leaves the node in service and does not count. Such quarantines have a budget of
// their own, of the same size. They do not count for the breaker either.
//
// A rule on Ready takes no node out of service that is not out of service already. So nodes that are merely not Ready use up none of
// its places; those that are quarantined or cordoned do. A node without checked hardware that it has quarantined uses up no place
// of other rules.
//
// A quarantined node that is deleted or replaced, or that loses its record, counts for an hour from the start of its
// quarantine, or for the window if that is longer. So a replaced node frees no place at once, unless a rule on Ready had quarantined it.
//
//	spec:
//	  budget: {maxNodes: 3, maxPercent: 10, scope: topology.kubernetes.io/zone, window: 1h, parkedAfter: 168h}
type Budget struct {
	// maxNodes is the largest number of nodes of the scope.
	MaxNodes int `yaml:"maxNodes" unit:"nodes" min:"0"`
	// maxPercent is the largest share of the scope's nodes with checked hardware, rounded down.
	MaxPercent int `yaml:"maxPercent" unit:"percent of the scope's nodes" min:"1" max:"100"`
	// scope is the key of a node label. Nodes with the same value share a budget, as do the nodes without the label. Without
	// a scope, the whole cluster shares one.
	Scope string `yaml:"scope" unit:"label key"`
	// window adds the nodes that were quarantined within this time and are back in service. 0s adds none of them.
	Window time.Duration `yaml:"window"`
	// parkedAfter is how long a node counts while it is cordoned or not Ready, and no rule but one on Ready has quarantined it.
	// After that time it is taken for parked, and a rule on Ready does not quarantine it any more. `never` always counts it. It
	// is only for the budget of the policy: that of a rule counts no such node.
	ParkedAfter time.Duration `yaml:"parkedAfter" above:"0s" never:""`
}

// DefaultParkedAfter is the parkedAfter of a budget that sets none.
const DefaultParkedAfter = 7 * 24 * time.Hour

// Unlimited is a budget that allows every node.
var Unlimited = Budget{MaxNodes: math.MaxInt, MaxPercent: 100, ParkedAfter: DefaultParkedAfter}

// IsUnlimited reports whether the budget allows every node.
func (b Budget) IsUnlimited() bool { return b.MaxNodes == math.MaxInt && b.MaxPercent >= 100 }

// Limit is how many nodes may be out of service in a scope of that many nodes.
func (b Budget) Limit(nodes int) int { return min(b.MaxNodes, max(1, nodes*b.MaxPercent/100)) }

// Breaker stops new quarantines when too many start within a short time. It changes nothing for nodes that are quarantined
// already.
//
//	spec:
//	  breaker: {maxNodes: 10, window: 10m, coolDown: 30m, pace: 5m}
type Breaker struct {
	// maxNodes is how many quarantines may start within the window. One more opens the breaker.
	MaxNodes int `yaml:"maxNodes" unit:"nodes" required:"" min:"1"`
	// window is the time in which quarantines are counted.
	Window time.Duration `yaml:"window" required:"a duration longer than 0s" above:"0s"`
	// coolDown is how long an open breaker allows no quarantine.
	CoolDown time.Duration `yaml:"coolDown" required:"a duration longer than 0s" above:"0s"`
	// pace is the time between two quarantines after the cool-down. The breaker closes when no node waits for a quarantine.
	Pace time.Duration `yaml:"pace" required:"a duration longer than 0s" above:"0s"`
}

// Correlated blocks quarantines for one condition when its faults appear on many nodes at about the same time: the cause is
// then more likely the detector, or a part that the nodes share, than each of the nodes.
//
//	spec:
//	  correlated:
//	    maxPercent: 50
//	    minNodes: 4
//	    window: 2m
//	    scopes: [topology.kubernetes.io/rack, nvidia.com/gpu.clique]
type Correlated struct {
	// maxPercent is the largest share of a scope's nodes whose faults are still taken as separate.
	MaxPercent int `yaml:"maxPercent" unit:"percent of a scope's nodes" required:"" min:"1" max:"100"`
	// minNodes is how many nodes of a scope must have the fault at least. Two nodes of a rack of three prove nothing.
	MinNodes int `yaml:"minNodes" unit:"nodes" required:"" min:"2"`
	// window is the time within which the faults must have started.
	Window time.Duration `yaml:"window" required:"a duration longer than 0s" above:"0s"`
	// scopes are keys of node labels: rack, leaf switch, NVLink domain. Nodes with the same value are one scope. The cluster
	// is always a scope, too, and for condition Ready so is topology.kubernetes.io/zone.
	//
	// The empty key, which [Parse] adds, stands for the cluster.
	Scopes []string `yaml:"scopes" unit:"label key"`
}

// Output shows the state of nodes in the forms of other projects.
//
//	spec:
//	  output: {aws: true}
type Output struct {
	// aws puts the labels and the annotations of the AWS GPU cluster health check suite on every node: status, severity, results and
	// quarantine-result in the domain gpu-healthcheck.aws-samples.io.
	AWS bool `yaml:"aws"`
	// soperator sets the NodeCondition HardwareIssuesSuspected to True on every node that is quarantined, except by a taint of
	// effect PreferNoSchedule, and to False at the release. soperator drains the Slurm nodes there; on Nebius, node auto repair
	// may replace the machine. A condition with the reason of another writer stays as it is.
	Soperator bool `yaml:"soperator"`
	// maintenance sets the NodeCondition MaintenanceInProgress to True on a node that is repaired, once it is empty, and removes it with
	// the maintenance taint. It needs Kubernetes 1.37. A condition with the reason of another writer stays as it is.
	Maintenance bool `yaml:"maintenance"`
}

// SoperatorCondition is the type of the NodeCondition by which soperator drains the Slurm nodes of a node (nebius/soperator,
// internal/consts/conditions.go).
const SoperatorCondition = "HardwareIssuesSuspected"

// Rule finds a rule by its name.
func (p *Policy) Rule(name string) (Rule, bool) {
	i := slices.IndexFunc(p.Rules, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		return Rule{}, false
	}
	return p.Rules[i], true
}

// Checks reports whether the node has hardware that the policy checks: a condition of a rule that is for the node and that may
// quarantine it. A verdict of the preflight is no such condition: a node has it only after it was found bad. Nor is Ready: every
// node has it, whatever its hardware.
func (p *Policy) Checks(n *corev1.Node) bool {
	return slices.ContainsFunc(p.Rules, func(r Rule) bool {
		reports := func(c corev1.NodeCondition) bool { return c.Type == r.Condition }
		return !r.AlertOnly && r.Condition != corev1.NodeReady && !conditions.IsVerdict(string(r.Condition)) &&
			slices.ContainsFunc(n.Status.Conditions, reports) && r.Nodes.Matches(labels.Set(n.Labels))
	})
}

// UnknownAfter is the age from which a heartbeat of the condition is too old for every rule. It is false when no rule names
// the condition.
func (p *Policy) UnknownAfter(condition corev1.NodeConditionType) (limit time.Duration, named bool) {
	for i := range p.Rules { // without a copy: this is asked for each condition of each node
		if r := &p.Rules[i]; r.Condition == condition {
			limit, named = max(limit, r.UnknownAfter), true
		}
	}
	return limit, named
}

// Match finds the rule that decides about a condition of a node with the given labels, and the repair class. A
// condition of Pitcrew whose message does not follow the grammar has no class and matches no rule: it is not known
// what the node needs. A rule that isolates devices only reports what is no fault of the hardware.
func (p *Policy) Match(nodeLabels map[string]string, c corev1.NodeCondition) (Rule, conditions.Repair, bool) {
	for i := range p.Rules {
		r := &p.Rules[i]
		if r.Condition != c.Type || !r.IsFault(c.Status) || !r.Nodes.Matches(labels.Set(nodeLabels)) {
			continue
		}
		if !matches(r.Reason, c.Reason) || !matches(r.Message, c.Message) {
			continue
		}
		if class := r.class(c); slices.Contains(r.Repair, class) {
			matched := *r
			matched.AlertOnly = r.AlertOnly || r.Isolate && !devices.NamesHardware(c.Message)
			return matched, class, true
		}
	}
	return Rule{}, 0, false
}

// Reported returns the conditions that nodes with these labels report, in order. It is false when that is not known.
func (p *Policy) Reported(nodeLabels map[string]string) (names []string, known bool) {
	return pool.Reported(p.Pools, nodeLabels)
}
