// Package alerts tests the path from a kernel log record to a pager, with the real node-problem-detector, remediator,
// Prometheus and Alertmanager, and the shipped alerts and dashboard.
package alerts

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/kernellog"
	"github.com/pitcrew-dev/pitcrew/e2e/pager"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{}) }

const (
	patience = pager.Patience
	machine  = "machine"
)

func TestAnXidReachesTheWebhookAndResolves(t *testing.T) {
	s := newScene(t)
	s.startJob()
	if _, err := s.AddNodes(t.Context(), "spare", 2, nil); err != nil {
		t.Fatal(err)
	}
	prometheus := s.startMonitoring()

	s.write("95, pid=1, name=python, Uncontained: LTC TAG (0x2,0x0). RST: No, D-RST: No")
	// The node is quarantined and the job moved before the alert fires: nothing is left to do at once.
	fired := s.inbox.Until(t, "firing", "GPUXidError", "node="+machine, "repair=ResetGPU", "handled=true", "severity=warning")
	if got, want := fired.Annotations["summary"], "Node machine needs ResetGPU: the kernel log shows an Xid or a lost GPU"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
	s.becomes(machine, "quarantined")
	clustertest.Until(t, patience, "the job runs elsewhere", func() error {
		job := s.job()
		if job.Labels[conditions.LabelRestarting] != "" || job.Annotations[conditions.AnnotationRestart] == "" || ptr.Deref(job.Status.Ready, 0) != 1 {
			return fmt.Errorf("labels %v, annotations %v, status %+v", job.Labels, job.Annotations, job.Status)
		}
		return nil
	})

	// The budget allows one of three nodes.
	s.report("spare-1", "True", "ResetGPU gpu 0000:1b:00: uncorrectable errors")
	s.inbox.Until(t, "firing", "GPUMemoryError", "node=spare-1", "repair=ResetGPU", "handled=false", "severity=critical")
	s.inbox.Until(t, "firing", "PitcrewQuarantineBlocked", "node=spare-1", "rule=gpu-memory", "reason=budget")
	s.report("spare-1", "False", "no fault")
	s.inbox.Until(t, "resolved", "GPUMemoryError", "node=spare-1")
	s.inbox.Until(t, "resolved", "PitcrewQuarantineBlocked", "node=spare-1")

	if _, err := s.RunPlugin(t.Context(), "xid", append([]string{"-clear"}, s.args...)...); err != nil {
		t.Fatal(err)
	}
	s.inbox.Until(t, "resolved", "GPUXidError", "node="+machine)
	s.becomes(machine, "healthy")
	// That the remediator seems to be down may be this machine's: Prometheus waits a second for its metrics.
	came := slices.DeleteFunc(s.inbox.Names(), func(name string) bool { return name == "PitcrewRemediatorDown" })
	if diff := cmp.Diff([]string{"GPUMemoryError", "GPUXidError", "PitcrewQuarantineBlocked"}, came); diff != "" {
		t.Error("alerts that came: " + diff)
	}
	t.Run("dashboard", func(t *testing.T) {
		checkDashboard(t, filepath.Join(s.Root, "manifests", "dashboards", "pitcrew.json"), prometheus)
	})

	s.remediator.Stop(10 * time.Second)
	s.inbox.Until(t, "firing", "PitcrewRemediatorDown", "severity=critical")
}

// scene is this machine as a node with a node-problem-detector, and a cluster with a remediator.
type scene struct {
	*testing.T
	*cluster.Cluster
	inbox *pager.Inbox

	log        *kernellog.Log
	gpu        string
	args       []string
	npd        string // address of its metrics
	metrics    string // address of the remediator's
	remediator *cluster.Process
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, Cluster: clustertest.Get(t), inbox: pager.New(t), gpu: fmt.Sprintf("%04x:%02x:00", rand.IntN(1<<16), rand.IntN(1<<8))}
	var err error
	// Not the machine's own, into which other tests write faults.
	if s.log, err = kernellog.OpenFIFO(filepath.Join(t.TempDir(), "kmsg")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.log.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.AddThisMachine(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	s.startNPD()
	policy, err := s.ShippedPolicy(2 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s.metrics = clustertest.FreeAddress(t)
	if s.remediator, err = s.StartRemediator(t.Context(), "-policy", policy, "-leader-elect=false", "-metrics-bind-address", s.metrics); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.remediator.Kill()
		if t.Failed() {
			t.Logf("log of the remediator:\n%s", s.remediator.Log())
		}
	})
	return s
}

// startNPD starts NPD and waits until it has reported.
func (s *scene) startNPD() {
	s.Helper()
	s.args = append([]string{"-state-dir", s.TempDir()}, s.log.Args...)
	if err := components.BuildOurs(s.T.Context(), s.Root, "./plugins/xid"); err != nil {
		s.Fatal(err)
	}
	s.npd = clustertest.FreeAddress(s.T)
	_, port, err := net.SplitHostPort(s.npd)
	if err != nil {
		s.Fatal(err)
	}
	npd, err := s.StartNPD(s.T.Context(), cluster.NPD{
		Node:     machine,
		Monitors: []cluster.Monitor{{File: filepath.Join(s.Root, "monitors", conditions.GPUXidError+".json"), Args: s.args}},
		Args:     []string{"--prometheus-port=" + port},
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(npd.Kill)
	clustertest.Until(s.T, patience, "NPD reports", func() error {
		for _, c := range s.node(machine).Status.Conditions {
			if c.Type == conditions.GPUXidError && c.Status == corev1.ConditionFalse {
				return nil
			}
		}
		return fmt.Errorf("log of NPD:\n%s", npd.Log())
	})
}

// startMonitoring starts Prometheus and returns its URL.
func (s *scene) startMonitoring() string {
	s.Helper()
	prometheus := s.inbox.Watch(s.T, s.Cluster, s.npd, s.metrics)
	// Prometheus sees no increase of what was counted before the first scrape.
	clustertest.Until(s.T, patience, "Prometheus scrapes both", func() error {
		if points := ask(s.T, prometheus, "count(up == 1) == 2"); points == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	return prometheus
}

func (s *scene) write(xid string) {
	s.Helper()
	if _, err := s.log.Write(s.T.Context(), fmt.Sprintf("NVRM: Xid (PCI:%s): %s", s.gpu, xid)); err != nil {
		s.Fatal(err)
	}
}

// report writes the condition GPUMemoryError as NPD does.
func (s *scene) report(name, status, message string) {
	s.Helper()
	if err := s.Report(s.T.Context(), name, conditions.GPUMemoryError, corev1.ConditionStatus(status), message, time.Now()); err != nil {
		s.Fatal(err)
	}
}

func (s *scene) node(name string) *corev1.Node {
	s.Helper()
	n := &corev1.Node{}
	if err := s.Client.Get(s.T.Context(), client.ObjectKey{Name: name}, n); err != nil {
		s.Fatal(err)
	}
	return n
}

func (s *scene) becomes(name, status string) {
	s.Helper()
	clustertest.Until(s.T, patience, name+" becomes "+status, func() error {
		if got := s.node(name).Labels[conditions.LabelStatus]; got != status {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// startJob starts an opted-in job of one rank, which runs on this machine because there is no other node.
func (s *scene) startJob() {
	s.Helper()
	if err := s.AddNamespace(s.T.Context(), "training", nil); err != nil {
		s.Fatal(err)
	}
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "training", Name: "train", Labels: map[string]string{conditions.LabelRestartOnNodeFault: "true"}},
		Spec: batchv1.JobSpec{
			BackoffLimit: ptr.To[int32](0),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "none"}},
			}},
		},
	}
	if err := s.Client.Create(s.T.Context(), job); err != nil {
		s.Fatal(err)
	}
	clustertest.Until(s.T, patience, "the job runs", func() error {
		if job := s.job(); ptr.Deref(job.Status.Ready, 0) != 1 {
			return fmt.Errorf("status %+v", job.Status)
		}
		return nil
	})
}

func (s *scene) job() *batchv1.Job {
	s.Helper()
	job := &batchv1.Job{}
	if err := s.Client.Get(s.T.Context(), client.ObjectKey{Namespace: "training", Name: "train"}, job); err != nil {
		s.Fatal(err)
	}
	return job
}
