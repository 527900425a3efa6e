package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// evidenceDir is the chart's default folder of bundles. /var/lib belongs to the tests' namespace.
const evidenceDir = "/var/lib/pitcrew/evidence"

// tellTales are stand-ins for tools of a driver container, whose output has secrets.
var tellTales = map[string]string{
	"usr/bin/journalctl": `echo "2026-11-28T03:40:00+0000 machine nvidia-dcgm[7]: agent --token PLANTED HF_TOKEN=PLANTED"`,
	"usr/bin/nvidia-bug-report.sh": `{ echo "root 4242 0.0 0.1 12 34 ? Ssl 03:10 0:07 python3 train.py PLANTED"
echo "WANDB_API_KEY=PLANTED"; echo "the end of the report"; } >"$2"`,
}

// tells adds the tools to the driver's root until the end of the test.
func (r *repairCase) tells() {
	r.Helper()
	if err := os.MkdirAll(filepath.Join(driverRoot, "run"), 0o755); err != nil { // where the vendor's report goes
		r.Fatal(err)
	}
	for name, script := range tellTales {
		path := filepath.Join(driverRoot, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			r.Fatal(err)
		}
		r.Cleanup(func() {
			if err := os.Remove(path); err != nil {
				r.Error(err)
			}
		})
	}
}

// unpacked are the files of a bundle, the vendor's report uncompressed.
func unpacked(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	unzip := func(data []byte) []byte {
		zip, err := gzip.NewReader(bytes.NewReader(data))
		if err == nil {
			data, err = io.ReadAll(zip)
		}
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	files := map[string]string{}
	for archive := tar.NewReader(bytes.NewReader(unzip(data))); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		var text []byte
		if err == nil {
			text, err = io.ReadAll(archive)
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(head.Name, ".gz") {
			text = unzip(text)
		}
		files[head.Name] = string(text)
	}
}

// bundles are those on the node's disk, the oldest first.
func (r *repairCase) bundles() []string {
	r.Helper()
	found, err := filepath.Glob(filepath.Join(evidenceDir, machine.NodeName+"-*"))
	if err != nil {
		r.Fatal(err)
	}
	return found
}

// minFree has the template of evidence keep that much of the disk free.
func (r *repairCase) minFree(percent int) {
	r.Helper()
	if _, err := r.m.Kubectl(context.WithoutCancel(r.Context()), "patch", "podtemplate", "collect", "--namespace", conditions.RepairNamespace, "--type=json", "--patch",
		fmt.Sprintf(`[{"op": "replace", "path": "/template/spec/containers/0/args/4", "value": "-min-free=%d"}]`, percent)); err != nil {
		r.Fatal(err)
	}
}

// The chart's templates in a real kubelet: a person has evidence collected and fetches it, a repair collects before its reboot, and a full
// disk delays none. What is planted in argv, env, kernel log, journal and the vendor's report does not arrive. Only the vendor's tools, the
// journal and the reboot are stand-ins.
func TestEvidenceOfANode(t *testing.T) {
	collects := strings.Replace(repairs("[]"), "    mode: auto\n", "    mode: auto\n    collect: {template: collect, handOff: true}\n", 1)
	r := startRepairCase(t, collects, true)
	if err := os.RemoveAll(evidenceDir); err != nil {
		t.Fatal(err)
	}
	r.tells()
	r.minFree(1) // this machine's disk may be rather full
	t.Cleanup(func() { r.minFree(15) })
	secretive := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "secretive"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Command: []string{"/bin/sh", "-c", "exec /bin/busybox sleep 3600 # PLANTED"}, Env: []corev1.EnvVar{{Name: "HF_TOKEN", Value: "PLANTED"}},
	}}}}
	r.m.runs(t, secretive)
	r.m.kernel(t, "agent: API_KEY=PLANTED")

	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	r.m.pitcrew(t, "collect", machine.NodeName, "-y", "-o", file)
	files := unpacked(t, file)
	for name, text := range files {
		if strings.Contains(text, "PLANTED") {
			t.Errorf("%s has a secret: %.2000s", name, text)
		}
	}
	for name, want := range map[string]string{
		"dmesg.txt": "API_KEY=[removed]", "journal-units.txt": "agent --token [removed] HF_TOKEN=[removed]", "nvidia-smi-q.txt": "python3 [removed]",
		"nvidia-bug-report.log.gz": "WANDB_API_KEY=[removed]\nthe end of the report\n", "plugins/gpucount.json": theGPU, "plugins/xid.json": "{",
		"sysfs-infiniband.txt": "/class/infiniband/mlx5_0/hca_type: MT4129", "index.txt": "node " + machine.NodeName + ", ",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %q: %.2000s\n%s", name, want, files[name], files["index.txt"])
		}
	}
	there := r.bundles()
	if len(there) != 1 {
		t.Fatalf("on the node: %q", there)
	}
	arrived, err := os.ReadFile(file)
	kept, keptErr := os.ReadFile(there[0])
	if info, statErr := os.Stat(there[0]); errors.Join(err, keptErr, statErr) != nil || !bytes.Equal(arrived, kept) || info.Mode() != 0o600 {
		t.Errorf("%v: %d bytes have arrived of %d", errors.Join(err, keptErr, statErr), len(arrived), len(kept))
	}
	if out, name := r.m.pitcrew(t, "describe", machine.NodeName), filepath.Base(there[0]); !strings.Contains(out, name) {
		t.Errorf("describe does not name bundle %s:\n%s", name, out)
	}
	if left, err := filepath.Glob(filepath.Join(driverRoot, "run", "*")); err != nil || len(left) > 0 {
		t.Errorf("the vendor's report is left behind: %q, %v", left, err)
	}
	if err := r.m.Client.Delete(t.Context(), secretive); err != nil { // it has no controller, so it would keep the node from a reboot
		t.Fatal(err)
	}

	repaired := func() visit.Visit {
		t.Helper()
		r.m.kernel(t, xid79)
		r.rebooted(t)
		r.released()
		last := r.record().Last
		i := slices.IndexFunc(last, func(v visit.Visit) bool { return v.Kind == visit.Repair })
		if i < 0 {
			t.Fatalf("record %s", r.record())
		}
		return last[i]
	}
	v := repaired()
	if there = r.bundles(); len(there) != 2 || v.Bundle != filepath.Base(there[1]) {
		t.Fatalf("the visit names bundle %q, the node has %q", v.Bundle, there)
	}
	if files := unpacked(t, there[1]); !strings.Contains(files["dmesg.txt"], xid79) {
		t.Errorf("the evidence of the repair lacks its fault:\n%s", files["index.txt"])
	}
	r.minFree(99)
	if v, now := repaired(), r.bundles(); v.Bundle != "" || v.Phase != visit.Passed || !slices.Equal(now, there) {
		t.Errorf("with a full disk the visit is %+v, and the node has %q", v, now)
	}
	r.actions(2, 0)
}
