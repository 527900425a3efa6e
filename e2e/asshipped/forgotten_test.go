package asshipped_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// without deletes objects until undo is called.
func without(t *testing.T, c *cluster.Cluster, objects ...client.Object) (undo func()) {
	t.Helper()
	for _, o := range objects {
		if err := c.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, o := range objects {
			o.SetResourceVersion("")
			o.SetUID("")
			if err := c.Client.Create(t.Context(), o); err != nil {
				t.Error(err)
			}
		}
	}
}

// noDCGM is what the plugin dcgm says; e2e/node runs it in an image that has none.
const noDCGM = "DCGM: no libdcgm.so.4 below /, /host/run/nvidia/driver, /host (see docs/dcgm.md)"

const lost = "Reboot gpu 0000:1b:00: Xid 79 GPU has fallen off the bus"

// forgotten: each row lacks one thing that people forget. The node's Events, and the commands that the page names, say what.
func forgotten(t *testing.T, c *cluster.Cluster) {
	(&site{T: t, Cluster: c, name: "forgot-nothing"}).addNodes("forgot-nothing", 12, nil) // the budget is a part of all nodes
	for _, row := range []struct {
		node, what string
		run        func(*testing.T, *machine)
	}{
		{"forgot-proof", "a check that reports what proves the template", func(_ *testing.T, m *machine) {
			m.kubectl("label", "node", m.node, "nvidia.com/gpu.present-") // no pool of the chart has it any more
			delete(m.conditions, conditions.DCGMDiagFailed)
			m.patchStatus(map[string]any{"conditions": []any{map[string]string{"type": conditions.DCGMDiagFailed, "$patch": "delete"}}})
			m.report(conditions.GPUXidError, corev1.ConditionTrue, gpuLost)
			m.job("reset-gpu", "reset-gpu -gpu=0000:1b:00", `{"result":"done","message":"reset 0000:1b:00"}`, 0, func() {
				m.report(conditions.GPUXidError, corev1.ConditionFalse, "no fault")
			})
			const lacks = "DCGMDiagFailed proves template check, and no check of the node reports it"
			m.says("validation waits: "+lacks, map[string]string{
				"describe NODE": lacks, "doctor": "DCGMDiagFailed, which proves template check",
			})
		}},
		{"forgot-template", "the template", func(t *testing.T, m *machine) {
			template := &corev1.PodTemplate{}
			if err := c.Client.Get(t.Context(), client.ObjectKey{Namespace: conditions.RepairNamespace, Name: "reboot"}, template); err != nil {
				t.Fatal(err)
			}
			defer without(t, c, template)()
			m.report(conditions.GPUXidError, corev1.ConditionTrue, lost)
			const lacks = "there is no PodTemplate reboot in namespace pitcrew-repair"
			m.says("repair waits: "+lacks, map[string]string{
				"describe NODE": lacks, "doctor": "names template reboot, and there is no such PodTemplate in namespace pitcrew-repair",
			})
		}},
		{"forgot-rights", "the rights in the namespace of the Jobs", func(t *testing.T, m *machine) {
			var bindings rbacv1.RoleBindingList
			if err := c.Client.List(t.Context(), &bindings, client.InNamespace(conditions.RepairNamespace)); err != nil {
				t.Fatal(err)
			}
			var objects []client.Object
			for i := range bindings.Items {
				objects = append(objects, &bindings.Items[i])
			}
			defer without(t, c, objects...)()
			m.report(conditions.GPUXidError, corev1.ConditionTrue, lost)
			m.says(`podtemplates "reboot" is forbidden`, map[string]string{
				"describe NODE": "is forbidden", "doctor": "in namespace pitcrew-repair the remediator may not",
			})
		}},
		{"forgot-labels", "the operator's labels, so that its exporter is not paused", func(_ *testing.T, m *machine) {
			const exporter = "pod gpu-operator/nvidia-dcgm-exporter-x (dcgm-exporter, pid 71)" // as the program repair says it
			m.report(conditions.GPUXidError, corev1.ConditionTrue, gpuLost)
			m.job("reset-gpu", "reset-gpu -gpu=0000:1b:00", `{"result":"refused","message":"accelerators are held by `+exporter+`"}`, 2, nil)
			m.says(exporter, map[string]string{"describe NODE": exporter})
		}},
		{"forgot-image", "the image with DCGM, or DCGM on the node", func(_ *testing.T, m *machine) {
			m.pitcrew("check", m.node, "--yes")
			m.job("check", "check -level=2", `{"result":"failed","message":"the diagnostic gave no result: `+noDCGM+`"}`, 1, nil)
			m.says("sweep weekly could not run: the diagnostic gave no result: "+noDCGM, map[string]string{"describe NODE": noDCGM})
			m.inService()
		}},
		{"forgot-person", "a person who approves", func(t *testing.T, m *machine) {
			defer changePolicy(t, c, "mode: auto", "mode: approve")()
			m.beating("the policy is in force", func() error {
				if out := m.asked("status"); strings.Contains(out, "not read by the remediator yet") {
					return errors.New(out)
				}
				return nil
			})
			m.report(conditions.GPUXidError, corev1.ConditionTrue, lost)
			const lacks = "it waits for `kubectl pitcrew repair "
			m.says(lacks, map[string]string{"describe NODE": lacks, "status": "waits for approval"})
		}},
	} {
		t.Run(row.what, func(t *testing.T) {
			m := newMachine(&site{T: t, Cluster: c}, row.node, nil)
			t.Cleanup(func() {
				if err := c.DeleteNodes(context.Background(), m.node); err != nil { // it would keep the only place of a repair
					t.Error(err)
				}
			})
			row.run(t, m)
		})
	}
}

// changePolicy changes the policy in force until undo is called: the file of the remediator, and the ConfigMap that kubectl reads.
func changePolicy(t *testing.T, c *cluster.Cluster, from, to string) (undo func()) {
	t.Helper()
	before, err := os.ReadFile(policyFile)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(before), from) {
		t.Fatalf("the policy has no %q", from)
	}
	write := func(text string) {
		if err := os.WriteFile(policyFile, []byte(text), 0o600); err != nil {
			t.Error(err)
		}
		object := &corev1.ConfigMap{}
		object.Namespace, object.Name = namespace, "pitcrew-policy"
		patch := fmt.Appendf(nil, `{"data":{"policy.yaml":%q}}`, text)
		if err := c.Client.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Error(err)
		}
	}
	write(strings.Replace(string(before), from, to, 1))
	return func() { write(string(before)) }
}
