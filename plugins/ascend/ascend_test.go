package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

func TestACardThatIsLostAfterTheBoot(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	want := func(want string, args ...string) {
		t.Helper()
		got := npdtest.Run(t, binary, append([]string{"-only", "card", "-npu-smi", filepath.Join(dir, "npu-smi"),
			"-sysfs", filepath.Join(dir, "sys"), "-procfs", filepath.Join(dir, "proc"), "-state-dir", filepath.Join(dir, "state")}, args...)...)
		if got != want {
			t.Errorf("got  %swant %s", got, want)
		}
	}
	write("proc/sys/kernel/random/boot_id", "first")
	write("proc/uptime", "86400.00 1.00")
	chip := "sys/bus/pci/devices/0000:c1:00.0/"
	write(chip+"vendor", "0x19e5")
	write(chip+"device", "0xd802")
	write(chip+"class", "0x120000")
	const fine, lost = "exit 0\nAscend NPUs are as expected\n", "exit 1\nReboot npu: npu-smi lists 1 of 2 expected NPUs\n"
	write("npu-smi", "#!/bin/sh\necho 'Total Count : 2\nNPU ID : 0\nNPU ID : 1'")
	want(fine)
	write("npu-smi", "#!/bin/sh\necho 'Total Count : 1\nNPU ID : 0'")
	want(fine, "-at", "10:00") // today's check is done
	want(lost)
	want("exit 0\ncleared number of NPUs\n", "-clear")
	want(fine)
	write("npu-smi", "#!/bin/sh\nexit 1")
	want("exit 2\nunknown: npu-smi: " + filepath.Join(dir, "npu-smi") + " info -l: exit status 1\n")
}

// kubelet answers with the devices that it offers, nil for an error.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	offers []*podresources.ContainerDevices
}

func (k *kubelet) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	if k.offers == nil {
		return nil, errors.New("not yet")
	}
	return &podresources.AllocatableResourcesResponse{Devices: k.offers}, nil
}

// A device plugin offers a chip no more that it takes for sick, although npu-smi lists its card.
func TestWhatTheKubeletOffers(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	for path, content := range map[string]string{
		"proc/sys/kernel/random/boot_id": "first", "proc/uptime": "86400.00 1.00", "npu-smi": "#!/bin/sh\necho 'Total Count : 2\nNPU ID : 0\nNPU ID : 1'",
		"sys/bus/pci/devices/0000:c1:00.0/vendor": "0x19e5", "sys/bus/pci/devices/0000:c1:00.0/device": "0xd802", "sys/bus/pci/devices/0000:c1:00.0/class": "0x120000",
	} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content+"\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	// A Unix socket's path is short.
	socket, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(socket) })
	socket = filepath.Join(socket, "s")
	devices := func(resource string, ids ...string) *podresources.ContainerDevices {
		return &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids, Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}}
	}
	others := devices("example.com/nic", "0", "1", "2")
	want := func(want string, offers ...*podresources.ContainerDevices) {
		t.Helper()
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		podresources.RegisterPodResourcesListerServer(server, &kubelet{offers: offers})
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		got := npdtest.Run(t, binary, "-only", "card", "-npu-smi", filepath.Join(dir, "npu-smi"), "-sysfs", filepath.Join(dir, "sys"),
			"-procfs", filepath.Join(dir, "proc"), "-state-dir", filepath.Join(dir, "state"), "-pod-resources", socket)
		if got != want+"\n" {
			t.Errorf("got  %swant %s", got, want)
		}
	}
	const fine = "exit 0\nAscend NPUs are as expected"
	want(fine, others, devices("huawei.com/Ascend910", "Ascend910-0", "Ascend910-1"))
	want(fine, devices("huawei.com/Ascend910", "Ascend910-0"), devices("huawei.com/Ascend910", "Ascend910-0", "Ascend910-1"))
	want(fine, devices("huawei.com/Ascend910", "0", "1", "2", "3")) // two chips a card
	want("exit 1\nInspect npu: the kubelet offers 1 of 2", others, devices("huawei.com/Ascend910", "Ascend910-0"), devices("huawei.com/Ascend910", "Ascend910-0"))
	want("exit 1\nInspect npu: the kubelet offers 1 of 2", devices("huawei.com/ascend-1980", "0"), devices("huawei.com/ascend-1980-memory", "0", "1", "2"))
	want("exit 1\nInspect npu: the kubelet offers none of 2, does the device plugin run?", others)
	want("exit 2\nunknown: kubelet: how many NPUs it offers: kubelet answered HTTP 200, gRPC \"2\" not yet")
}

func FuzzParsers(f *testing.F) {
	f.Add("\tTotal Count : 1\n\tNPU ID : 0\n\tChip Count : 1\n")
	f.Add("\tHealth : Alarm\n\tError Code : 80E18005\n")
	f.Add("HBM Double Bit Isolated Pages Count : 64\n")
	f.Add("link status: UP\n")
	f.Add("NPU ID  Chip ID  Chip Logic ID  Chip Name\n0  0  0  Ascend 910B4\n")
	f.Fuzz(func(t *testing.T, out string) {
		if ids, err := parseList(out); err == nil && len(ids) != strings.Count(out, "NPU ID") && len(ids) > strings.Count(out, "\n")+1 {
			t.Errorf("%d NPUs from %q", len(ids), out)
		}
		chips, err := parseHealth(out)
		for _, c := range chips {
			if err == nil && !strings.Contains(out, c.Health) {
				t.Errorf("health %q from %q", c.Health, out)
			}
		}
		if pages, err := parsePages(out); err == nil && !strings.Contains(out, "Isolated Pages Count") {
			t.Errorf("%d pages from %q", pages, out)
		}
		if link, err := parseLink(out); err == nil && !strings.Contains(out, link) {
			t.Errorf("link %q from %q", link, out)
		}
		if chips, err := parseChips(out); err == nil && !strings.Contains(out, "NPU ID") {
			t.Errorf("%v from %q", chips, out)
		}
	})
}

// What is for a virtual machine is on the bus and in no list of npu-smi.
func TestAChipForAVirtualMachineIsNotLost(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	for path, content := range map[string]string{
		"proc/sys/kernel/random/boot_id": "first", "proc/uptime": "86400.00 1.00", "npu-smi": "#!/bin/sh\necho 'Total Count : 1\nNPU ID : 0'",
		"c1/vendor": "0x19e5", "c1/device": "0xd802", "c1/class": "0x120000", "c2/vendor": "0x19e5", "c2/device": "0xd802", "c2/class": "0x120000",
	} {
		path = strings.NewReplacer("c1/", "sys/bus/pci/devices/0000:c1:00.0/", "c2/", "sys/bus/pci/devices/0000:c2:00.0/").Replace(path)
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content+"\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for driver, want := range map[string]string{
		"devdrv_device_driver": "exit 1\nReboot npu: npu-smi lists 1 of 2 chips on the PCI bus\n",
		"vfio-pci":             "exit 0\nAscend NPUs are as expected\n",
	} {
		link := filepath.Join(dir, "sys/bus/pci/devices/0000:c2:00.0/driver")
		os.Remove(link)
		if err := os.Symlink("../../drivers/"+driver, link); err != nil {
			t.Fatal(err)
		}
		got := npdtest.Run(t, binary, "-only", "card", "-npu-smi", filepath.Join(dir, "npu-smi"), "-sysfs", filepath.Join(dir, "sys"),
			"-procfs", filepath.Join(dir, "proc"), "-state-dir", filepath.Join(dir, "state"))
		if got != want {
			t.Errorf("%s: got %swant %s", driver, got, want)
		}
	}
}
