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
	"slices"
	"strings"
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
	return addLayer(archive, name, map[string]any{
		"os": "linux", "architecture": runtime.GOARCH, "config": map[string]any{"Entrypoint": []string{entrypoint}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{}},
	}, nil, programs)
}

// addLayer writes an image with the configuration and the layers of another one, and a layer of files above them.
func addLayer(archive, name string, config map[string]any, layers, files []entry) error {
	layer, err := tarball(files...)
	if err != nil {
		return err
	}
	below, ok := config["rootfs"].(map[string]any)
	ids, isList := below["diff_ids"].([]any)
	if !ok || !isList {
		return fmt.Errorf("an image without layers: %v", config)
	}
	below["diff_ids"] = append(ids, fmt.Sprintf("sha256:%x", sha256.Sum256(layer)))
	delete(config, "history") // it has an entry for each layer
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	layers = append(slices.Clip(layers), entry{"layer.tar", layer})
	var names []string
	for _, l := range layers {
		names = append(names, l.name)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": names}})
	if err != nil {
		return err
	}
	image, err := tarball(append(layers, entry{"manifest.json", manifest}, entry{"config.json", text})...)
	if err != nil {
		return err
	}
	return os.WriteFile(archive, image, 0o644)
}

// Derive imports an image with that name, which has the files of this machine at these paths above those of one of our images, as a
// Dockerfile with COPY makes it.
func (m *Machine) Derive(t *testing.T, image, name string, copies map[string]string) {
	t.Helper()
	blobs := filepath.Join(m.Dir, "derive")
	if err := os.Mkdir(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.RemoveAll(blobs); err != nil {
			t.Error(err)
		}
	}()
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", blobs, "-xf", filepath.Join(m.Dir, image+".tar")).CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v\n%s", image, err, out)
	}
	type blob struct{ Digest string }
	file := func(b blob) string { return filepath.Join("blobs", strings.ReplaceAll(b.Digest, ":", "/")) }
	read := func(path string, into any) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(blobs, path))
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			t.Fatalf("%s of %s: %v", path, image, err)
		}
	}
	var index struct{ Manifests []blob }
	read("index.json", &index)
	read(file(index.Manifests[0]), &index) // of the platforms, which is one here
	var manifest struct {
		Config blob
		Layers []blob
	}
	read(file(index.Manifests[0]), &manifest)
	var config map[string]any
	read(file(manifest.Config), &config)
	var layers, files []entry
	for _, l := range manifest.Layers {
		content, err := os.ReadFile(filepath.Join(blobs, file(l)))
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, entry{strings.TrimPrefix(l.Digest, "sha256:") + ".tar", content})
	}
	for to, from := range copies {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, entry{to, content})
	}
	archive := filepath.Join(blobs, "derived.tar")
	if err := addLayer(archive, name, config, layers, files); err != nil {
		t.Fatal(err)
	}
	m.Ctr(t, "images", "import", archive)
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
