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
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

// gpuResource is what the device plugin of this test offers. Tests beside it offer nvidia.com/gpu without one.
const gpuResource = "nvidia.com/lost"

// devicePlugin offers one GPU, which is a device file that no driver answers.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	file string
}

func (p *devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	all := []*pluginapi.Device{{ID: "GPU-0", Health: pluginapi.Healthy}}
	if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: all}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *devicePlugin) Allocate(context.Context, *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	devices := []*pluginapi.DeviceSpec{{HostPath: p.file, ContainerPath: "/dev/nvidia0", Permissions: "rw"}}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{Devices: devices}}}, nil
}

// offersGPU runs the device plugin until the test ends, and waits until the kubelet offers its GPU.
func (m *host) offersGPU(t *testing.T) {
	t.Helper()
	file := filepath.Join(m.Dir, "nvidia0")
	if err := unix.Mknod(file, unix.S_IFCHR|0o666, int(unix.Mkdev(195, 0))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o666); err != nil { // whatever the umask is: the container's user is nobody
		t.Fatal(err)
	}
	const name = "pitcrew-e2e.sock"
	socket := filepath.Join(pluginapi.DevicePluginPath, name)
	if err := os.RemoveAll(socket); err != nil { // of a run that was killed
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, &devicePlugin{file: file})
	go func() { _ = server.Serve(listener) }() // until it is stopped
	t.Cleanup(func() {
		server.Stop()
		//nolint:usetesting // the test's own context has ended by now
		m.untilOffered(t, context.Background(), 0, func() error { return nil })
	})
	kubelet, err := grpc.NewClient("unix://"+pluginapi.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := kubelet.Close(); err != nil {
			t.Error(err)
		}
	}()
	m.untilOffered(t, t.Context(), 1, func() error {
		_, err := pluginapi.NewRegistrationClient(kubelet).Register(t.Context(),
			&pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: name, ResourceName: gpuResource})
		return err
	})
}

// untilOffered tries until the kubelet offers so many GPUs of the device plugin.
func (m *host) untilOffered(t *testing.T, ctx context.Context, want int64, try func() error) {
	t.Helper()
	clustertest.Until(t, patience, fmt.Sprintf("the kubelet offers %d GPUs", want), func() error {
		var node corev1.Node
		if err := m.Client.Get(ctx, client.ObjectKey{Name: machine.NodeName}, &node); err != nil {
			return err
		}
		if offered := node.Status.Allocatable[gpuResource]; offered.Value() == want {
			return nil
		}
		return fmt.Errorf("allocatable: %v, %w", node.Status.Allocatable, try())
	})
}

// refuse takes its GPUs from the rules of a container's cgroup, as a reload of systemd does.
func refuse(t *testing.T, pid int) {
	t.Helper()
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, v1, found := strings.Cut(string(groups), ":devices:")
	if !found {
		_, v2, _ := strings.Cut(string(groups), "0::")
		v2, _, _ = strings.Cut(v2, "\n")
		// r0 = 0; exit: no device. BPF_F_ALLOW_MULTI, as runc attaches its own.
		npdtest.AttachDeviceRules(t, filepath.Join("/sys/fs/cgroup", v2), []byte{0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0}, 2)
		return
	}
	v1, _, _ = strings.Cut(v1, "\n")
	if err := os.WriteFile(filepath.Join("/sys/fs/cgroup/devices", v1, "devices.deny"), []byte("c 195:0 rw"), 0o200); err != nil {
		t.Fatal(err)
	}
}

// A reload of systemd writes the device rules of a container's cgroup anew, without those that a hook or the runtime had added. That is
// done here by hand: this machine's systemd did not make the cgroup. The kubelet, its device manager, containerd, runc and the kernel,
// which then refuses the container its GPU, are real.
func TestAContainerThatLostItsGPU(t *testing.T) {
	m := theMachine(t)
	if err := components.BuildOurs(t.Context(), m.Root, "./plugins/containers"); err != nil {
		t.Fatal(err)
	}
	m.offersGPU(t)
	train := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		// It opens its GPU again and again, and writes down what the kernel says.
		Command:   []string{"/bin/sh", "-c", "while :; do (: <>/dev/nvidia0) 2>/dev/termination-log; /bin/busybox sleep 1; done"},
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpuResource: resource.MustParse("1")}},
	}}}}
	train.Name = "lost"
	m.runs(t, train)
	pid := m.pid(t, train)
	opens := func(want string) {
		t.Helper()
		clustertest.Until(t, patience, "the container's GPU answers "+want, func() error {
			got, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/dev/termination-log", pid))
			if err != nil {
				return err
			}
			if !strings.Contains(string(got), want) {
				return fmt.Errorf("it answers %q", got)
			}
			return nil
		})
	}
	const healthy = "exit 0\ncontainers have their GPUs and end when they are killed"
	opens("No such device or address") // it may, and there is no driver
	m.says(t, healthy)
	refuse(t, pid)
	opens("Operation not permitted")
	m.says(t, "exit 1\nRestartApp pod jobs/lost: container train may no longer open its GPUs: the rules of its cgroup do not have them, "+
		"as after a reload of systemd")
}
