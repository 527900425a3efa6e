package scale

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Two policies that differ in what isolates devices and in the domains.
var (
	isolatesNone = strings.Replace(policy, "repair: [Reboot]}, restartJobs", "repair: [ResetGPU, Reboot]}, restartJobs", 1)
	isolates     = strings.NewReplacer("}, restartJobs", "}, isolate: device, restartJobs", "  mode: enforce\n", "  mode: enforce\n  domains: [{label: nvidia.com/gpu.clique}]\n").Replace(isolatesNone)
)

func TestDevicesAndDomainsCostNothingWhenOff(t *testing.T) {
	role, err := os.ReadFile(filepath.Join("..", "..", "manifests", "remediator", "devices.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := clustertest.Get(t).Apply(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	const nodes = 320
	watches := map[string][]string{}
	for name, policy := range map[string]string{"off": isolatesNone, "on": isolates} {
		t.Run(name, func(t *testing.T) {
			before := 0
			if log, err := clustertest.Get(t).AuditLog(); err == nil {
				before = len(log)
			}
			w := startWith(t, policy, nodes, 10*nodes)
			first := w.fleet.Names[0]
			if err := w.fleet.Report(t.Context(), first, conditions.GPUXidError, corev1.ConditionTrue, "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"); err != nil {
				t.Fatal(err)
			}
			w.quarantine(w.fleet.Names[1:9]...)
			if name == "off" {
				if _, _, err := w.fleet.UntilTainted(t.Context(), []string{first}); err != nil {
					t.Fatal(err)
				}
				if devices, _ := w.asked(before); len(devices) > 0 {
					t.Errorf("requests %q", devices)
				}
			} else {
				clustertest.Until(t, patience, "the devices of the node are read", func() error {
					if devices, _ := w.asked(before); !slices.Contains(devices, "list /apis/resource.k8s.io/v1/resourceslices") {
						return fmt.Errorf("requests %q", devices)
					}
					return nil
				})
			}
			_, watches[name] = w.asked(before)
			t.Logf("memory (RSS) with %d nodes: %s", nodes, w.memory())
		})
	}
	if len(watches["off"]) == 0 || !slices.Equal(watches["off"], watches["on"]) {
		t.Errorf("watches %q, with devices and domains %q", watches["off"], watches["on"])
	}
}

// asked are the remediator's requests for devices and its watches since an entry of the audit log.
func (w world) asked(since int) (devices, watches []string) {
	w.Helper()
	log, err := w.AuditLog()
	if err != nil {
		w.Fatal(err)
	}
	watched := map[string]bool{}
	for _, a := range log[since:] {
		path, _, _ := strings.Cut(a.RequestURI, "?")
		if a.User.Username == account && strings.HasPrefix(path, "/apis/resource.k8s.io") {
			devices = append(devices, a.Verb+" "+path)
		}
		if a.User.Username == account && a.Verb == "watch" {
			watched[path] = true
		}
	}
	return devices, slices.Sorted(maps.Keys(watched))
}

// memory is the resident memory of the remediator.
func (w world) memory() string {
	w.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.pid))
	if err != nil {
		w.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rss, found := strings.CutPrefix(line, "VmRSS:"); found {
			return strings.TrimSpace(rss)
		}
	}
	w.Fatal(errors.New("no VmRSS"))
	return ""
}
