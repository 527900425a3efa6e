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
		"made read-only by the kernel": "MountReadOnly", "unknown: gpu 0000:13:00: the calls about it do not return": "GPUCountMismatch",
	} {
		if got, err := explain([]string{words}); err != nil || !strings.Contains(got, "More: kubectl pitcrew explain "+page+"\n") {
			t.Errorf("%s: %v, %s", words, err, got)
		}
	}
	if got, err := explain([]string{"the weather is nice"}); err == nil {
		t.Error(got)
	}
}
