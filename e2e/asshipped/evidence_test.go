package asshipped_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/asshipped/pages"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	nodefacts "github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/bundle"
)

const bundled = `{"result":"done","message":"bundle","bundle":"n-20261128T033000Z.tar.gz"}`

// Evidence with what pages.Loop and docs/evidence.md show: collected before the reboot and at a hand-off, and fetched by an admin.
// The admission policies let nothing else through. The repair is shown by the condition of docs/coexistence.md.
func TestEvidenceAsShipped(t *testing.T) {
	c := install(t, func(root string) string {
		return pages.Values(t, root, append(slices.Clone(pages.Loop), "evidence.md"), shorter, "policy: {output: {maintenance: true}}")
	}, nil,
		authorizationv1.ResourceAttributes{Verb: "create", Group: "batch", Resource: "jobs", Namespace: conditions.RepairNamespace})
	jobs := func(template string) (n int) {
		var list batchv1.JobList
		of := client.MatchingLabels{conditions.LabelTemplate: template}
		if err := c.Client.List(t.Context(), &list, client.InNamespace(conditions.RepairNamespace), of); err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	const flags = " -keep=3 -max-size=64 -min-free=15 -timeout=2m"
	m := newMachine(&site{T: t, Cluster: c}, "evidence", nil)
	boot := m.site.node(m.node).Status.NodeInfo.BootID
	m.report(conditions.GPUXidError, corev1.ConditionTrue, "Reboot gpu 0000:1b:00: Xid 79 GPU has fallen off the bus")
	m.job("collect", "collect -node="+m.node+flags, bundled, 0, func() {
		if n := jobs("reboot"); n > 0 {
			t.Error("the reboot has begun")
		}
	})
	shown := func() string {
		c, _ := nodefacts.ConditionOf(m.site.node(m.node), corev1.NodeMaintenanceInProgress)
		return string(c.Status) + c.Reason
	}
	m.job("reboot", "reboot -boot-id="+boot, "", 137, func() {
		m.beating("the repair is shown", func() error {
			if got := shown(); got != "TrueRepairByPitcrew" {
				return errors.New(got)
			}
			return nil
		})
		m.patchStatus(map[string]any{"nodeInfo": map[string]string{"bootID": "5f0c3ab1-0000-4000-8000-00000000beef"}})
		m.report(conditions.GPUXidError, corev1.ConditionFalse, "no fault")
	})
	m.job("check", "check -level=3", healthy, 0, nil)
	m.inService()
	if got := shown(); got != "" {
		t.Errorf("in service, the node shows %s", got)
	}
	fetches(t, m)

	replace := newMachine(&site{T: t, Cluster: c}, "handedoff", nil)
	replace.report(conditions.GPUMemoryError, corev1.ConditionTrue, "Replace gpu 0000:1b:00: row remapping failed")
	replace.job("collect", "collect -node="+replace.node+flags, bundled, 0, nil)
	if n := jobs("collect"); n != 3 {
		t.Errorf("%d Jobs have collected, want 3", n)
	}

	var template corev1.PodTemplate
	key := client.ObjectKey{Namespace: conditions.RepairNamespace, Name: bundle.PrintTemplate}
	if err := c.Client.Get(t.Context(), key, &template); err != nil {
		t.Fatal(err)
	}
	for args, admitted := range map[string]bool{
		"-at=20261128T033000Z":          true,
		"-at=20261128T033000Z -slice=2": true,
		"-at=../../etc/shadow":          false,
		"-dir=/etc":                     false,
		"-node=other":                   false,
	} {
		name := fmt.Sprintf("print-bundle-%d", len(args))
		err := c.Client.Create(t.Context(), bundle.NewJob(&template, m.node, name, time.Minute, strings.Fields(args)...))
		if admitted && err != nil || !admitted && !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", args, err)
		}
	}
	m.beating("a bundle is printed", func() error {
		var pods corev1.PodList
		if err := c.Client.List(t.Context(), &pods, client.InNamespace(conditions.RepairNamespace)); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if strings.HasPrefix(pod.Name, "print-bundle-") && pod.Status.Phase == corev1.PodRunning {
				return nil
			}
		}
		return errors.New("no pod prints it")
	})
}
