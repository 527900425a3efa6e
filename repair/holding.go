package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/repair/holders"
)

// holding holds the flags about what holds the devices of a node.
type holding struct {
	podResources, podLogs               string
	devices, tolerate, driverNamespaces []string
}

func (h *holding) flags(f *flags.Set) {
	const kubelet = "/var/lib/kubelet/pod-resources/kubelet.sock"
	f.StringVar(&h.podResources, "pod-resources", kubelet, "`path` of the kubelet's pod resources socket")
	f.StringVar(&h.podLogs, "pod-logs", "/var/log/pods", "`directory` of the logs of pods, for the names of those that hold a device")
	flags.List(f.FlagSet, &h.devices, "devices", "`beginnings` of the paths of device files that no one may hold (default: the vendor's)",
		checkPath)
	flags.List(f.FlagSet, &h.tolerate, "tolerate", "`names` of programs that may hold devices as services of systemd, besides the vendor's",
		nil)
	// No one but an administrator makes pods there, and the operator's driver pod has the services of the driver.
	h.driverNamespaces = []string{"gpu-operator"}
	flags.List(f.FlagSet, &h.driverNamespaces, "driver-namespaces", "`namespaces` in whose pods the driver's own programs may hold devices",
		nil)
}

// checkPath refuses what no device file begins with: nothing would be found to hold a device.
func checkPath(s string) error {
	if !strings.HasPrefix(s, "/") {
		return fmt.Errorf("%q is not an absolute path", s)
	}
	return nil
}

func (h *holding) check() error {
	if h.devices != nil && len(h.devices) == 0 {
		return errors.New("-devices is empty: nothing would be found to hold a device")
	}
	return nil
}

// watcher returns what looks for holders of the accelerators of vendors. Which device files count follows from the action.
func (h *holding) watcher(of ...vendor) *holders.Watcher {
	w := &holders.Watcher{
		Tolerate: h.tolerate, DriverNamespaces: h.driverNamespaces, PodResources: h.podResources, PodLogs: h.podLogs,
	}
	for _, v := range of {
		w.Services, w.Driver = slices.Concat(w.Services, v.services), slices.Concat(w.Driver, v.driver)
		w.Resources = append(w.Resources, v.resource)
	}
	return w
}

// replace has -devices take the place of the vendor's device files.
func (h *holding) replace(w *holders.Watcher) {
	if h.devices != nil {
		w.Devices, w.PodDevices = h.devices, h.devices
	}
}
