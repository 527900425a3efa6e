package policy

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
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
	var doc document
	doc.Spec.SetDefaults()
	d, at := strict.Decode(content, &doc), field.NewPath("spec")
	if doc.APIVersion != APIVersion {
		d.Add(field.NotSupported(field.NewPath("apiVersion"), doc.APIVersion, []string{APIVersion}))
	}
	if doc.Kind != Kind {
		d.Add(field.NotSupported(field.NewPath("kind"), doc.Kind, []string{Kind}))
	}
	doc.Spec.complete(d, at)
	if err := d.Err(); err != nil {
		return nil, err
	}
	doc.Spec.warn(d, at)
	doc.Spec.dropPairwise(d, at.Child("sweeps"))
	doc.Spec.Warnings = d.Warnings()
	return &doc.Spec, nil
}

// complete makes the checks that are not in tags, and gives each rule its mode, taint and hand-off.
func (p *Policy) complete(d *strict.Decoder, at *field.Path) {
	if budget := at.Child("budget"); !d.IsSet(budget.Child("maxNodes")) && !d.IsSet(budget.Child("maxPercent")) {
		// No default: only the owner of a cluster knows how many nodes it can spare.
		d.Add(field.Required(budget, "maxNodes, maxPercent or both: how many nodes may be out of service"))
	}
	strict.CheckLabel(d, at.Child("budget", "scope"), p.Budget.Scope)
	if p.Correlated != nil {
		for i, key := range p.Correlated.Scopes {
			strict.CheckLabel(d, at.Child("correlated", "scopes").Index(i), key)
		}
		p.Correlated.Scopes = append([]string{""}, p.Correlated.Scopes...)
	}
	p.checkDomains(d, at.Child("domains"))
	p.Restart.check(d, at.Child("restart"))
	for i, k := range p.JobKinds {
		k.Check(d, at.Child("jobKinds").Index(i))
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
		p.Pools[i].Complete(d, at.Child("pools").Key(p.Pools[i].Name))
	}
	if p.FirstCheck != nil {
		p.FirstCheck.complete(d, at.Child("firstCheck"), p)
	}
}

// complete checks a rule, and gives it its mode, taint and hand-off.
func (r *Rule) complete(d *strict.Decoder, at *field.Path, p *Policy) {
	d.InvalidFor(at, r.Name, validation.IsDNS1123Label(r.Name))
	if r.Name == ByHand {
		d.Invalid(at, r.Name, "is the name of a quarantine that a user orders")
	}
	r.checkCondition(d, at.Child("match"), p)
	r.checkStatus(d, at, p)
	strict.CheckLabel(d, at.Child("budget", "scope"), r.Budget.Scope)
	if parked := at.Child("budget", "parkedAfter"); d.IsSet(parked) {
		d.Add(field.Forbidden(parked, "has no effect in the budget of a rule, which counts only what the rule quarantined"))
	}
	r.checkGrace(d, at.Child("checkpointGrace"))
	r.checkAlertOnly(d, at)
	r.checkIsolate(d, at)
	r.checkValidate(d, at.Child("validate"), p)
	if !d.IsSet(at.Child("mode")) {
		r.Observe = p.Observe
	}
	if r.AlertOnly {
		r.Taint, r.HandOff = corev1.Taint{}, HandOff{}
		return
	}
	r.Taint.Key = cmp.Or(r.Taint.Key, conditions.TaintUnhealthy)
	r.Taint.Value = cmp.Or(r.Taint.Value, string(r.Condition))
	r.Taint.Effect = cmp.Or(r.Taint.Effect, corev1.TaintEffectNoSchedule)
	strict.CheckTaint(d, at.Child("taint"), r.Taint)
	r.HandOff.check(d, at.Child("handOff"))
	r.HandOff = r.HandOff.addedTo(p.HandOff)
	r.completeCordon(d, at.Child("handOff", "cordon"))
	if slices.ContainsFunc(r.HandOff.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&r.Taint) }) {
		d.Invalid(at.Child("taint"), r.Taint.ToString(), "is a taint of handOff, too: key and effect identify a taint")
	}
}

// checkCondition checks the condition, and the classes that it may have.
func (m *Match) checkCondition(d *strict.Decoder, at *field.Path, p *Policy) {
	condition := string(m.Condition)
	d.InvalidFor(at.Child("condition"), condition, validation.IsQualifiedName(condition))
	if p.Output.Soperator && condition == SoperatorCondition {
		d.Invalid(at.Child("condition"), condition, "is what output.soperator writes for a quarantine, which would never end")
	}
	if p.Output.Maintenance && m.Condition == corev1.NodeMaintenanceInProgress {
		d.Invalid(at.Child("condition"), condition, "is what output.maintenance writes for a repair, which would be a fault")
	}
	if !conditions.Ours(condition) && len(m.Repair) > 1 {
		d.Invalid(at.Child("repair"), m.Repair, "must be exactly one class: only the message of a condition of Pitcrew names one, and "+
			condition+" is none"+meantCondition(condition))
	}
}

// checkGrace checks what goes with a time for a checkpoint.
func (r *Rule) checkGrace(d *strict.Decoder, at *field.Path) {
	if !d.IsSet(at) {
		return
	}
	if !r.RestartJobs {
		d.Add(field.Forbidden(at, "has no effect without restartJobs"))
	}
	if r.Condition == corev1.NodeReady {
		d.Add(field.Forbidden(at, "has no effect for condition Ready: the ranks on a dead node save no checkpoint, and the others wait for them"))
	}
}

// checkAlertOnly checks that a rule which only reports says nothing about what is done.
func (r *Rule) checkAlertOnly(d *strict.Decoder, at *field.Path) {
	if !r.AlertOnly {
		return
	}
	isOff := map[string]bool{"restartJobs": !r.RestartJobs, "validate": !r.Validate, "isolate": !r.Isolate}
	for _, name := range []string{"taint", "isolate", "handOff", "restartJobs", "mode", "budget", "flaps", "validate"} {
		if d.IsSet(at.Child(name)) && !isOff[name] {
			d.Add(field.Forbidden(at.Child(name), "has no effect with alertOnly"))
		}
	}
}

// checkValidate checks what the check under load needs.
func (r *Rule) checkValidate(d *strict.Decoder, at *field.Path, p *Policy) {
	switch {
	case !r.Validate:
	case p.Repair == nil || p.Repair.Validate == nil:
		d.Add(field.Forbidden(at, "needs spec.repair.validate, the check under load"))
	case r.Taint.Effect == corev1.TaintEffectPreferNoSchedule:
		d.Add(field.Forbidden(at, "is not for a taint of effect PreferNoSchedule, which keeps no pods off the node: "+
			"it may never be empty for a check"))
	}
}

// checkIsolate checks what goes with isolate: device.
func (r *Rule) checkIsolate(d *strict.Decoder, at *field.Path) {
	isolate := at.Child("isolate")
	switch {
	case !r.Isolate:
		if most := at.Child("maxDevices"); d.IsSet(most) {
			d.Add(field.Forbidden(most, "has no effect without isolate: device"))
		}
	case !conditions.Ours(string(r.Condition)):
		d.Invalid(isolate, "device", "must be node: only the message of a condition of Pitcrew names the GPUs, and "+
			string(r.Condition)+" is none")
	case r.Taint.Effect == corev1.TaintEffectPreferNoSchedule:
		d.Invalid(isolate, "device", "must be node with a taint of effect PreferNoSchedule, which the taint of a device cannot have")
	case d.IsSet(at.Child("checkpointGrace")):
		d.Add(field.Forbidden(at.Child("checkpointGrace"), "is not for isolate: device"))
	case r.Validate:
		d.Add(field.Forbidden(at.Child("validate"), "is not for isolate: device: the check under load needs the whole node"))
	}
	if !r.Isolate {
		return
	}
	for _, class := range []conditions.Repair{conditions.Monitor, conditions.RestartApp} {
		if slices.Contains(r.Repair, class) {
			d.Invalid(isolate, "device", "must be node with "+class.String()+" in match.repair, "+
				"which needs nothing of the GPU: list the classes of faults of the hardware")
		}
	}
}

// checkStatus checks the status that means a fault, and what goes with it. The condition Ready is special: the node controller
// makes it Unknown, without a heartbeat, when the kubelet has not renewed its lease for some time.
func (r *Rule) checkStatus(d *strict.Decoder, at *field.Path, p *Policy) {
	condition := string(r.Condition)
	isReady := r.Condition == corev1.NodeReady
	if isReady {
		if unknownAfter := at.Child("unknownAfter"); d.IsSet(unknownAfter) {
			d.Add(field.Forbidden(unknownAfter, "is always never for condition Ready: the node controller makes it Unknown without a heartbeat"))
		}
		r.UnknownAfter = Never
	}
	status := at.Child("match", "status")
	if d.HasFailed(status) {
		return
	}
	isUnknown := r.IsFault(corev1.ConditionUnknown)
	switch {
	case conditions.Ours(condition):
		if len(r.Status) != 1 || r.Status[0] != corev1.ConditionTrue {
			d.Invalid(status, r.Status, "must be True: only then does the message of "+condition+" name a class")
		}
	case isUnknown && !isReady:
		d.Invalid(status, r.Status, "must not have Unknown, which is no fault but no information; only condition Ready may have it")
	case isReady && r.IsFault(corev1.ConditionTrue):
		d.Invalid(status, r.Status, "must be Unknown or False, or both: a node that is Ready has no fault")
	case isUnknown && !r.AlertOnly && p.Correlated == nil:
		d.Invalid(status, r.Status, "needs spec.correlated: when many nodes become Unknown together, "+
			"the network or the control plane has failed, not each of them")
	}
}
