package explain

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What a check has printed in any of the golden files is explained.
func TestEveryMessageIsExplained(t *testing.T) {
	files, err := filepath.Glob("../../../plugins/*/testdata/*.txtar")
	if err != nil || len(files) < 100 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	message := regexp.MustCompile(`(?s)\n-- want --\nexit [12]\n((?:Monitor|RestartApp|Inspect|ResetGPU|Reboot|Replace|unknown:) [^\n]*)`)
	seen := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := message.FindSubmatch(text)
		if m == nil || seen[string(m[1])] {
			continue
		}
		seen[string(m[1])] = true
		if got, err := explain(strings.Fields(string(m[1]))); err != nil || got == "" {
			t.Errorf("%s: %s", file, m[1])
		}
	}
	for words, page := range map[string]string{
		"No devices were found": "GPUCountMismatch", "Unable to determine the device handle for GPU 0000:13:00.0: Unknown Error": "GPUCountMismatch",
		"Unable to determine the device handle for GPU 0000:13:00.0: Error": "GPUCountMismatch", "exit status 255": "GPUCountMismatch",
		"Driver/library version mismatch": "GPUCountMismatch", "GPU is lost. Reboot the system to recover this GPU": "GPUCountMismatch",
		"state DOWN, expected ACTIVE": "HCAPortDown", "network link of chip 1 is DOWN": "AscendNPUUnhealthy",
		"Inspect service kubelet: a thread has slept in rpc_wait for more than 2m0s without a break (state D)": "NodeIOHung",
		"Monitor mounts: not all were asked, only the first 256 filesystems":                                   "NodeIOHung",
		"Monitor mount table: not all lines were understood":                                                   "NodeIOHung",
		"Monitor mount /home: nas:/home (nfs4) could not be asked: permission denied":                          "NodeIOHung",
		"Inspect mount /home: nas:/home (nfs4): transport endpoint is not connected":                           "NodeIOHung",
		"Inspect mount /home: nas:/home (nfs4): input/output error":                                            "NodeIOHung",
		"host is down": "NodeIOHung",
		"Inspect shim of 4f2a: containerd has removed its sandbox, and it still runs": "ContainersBroken",
		"Inspect module gdrdrv: not loaded":                                           "FabricDegraded", "Monitor efa rdmap0s6: retrans_timeout_events grew within the last hour": "FabricDegraded",
		"so that GPUDirect RDMA cannot work with this driver":        "FabricDegraded",
		"too many symbol errors after error correction (symbol BER)": "FabricDegraded",
		"unknown: link mlx5_0: the report of mlxlink is too old":     "FabricDegraded",
		"made read-only by the kernel":                               "MountReadOnly", "unknown: gpu 0000:13:00: the calls about it do not return": "GPUCountMismatch",
	} {
		if got, err := explain([]string{words}); err != nil || !strings.Contains(got, "More: kubectl pitcrew explain "+page+"\n") {
			t.Errorf("%s: %v, %s", words, err, got)
		}
	}
	if got, err := explain([]string{"the weather is nice"}); err == nil {
		t.Error(got)
	}
}
