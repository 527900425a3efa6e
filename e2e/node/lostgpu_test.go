package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

// offered is what the device plugin of this test offers. The kubelet remembers it; other tests offer nvidia.com/gpu without a plugin.
const offered = "nvidia.com/lost"

// devicePlugin offers GPUs, which are device files that no driver answers: nvidia0, nvidia1 and so on.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	gpus int
	dir  string
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	response := &pluginapi.ListAndWatchResponse{}
	for i := range p.gpus {
		response.Devices = append(response.Devices, &pluginapi.Device{ID: fmt.Sprintf("nvidia%d", i), Health: pluginapi.Healthy})
	}
	if err := stream.Send(response); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *devicePlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, container := range r.GetContainerRequests() {
		allocated := &pluginapi.ContainerAllocateResponse{}
		for _, id := range container.GetDevicesIds() {
			allocated.Devices = append(allocated.Devices,
				&pluginapi.DeviceSpec{HostPath: filepath.Join(p.dir, id), ContainerPath: "/dev/" + id, Permissions: "rw"})
		}
		response.ContainerResponses = append(response.ContainerResponses, allocated)
	}
	return response, nil
}

// offerGPUs runs the device plugin until the test ends, and waits until the kubelet offers its GPUs.
func (m *host) offerGPUs(t *testing.T, n int) {
	t.Helper()
	plugin := &devicePlugin{gpus: n, dir: filepath.Join(m.Dir, "gpus")}
	if err := os.MkdirAll(plugin.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		file := filepath.Join(plugin.dir, fmt.Sprintf("nvidia%d", i))
		if err := unix.Mknod(file, unix.S_IFCHR, int(unix.Mkdev(195, uint32(i)))); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, 0o666); err != nil { // whatever the umask is: the container's user is nobody
			t.Fatal(err)
		}
	}
	const socket = "pitcrew-e2e.sock"
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(pluginapi.DevicePluginPath, socket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, plugin)
	go func() { _ = server.Serve(listener) }() // until it is stopped
	t.Cleanup(server.Stop)
	kubelet, err := grpc.NewClient("unix://"+pluginapi.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer kubelet.Close()
	// Once: a kubelet forgets a plugin that registers again at the same socket, and then does not see its end.
	if _, err := pluginapi.NewRegistrationClient(kubelet).Register(t.Context(),
		&pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: socket, ResourceName: offered}); err != nil {
		t.Fatal(err)
	}
	clustertest.Until(t, patience, "the kubelet offers the GPUs", func() error {
		node, err := m.Node(t)
		if err != nil {
			return err
		}
		if got := node.Status.Allocatable[offered]; got.Value() != int64(n) {
			return fmt.Errorf("allocatable: %v\n%s", node.Status.Allocatable, m.Logs("kubelet"))
		}
		return nil
	})
}

// holder is a container that opens its GPU again and again.
type holder struct {
	pod *corev1.Pod
	pid int
}

// holdGPU runs a pod that holds a GPU of the device plugin.
func (m *host) holdGPU(t *testing.T, name string) holder {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{
			// It writes down what the kernel answers.
			Command: []string{"/bin/sh", "-c",
				"while :; do for gpu in /dev/nvidia*; do (: <>$gpu) 2>/dev/termination-log; done; /bin/busybox sleep 1; done"},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{offered: resource.MustParse("1")}},
		}}},
	}
	m.runs(t, pod)
	h := holder{pod, m.pid(t, pod)}
	h.answers(t, "No such device or address") // it may, and there is no driver
	return h
}

// answers waits until the kernel answers so when the container opens its GPU.
func (h holder) answers(t *testing.T, want string) {
	t.Helper()
	clustertest.Until(t, patience, "the GPU of "+h.pod.Name+" answers "+want, func() error {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/dev/termination-log", h.pid))
		if err != nil {
			return err
		}
		if !strings.Contains(string(got), want) {
			return fmt.Errorf("it answers %q", got)
		}
		return nil
	})
}

// gpu is the device file that the kubelet has given the container.
func (h holder) gpu(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/dev/nvidia*", h.pid))
	if err != nil || len(files) != 1 {
		t.Fatalf("GPUs of %s: %q, %v", h.pod.Name, files, err)
	}
	return "/dev/" + filepath.Base(files[0])
}

// reload sets the device rules of the container's cgroup as systemd does when it is reloaded: those that it knows, without the GPU.
func (h holder) reload(t *testing.T) {
	t.Helper()
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", h.pid))
	if err != nil {
		t.Fatal(err)
	}
	group := func(hierarchy string) (path string, found bool) {
		_, rest, found := strings.Cut(string(groups), hierarchy)
		path, _, _ = strings.Cut(rest, "\n")
		return path, found
	}
	v1, found := group(":devices:")
	if !found {
		v2, _ := group("0::")
		// r0 = 0; exit: no device. BPF_F_ALLOW_MULTI: beside the program of runc, and both have to allow a device.
		npdtest.AttachDeviceRules(t, filepath.Join("/sys/fs/cgroup", v2), []byte{0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0}, 2)
		return
	}
	for _, rule := range []struct{ file, text string }{{"devices.deny", "a"}, {"devices.allow", "c 1:3 rwm"}, {"devices.allow", "c *:* m"}} {
		if err := os.WriteFile(filepath.Join("/sys/fs/cgroup/devices", v1, rule.file), []byte(rule.text), 0o200); err != nil {
			t.Fatal(err)
		}
	}
}

// The rules of one container are set as by a reload of systemd: by hand, because this machine's systemd did not make its cgroup. The
// kubelet, its device manager, containerd, runc and the kernel, which then denies the container its GPU, are real. The plugin runs in the
// chart's pod, and needs each of its mounts: the kubelet's socket, containerd's bundles, /proc and /sys.
func TestAContainerThatLostItsGPUIsNamed(t *testing.T) {
	m := theMachine(t)
	m.install(t, tag)
	m.offerGPUs(t, 2)
	lost, well := m.holdGPU(t, "lost"), m.holdGPU(t, "well")
	const healthy = "containers have their GPUs and end when they are killed"
	m.until(t, conditions.ContainersBroken, corev1.ConditionFalse, healthy)
	lost.reload(t)
	lost.answers(t, "Operation not permitted")
	c := m.until(t, conditions.ContainersBroken, corev1.ConditionTrue, fmt.Sprintf(
		"RestartApp pod jobs/lost: container train may no longer open %s: denied by the device rules of its cgroup", lost.gpu(t)))
	if strings.Contains(c.Message, "jobs/well") {
		t.Errorf("a pod that has its GPU is named: %s", c.Message)
	}
	well.answers(t, "No such device or address")
	if err := m.Client.Delete(t.Context(), lost.pod); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	m.until(t, conditions.ContainersBroken, corev1.ConditionFalse, healthy)
}
