package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestMakeTry(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "try")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"$ bin/xid -log e2e/try/kernel.log\nReboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus\nexit code 1\n",
		"\n  GPUXidError   True    GPUXidSeen  Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus\n",
		"the repair that the node needs: " + conditions.Reboot.String() + ".",
		"  slow: node-00008 (",
		"\nOpen it in a browser: " + filepath.Join(root, "bin", "try", "heatmap.html") + "\n",
	} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	page, err := os.ReadFile(filepath.Join(root, "bin", "try", "heatmap.html"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, []byte("slow: node-00008")) {
		t.Error("the heatmap lacks the verdict")
	}

	// What it prints for kubectl pitcrew is what that prints.
	if err := components.BuildOurs(t.Context(), root, "./kubectl-pitcrew"); err != nil {
		t.Fatal(err)
	}
	for command, line := range map[string]string{
		"kubectl pitcrew explain 79":                           string(out),
		"kubectl pitcrew preflight -f bin/try/reports -o html": string(page),
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join("bin", "kubectl-pitcrew"), strings.Fields(command)[2:]...)
		cmd.Dir = root
		want, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		if !strings.Contains(string(out), "$ "+command) || !strings.Contains(line, string(want)) {
			t.Errorf("%s prints something else:\n%s", command, want)
		}
	}
}
