package machine

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// pauseImage is what containerd keeps a pod's namespaces with.
const pauseImage = "docker.io/e2e/pause:1"

// pause compiles the source that Kubernetes makes its pause image from and writes an image with it. Where pods share
// their processes it reaps those whose parents have ended.
func pause(dir, archive string) error {
	ctx := context.Background()
	root, err := components.Root()
	if err != nil {
		return err
	}
	kubernetes, err := components.Kube.ModuleDir(ctx, root)
	if err != nil {
		return err
	}
	program := filepath.Join(dir, "pause")
	source := filepath.Join(kubernetes, "build", "pause", "linux", "pause.c")
	if out, err := exec.CommandContext(ctx, "gcc", "-static", "-Os", "-o", program, source).CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w\n%s", source, err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return writeImage(archive, pauseImage, "/pause", entry{"pause", content})
}

// Busybox writes an image of that name with Debian's busybox, and returns its archive.
func (m *Machine) Busybox(t *testing.T, name string) string {
	t.Helper()
	packages, err := filepath.Glob(filepath.Join(m.Root, "bin", "images", "debian", "busybox-static_*_"+runtime.GOARCH+".deb"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("busybox: %q, %v; run make bin/images/debian", packages, err)
	}
	dir := filepath.Join(m.Dir, "busybox")
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "-x", packages[0], dir).CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v\n%s", packages[0], err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, "bin", "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	var programs []entry
	for _, program := range []string{"sh", "sleep", "rm"} {
		programs = append(programs, entry{"bin/" + program, content})
	}
	if err := writeImage(filepath.Join(m.Dir, "busybox.tar"), name, "/bin/sh", programs...); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(m.Dir, "busybox.tar")
}

// writeImage writes an image with some programs.
func writeImage(archive, name, entrypoint string, programs ...entry) error {
	layer, err := tarball(programs...)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH, "config": map[string]any{"Entrypoint": []string{entrypoint}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	image, err := tarball(entry{"manifest.json", manifest}, entry{"config.json", config}, entry{"layer.tar", layer})
	if err != nil {
		return err
	}
	return os.WriteFile(archive, image, 0o644)
}

type entry struct {
	name    string
	content []byte
}

func tarball(entries ...entry) ([]byte, error) {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, e := range entries {
		if err := w.WriteHeader(&tar.Header{Name: e.name, Mode: 0o755, Size: int64(len(e.content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return packed.Bytes(), err
}
