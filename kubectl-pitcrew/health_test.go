package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/status"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// wants runs a command and checks its exit code and what it prints.
func (p person) wants(code int, args string, wants ...string) {
	p.Helper()
	p.until(fmt.Sprintf("%s: exit code %d, %q", args, code, wants), func() error {
		out, err := p.exec(strings.Fields(args)...)
		is := 0
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			is = ended.ExitCode()
		} else if err != nil {
			return err
		}
		missing := slices.DeleteFunc(slices.Clone(wants), func(want string) bool { return strings.Contains(out, want) })
		if is != code || len(missing) > 0 {
			return fmt.Errorf("exit code %d, no %q in\n%s", is, missing, out)
		}
		if os.Getenv("SHOW") != "" {
			fmt.Printf("$ kubectl pitcrew %s  (exit code %d)\n%s\n", args, is, out)
		}
		return nil
	})
}

// shipped applies the objects of manifests/install.yaml of these kinds and names.
func (p person) shipped(names ...string) {
	p.Helper()
	if err := p.ApplyShipped(p.Context(), names...); err != nil {
		p.Fatal(err)
	}
}

// Every state in which Pitcrew itself does not work, on a real control plane: the header names it, and the exit code says so.
func TestStatusShowsPitcrewItself(t *testing.T) {
	p := NewPerson(t)
	names, err := p.AddNodes(t.Context(), "health", 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.DeleteNodes(p.Cluster.Context(), names...); err != nil {
			t.Error(err)
		}
	})
	p.wants(2, "status", "PITCREW     PROBLEM: not installed in namespace pitcrew, nor in any other one")

	p.namespace()
	for _, namespace := range []string{"pitcrew-evidence", "elsewhere"} {
		if p.Client.Get(t.Context(), client.ObjectKey{Name: namespace}, &corev1.Namespace{}) != nil {
			if err := p.AddNamespace(t.Context(), namespace, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.shipped("ServiceAccount pitcrew-remediator", "Deployment pitcrew-remediator", "ClusterRole pitcrew-view", "Role pitcrew-view")
	inPitcrew := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "pitcrew", Name: name} }
	deployment := &appsv1.Deployment{ObjectMeta: inPitcrew("pitcrew-remediator")}
	configMap := &corev1.ConfigMap{ObjectMeta: inPitcrew("pitcrew-policy")}
	lease := &coordinationv1.Lease{ObjectMeta: inPitcrew(quarantine.ControllerName)}
	t.Cleanup(func() {
		for _, object := range []client.Object{deployment, configMap, lease, &corev1.ConfigMap{ObjectMeta: inPitcrew(conditions.KnownConfigMap)}} {
			if err := p.Client.Delete(p.Cluster.Context(), object, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
				t.Error(err)
			}
		}
	})
	text, err := os.ReadFile("../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	shipped := string(text)
	configMap.Data = map[string]string{"policy.yaml": shipped}
	if err := p.Client.Create(t.Context(), configMap); err != nil {
		t.Fatal(err)
	}
	p.wants(2, "status -n elsewhere", "PROBLEM: not installed in namespace elsewhere, but in pitcrew; use -n pitcrew")
	p.wants(2, "status", "REMEDIATOR  PROBLEM: 2 of 2 ready; no leader: there is no Lease pitcrew-remediator")

	// The remediator itself, outside of its pods, which a simulated kubelet runs.
	file := filepath.Join(t.TempDir(), "policy.yaml")
	toFile := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".next", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".next", file); err != nil { // the remediator may be reading it
			t.Fatal(err)
		}
	}
	toConfigMap := func(text string) {
		t.Helper()
		configMap.Data["policy.yaml"] = text
		if err := p.Client.Update(t.Context(), configMap); err != nil {
			t.Fatal(err)
		}
	}
	toFile(shipped)
	remediator, err := p.StartRemediator(t.Context(), "-policy", file)
	if err != nil {
		t.Fatal(err)
	}
	p.unrestricted() // for the tests that follow
	hash := policy.Hash([]byte(shipped))
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	built, err := buildinfo.ReadFile(filepath.Join(p.Root, "bin", "remediator"))
	if err != nil {
		t.Fatal(err)
	}
	version := built.Main.Version // of a build in a clone; a test has none
	p.wants(0, "status",
		"PITCREW     "+version+" in namespace pitcrew; this command "+version,
		"REMEDIATOR  2 of 2 ready; leader "+host+", renewed ",
		"POLICY      valid, hash "+hash+", 0 rules enforce, ", "MODE        observe: nothing is tainted or restarted",
		"BUDGET      policy: 0/", "BREAKER     closed", "PAUSED      no", "HEALTHY  UNCHECKED")
	p.wants(0, "version", "kubectl-pitcrew "+version+"\n", "remediator      "+version+"\n", "chart           pitcrew-0.1.0\n", "Kubernetes      v1.")
	var f status.Fleet
	if err := json.Unmarshal([]byte(p.run("status", "-o", "json")), &f); err != nil {
		t.Fatal(err)
	}
	if h := f.Pitcrew; h.Remediator.Ready != 2 || h.Remediator.Leader != host || h.Policy.Hash != hash || h.Policy.InForce != hash || h.Mode != "observe" || h.Version != version || len(h.Facts) < 7 {
		t.Errorf("%+v", h)
	}

	p.does("pause", "--reason", "network work")
	p.wants(0, "status", "PAUSED      by person since ", " ago (network work): no quarantines")
	p.does("resume")

	// Who may only view sees the same. Who may see nothing is told so, and it is no error.
	view := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "pitcrew-view"}
	viewer := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "viewer"}}
	for _, binding := range []client.Object{
		&rbacv1.RoleBinding{ObjectMeta: inPitcrew("viewer"), RoleRef: view, Subjects: viewer},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "viewer"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "pitcrew-view"}, Subjects: viewer},
	} {
		if err := p.Client.Create(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
		p.gone(binding)
	}
	as := func(name string) person {
		t.Helper()
		config, err := p.Config(name)
		if err != nil {
			t.Fatal(err)
		}
		kubeconfig, err := p.WriteKubeconfig(name, config)
		if err != nil {
			t.Fatal(err)
		}
		return person{t, p.Cluster, kubeconfig}
	}
	as("viewer").wants(0, "status", "2 of 2 ready; leader "+host, "POLICY      valid, hash "+hash, "MODE        observe", "BREAKER     closed", "UNCHECKED")
	as("viewer").wants(0, "status -n elsewhere", "PITCREW     not known: ", "if Pitcrew runs in another namespace, name it with -n", `cannot list resource "pods"`)
	as("stranger").wants(0, "status", "REMEDIATOR  not known: ", "POLICY      not known: ", "NODES       not known: ", "BREAKER     not known: ", "PAUSED      not known: ")

	// A pod crashes, as a kubelet shows it.
	var pods corev1.PodList
	if err := p.Client.List(t.Context(), &pods, client.InNamespace("pitcrew"), client.MatchingLabels{cli.LabelName: quarantine.ControllerName}); err != nil || len(pods.Items) != 2 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	crash := func(pod corev1.Pod) {
		t.Helper()
		before := pod.DeepCopy()
		for i, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady {
				pod.Status.Conditions[i].Status = corev1.ConditionFalse
			}
		}
		pod.Status.ContainerStatuses[0].Ready = false
		pod.Status.ContainerStatuses[0].RestartCount = 7
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}}
		pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: 1, Reason: "Error", Message: "level=INFO msg=starting\nremediator: make the manager: no route to host\n",
		}
		if err := p.Client.Status().Patch(t.Context(), &pod, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	crash(pods.Items[0])
	p.wants(2, "status", "REMEDIATOR  PROBLEM: 1 of 2 ready; pod "+pods.Items[0].Name+": CrashLoopBackOff (7 restarts), last ended with exit code 1: remediator: make the manager: no route to host; leader "+host,
		"; kubectl logs -n pitcrew deployment/pitcrew-remediator --previous")
	crash(pods.Items[1])
	p.wants(2, "status", "PROBLEM: 0 of 2 ready; pod ")
	for i := range pods.Items { // and fresh ones come
		if err := p.Client.Delete(t.Context(), &pods.Items[i], client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	p.wants(0, "status", "2 of 2 ready; leader ")

	// The policy: invalid for both, not read yet, in force, missing.
	invalid := strings.Replace(shipped, "mode: observe", "mode: obsreve", 1)
	toFile(invalid)
	toConfigMap(invalid)
	p.wants(2, "status", "POLICY      PROBLEM: invalid, changed ", "line ", "obsreve", "; hash "+hash+" stays in force; correct ConfigMap pitcrew-policy", "MODE        not known", "BUDGET      not known: ")
	p.wants(0, "policy test -f ../manifests/policy.yaml", "The effect of the present policy is unknown")
	enforce := strings.Replace(shipped, "mode: observe", "mode: enforce", 1)
	toConfigMap(enforce)
	newHash := policy.Hash([]byte(enforce))
	p.wants(0, "status", "POLICY      valid, hash "+newHash, " and not read by the remediator yet; hash "+hash+" stays in force")
	toFile(enforce)
	p.wants(0, "status", "POLICY      valid, hash "+newHash, "MODE        enforce")
	delete(configMap.Data, "policy.yaml")
	if err := p.Client.Update(t.Context(), configMap); err != nil {
		t.Fatal(err)
	}
	p.wants(2, "status", "POLICY      PROBLEM: no ConfigMap that the remediator's pods mount has a policy")
	if err := p.Client.Delete(t.Context(), configMap); err != nil {
		t.Fatal(err)
	}
	p.wants(2, "status", "POLICY      PROBLEM: ConfigMap pitcrew-policy is missing; ")

	// The leader.
	remediator.Stop(10 * time.Second)
	p.wants(2, "status", "2 of 2 ready; no leader: the last one has given up the Lease")
	if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
		t.Fatal(err)
	}
	lease.Spec.HolderIdentity = ptr.To("pitcrew-remediator-abc_123")
	lease.Spec.LeaseDurationSeconds = ptr.To[int32](15)
	lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Now().Add(-time.Hour)))
	if err := p.Client.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	p.wants(2, "status", "no leader: pitcrew-remediator-abc has not renewed the Lease for 6")

	// The pods.
	p.until("the deployment is changed", func() error { // its controller may be writing the status
		if err := p.Client.Get(t.Context(), client.ObjectKeyFromObject(deployment), deployment); err != nil {
			return err
		}
		deployment.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(2)), MaxSurge: ptr.To(intstr.FromInt32(1))}
		deployment.Spec.Template.Spec.NodeSelector = map[string]string{"no": "such-node"}
		deployment.Spec.Template.Spec.Containers[0].Args = append(deployment.Spec.Template.Spec.Containers[0].Args, "-dry-run", "-leader-elect=false")
		return p.Client.Update(t.Context(), deployment)
	})
	p.wants(2, "status", "PROBLEM: 0 of 2 ready; pod ", ": not scheduled: 0/", "; runs without leader election; kubectl describe pods -n pitcrew -l ", "MODE        dry run: nothing is written")
	deployment.Spec.Replicas = ptr.To[int32](0)
	if err := p.Client.Patch(t.Context(), deployment, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`))); err != nil {
		t.Fatal(err)
	}
	p.wants(2, "status", "PROBLEM: 0 of 0 ready; ", "kubectl scale -n pitcrew deployment/pitcrew-remediator --replicas=2")
}

// The flags of the connection are on a page of their own.
func TestHelpShowsTheFlagsOfTheCommand(t *testing.T) {
	help := func(args ...string) string {
		t.Helper()
		cmd := newCommand()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs(args)
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, args := range [][]string{{"status", "-h"}, {"describe", "-h"}, {"policy", "validate", "-h"}, {"-h"}} {
		out := help(args...)
		for _, flag := range []string{"--kubeconfig ", "--insecure-skip-tls-verify ", "--as "} {
			if strings.Contains(out, flag) {
				t.Errorf("%q shows %s:\n%s", args, flag, out)
			}
		}
		if strings.Count(out, "-n, --namespace ") != 1 || strings.Count(out, "kubectl pitcrew options") != 1 {
			t.Errorf("%q:\n%s", args, out)
		}
	}
	if out := help("status", "-h"); !regexp.MustCompile(`-w, --watch[ [=]`).MatchString(out) {
		t.Errorf("no flag of the command:\n%s", out)
	}
	if out := help("options"); !strings.Contains(out, "--kubeconfig ") || !strings.Contains(out, "--insecure-skip-tls-verify") {
		t.Errorf("options:\n%s", out)
	}
}
