package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

const (
	nodeName = "machine"
	nodeIP   = "192.0.2.9"
	// serviceIP is the address of Service kubernetes: the first of the API server's range.
	serviceIP = "10.0.0.1"
	// tag is that of our images.
	tag = "e2e"
)

// patience is much longer than a start takes, even on a busy machine.
const patience = 90 * time.Second

// grace is how long the kubelet may be silent before the node controller takes the node for unreachable.
const grace = 8 * time.Second

// build builds the kubelet and our images into dir.
func build(root, dir string) error {
	ctx := context.Background()
	if err := components.Build(ctx, os.Stderr, root, components.Kube, components.KWOK, components.Kubelet, components.Helm); err != nil {
		return err
	}
	if err := components.BuildOurs(ctx, root, "./plugins/xid"); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", "-C", filepath.Join(root, "images", "build"), ".", "-unpinned",
		"-platforms", "linux/"+runtime.GOARCH, "-version", tag, "-out", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the images: %w\n%s", err, out)
	}
	return pause(dir, filepath.Join(dir, "pause.tar"))
}

// machine is this machine as a node: a real kubelet and containerd with runc and CNI.
type machine struct {
	*cluster.Cluster
	dir string
	// agent is the kubelet's process. Tests freeze and kill it.
	agent *program
	// others are the kubelets of simulated nodes beside this one, once a test needs them.
	others *cluster.Kubelets
}

var started struct {
	sync.Mutex
	machine *machine
}

// theMachine returns the node. The first call starts it.
func theMachine(t *testing.T) *machine {
	t.Helper()
	started.Lock()
	defer started.Unlock()
	if started.machine != nil {
		return started.machine
	}
	m := &machine{Cluster: clustertest.Get(t), dir: os.Getenv(inside)}
	m.relay(t)
	m.containerd(t)
	for _, image := range []string{"pause", "npd-plugins", "remediator", "preflight", "plugins"} {
		m.ctr(t, "images", "import", filepath.Join(m.dir, image+".tar"))
	}
	m.addFaults(t)
	m.forget(t)
	m.kubelet(t)
	started.machine = m
	return m
}

// forget sets the node's state as if all faults in the machine's kernel log had been repaired.
func (m *machine) forget(t *testing.T) {
	t.Helper()
	if out, err := m.RunPlugin(t.Context(), "xid", "-clear"); err != nil {
		t.Fatal(out, err)
	}
}

// relay forwards connections from pods to the API server, in place of a kube-proxy.
func (m *machine) relay(t *testing.T) {
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
					io.Copy(to, from)
					to.Close()
				}()
				io.Copy(from, to)
			}()
		}
	}()
}

// debian returns a file of the packages that `make test` unpacks.
func (m *machine) debian(path string) string { return filepath.Join(m.Root, "bin", "debian", path) }

// program is a running program.
type program struct {
	pid   int
	ended chan struct{} // closed when it has ended
}

// start starts a program that runs as long as the tests, unless a test kills it.
func (m *machine) start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	log, err := os.OpenFile(m.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "PATH="+strings.Join([]string{m.debian("usr/bin"), m.debian("usr/sbin"), os.Getenv("PATH")}, ":"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the tests
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{cmd.Process.Pid, make(chan struct{})}
	go func() {
		cmd.Wait()
		close(p.ended)
	}()
	return p
}

func (m *machine) log(program string) string {
	return filepath.Join(m.dir, filepath.Base(program)+".log")
}

// logs returns the end of a program's log.
func (m *machine) logs(program string) string {
	text, err := os.ReadFile(m.log(program))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

func (m *machine) write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(m.dir, name)
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

func (m *machine) containerd(t *testing.T) {
	t.Helper()
	network := m.write(t, "cni/pods.conflist", `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
		{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.244.0.0/24", "dataDir": "/run/cni", "routes": [{"dst": "0.0.0.0/0"}]}}]}`)
	// The oom score: this machine may lack CAP_SYS_RESOURCE.
	config := m.write(t, "containerd.toml", fmt.Sprintf(`version = 2
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
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = %q
`, filepath.Join(m.dir, "containerd"), runtimeSocket, pauseImage, m.debian("usr/lib/cni"), filepath.Dir(network), m.debian("usr/sbin/runc")))
	m.start(t, m.debian("usr/bin/containerd"), "--config", config)
	clustertest.Until(t, patience, "containerd", func() error {
		if _, err := os.Stat(runtimeSocket); err != nil {
			return fmt.Errorf("%w\n%s", err, m.logs("containerd"))
		}
		return nil
	})
}

// ctr runs containerd's own client in the namespace of Kubernetes.
func (m *machine) ctr(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), m.debian("usr/bin/ctr"), append([]string{"--address", runtimeSocket, "--namespace", "k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ctr %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// startKubelet starts the kubelet. Two must not run at the same time.
func (m *machine) startKubelet(t *testing.T) {
	t.Helper()
	identity, err := m.Config("system:node:"+nodeName, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := m.WriteKubeconfig("kubelet", identity)
	if err != nil {
		t.Fatal(err)
	}
	// Only the tests use this network, so every client may ask this kubelet for logs and exec.
	config := m.write(t, "kubelet.yaml", `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://`+runtimeSocket+`
volumePluginDir: `+filepath.Join(m.dir, "volume-plugins")+`
nodeStatusUpdateFrequency: 3s
nodeLeaseDurationSeconds: 4 # renewed once a second, see grace
resolvConf: ""
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: {memory.available: 50Mi}
`)
	m.agent = m.start(t, components.Kubelet.Path(m.Root), "--config", config, "--kubeconfig", kubeconfig,
		"--root-dir", m.kubeletDir(), "--cert-dir", filepath.Join(m.dir, "kubelet-certs"), "--hostname-override", nodeName, "--node-ip", nodeIP)
}

// kubelet starts the kubelet and waits until the node is ready for pods.
func (m *machine) kubelet(t *testing.T) {
	t.Helper()
	m.startKubelet(t)
	clustertest.Until(t, patience, "kubelet", func() error {
		node, err := m.node(t)
		if err != nil {
			return fmt.Errorf("%w\n%s", err, m.logs("kubelet"))
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && len(node.Spec.Taints) == 0 {
				return nil
			}
		}
		return fmt.Errorf("not Ready\n%s", m.logs("kubelet"))
	})
}

func (m *machine) kubeletDir() string { return filepath.Join(m.dir, "kubelet") }

func (m *machine) node(t *testing.T) (*corev1.Node, error) {
	var node corev1.Node
	err := m.Client.Get(t.Context(), client.ObjectKey{Name: nodeName}, &node)
	return &node, err
}
