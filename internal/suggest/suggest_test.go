package suggest

import "testing"

func TestClosest(t *testing.T) {
	list := []string{"GPUXidError", "GPUMemoryError", "NvidiaXID62Error", "gpu-xid", "gpu-xid-inspect", "Ready"}
	for name, want := range map[string]string{
		"GPUXidErr":        "GPUXidError",
		"gpuxiderror":      "GPUXidError",
		"GPUXidError":      "GPUXidError",
		"XPUMemryError":    "GPUMemoryError",
		"gpu-xd":           "gpu-xid",
		"gpu-xid-inspct":   "gpu-xid-inspect",
		"NvidiaXID64Error": "", // another Xid
		"Raedy":            "Ready",
		"KubeletReady":     "",
		"DiskFull":         "",
		"":                 "",
	} {
		if got := Closest(name, list); got != want {
			t.Errorf("%q is taken for %q, want %q", name, got, want)
		}
	}
}
