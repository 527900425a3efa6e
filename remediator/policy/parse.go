package policy

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/syntax"
)

// The apiVersion and kind of a policy file.
const (
	APIVersion = conditions.Domain + "/v1alpha1"
	Kind       = "RemediationPolicy"
)

// document is what is around a policy in its file.
type document struct {
	// apiVersion is the version of the format.
	APIVersion string `yaml:"apiVersion" required:""`
	// kind is the kind of object that the file has.
	Kind string `yaml:"kind" required:""`
	// metadata is for users and tools, for example a name. The remediator does not read it.
	Metadata map[string]any `yaml:"metadata"`
	// spec is the policy.
	Spec Policy `yaml:"spec" required:""`
}

// Parse reads and checks a policy file, and fills in the defaults. An unknown field, a field that is set twice and a second
// YAML document are errors. All errors come at once, joined and in the order of their lines. Each has the line and the path
// of the field and, where there is one, the value:
//
//	line 12: spec.rules[gpu-xid].for: Invalid value: "10x": must be a duration like 30s, 10m or 1h
//
// What is valid and most likely a mistake is in [Policy.Warnings].
func Parse(data []byte) (*Policy, error) {
	content, err := syntax.Parse(data)
	if err != nil {
		return nil, err
	}
	root := &yaml.Node{Kind: yaml.MappingNode, Line: 1}
	if content != nil { // an empty file lacks the required fields
		root = orEmpty(content)
	}
	d := newDecoder()
	var doc document
	doc.Spec.setDefaults()
	d.fields(root, nil, reflect.ValueOf(&doc).Elem())
	if doc.APIVersion != APIVersion {
		d.add(field.NotSupported(field.NewPath("apiVersion"), doc.APIVersion, []string{APIVersion}))
	}
	if doc.Kind != Kind {
		d.add(field.NotSupported(field.NewPath("kind"), doc.Kind, []string{Kind}))
	}
	doc.Spec.complete(d, field.NewPath("spec"))
	if err := d.err(); err != nil {
		return nil, err
	}
	doc.Spec.warn(d, field.NewPath("spec"))
	doc.Spec.dropPairwise(d, field.NewPath("spec", "sweeps"))
	for _, w := range inOrder(d.warnings) {
		doc.Spec.Warnings = append(doc.Spec.Warnings, w.Error())
	}
	return &doc.Spec, nil
}

// complete makes the checks that are not in tags, and gives each rule its mode, taint and hand-off.
func (p *Policy) complete(d *decoder, at *field.Path) {
	if budget := at.Child("budget"); !d.isSet(budget.Child("maxNodes")) && !d.isSet(budget.Child("maxPercent")) {
		// No default: only the owner of a cluster knows how many nodes it can spare.
		d.add(field.Required(budget, "maxNodes, maxPercent or both: how many nodes may be out of service"))
	}
	d.label(at.Child("budget", "scope"), p.Budget.Scope)
	if p.Correlated != nil {
		for i, key := range p.Correlated.Scopes {
			d.label(at.Child("correlated", "scopes").Index(i), key)
		}
		p.Correlated.Scopes = append([]string{""}, p.Correlated.Scopes...)
	}
	p.checkDomains(d, at.Child("domains"))
	p.Restart.check(d, at.Child("restart"))
	for i, k := range p.JobKinds {
		k.check(d, at.Child("jobKinds").Index(i))
	}
	for i := range p.Webhooks {
		p.Webhooks[i].complete(d, at.Child("webhooks").Key(p.Webhooks[i].Name))
	}
	p.HandOff.check(d, at.Child("handOff"))
	p.HandOff = p.HandOff.addedTo(HandOff{Annotations: KeepNode})
	for i := range p.Rules {
		p.Rules[i].complete(d, at.Child("rules").Key(p.Rules[i].Name), p)
	}
	slices.SortStableFunc(p.Rules, func(a, b Rule) int { return cmp.Compare(b.Priority, a.Priority) })
	if p.Repair != nil {
		p.Repair.complete(d, at.Child("repair"))
	}
	for i := range p.Sweeps {
		p.Sweeps[i].complete(d, at.Child("sweeps").Key(p.Sweeps[i].Name))
	}
	for i := range p.Pools {
		at := at.Child("pools").Key(p.Pools[i].Name)
		d.invalidFor(at, p.Pools[i].Name, validation.IsDNS1123Label(p.Pools[i].Name))
		p.Pools[i].complete(d, at)
	}
	if p.FirstCheck != nil {
		p.FirstCheck.complete(d, at.Child("firstCheck"), p)
	}
}

func (r *Rule) complete(d *decoder, at *field.Path, p *Policy) {
	d.invalidFor(at, r.Name, validation.IsDNS1123Label(r.Name))
	if r.Name == ByHand {
		d.invalid(at, r.Name, "is the name of a quarantine that a user orders")
	}
	condition := string(r.Condition)
	d.invalidFor(at.Child("match", "condition"), condition, validation.IsQualifiedName(condition))
	if p.Output.Soperator && condition == SoperatorCondition {
		d.invalid(at.Child("match", "condition"), condition, "is what output.soperator writes for a quarantine, which would never end")
	}
	r.checkStatus(d, at, p)
	if !conditions.Ours(condition) && len(r.Repair) > 1 {
		d.invalid(at.Child("match", "repair"), r.Repair, "must be exactly one class: only the message of a condition of Pitcrew names one, and "+condition+" is none"+meantCondition(condition))
	}
	d.label(at.Child("budget", "scope"), r.Budget.Scope)
	if parked := at.Child("budget", "parkedAfter"); d.isSet(parked) {
		d.add(field.Forbidden(parked, "has no effect in the budget of a rule, which counts only what the rule quarantined"))
	}
	if d.isSet(at.Child("checkpointGrace")) && !r.RestartJobs {
		d.add(field.Forbidden(at.Child("checkpointGrace"), "has no effect without restartJobs"))
	}
	if d.isSet(at.Child("checkpointGrace")) && r.Condition == corev1.NodeReady {
		d.add(field.Forbidden(at.Child("checkpointGrace"), "has no effect for condition Ready: the ranks on a dead node save no checkpoint, and the others wait for them"))
	}
	if r.AlertOnly {
		for _, name := range []string{"taint", "isolate", "handOff", "restartJobs", "mode", "budget", "flaps", "validate"} {
			if d.isSet(at.Child(name)) && (name != "restartJobs" || r.RestartJobs) && (name != "validate" || r.Validate) && (name != "isolate" || r.Isolate) {
				d.add(field.Forbidden(at.Child(name), "has no effect with alertOnly"))
			}
		}
	}
	r.checkIsolate(d, at)
	if validate := at.Child("validate"); r.Validate && (p.Repair == nil || p.Repair.Validate == nil) {
		d.add(field.Forbidden(validate, "needs spec.repair.validate, the check under load"))
	} else if r.Validate && r.Taint.Effect == corev1.TaintEffectPreferNoSchedule {
		d.add(field.Forbidden(validate, "is not for a taint of effect PreferNoSchedule, which keeps no pods off the node: it may never be empty for a check"))
	}
	if !d.isSet(at.Child("mode")) {
		r.Observe = p.Observe
	}
	if r.AlertOnly {
		r.Taint, r.HandOff = corev1.Taint{}, HandOff{}
		return
	}
	r.Taint.Key = cmp.Or(r.Taint.Key, conditions.TaintUnhealthy)
	r.Taint.Value = cmp.Or(r.Taint.Value, condition)
	r.Taint.Effect = cmp.Or(r.Taint.Effect, corev1.TaintEffectNoSchedule)
	d.taint(at.Child("taint"), r.Taint)
	r.HandOff.check(d, at.Child("handOff"))
	r.HandOff = r.HandOff.addedTo(p.HandOff)
	r.completeCordon(d, at.Child("handOff", "cordon"))
	if slices.ContainsFunc(r.HandOff.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&r.Taint) }) {
		d.invalid(at.Child("taint"), r.Taint.ToString(), "is a taint of handOff, too: key and effect identify a taint")
	}
}

// checkIsolate checks what goes with isolate: device.
func (r *Rule) checkIsolate(d *decoder, at *field.Path) {
	isolate := at.Child("isolate")
	switch {
	case !r.Isolate:
		if most := at.Child("maxDevices"); d.isSet(most) {
			d.add(field.Forbidden(most, "has no effect without isolate: device"))
		}
	case !conditions.Ours(string(r.Condition)):
		d.invalid(isolate, "device", "must be node: only the message of a condition of Pitcrew names the GPUs, and "+string(r.Condition)+" is none")
	case r.Taint.Effect == corev1.TaintEffectPreferNoSchedule:
		d.invalid(isolate, "device", "must be node with a taint of effect PreferNoSchedule, which the taint of a device cannot have")
	case d.isSet(at.Child("checkpointGrace")):
		d.add(field.Forbidden(at.Child("checkpointGrace"), "is not for isolate: device"))
	case r.Validate:
		d.add(field.Forbidden(at.Child("validate"), "is not for isolate: device: the check under load needs the whole node"))
	}
	if !r.Isolate {
		return
	}
	for _, class := range []conditions.Repair{conditions.Monitor, conditions.RestartApp} {
		if slices.Contains(r.Repair, class) {
			d.invalid(isolate, "device", "must be node with "+class.String()+" in match.repair, which needs nothing of the GPU: list the classes of faults of the hardware")
		}
	}
}

// checkStatus checks the status that means a fault, and what goes with it. The condition Ready is special: the node controller
// makes it Unknown, without a heartbeat, when the kubelet has not renewed its lease for some time.
func (r *Rule) checkStatus(d *decoder, at *field.Path, p *Policy) {
	condition := string(r.Condition)
	isReady := r.Condition == corev1.NodeReady
	if isReady {
		if unknownAfter := at.Child("unknownAfter"); d.isSet(unknownAfter) {
			d.add(field.Forbidden(unknownAfter, "is always never for condition Ready: the node controller makes it Unknown without a heartbeat"))
		}
		r.UnknownAfter = Never
	}
	status := at.Child("match", "status")
	if d.failed[status.String()] {
		return
	}
	isUnknown := r.IsFault(corev1.ConditionUnknown)
	switch {
	case conditions.Ours(condition):
		if len(r.Status) != 1 || r.Status[0] != corev1.ConditionTrue {
			d.invalid(status, r.Status, "must be True: only then does the message of "+condition+" name a class")
		}
	case isUnknown && !isReady:
		d.invalid(status, r.Status, "must not have Unknown, which is no fault but no information; only condition Ready may have it")
	case isReady && r.IsFault(corev1.ConditionTrue):
		d.invalid(status, r.Status, "must be Unknown or False, or both: a node that is Ready has no fault")
	case isUnknown && !r.AlertOnly && p.Correlated == nil:
		d.invalid(status, r.Status, "needs spec.correlated: when many nodes become Unknown together, the network or the control plane has failed, not each of them")
	}
}

// The checks that several parts share.

func (d *decoder) isSet(at *field.Path) bool { return d.set[at.String()] }

func (d *decoder) label(at *field.Path, key string) {
	if key != "" {
		d.invalidFor(at, key, validation.IsQualifiedName(key))
	}
}

func (d *decoder) labels(at *field.Path, want map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(want)) {
		d.invalidFor(at.Key(key), key, validation.IsQualifiedName(key))
		d.invalidFor(at.Key(key), want[key], validation.IsValidLabelValue(want[key]))
	}
}

func (d *decoder) taint(at *field.Path, t corev1.Taint) {
	d.taintKey(at.Child("key"), t.Key)
	d.invalidFor(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))
}

func (d *decoder) taintKey(at *field.Path, key string) {
	d.invalidFor(at, key, validation.IsQualifiedName(key))
	if key == conditions.TaintMaintenance {
		d.invalid(at, key, "is the maintenance taint: it says that another owner works on the node")
	}
	d.notKubernetes(at, key)
}

// foreignKey checks a key that is for other controllers.
func (d *decoder) foreignKey(at *field.Path, key string) {
	d.invalidFor(at, key, validation.IsQualifiedName(key))
	if strings.HasPrefix(key, conditions.Domain+"/") {
		d.invalid(at, key, "must not be in the domain "+conditions.Domain+", which is Pitcrew's own")
	}
}
