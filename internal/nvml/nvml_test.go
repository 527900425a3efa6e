package nvml

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
)

// go-nvml's own DGX A100 knows names, numbers and MIG; what it does not know is tested on the plugins' stand-in.
func TestADGXA100OfGoNVML(t *testing.T) {
	dgx := dgxa100.New()
	for _, device := range dgx.Devices {
		d := device.(*server.Device)
		d.GetPciInfoFunc = func() (info nvml.PciInfo, ret nvml.Return) {
			for i, c := range "0000" + d.PciBusID {
				info.BusId[i] = int8(c)
			}
			return info, nvml.SUCCESS
		}
		d.GetSerialFunc = func() (string, nvml.Return) { return "", nvml.ERROR_NOT_SUPPORTED } // as of a GeForce
		d.GetVbiosVersionFunc = func() (string, nvml.Return) { return "92.00.19.00.01", nvml.SUCCESS }
		d.GetPersistenceModeFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
	}
	mig, lost := dgx.Devices[1].(*server.Device), dgx.Devices[2].(*server.Device)
	mig.SetMigModeFunc(nvml.DEVICE_MIG_ENABLE)
	// It has no index any more, only an address.
	lost.GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	byIndex := dgx.DeviceGetHandleByIndexFunc
	dgx.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 2 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return byIndex(i)
	}

	got, err := (&session{lib: dgx}).gpus(t.Context(), []gpu.BusDevice{{Address: "0000:01:00"}, {Address: "0000:02:00"}}, []Part{Identity})
	name, on, minor := "Mock NVIDIA A100-SXM4-40GB", true, []int{0, 1, 2, 3, 4, 5, 6, 7}
	var want []gpu.GPU
	for _, i := range []int{0, 1, 3, 4, 5, 6, 7} {
		d := dgx.Devices[i].(*server.Device)
		want = append(want, gpu.GPU{Address: gpu.Address(d.PciBusID), Name: name, Minor: &minor[i], Persistence: &on, MIG: i == 1, UUID: d.UUID, VBIOS: "92.00.19.00.01"})
	}
	want = append(want, gpu.GPU{Address: "0000:02:00", Lost: true, Minor: &minor[2], Persistence: &on, UUID: lost.UUID, VBIOS: "92.00.19.00.01"})
	if diff := cmp.Diff(map[string][]gpu.GPU{"identity": want}, got); diff != "" || err != nil {
		t.Errorf("%v, -want +got\n%s", err, diff)
	}
}
