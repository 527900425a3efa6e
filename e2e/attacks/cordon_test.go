package attacks

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// The admission policies that are shipped let a policy cordon that says so, without a further setting.
func TestAPolicyThatCordonsNeedsNoOtherAdmissionPolicy(t *testing.T) {
	s := newScene(t, "shipped-cordon", 1, nil)
	s.stolen() // in force
	node := s.nodes[0]
	s.remediator(s.policy(`
  budget: {maxNodes: 1}
  handOff: {cordon: true}
  rules:
    xid: {match: {condition: GPUXidError, repair: [ResetGPU], POOL}, clearAfter: 1s}
`))
	s.report(node, corev1.ConditionTrue, ecc)
	if n, r := s.becomes(node, causes.Quarantined); !n.Spec.Unschedulable || len(n.Spec.Taints) == 0 {
		t.Errorf("cordoned %v, taints %v, record %s", n.Spec.Unschedulable, n.Spec.Taints, r)
	}
	s.report(node, corev1.ConditionFalse, "fine")
	if n, r := s.becomes(node, causes.Released); n.Spec.Unschedulable {
		t.Errorf("still cordoned, record %s", r)
	}
}

// With a stolen token a cordon is set only in the write of a quarantine whose record claims it, and taken back only at the end of that,
// and never when others have set it.
func TestAttack23AStolenTokenCordonsOnlyWithAQuarantine(t *testing.T) {
	t.Parallel()
	s := newScene(t, "stolen-cordon", 1, nil)
	token := s.stolen()
	node := s.nodes[0]
	uid := s.get(node).UID
	record := func(phase causes.Phase, change func(*causes.Record)) string {
		now := time.Now().UTC()
		r := &causes.Record{
			// A kubelet chooses the boot id of its Node.
			V: 1, NodeUID: uid, Boot: causes.Boot{ID: `x"},{<é`, Seen: now},
			Quarantine: causes.Quarantine{
				ID: "q", Phase: phase, QuarantinedAt: now,
				Causes:  []causes.Cause{{Condition: "GPUXidError", Rule: "xid", Repair: conditions.ResetGPU, Message: ecc, FirstSeen: now, Due: true, BootID: "b"}},
				Taint:   &causes.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule, Rule: "xid", Repair: conditions.ResetGPU, Since: now},
				HandOff: &handoff.Added{Annotations: map[string]string{"example.com/x": "y"}, Cordon: true},
			},
		}
		if change != nil {
			change(r)
		}
		return r.String()
	}
	without := func(r *causes.Record) { r.HandOff.Cordon = false }
	claims, plain, released := record(causes.Quarantined, nil), record(causes.Quarantined, without), record(causes.Released, nil)
	spaced := strings.ReplaceAll(claims, `":`, `": `)
	const ours, theirs = handoff.FieldManager, "kubectl-cordon"

	write := func(by client.Client, record string, cordoned any, managers []string, options ...client.PatchOption) error {
		var annotation any
		if record != "" {
			annotation = record
		}
		body := map[string]any{
			"spec":     map[string]any{"unschedulable": cordoned},
			"metadata": map[string]any{"annotations": map[string]any{conditions.AnnotationQuarantine: annotation}},
		}
		if managers != nil {
			fields := []metav1.ManagedFieldsEntry{{}} // forgets them
			for _, m := range managers {
				fields = append(fields[:len(fields):len(fields)], metav1.ManagedFieldsEntry{
					Manager: m, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`),
				})
			}
			if len(managers) > 0 {
				fields = fields[1:]
			}
			body["metadata"].(map[string]any)["managedFields"] = fields
		}
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		return by.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, text), options...)
	}
	for name, test := range map[string]struct {
		before string
		// cordoned is by whom; nil: it is not.
		cordoned []string
		after    string
		// cordons: the write cordons the node or leaves it cordoned.
		cordons, allowed bool
	}{
		"a quarantine that cordons":     {"", nil, claims, true, true},
		"one after another":             {released, nil, claims, true, true},
		"a cordon without a record":     {"", nil, "", true, false},
		"a text that is no record":      {"", nil, `"phase":"quarantined", "cordon":true}`, true, false},
		"a text before the record":      {"", nil, "{}" + claims, true, false},
		"a quarantine that is over":     {"", nil, released, true, false},
		"a suspicion":                   {"", nil, record(causes.Suspect, nil), true, false},
		"a quarantine that claims none": {"", nil, plain, true, false},
		"a label of this name": {"", nil, record(causes.Quarantined, func(r *causes.Record) {
			r.HandOff.Cordon, r.HandOff.Labels = false, map[string]string{"cordon": "true"}
		}), true, false},
		"a message with this text":                  {"", nil, record(causes.Quarantined, func(r *causes.Record) { r.HandOff.Cordon, r.Causes[0].Message = false, `"cordon":true}` }), true, false},
		"what a person has undone, with the record": {claims, nil, claims, true, false},
		"the release":                                  {claims, []string{ours}, released, false, true},
		"the record is dropped":                        {claims, []string{ours}, "", false, true},
		"an upgrade without a cordon":                  {claims, []string{ours}, plain, false, true},
		"the release of a record that others wrote":    {spaced, []string{ours}, released, false, true},
		"an uncordon during the quarantine":            {claims, []string{ours}, claims, false, false},
		"an uncordon at its upgrade":                   {claims, []string{ours}, record(causes.Quarantined, func(r *causes.Record) { r.ID = "next" }), false, false},
		"the record is lost":                           {"", []string{ours}, "", false, true},
		"a person's cordon":                            {"", []string{theirs}, "", false, false},
		"a person's, and a record that claims it":      {claims, []string{theirs}, released, false, false},
		"a person's, too":                              {claims, []string{ours, theirs}, released, false, false},
		"a person's, too, after the quarantine":        {released, []string{ours, theirs}, "", false, false},
		"whose is not known, and the record claims it": {claims, []string{}, released, false, true},
		"of many managers, and the record claims it":   {claims, []string{"ancient-changes"}, released, false, true},
		"whose is not known, without a record":         {"", []string{}, "", false, false},
		"whose is not known, after the quarantine":     {released, []string{}, "", false, false},
		"of many managers, without a record":           {"", []string{"ancient-changes"}, "", false, false},
	} {
		var before any
		if test.cordoned != nil {
			before = true
		}
		// Uncordoned first, so that no test leaves a manager to the next.
		s.may(write(s.admin, "", nil, nil), "uncordon")
		s.may(write(s.admin, test.before, before, nil), name)
		s.may(write(s.admin, test.before, before, test.cordoned), name)
		var after any
		if test.cordons {
			after = true
		}
		err := write(token, test.after, after, nil, client.DryRunAll, client.FieldOwner(ours))
		if test.allowed && err != nil || !test.allowed && !deniedBy(err, onNodes) {
			t.Errorf("%s: allowed %v, got %v, managed fields %s", name, test.allowed, err, fmt.Sprint(s.get(node).ManagedFields))
		}
	}
}
