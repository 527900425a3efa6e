package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/doctor"
)

// A person approves, follows and stops repairs with the built plugin, beside a running remediator.
func TestAPersonSteersRepairs(t *testing.T) {
	p := NewPerson(t)
	nodes, err := p.AddNodes(t.Context(), "ward", 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.DeleteNodes(p.Cluster.Context(), nodes...); err != nil {
			t.Error(err)
		}
	})
	p.namespace()
	p.mayVisit("reset-gpu", "reboot", "check")
	policy := clitest.PolicyFile(t, strings.Replace(clitest.RepairPolicy, "repair: [Reboot]", "repair: [ResetGPU, Reboot]", 1))
	remediator, err := p.StartRemediator(t.Context(), "-policy", policy, "-leader-elect=false", "-repair-namespace", conditions.RepairNamespace)
	if err != nil {
		t.Fatal(err)
	}
	faulty, other := nodes[0], nodes[1]
	with := " -f " + policy
	says := func(args string, wants ...string) {
		t.Helper()
		p.until(fmt.Sprintf("%s says %q", args, wants), func() error {
			out := p.run(strings.Fields(args)...)
			for _, want := range wants {
				if !strings.Contains(out, want) {
					return fmt.Errorf("no %q in\n%s", want, out)
				}
			}
			return nil
		})
	}

	p.reports(faulty, "True", eccFault)
	says("status"+with, "APPROVAL    "+faulty+" waits for approval (ResetGPU): kubectl pitcrew repair "+faulty+" --approve")
	p.says("repair "+faulty+with, "Repair:   reset-gpu is next for GPUXidError; it waits for `kubectl pitcrew repair "+faulty+" --approve`")
	p.says("repair "+faulty+with, "Pods:     none is in the way")
	p.says("describe "+faulty+with, "Repair:   reset-gpu is next for GPUXidError")
	p.fails("repair --approve -y "+other, "node "+other+" is not quarantined")
	p.fails("repair --stop -y "+other, "there is nothing to stop")
	p.fails("repair --approve --stop "+faulty, "none of the others can be")
	p.fails("repair -y nowhere", "there is no node nowhere")
	p.refused("repair --approve " + faulty)
	p.says("repair --approve --dry-run "+faulty, "Have node "+faulty+" repaired\n")
	if n := p.get(faulty); strings.Contains(n.Annotations[conditions.AnnotationRepair], "request") {
		t.Errorf("a dry run has asked: %s", n.Annotations[conditions.AnnotationRepair])
	}

	p.does("repair", "--approve", faulty, "--reason", "night\nshift")
	p.wrote(client.ObjectKey{Name: faulty}, "RepairRequested", "repair requested by person: night shift")
	says("describe "+faulty+with, "Visit:    repair, since ", "Working since ", "1. reset-gpu, ", "under way", "reset-gpu -gpu=0000:4e:00, until ", "Job pitcrew-repair/repair-")
	p.says("status"+with, "VISITS      "+faulty+": repair, reset-gpu, attempt 1, ")
	says("status", faulty+"  repairing")
	p.says("repair "+faulty+with, "Limits:   1 of 1 nodes are repaired or validated now; 1 repairs within 24 h")

	p.refused("repair --stop " + faulty)
	p.does("repair", "--stop", faulty, "--reason", "mine")
	p.wrote(client.ObjectKey{Name: faulty}, "RepairStopRequested", "stop requested by person: mine")
	says("describe "+faulty+with, "Visited:  repair, ", "Failed: stopped manually by person: mine", "Repair:   none in this quarantine: stopped by person: mine")
	p.until("its Job is gone", p.noJobs)
	p.taints(faulty, "pitcrew.dev/unhealthy=GPUXidError:NoSchedule")

	// It is released after its check, or without one.
	p.says("release --dry-run "+faulty+with, "Release node "+faulty+" after its check: ")
	p.says("release --without-validation --dry-run "+faulty+with, "Release node "+faulty+": remove taint")
	p.does("release", faulty, "-f", policy, "--reason", "fixed")
	p.wrote(client.ObjectKey{Name: faulty}, "ReleaseRequested", "release requested by person: fixed")
	says("describe "+faulty+with, "Visit:    validation, since ", "Working since ", "Asked:    release, by person: fixed, ", "check -level 3, until ")
	says("status", faulty+"  validating")
	p.fails("release -y "+faulty+with, "person has asked for this already, ")
	p.does("release", faulty, "-f", policy, "--without-validation")
	p.until("its Job is gone", p.noJobs)
	p.until("the visit is over", func() error {
		if got := cli.Taints(p.get(faulty)); got != "" {
			return errors.New(got)
		}
		return nil
	})

	// A check of a node in service.
	p.fails("check -y "+nodes[0]+" "+nodes[1], "accepts 1 arg")
	p.refused("check " + other)
	p.says("check --dry-run "+other, "Have node "+other+" checked\n")
	p.fails("check -y "+other, "the remediator refuses: node "+other+" cannot be checked: no sweep of the policy is for it")
	p.does("quarantine", nodes[2])
	p.fails("check -y "+nodes[2], "is quarantined")

	// Outside the cluster it has no Deployment that could be deleted first.
	p.reports(other, "True", eccFault)
	says("status"+with, "kubectl pitcrew repair "+other+" --approve")
	p.does("repair", "--approve", other)
	says("status", other+"  repairing")
	p.until("its Job is there", func() error {
		if p.noJobs() == nil {
			return errors.New("no Jobs")
		}
		return nil
	})
	remediator.Stop(10 * time.Second)
	p.says("uninstall --dry-run", "Delete Job pitcrew-repair/repair-")
	p.says("uninstall --dry-run", "Clean node "+other+": remove taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule, remove taint pitcrew.dev/maintenance=repair:NoSchedule, remove our records and labels")
	p.does("uninstall")
	for _, name := range nodes {
		p.taints(name, "")
		if n := p.get(name); n.Annotations[conditions.AnnotationRepair] != "" {
			t.Errorf("node %s still has %v", name, n.Annotations)
		}
	}
	if err := p.noJobs(); err != nil {
		t.Error(err)
	}
}

// mayVisit adds the namespace of the repair Jobs, with what the remediator may do there and PodTemplates.
func (p person) mayVisit(templates ...string) {
	p.Helper()
	if err := p.AddNamespace(p.Context(), conditions.RepairNamespace, map[string]string{"app.kubernetes.io/part-of": "pitcrew"}); client.IgnoreAlreadyExists(err) != nil {
		p.Fatal(err)
	}
	for _, name := range templates {
		args := map[string][]string{"reset-gpu": {"-gpu=$(GPUS)"}, "reboot": {"-boot-id=$(BOOT_ID)"}, "check": {"check"}}[name]
		template := &corev1.PodTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: name},
			Template:   corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "none", Args: args}}}},
		}
		if err := p.Client.Create(p.Context(), template); client.IgnoreAlreadyExists(err) != nil {
			p.Fatal(err)
		}
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "remediator"}}
	for _, r := range doctor.ToVisit(conditions.RepairNamespace) {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{Verbs: []string{r.Verb}, APIGroups: []string{r.Group}, Resources: []string{r.Resource}})
	}
	for _, object := range []client.Object{role, &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "pitcrew", Name: "pitcrew-remediator"}},
	}} {
		if err := p.Client.Create(p.Context(), object); client.IgnoreAlreadyExists(err) != nil {
			p.Fatal(err)
		}
	}
}

// noJobs is an error while there are Jobs of visits.
func (p person) noJobs() error {
	var jobs batchv1.JobList
	if err := p.Client.List(p.Context(), &jobs, client.InNamespace(conditions.RepairNamespace)); err != nil {
		return err
	}
	if len(jobs.Items) > 0 {
		return fmt.Errorf("%d Jobs", len(jobs.Items))
	}
	return nil
}

const eccFault = "ResetGPU gpu 0000:4e:00: Xid 48 double bit ECC error"
