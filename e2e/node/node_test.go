// Package node tests the installation on a real node: a real kubelet and containerd run our images as the chart configures them.
package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/kernellog"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestMain(m *testing.M) { machine.Main(m, components.DRAExampleDriver) }

const (
	tag      = machine.Tag
	patience = machine.Patience
)

// host is this machine as a node.
type host struct {
	*machine.Machine
	// others are the kubelets of simulated nodes beside this one, once a test needs them.
	others *cluster.Kubelets
	// installed are the values with which the chart is installed, empty if it is not.
	installed string
	// hardware is what repairs find, once a test needs it.
	hardware *hardware
	// chrony keeps the clock.
	chrony *machine.Program
}

var started struct {
	sync.Mutex
	host *host
}

// theMachine returns the node, which has faults. The first call starts it.
func theMachine(t *testing.T) *host {
	t.Helper()
	started.Lock()
	defer started.Unlock()
	m := started.host
	if m == nil {
		m = &host{}
	}
	m.Machine = machine.Get(t, func(made *machine.Machine) {
		m.Machine = made
		m.addFaults(t)
		m.InContainers(t, m.pciBus(t))
	})
	started.host = m
	return m
}

// namespace is where the chart is installed.
const namespace = "pitcrew"

// values are the chart's values in the tests: all checks that read a mount, by privilege. No rule waits for a young node, and a healthy
// one is released immediately.
const values = `
image: {tag: %s, pullPolicy: Never}
npd: {heartbeatPeriod: 1s, kubeletDir: %s}
remediator: {replicas: 1, tolerations: [{operator: Exists}]}
policy: {rules: {gpu-xid: {mode: enforce, clearAfter: 1s}}}
pools:
- name: gpu
  nodeSelector: {kubernetes.io/hostname: machine}
  checks:
    GPUXidError: {}
    GPUMemoryError: {args: {grace: 0s}}
    HCAPortDown: {args: {expect: mlx5_0, grace: 0s}}
    ContainersBroken: {args: {after: 0s}}
- name: plain
  nodeSelector: {kubernetes.io/hostname: machine}
  checks:
    ClockSkewed: {args: {grace: 0s, daemon: chronyd}}
    NodeServiceDown: {args: {grace: 0s, units: e2e.service}}
    MountReadOnly: {args: {grace: 0s, mounted: /var/log/raid, kubelet-dir: %s}}
    WorkloadGPUError: {args: {namespaces: jobs}}
`

// install installs the chart with images of that tag, or upgrades it, and waits until its pods run.
func (m *host) install(t *testing.T, tag string) {
	t.Helper()
	m.helm(t, fmt.Sprintf(values, tag, m.KubeletDir(), m.KubeletDir()), "--wait", "--timeout", patience.String())
	m.pod(t, "gpu", nil) // Helm does not wait for the only pod of a DaemonSet
}

// helm installs the chart with those values, or upgrades it, unless it is installed so.
func (m *host) helm(t *testing.T, values string, args ...string) {
	t.Helper()
	if m.installed == values {
		return
	}
	m.installed = "half"
	args = append([]string{"upgrade", "--install", "pitcrew", m.chart(t), "--namespace", namespace,
		"--create-namespace", "--values", m.Write(t, "values.yaml", values), "--kubeconfig", m.Kubeconfig}, args...)
	helm := exec.CommandContext(t.Context(), components.Helm.Path(m.Root), args...)
	helm.Env = append(os.Environ(), "HOME="+m.Dir)
	if out, err := helm.CombinedOutput(); err != nil {
		pods, _ := m.Kubectl(t.Context(), "--namespace", namespace, "get", "pods")
		logs, _ := m.Kubectl(t.Context(), "--namespace", namespace, "logs", "--prefix", "--tail=5", "--selector=app.kubernetes.io/part-of=pitcrew")
		t.Fatalf("helm: %v\n%s\n%s\n%s\n%s", err, out, pods, logs, m.Logs("kubelet"))
	}
	m.installed = values
}

// chart is a copy of the chart, whose monitors run the plugins each second: the tests are not about the time between two runs.
func (m *host) chart(t *testing.T) string {
	t.Helper()
	chart := filepath.Join(m.Dir, "chart")
	if _, err := os.Stat(chart); err == nil {
		return chart
	}
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(m.Root, "manifests", "chart"))); err != nil {
		t.Fatal(err)
	}
	monitors, err := filepath.Glob(filepath.Join(chart, "files", "monitors", "*.json"))
	if err != nil || len(monitors) == 0 {
		t.Fatalf("monitors of the chart: %q, %v", monitors, err)
	}
	interval := regexp.MustCompile(`"invoke_interval": "[^"]*"`)
	every := regexp.MustCompile(`"-(healthy-)?every",\s*"[^"]*"`)
	for _, monitor := range monitors {
		text, err := os.ReadFile(monitor)
		if err != nil {
			t.Fatal(err)
		}
		text = every.ReplaceAll(interval.ReplaceAll(text, []byte(`"invoke_interval": "1s"`)), []byte(`"-every", "1s"`))
		if err := os.WriteFile(monitor, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return chart
}

// until waits until the condition has the status and a message with the text, and returns it.
func (m *host) until(t *testing.T, condition string, status corev1.ConditionStatus, text string) corev1.NodeCondition {
	t.Helper()
	var found corev1.NodeCondition
	clustertest.Until(t, patience, fmt.Sprintf("%s is %s with %q", condition, status, text), func() error {
		node, err := m.Node(t)
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if string(c.Type) != condition {
				continue
			}
			found = c
			if c.Status == status && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("it is %s with %q", found.Status, found.Message)
	})
	return found
}

// pod returns the running pod of a pool that is not the old one.
func (m *host) pod(t *testing.T, pool string, old *corev1.Pod) *corev1.Pod {
	t.Helper()
	var found *corev1.Pod
	clustertest.Until(t, patience, "a pod of pool "+pool, func() error {
		var pods corev1.PodList
		if err := m.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"pitcrew.dev/pool": pool}); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && (old == nil || pod.UID != old.UID) {
				found = &pod
				return nil
			}
		}
		return fmt.Errorf("%d pods, none of them new and running", len(pods.Items))
	})
	return found
}

// fault is a kernel record of a GPU that no other test has.
type fault struct{ gpu string }

// strike writes a fault of a GPU into the machine's kernel log.
func (m *host) strike(t *testing.T) fault {
	t.Helper()
	f := fault{fmt.Sprintf("%04x:%02x:00", rand.IntN(1<<16), rand.IntN(1<<8))}
	m.kernel(t, "NVRM: Xid (PCI:"+f.gpu+"): 119, Timeout after 6s of waiting for RPC response from GPU4 GSP!")
	return f
}

// kernel writes a line into the machine's kernel log.
func (m *host) kernel(t *testing.T, line string) {
	t.Helper()
	log, err := kernellog.OpenNFT()
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	written := make(chan error)
	go func() {
		// The switch for records from other network namespaces is in the machine's own; the thread ends with this.
		runtime.LockOSThread()
		err := unix.Setns(machine.HostNetwork, unix.CLONE_NEWNET)
		if err == nil {
			_, err = log.Write(context.Background(), line)
		}
		written <- err
	}()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

// tainted waits until the remediator has tainted the node, or removed the taint.
func (m *host) tainted(t *testing.T, want bool) {
	t.Helper()
	clustertest.Until(t, patience, fmt.Sprintf("tainted: %v", want), func() error {
		node, err := m.Node(t)
		if err != nil {
			return err
		}
		has := false
		for _, taint := range node.Spec.Taints {
			has = has || taint.Key == conditions.TaintUnhealthy && taint.Value == conditions.GPUXidError
		}
		if has != want {
			return fmt.Errorf("taints %v, record %s", node.Spec.Taints, node.Annotations[conditions.AnnotationQuarantine])
		}
		return nil
	})
}

// clear has `kubectl pitcrew clear` forget all faults that the kernel log has reported.
func (m *host) clear(t *testing.T) {
	t.Helper()
	m.pitcrew(t, "clear", machine.NodeName, conditions.GPUXidError, "-y")
	m.until(t, conditions.GPUXidError, corev1.ConditionFalse, "")
}

// healthy makes the node healthy and has it in service: earlier runs may have left faults in the machine's kernel log that ask for a reboot,
// and then clearing them releases no node.
func (m *host) healthy(t *testing.T) {
	t.Helper()
	m.clear(t)
	node, err := m.Node(t)
	if err != nil {
		t.Fatal(err)
	}
	if q, err := causes.RecordOf(node); err != nil {
		t.Fatal(err)
	} else if q != nil && q.Phase == causes.Quarantined {
		m.pitcrew(t, "release", machine.NodeName, "-y")
	}
	m.tainted(t, false)
}

// pitcrew runs `kubectl pitcrew` as admin, and returns what it prints.
func (m *host) pitcrew(t *testing.T, args ...string) string {
	t.Helper()
	if err := components.BuildOurs(t.Context(), m.Root, "./kubectl-pitcrew"); err != nil {
		t.Fatal(err)
	}
	plugin := exec.CommandContext(t.Context(), filepath.Join(m.Root, "bin", "kubectl-pitcrew"), append([]string{"--kubeconfig", m.Kubeconfig}, args...)...)
	out, err := plugin.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl pitcrew %q: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestAnXidTaintsTheNodeUntilItIsCleared(t *testing.T) {
	m := theMachine(t)
	m.install(t, tag)
	m.healthy(t)
	f := m.strike(t)
	m.until(t, conditions.GPUXidError, corev1.ConditionTrue, f.gpu+": Xid 119")
	m.tainted(t, true)
	m.clear(t)
	m.tainted(t, false)
}

// The pre-delete hook of the chart runs as a pod here.
func TestHelmUninstallCleansTheNode(t *testing.T) {
	m := theMachine(t)
	m.install(t, tag)
	m.healthy(t)
	f := m.strike(t)
	m.until(t, conditions.GPUXidError, corev1.ConditionTrue, f.gpu)
	m.tainted(t, true)
	m.uninstall(t)
	node, err := m.Node(t)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, taint := range node.Spec.Taints {
		left = append(left, taint.ToString())
	}
	for _, c := range node.Status.Conditions {
		if conditions.Ours(string(c.Type)) {
			left = append(left, string(c.Type))
		}
	}
	for key := range node.Labels {
		if strings.HasPrefix(key, conditions.Domain+"/") {
			left = append(left, key)
		}
	}
	if node.Annotations[conditions.AnnotationQuarantine] != "" {
		left = append(left, conditions.AnnotationQuarantine)
	}
	if len(left) > 0 {
		t.Errorf("left on the node: %q", left)
	}
}

func TestAFaultOutlivesPodAndUpgrade(t *testing.T) {
	m := theMachine(t)
	m.install(t, tag)
	m.healthy(t)
	f := m.strike(t)
	m.until(t, conditions.GPUXidError, corev1.ConditionTrue, f.gpu)
	doubts := m.doubts(t)

	old := m.pod(t, "gpu", nil)
	if err := m.Client.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	m.reports(t, m.pod(t, "gpu", old), f)

	old = m.pod(t, "gpu", nil)
	const next = tag + "-next"
	m.Ctr(t, "images", "tag", "--force", "ghcr.io/pitcrew-dev/npd-plugins:"+tag, "ghcr.io/pitcrew-dev/npd-plugins:"+next)
	m.Ctr(t, "images", "tag", "--force", "ghcr.io/pitcrew-dev/remediator:"+tag, "ghcr.io/pitcrew-dev/remediator:"+next)
	m.install(t, next)
	upgraded := m.pod(t, "gpu", old)
	if image := upgraded.Spec.Containers[0].Image; image != "ghcr.io/pitcrew-dev/npd-plugins:"+next {
		t.Errorf("after the upgrade the pod runs %s", image)
	}
	m.reports(t, upgraded, f)

	if seen := doubts(); len(seen) > 0 {
		t.Errorf("between the fault and -clear the condition was also %q", seen)
	}
	m.clear(t)
}

// reports waits until NPD in the pod has reported the fault.
func (m *host) reports(t *testing.T, pod *corev1.Pod, f fault) {
	t.Helper()
	running := pod.Status.ContainerStatuses[0].State.Running
	if running == nil {
		t.Fatalf("pod %s does not run: %v", pod.Name, pod.Status.ContainerStatuses[0].State)
	}
	clustertest.Until(t, patience, "a report of the new pod", func() error {
		c := m.until(t, conditions.GPUXidError, corev1.ConditionTrue, f.gpu)
		if !c.LastHeartbeatTime.After(running.StartedAt.Time) {
			return fmt.Errorf("the last one is of %s, the pod of %s", c.LastHeartbeatTime, running.StartedAt)
		}
		return nil
	})
}

// doubts watches for versions of the node on which the fault is not reported. The returned function ends the watch and
// returns them.
func (m *host) doubts(t *testing.T) func() []string {
	t.Helper()
	watcher, err := m.Client.Watch(t.Context(), &corev1.NodeList{}, client.MatchingFields{"metadata.name": machine.NodeName})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			node, ok := event.Object.(*corev1.Node)
			if !ok {
				continue
			}
			for _, c := range node.Status.Conditions {
				if c.Type == conditions.GPUXidError && c.Status != corev1.ConditionTrue {
					seen = append(seen, fmt.Sprintf("%s: %s", c.Status, c.Message))
				}
			}
		}
	}()
	return func() []string {
		watcher.Stop()
		<-done
		return seen
	}
}

// NPD as process 1 would not reap orphans. The pause container, with which the pod shares its processes, does.
func TestAStuckWorkerLeavesNoZombie(t *testing.T) {
	m := theMachine(t)
	m.install(t, tag)
	frozen := npdtest.Freeze(t)
	mount(t, frozen.Dir, driverRoot+"/frozen", "", unix.MS_BIND, "")
	t.Cleanup(func() {
		if err := unix.Unmount(driverRoot+"/frozen", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	pod := m.pod(t, "gpu", nil)
	m.answer(t, "write /host/driver/frozen/x\n")
	t.Cleanup(func() { m.answer(t, sickGPU) })
	orphan := 0
	clustertest.Until(t, patience, "a stuck worker without its check", func() error {
		// On a busy machine the check may give up before its worker is stuck, and kill it.
		_, err := m.Kubectl(t.Context(), "--namespace", namespace, "exec", pod.Name, "--",
			"/opt/pitcrew/bin/ecc", "-driver-root=/host/driver", "-state-dir=/run/pitcrew/stuck", "-timeout=2s")
		if err == nil || !strings.Contains(err.Error(), "exit code 2") {
			return fmt.Errorf("a check whose worker is stuck: %w", err)
		}
		all := processes(t)
		for pid, p := range all {
			if p.name == "ecc" && p.stuck && all[p.parent].name != "ecc" {
				orphan = pid
				return nil
			}
		}
		return fmt.Errorf("no worker is stuck: %w\n%v", err, all)
	})
	frozen.Thaw()
	clustertest.Until(t, patience, "the end of the stuck worker", func() error {
		if p, ok := processes(t)[orphan]; ok {
			return fmt.Errorf("it is still there: %+v", p)
		}
		return nil
	})
}

type process struct {
	name, state string
	parent      int
	// stuck is true if a thread sleeps uninterruptibly. The other threads of a killed process have ended; its state is then Z.
	stuck bool
}

// processes lists all processes of the namespaces.
func processes(t *testing.T) map[int]process {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]process{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		var pid int
		var p process
		head, rest, _ := strings.Cut(string(text), ") ")
		if _, err := fmt.Sscanf(head, "%d (%s", &pid, &p.name); err != nil {
			continue // a name with a space
		}
		if _, err := fmt.Sscanf(rest, "%s %d", &p.state, &p.parent); err != nil {
			t.Fatalf("%s: %q: %v", file, text, err)
		}
		threads, err := filepath.Glob(filepath.Join(filepath.Dir(file), "task/*/stat"))
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			text, _ := os.ReadFile(thread)
			p.stuck = p.stuck || strings.Contains(string(text), ") D ")
		}
		all[pid] = p
	}
	return all
}

// Why pools that read the kernel log are privileged. /dev/kmsg is a device, which the device cgroup refuses to containers
// even with all capabilities; Kubernetes can grant single devices only through a device plugin.
func TestTheKernelLogNeedsAPrivilegedContainer(t *testing.T) {
	m := theMachine(t)
	for name, test := range map[string]struct {
		context corev1.SecurityContext
		reads   bool
	}{
		"plain":      {corev1.SecurityContext{}, false},
		"syslog":     {corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYSLOG"}}}, false},
		"all-caps":   {corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"ALL"}}}, false},
		"privileged": {corev1.SecurityContext{Privileged: new(true)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			output, code := m.run(t, "kmsg-"+name, corev1.PodSpec{
				Containers: []corev1.Container{{
					Name: "xid", Image: "ghcr.io/pitcrew-dev/npd-plugins:" + tag, ImagePullPolicy: corev1.PullNever,
					Command: []string{"/opt/pitcrew/bin/xid", "-state-dir=/tmp"}, SecurityContext: &test.context,
					VolumeMounts: []corev1.VolumeMount{{Name: "kmsg", MountPath: "/dev/kmsg", ReadOnly: true}},
				}},
				Volumes: []corev1.Volume{{Name: "kmsg", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/dev/kmsg"}}}},
			})
			if refused := code == 2 && strings.Contains(output, "operation not permitted"); refused == test.reads {
				t.Errorf("exit code %d, %s", code, output)
			}
		})
	}
}

func TestTheCarrierFillsAVolume(t *testing.T) {
	m := theMachine(t)
	output, code := m.run(t, "carrier", corev1.PodSpec{
		InitContainers: []corev1.Container{{
			Name: "install", Image: "ghcr.io/pitcrew-dev/plugins:" + tag, ImagePullPolicy: corev1.PullNever, Args: []string{"/target"},
			VolumeMounts: []corev1.VolumeMount{{Name: "plugins", MountPath: "/target"}},
		}},
		Containers: []corev1.Container{{
			Name: "detector", Image: "ghcr.io/pitcrew-dev/preflight:" + tag, ImagePullPolicy: corev1.PullNever,
			Command:      []string{"/bin/sh", "-c", "/opt/pitcrew/bin/metax -version && /opt/pitcrew/bin/thermal -version && cat /opt/pitcrew/monitors/GPUOverheated.json"},
			VolumeMounts: []corev1.VolumeMount{{Name: "plugins", MountPath: "/opt/pitcrew"}},
		}},
		Volumes: []corev1.Volume{{Name: "plugins", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	})
	if code != 0 || !strings.Contains(output, `"source": "thermal"`) {
		t.Errorf("exit code %d, %s", code, output)
	}
}

// run runs a pod to its end and returns its output and its exit code.
func (m *host) run(t *testing.T, name string, spec corev1.PodSpec) (output string, code int32) {
	t.Helper()
	spec.NodeName, spec.RestartPolicy = machine.NodeName, corev1.RestartPolicyNever
	spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}, Spec: spec}
	if err := m.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	clustertest.Until(t, patience, "the end of pod "+name, func() error {
		if err := m.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Terminated == nil {
			return fmt.Errorf("it is %s: %v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return nil
	})
	output, err := m.Kubectl(t.Context(), "logs", name)
	if err != nil {
		t.Fatal(err)
	}
	return output, pod.Status.ContainerStatuses[0].State.Terminated.ExitCode
}
