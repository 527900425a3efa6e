package attacks

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/kernellog"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Real processes with a driver's words for names die of a real segmentation fault, and this machine's kernel writes about them into
// its own log.
func TestAttack18NoNameOfAProcessIsADriversWord(t *testing.T) {
	t.Parallel()
	m := newVictim(t)
	gpu := fmt.Sprintf("%04x:%02x:00", 1+rand.IntN(1<<16-1), rand.IntN(1<<8))
	crashes := []struct {
		process, file string
		// starts says whether the record that must appear starts with the file's name, else it starts with the process's.
		starts bool
	}{
		{"METAX.B1.x.CRIT", "invalid context", false},
		{"MXCD.B1a.x.CRIT", "METAX.B900.ATU.ERROR EID (0000:09:00.0): 0x2101, x", false},
		{"nvidia-peermem ", "detected invalid context, skipping", false},
		{"NVRM: Xid (PCI:", "NVRM: GPU " + gpu + ".0: GPU has fallen off the bus.", false},
		{"x", "NVRM: Xid (PCI:" + gpu + "): 79, GPU has fallen off the bus.", true},
		{"y", "METAX.B" + strings.ReplaceAll(gpu[:7], ":", "") + "00.ATU.ERROR EID", true},
		{"z", "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context", true},
	}
	for _, c := range crashes {
		want := c.process + "["
		if c.starts {
			want = c.file + ": " // since Linux 6.14
		}
		// The kernel logs no more than ten crashes in five seconds, whoever's they are.
		clustertest.Until(t, patience, "the kernel logs a crash", func() error {
			m.crash(c.process, c.file)
			return m.logged(c.process, c.file, want)
		})
	}
	// What comes after them in the log shows that the plugins have read them. User space writes it, and an application's fault, so that no
	// other run counts it.
	kernel, err := kernellog.OpenKmsg()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kernel.Close(); err != nil {
			t.Error(err)
		}
	})
	marker := fmt.Sprintf("%04x:%02x:00", 1+rand.IntN(1<<16-1), rand.IntN(1<<8))
	for plugin, line := range map[string]string{
		"metax": "METAX.B" + strings.ReplaceAll(marker[:7], ":", "") + "00.ATU.ERROR",
		"xid":   "NVRM: Xid (PCI:" + marker + "): 31, pid=1, name=x, Ch 00000001",
	} {
		var dump string
		clustertest.Until(t, patience, plugin+" has read the log to its end", func() error { // another test may flood the log
			if _, err := kernel.Write(t.Context(), line); err != nil {
				return err
			}
			if dump = m.dump(plugin, kernel.Args...); !strings.Contains(dump, marker) {
				return errors.New(dump)
			}
			return nil
		})
		for _, forged := range []string{gpu, "peermem", "0000:00:00.1", "0000:00:03.2", "0000:09:00.0"} {
			if strings.Contains(dump, forged) {
				t.Errorf("%s took the name of a process for a fault of %s:\n%s", plugin, forged, dump)
			}
		}
	}
}

// victim is this machine, on which processes crash.
type victim struct {
	*testing.T
	dir, root string
}

// newVictim builds the plugins and has the kernel log all crashes, those by name of the program file, too.
func newVictim(t *testing.T) *victim {
	t.Helper()
	if os.Geteuid() != 0 || runtime.GOARCH != "amd64" {
		t.Fatal("reading the kernel log needs root, and the program that crashes is for amd64")
	}
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), root, "./plugins/metax", "./plugins/xid"); err != nil {
		t.Fatal(err)
	}
	m := &victim{t, t.TempDir(), root}
	m.set("/proc/sys/debug/exception-trace")
	m.set("/proc/sys/kernel/print-fatal-signals")
	return m
}

// set switches a setting of the kernel on until the test ends.
func (m *victim) set(path string) {
	m.Helper()
	before, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte("1\n"), 0)
	}
	if err != nil {
		why := fmt.Sprintf("this machine's kernel cannot be told to log crashes: %v", err)
		if os.Getenv("CI") != "" {
			m.Fatal(why)
		}
		m.Skip(why)
	}
	m.Cleanup(func() {
		if err := os.WriteFile(path, before, 0); err != nil {
			m.Error(err)
		}
	})
}

// crash runs a program in a file until it reads address 0. Its process has the name of a link to that file.
func (m *victim) crash(process, file string) {
	m.Helper()
	dir, err := os.MkdirTemp(m.dir, "")
	if err != nil {
		m.Fatal(err)
	}
	program, link := filepath.Join(dir, file), filepath.Join(dir, process)
	if err := os.WriteFile(program, readsAddress0(), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		m.Fatal(err)
	}
	err = exec.CommandContext(m.Context(), link).Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(exit.String(), "segmentation fault") {
		m.Fatalf("%s: %v", link, err)
	}
}

// readsAddress0 is an ELF executable for amd64 of one instruction, mov eax, [0].
func readsAddress0() []byte {
	const base, headers = 0x400000, 64 + 56
	code := []byte{0x8b, 0x04, 0x25, 0, 0, 0, 0}
	size := uint64(headers + len(code))
	out := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	for _, field := range []any{
		uint16(2), uint16(62), uint32(1), uint64(base + headers), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000),
	} {
		var err error
		if out, err = binary.Append(out, binary.LittleEndian, field); err != nil {
			panic(err) // all fields have a fixed size
		}
	}
	return append(out, code...)
}

// logged waits for some seconds until the kernel itself has logged a record about the process and its file that starts with a text.
func (m *victim) logged(process, file, start string) error {
	m.Helper()
	log, err := kmsg.Open("/dev/kmsg", 0)
	if err != nil {
		m.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	ctx, cancel := context.WithTimeout(m.Context(), 6*time.Second)
	defer cancel()
	for {
		rec, err := log.Next()
		switch {
		case errors.Is(err, io.EOF):
			if err := log.Wait(ctx); err != nil {
				return fmt.Errorf("the kernel has not logged that process %q of file %q died in a record that starts with %q: %w", process, file, start, err)
			}
		case err != nil && !errors.Is(err, kmsg.ErrMalformed):
			m.Fatal(err)
		case err == nil && rec.Facility == 0 && strings.HasPrefix(rec.Body, start) && strings.Contains(rec.Body, process) && strings.Contains(rec.Body, file):
			return nil
		}
	}
}

// dump is what a plugin has read, from the kernel log's oldest record on.
func (m *victim) dump(plugin string, args ...string) string {
	m.Helper()
	args = append([]string{"-dump", "-state-dir", filepath.Join(m.dir, "state")}, args...)
	out, err := exec.CommandContext(m.Context(), filepath.Join(m.root, "bin", plugin), args...).Output()
	if err != nil {
		m.Fatalf("%s %q: %v\n%s", plugin, args, err, out)
	}
	return string(out)
}

// A kubelet writes the time 9999-12-31T23:59:59-23:59, which is in the year 10000 in UTC, into the conditions of its own node.
func TestAttack22AnImpossibleTimeHidesNoNode(t *testing.T) {
	s := newScene(t, "year10000", 3, nil)
	policy := s.policy(`
  budget: {maxNodes: 3}
  output: {aws: true}
  rules:
    xid: {match: {condition: GPUXidError, repair: [Reboot], POOL}}
`)
	for i, field := range []string{"lastTransitionTime", "lastHeartbeatTime"} {
		times := map[string]string{"lastTransitionTime": metav1.Now().Format(time.RFC3339), "lastHeartbeatTime": metav1.Now().Format(time.RFC3339)}
		times[field] = "9999-12-31T23:59:59-23:59"
		var list []string
		for _, condition := range []string{string(corev1.NodeReady), conditions.GPUXidError} {
			list = append(list, fmt.Sprintf(`{"type":%q,"status":"True","reason":"x","message":%q,"lastTransitionTime":%q,"lastHeartbeatTime":%q}`,
				condition, lost, times["lastTransitionTime"], times["lastHeartbeatTime"]))
		}
		patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"status":{"conditions":[`+strings.Join(list, ",")+`]}}`))
		target := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.nodes[i]}}
		if err := s.kubelet(s.nodes[i]).Status().Patch(t.Context(), target, patch); err != nil {
			t.Fatal(err)
		}
		if got := s.get(s.nodes[i]).Status.Conditions; !slices.ContainsFunc(got, func(c corev1.NodeCondition) bool {
			return c.LastTransitionTime.UTC().Year() > 9999 || c.LastHeartbeatTime.UTC().Year() > 9999
		}) {
			t.Fatalf("the API server has changed the time: %+v", got)
		}
	}
	// The others are still quarantined, by a process that has not died of it; see scene.remediator.
	s.remediator(policy)
	s.report(s.nodes[2], corev1.ConditionTrue, lost)
	s.becomes(s.nodes[2], causes.Quarantined)

	if err := components.BuildOurs(t.Context(), s.cluster.Root, "./kubectl-pitcrew"); err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) string {
		t.Helper()
		args = append([]string{"--kubeconfig", s.cluster.Kubeconfig}, args...)
		out, err := exec.CommandContext(t.Context(), filepath.Join(s.cluster.Root, "bin", "kubectl-pitcrew"), args...).CombinedOutput()
		if err != nil && !notInstalled(err) || strings.Contains(string(out), "panic") {
			t.Errorf("kubectl pitcrew %q: %v\n%s", args[2:], err, out)
		}
		return string(out)
	}
	shows := func(args ...string) {
		t.Helper()
		out := kubectl(args...)
		for _, name := range s.nodes {
			if !strings.Contains(out, name) {
				t.Errorf("kubectl pitcrew %q does not show node %s:\n%s", args, name, out)
			}
		}
	}
	shows("status", "-o", "wide", "--all")
	var fleet struct {
		Nodes []struct{ Node, Cause string }
	}
	if out := kubectl("status", "-o", "json"); json.Unmarshal([]byte(out), &fleet) != nil {
		t.Errorf("no JSON:\n%s", out)
	}
	causes := map[string]string{}
	for _, n := range fleet.Nodes {
		causes[n.Node] = n.Cause
	}
	if cause := causes[s.nodes[1]]; !strings.Contains(cause, "impossible, in the year 10000") {
		t.Errorf("the cause of node %s is %q", s.nodes[1], cause)
	}
	for _, name := range s.nodes[:2] {
		kubectl("describe", name, "-f", policy)
	}
	kubectl("quarantine", s.nodes[1], "--dry-run", "--reason", "x")
	kubectl("policy", "test", "-f", policy)
	kubectl("release", s.nodes[2], "--dry-run")
	shows("uninstall", "--dry-run")
}

// notInstalled reports whether status ended with 2, as it must here: the remediator of a test is no Deployment.
func notInstalled(err error) bool {
	var ended *exec.ExitError
	return errors.As(err, &ended) && ended.ExitCode() == 2
}

const gpuJobPolicy = `
  budget: {maxNodes: 3}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU], POOL}
      clearAfter: 1s
      restartJobs: true
`

// A bad policy file and a restart of the remediator come together while a job is stopped.
func TestAttack24AnInvalidPolicyAtTheStartLeavesNoJobSuspended(t *testing.T) {
	const ecc = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"
	s := newScene(t, "badpolicy", 4, nil)
	policy := s.policy(gpuJobPolicy)
	valid, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(policy, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	job := s.slowJobSet(s.tenant("badpolicy"), "badpolicy", "train", 2)
	first := s.remediator(policy)
	sick := job.nodes()[0]
	s.report(sick, corev1.ConditionTrue, ecc)
	s.until("the job is being stopped", func() error {
		rec, err := restart.ReadRecord(job.get())
		if err == nil && (rec.Current == nil || rec.Current.Phase != restart.Stopping || !job.suspended()) {
			err = fmt.Errorf("%v", job.get().GetAnnotations())
		}
		return err
	})
	first.Kill()
	job.release()
	s.becomes(sick, causes.Quarantined)
	write([]byte(strings.Replace(string(valid), "clearAfter: 1s", "clearAfter: soon", 1)))
	if out, err := exec.CommandContext(t.Context(), filepath.Join(s.cluster.Root, "bin", "remediator"), "-validate", "-policy", policy).CombinedOutput(); err == nil {
		t.Errorf("-validate accepts it: %s", out)
	}

	health, metrics := clustertest.FreeAddress(t), clustertest.FreeAddress(t)
	began := time.Now()
	s.remediator(policy, "-health-probe-bind-address", health, "-metrics-bind-address", metrics)
	s.until("the job runs again", func() error {
		if nodes := job.nodes(); job.suspended() || len(nodes) != 2 || slices.Contains(nodes, sick) {
			return fmt.Errorf("suspended %v, on nodes %q", job.suspended(), nodes)
		}
		rec, err := restart.ReadRecord(job.get())
		if err == nil && rec.Current != nil {
			err = fmt.Errorf("the restart is under way: %v", job.get().GetAnnotations())
		}
		return err
	})
	s.until("the invalid policy is reported", func() error {
		var events eventsv1.EventList
		if err := s.admin.List(t.Context(), &events); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
			return e.Reason == causes.PolicyInvalid && e.EventTime.After(began) && strings.Contains(e.Note, "no node is quarantined or released")
		}) {
			return errors.New("no such Event")
		}
		return nil
	})
	s.until("the metric says so", func() error {
		return pageAnswers("http://"+metrics+"/metrics", http.StatusOK, "\npitcrew_policy_valid 0\n")
	})
	s.until("the process is alive", func() error { return pageAnswers("http://"+health+"/healthz", http.StatusOK, "") })
	s.until("the replica is not ready", func() error { return pageAnswers("http://"+health+"/readyz", http.StatusInternalServerError, "") })

	// A fault that has cleared, a new one and a taint that no record explains: all of them wait for the policy.
	decided := nodeReconciles(t, metrics)
	others := slices.DeleteFunc(slices.Clone(s.nodes), func(n string) bool { return n == sick || slices.Contains(job.nodes(), n) })
	healed := metav1.Now()
	s.report(sick, corev1.ConditionFalse, "fine")
	s.report(others[0], corev1.ConditionTrue, ecc)
	stray := s.get(job.nodes()[0])
	before := stray.DeepCopy()
	stray.Spec.Taints = append(stray.Spec.Taints, corev1.Taint{Key: conditions.TaintUnhealthy, Value: "OldRule", Effect: corev1.TaintEffectNoSchedule})
	if err := s.admin.Patch(t.Context(), stray, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	s.until("the controller has looked at the three nodes", func() error {
		if now := nodeReconciles(t, metrics); now < decided+3 {
			return fmt.Errorf("%d reconciles before, %d now", decided, now)
		}
		return nil
	})
	if n, r := s.becomes(sick, causes.Quarantined); r.Taint == nil || !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy }) {
		t.Errorf("record %+v, taints %v", r, n.Spec.Taints)
	}
	if n := s.get(others[0]); n.Annotations[conditions.AnnotationQuarantine] != "" || len(n.Spec.Taints) > 0 {
		t.Errorf("without a policy node %s got %v %v", n.Name, n.Annotations, n.Spec.Taints)
	}
	if n := s.get(stray.Name); !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Value == "OldRule" }) {
		t.Errorf("without a policy node %s lost %v", n.Name, stray.Spec.Taints)
	}

	write(valid)
	s.becomes(others[0], causes.Quarantined)
	if _, r := s.becomes(sick, causes.Released); r.ReleasedAt.Before(healed.Add(-time.Second)) {
		t.Errorf("released at %s, before the fault had cleared", r.ReleasedAt)
	}
	s.until("the unexplained taint is removed", func() error {
		if n := s.get(stray.Name); len(n.Spec.Taints) > 0 {
			return fmt.Errorf("taints %v", n.Spec.Taints)
		}
		return nil
	})
	s.until("the replica is ready", func() error { return pageAnswers("http://"+health+"/readyz", http.StatusOK, "") })
	s.until("the metric says so", func() error {
		return pageAnswers("http://"+metrics+"/metrics", http.StatusOK, "\npitcrew_policy_valid 1\n")
	})
}

// nodeReconciles counts what a remediator has decided about nodes, with or without a policy.
func nodeReconciles(t *testing.T, metrics string) int {
	t.Helper()
	_, body, err := fetchPage("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, `controller_runtime_reconcile_total{controller="node",`) {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			if err != nil {
				t.Fatal(err)
			}
			total += int(n)
		}
	}
	return total
}

// fetchPage reads a page.
func fetchPage(url string) (status int, body string, err error) {
	response, err := http.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// pageAnswers fails unless a page has a status and contains a text.
func pageAnswers(url string, status int, text string) error {
	got, body, err := fetchPage(url)
	if err != nil {
		return err
	}
	if got != status || !strings.Contains(body, text) {
		return fmt.Errorf("%s: %d\n%.1000s", url, got, body)
	}
	return nil
}

// slowJobSet is a JobSet of a tenant, whose pods run on when they are deleted, until the test releases them.
type slowJobSet struct {
	*scene
	key client.ObjectKey
}

// release lets the pods that are there end.
func (j slowJobSet) release() {
	j.Helper()
	var pods corev1.PodList
	if err := j.admin.List(j.Context(), &pods, client.InNamespace(j.key.Namespace)); err != nil {
		j.Fatal(err)
	}
	patch := mergePatch(`{"metadata":{"annotations":{"e2e.pitcrew.dev/term-delay":"0s"}}}`)
	for i := range pods.Items {
		if err := j.admin.Patch(j.Context(), &pods.Items[i], patch); err != nil {
			j.Fatal(err)
		}
	}
}

// slowJobSet creates a JobSet of n ranks, one on each node, as a tenant, and waits until they run.
func (s *scene) slowJobSet(tenant client.Client, namespace, name string, n int) slowJobSet {
	s.Helper()
	set := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
		"metadata": {"namespace": %q, "name": %q, "labels": {%q: "true"}},
		"spec": {"replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": {"parallelism": %d, "completions": %d, "backoffLimit": 0, "template": {
			"metadata": {"annotations": {"e2e.pitcrew.dev/term-delay": "1h"}},
			"spec": {"restartPolicy": "Never", "nodeSelector": {%q: %q}, "containers": [{"name": "main", "image": "none", "resources": {
				"requests": {"nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8"}}}]}}}}}]}}`,
		namespace, name, conditions.LabelRestartOnNodeFault, n, n, cluster.LabelPool, s.pool)
	if err := json.Unmarshal([]byte(text), &set.Object); err != nil {
		s.Fatal(err)
	}
	if err := tenant.Create(s.Context(), set); err != nil {
		s.Fatal(err)
	}
	j := slowJobSet{s, client.ObjectKeyFromObject(set)}
	s.until("the job runs", func() error {
		if nodes := j.nodes(); len(nodes) != n {
			return fmt.Errorf("it runs on nodes %q", nodes)
		}
		return nil
	})
	return j
}

func (j slowJobSet) get() *unstructured.Unstructured {
	j.Helper()
	set := &unstructured.Unstructured{}
	set.SetAPIVersion("jobset.x-k8s.io/v1alpha2")
	set.SetKind("JobSet")
	if err := j.admin.Get(j.Context(), j.key, set); err != nil {
		j.Fatal(err)
	}
	return set
}

func (j slowJobSet) suspended() bool {
	j.Helper()
	suspend, _, err := unstructured.NestedBool(j.get().Object, "spec", "suspend")
	if err != nil {
		j.Fatal(err)
	}
	return suspend
}

// nodes are those on which its ranks run now.
func (j slowJobSet) nodes() []string {
	j.Helper()
	var pods corev1.PodList
	if err := j.admin.List(j.Context(), &pods, client.InNamespace(j.key.Namespace)); err != nil {
		j.Fatal(err)
	}
	var nodes []string
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return nodes
}
