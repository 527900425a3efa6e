// Package detect tests the path from a kernel log record to a NodeCondition: the real node-problem-detector runs our
// monitor on this machine's kernel log and reports to a real control plane.
package detect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/kernellog"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{}) }

// patience is much more than a hold and NPD's retries take.
const patience = 3 * time.Minute

// machine is this machine as a node. Each test has a separate state directory and GPU address.
type machine struct {
	t       *testing.T
	cluster *cluster.Cluster
	log     *kernellog.Log
	name    string
	gpu     string
	state   string
	npd     *cluster.Process
	seen    chan corev1.NodeCondition // every change of GPUXidError
}

// newMachine registers the machine; what earlier tests left in the kernel log is cleared.
func newMachine(t *testing.T, log *kernellog.Log, state string) *machine {
	t.Helper()
	c := clustertest.Get(t)
	m := &machine{
		t: t, cluster: c, log: log, state: state,
		name: fmt.Sprintf("machine-%08x", rand.Uint32()),
		gpu:  fmt.Sprintf("%04x:%02x:00", rand.IntN(1<<16), rand.IntN(1<<8)),
		seen: make(chan corev1.NodeCondition, 100),
	}
	if err := c.AddThisMachine(t.Context(), m.name); err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), c.Root, "./plugins/..."); err != nil {
		t.Fatal(err)
	}
	m.clear()
	m.watch()
	return m
}

func openLog(t *testing.T) *kernellog.Log {
	t.Helper()
	log, err := kernellog.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("kernel log: %s", log.How)
	return log
}

// watch sends every version of the condition to m.seen.
func (m *machine) watch() {
	clients, err := kubernetes.NewForConfig(m.cluster.Admin)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.t.Cleanup(cancel)
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + m.name}
	nodes, err := clients.CoreV1().Nodes().Watch(ctx, options)
	if err != nil {
		m.t.Fatal(err)
	}
	go func() {
		var last corev1.NodeCondition
		for ctx.Err() == nil {
			for event := range nodes.ResultChan() {
				node, ok := event.Object.(*corev1.Node)
				if !ok || event.Type == watch.Deleted {
					continue
				}
				for _, c := range node.Status.Conditions {
					if c.Type == conditions.GPUXidError && (c.Status != last.Status || c.Message != last.Message) {
						last = c
						m.seen <- c
					}
				}
			}
			// The apiserver was down; a new watch begins with the node as it is now.
			for ctx.Err() == nil {
				if nodes, err = clients.CoreV1().Nodes().Watch(ctx, options); err == nil {
					break
				}
			}
		}
	}()
}

func (m *machine) args() []string { return append([]string{"-state-dir", m.state}, m.log.Args...) }

func (m *machine) startNPD() {
	m.t.Helper()
	file := filepath.Join(m.cluster.Root, "monitors", conditions.GPUXidError+".json")
	npd, err := m.cluster.StartNPD(m.t.Context(), cluster.NPD{
		Node:     m.name,
		Monitors: []cluster.Monitor{{File: file, Args: append(m.args(), "-hold", "20s")}}, // some tests wait for the end of a hold
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.npd = npd
	m.t.Cleanup(npd.Kill)
}

// xid runs the plugin without NPD, as `kubectl exec` would.
func (m *machine) xid(args ...string) string {
	m.t.Helper()
	out, err := exec.CommandContext(m.t.Context(), filepath.Join(m.cluster.Root, "bin/xid"), append(m.args(), args...)...).Output()
	if err != nil {
		m.t.Fatalf("xid %q: %v: %s", args, err, out)
	}
	return string(out)
}

func (m *machine) clear() { m.xid("-clear") }

func (m *machine) fault(line string) {
	m.t.Helper()
	if _, err := m.log.Write(m.t.Context(), fmt.Sprintf("NVRM: Xid (PCI:%s): %s", m.gpu, line)); err != nil {
		m.t.Fatal(err)
	}
}

// until waits for the status and returns the statuses before it.
func (m *machine) until(want corev1.ConditionStatus) (before []string) {
	m.t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case c := <-m.seen:
			if c.Status == want {
				return before
			}
			before = append(before, fmt.Sprintf("%s (%s)", c.Status, c.Message))
		case <-deadline:
			m.t.Fatalf("%s is not %s within %s; seen: %q\n%s", conditions.GPUXidError, want, patience, before, m.npd.Log())
		}
	}
}

// reported waits until NPD has written the condition after the given time. Heartbeats have whole seconds.
func (m *machine) reported(since time.Time) {
	m.t.Helper()
	clustertest.Until(m.t, patience, "NPD reports", func() error {
		if c := m.condition(); !c.LastHeartbeatTime.After(since) {
			return fmt.Errorf("%+v\n%s", c, m.npd.Log())
		}
		return nil
	})
}

// condition is GPUXidError as it is now.
func (m *machine) condition() corev1.NodeCondition {
	m.t.Helper()
	var node corev1.Node
	if err := m.cluster.Client.Get(m.t.Context(), client.ObjectKey{Name: m.name}, &node); err != nil {
		m.t.Fatal(err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == conditions.GPUXidError {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// holding waits until the plugin holds under this NPD, in another process than earlier ones, and returns its process id.
func (m *machine) holding(earlier ...int) (plugin int) {
	m.t.Helper()
	clustertest.Until(m.t, patience, "a plugin holds", func() error {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.npd.PID()))
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			for _, child := range strings.Fields(string(text)) {
				pid, _ := strconv.Atoi(child)
				answers, _ := filepath.Glob(filepath.Join(m.state, fmt.Sprintf("told-xid-*-%d-*.json", m.npd.PID())))
				for _, file := range answers {
					if data, _ := os.ReadFile(file); strings.Contains(string(data), "begun") && !slices.Contains(earlier, pid) {
						plugin = pid
						return nil
					}
				}
			}
		}
		return errors.New("none does")
	})
	return plugin
}

func TestAFaultOutlivesNPDAndIsClearedManually(t *testing.T) {
	m := newMachine(t, openLog(t), t.TempDir())
	m.startNPD()
	m.until(corev1.ConditionFalse)
	m.fault("79, GPU has fallen off the bus.")
	m.until(corev1.ConditionTrue)

	m.holding()
	m.npd.Kill()
	m.startNPD()
	m.reported(time.Now())
	m.clear()
	if before := m.until(corev1.ConditionFalse); len(before) > 0 {
		t.Errorf("between the fault and -clear the condition was %q", before)
	}
}

func TestAPluginKilledInItsHoldLosesNothing(t *testing.T) {
	m := newMachine(t, openLog(t), t.TempDir())
	m.startNPD()
	m.until(corev1.ConditionFalse)
	m.fault("119, Timeout after 6s of waiting for RPC response from GPU4 GSP!")
	m.until(corev1.ConditionTrue)
	plugin := m.holding()
	if err := syscall.Kill(plugin, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// NPD takes a killed plugin for Unknown, which it may or may not write before the next run answers, and never for healthy. The run
	// after that one holds.
	m.holding(plugin, m.holding(plugin))
	clustertest.Until(t, patience, "the condition is True again", func() error {
		if c := m.condition(); c.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	for len(m.seen) > 0 {
		if c := <-m.seen; c.Status == corev1.ConditionFalse {
			t.Errorf("after the kill the condition was %+v", c)
		}
	}
}

func TestTwoNPDsShareOneState(t *testing.T) {
	log, state := openLog(t), t.TempDir()
	a, b := newMachine(t, log, state), newMachine(t, log, state)
	a.startNPD()
	b.startNPD()
	a.until(corev1.ConditionFalse)
	b.until(corev1.ConditionFalse)
	a.fault("79, GPU has fallen off the bus.")
	a.until(corev1.ConditionTrue)
	b.until(corev1.ConditionTrue)
	a.clear()
	a.until(corev1.ConditionFalse)
	b.until(corev1.ConditionFalse)
}

func TestAFaultWhileTheAPIServerIsDown(t *testing.T) {
	m := newMachine(t, openLog(t), t.TempDir())
	m.startNPD()
	m.until(corev1.ConditionFalse)
	end := clustertest.Outage(t, m.cluster)
	m.fault("79, GPU has fallen off the bus.")
	// The plugin has reported the fault to NPD, but NPD cannot reach the API server.
	clustertest.Until(t, patience, "NPD misses the API server", func() error {
		if log := m.npd.Log(); !strings.Contains(log, "failed to update node conditions") {
			return errors.New(log)
		}
		return nil
	})
	end()
	m.until(corev1.ConditionTrue)
}

func TestAFloodOfTheKernelLog(t *testing.T) {
	log, err := kernellog.OpenKmsg()
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, log, t.TempDir())
	m.startNPD()
	m.until(corev1.ConditionFalse)

	// A stopped plugin reads nothing, so the ring overwrites the records that it has not read.
	plugin := m.holding()
	if err := syscall.Kill(plugin, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	flood(t)
	m.fault("79, GPU has fallen off the bus.")
	if err := syscall.Kill(plugin, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.until(corev1.ConditionTrue)
	if dump := m.xid("-dump"); !strings.Contains(dump, `"gap": true`) || !strings.Contains(dump, m.gpu) {
		t.Errorf("the dump lacks the gap or the fault:\n%s", dump)
	}
}

// flood writes more into the kernel log than its ring holds.
func flood(t *testing.T) {
	t.Helper()
	for range 400 {
		// A new file for each batch: printk_devkmsg limits the records of one open file.
		w, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 9 {
			fmt.Fprintln(w, "<7>pitcrew flood "+strings.Repeat("x", 900))
		}
		w.Close()
	}
}
