// Package machine makes this machine a node of a test's cluster: a real kubelet and containerd run our images. Its tests run in namespaces of
// their own, see [Main].
package machine

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

const (
	// NodeName is the name of the Node.
	NodeName = "machine"
	// NodeIP is its address.
	NodeIP = "192.0.2.9"
	// serviceIP is the address of Service kubernetes: the first of the API server's range.
	serviceIP = "10.0.0.1"
	// Tag is that of our images.
	Tag = "e2e"
)

// Images are our images.
var Images = []string{"npd-plugins", "remediator", "preflight", "plugins"}

// Patience is much longer than anything takes that a test waits for, also on a busy machine: only a test that fails waits so long.
const Patience = 5 * time.Minute

// Grace is how long the kubelet may be silent before the node controller takes the node for unreachable.
const Grace = 8 * time.Second

// build builds the kubelet, more components and our images into dir.
func build(root, dir string, more []components.Component) error {
	ctx := context.Background()
	more = append(slices.Clip(more), components.Kube, components.KWOK, components.Kubelet, components.Helm)
	if err := components.Build(ctx, os.Stderr, root, more...); err != nil {
		return err
	}
	if err := components.BuildOurs(ctx, root, "./plugins/xid"); err != nil {
		return err
	}
	for _, module := range []string{"github.com/NVIDIA/go-nvml", "github.com/NVIDIA/go-dcgm"} {
		if _, err := Headers(ctx, root, module); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "run", "-C", filepath.Join(root, "images", "build"), ".", "-unpinned",
		"-platforms", "linux/"+runtime.GOARCH, "-version", Tag, "-out", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the images: %w\n%s", err, out)
	}
	return pause(dir, filepath.Join(dir, "pause.tar"))
}

// Headers returns the folder of a module of this repository, with the headers of a library of NVIDIA that a stand-in is compiled with. It
// downloads the module when needed: no program needs all of them.
func Headers(ctx context.Context, root, module string) (string, error) {
	return components.Component{Dir: filepath.Join("..", ".."), Module: module}.ModuleDir(ctx, root)
}

// Machine is this machine as a node: a real kubelet and containerd with runc and CNI.
type Machine struct {
	*cluster.Cluster
	// Dir is the folder of this run.
	Dir string
	// Agent is the kubelet's process. Tests freeze and kill it.
	Agent *Program
	// RegisterWithTaint is the key of a taint, of effect NoSchedule, that the kubelet registers a new Node with when it starts the next
	// time; empty: none.
	RegisterWithTaint string

	runtime *Program
}

var started struct {
	sync.Mutex
	machine *Machine
}

// Get returns the node. The first call starts it; prepare, if it is not nil, is called before the kubelet starts.
func Get(t *testing.T, prepare func(*Machine)) *Machine {
	t.Helper()
	started.Lock()
	defer started.Unlock()
	if m := started.machine; m != nil {
		select {
		case <-m.Agent.Ended: // each test after that one would wait for its time limit
			t.Fatalf("a test before this one has left the node without its kubelet:\n%s", m.Logs("kubelet"))
		default:
		}
		return m
	}
	m := &Machine{Cluster: clustertest.Get(t), Dir: os.Getenv(inside)}
	m.ownBoots(t)
	m.relay(t)
	m.containerd(t)
	for _, image := range append([]string{"pause"}, Images...) {
		m.Ctr(t, "images", "import", filepath.Join(m.Dir, image+".tar"))
	}
	if prepare != nil {
		prepare(m)
	}
	m.forget(t)
	m.StartKubelet(t)
	m.untilReady(t, func(node *corev1.Node) bool { return len(node.Spec.Taints) == 0 })
	started.machine = m
	return m
}

// forget sets the node's state as if all faults in the machine's kernel log had been repaired.
func (m *Machine) forget(t *testing.T) {
	t.Helper()
	if out, err := m.RunPlugin(t.Context(), "xid", "-clear"); err != nil {
		t.Fatal(out, err)
	}
}

// relay forwards connections from pods to the API server, in place of a kube-proxy.
func (m *Machine) relay(t *testing.T) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", serviceIP+":443")
	if err != nil {
		t.Fatal(err)
	}
	server := strings.TrimPrefix(m.Admin.Host, "https://")
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", server)
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(to, from) // a connection that breaks is the client's matter
					to.Close()
				}()
				_, _ = io.Copy(from, to)
			}()
		}
	}()
}

// Debian returns a file of the packages that `make test` unpacks.
func (m *Machine) Debian(path string) string { return filepath.Join(m.Root, "bin", "debian", path) }

// Program is a running program.
type Program struct {
	PID   int
	Ended chan struct{} // closed when it has ended
}

// Start starts a program that runs as long as the tests, unless a test kills it.
func (m *Machine) Start(t *testing.T, name string, args ...string) *Program {
	t.Helper()
	log, err := os.OpenFile(m.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...) // it outlives the test
	cmd.Env = append(os.Environ(), "PATH="+strings.Join([]string{m.Debian("usr/bin"), m.Debian("usr/sbin"), os.Getenv("PATH")}, ":"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the tests
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Program{cmd.Process.Pid, make(chan struct{})}
	go func() {
		_ = cmd.Wait() // tests kill it
		close(p.Ended)
	}()
	return p
}

func (m *Machine) log(program string) string {
	return filepath.Join(m.Dir, filepath.Base(program)+".log")
}

// Logs returns the end of a program's log.
func (m *Machine) Logs(program string) string {
	text, err := os.ReadFile(m.log(program))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

// Write writes a file into the folder of this run and returns its path.
func (m *Machine) Write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(m.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// runtimeSocket is that of containerd; its folder is our own, see enter.
const runtimeSocket = "/run/containerd/containerd.sock"

func (m *Machine) containerd(t *testing.T) {
	t.Helper()
	network := m.Write(t, "cni/pods.conflist", `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "dataDir": "/run/cni", "routes": [{"dst": "0.0.0.0/0"}]}}]}`)
	// The oom score: this machine may lack CAP_SYS_RESOURCE.
	m.Write(t, "containerd.toml", fmt.Sprintf(`version = 2
root = %q
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt"]
[grpc]
address = %q
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %q
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = %q
conf_dir = %q
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = %q
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = %q
`, filepath.Join(m.Dir, "containerd"), runtimeSocket, pauseImage, m.Debian("usr/lib/cni"), filepath.Dir(network), m.runtimeSpec(t), m.Debian("usr/sbin/runc")))
	m.startContainerd(t)
}

func (m *Machine) startContainerd(t *testing.T) {
	t.Helper()
	m.runtime = m.Start(t, m.Debian("usr/bin/containerd"), "--config", filepath.Join(m.Dir, "containerd.toml"))
	// A kubelet ends if the runtime does not answer, and containerd answers other clients before it answers a kubelet.
	kubelets, err := grpc.NewClient("unix://"+runtimeSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := kubelets.Close(); err != nil {
			t.Error(err)
		}
	}()
	clustertest.Until(t, Patience, "containerd", func() error {
		if err := kubelets.Invoke(t.Context(), "/runtime.v1.RuntimeService/Version", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			return fmt.Errorf("%w\n%s", err, m.Logs("containerd"))
		}
		return nil
	})
}

// Ctr runs containerd's own client in the namespace of Kubernetes.
func (m *Machine) Ctr(t *testing.T, args ...string) string {
	t.Helper()
	ctr := exec.CommandContext(t.Context(), m.Debian("usr/bin/ctr"), append([]string{"--address", runtimeSocket, "--namespace", "k8s.io"}, args...)...)
	out, err := ctr.CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// StartKubelet starts the kubelet. Two must not run at the same time.
func (m *Machine) StartKubelet(t *testing.T) {
	t.Helper()
	identity, err := m.Config("system:node:"+NodeName, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := m.WriteKubeconfig("kubelet", identity)
	if err != nil {
		t.Fatal(err)
	}
	taints := "[]"
	if m.RegisterWithTaint != "" {
		taints = fmt.Sprintf("[{key: %s, effect: %s}]", m.RegisterWithTaint, corev1.TaintEffectNoSchedule)
	}
	// Only the tests use this network, so every client may ask this kubelet for logs and exec.
	config := m.Write(t, "kubelet.yaml", `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://`+runtimeSocket+`
volumePluginDir: `+filepath.Join(m.Dir, "volume-plugins")+`
nodeStatusUpdateFrequency: 3s
syncFrequency: 5s # how often a changed ConfigMap comes to the pods
nodeLeaseDurationSeconds: 4 # renewed once a second, see Grace
resolvConf: ""
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: {memory.available: 50Mi}
registerWithTaints: `+taints+`
`)
	m.Agent = m.Start(t, components.Kubelet.Path(m.Root), "--config", config, "--kubeconfig", kubeconfig,
		"--root-dir", m.KubeletDir(), "--cert-dir", filepath.Join(m.Dir, "kubelet-certs"), "--hostname-override", NodeName, "--node-ip", NodeIP)
}

// untilReady waits until the node is Ready and is as that function reports.
func (m *Machine) untilReady(t *testing.T, as func(*corev1.Node) bool) {
	t.Helper()
	clustertest.Until(t, Patience, "the node is Ready", func() error {
		select {
		case <-m.Agent.Ended:
			t.Fatalf("the kubelet has ended:\n%s", m.Logs("kubelet"))
		default:
		}
		node, err := m.Node(t)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, m.Logs("kubelet"))
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && as(node) {
				return nil
			}
		}
		return fmt.Errorf("boot id %s, taints %v, conditions %v\n%s", node.Status.NodeInfo.BootID, node.Spec.Taints, node.Status.Conditions, m.Logs("kubelet"))
	})
}

// KubeletDir is the kubelet's root folder.
func (m *Machine) KubeletDir() string { return filepath.Join(m.Dir, "kubelet") }

// Node reads the Node.
func (m *Machine) Node(t *testing.T) (*corev1.Node, error) {
	var node corev1.Node
	err := m.Client.Get(t.Context(), client.ObjectKey{Name: NodeName}, &node)
	return &node, err
}
