package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

const epoch = 1700000000

// makeImages builds all images from the repository at root for this machine, and returns where they are and their digests.
func makeImages(t *testing.T, root string) (out, digests string) {
	t.Helper()
	out = t.TempDir()
	debs, err := filepath.Abs("../../bin/images/debian")
	if err != nil {
		t.Fatal(err)
	}
	o, err := parse([]string{"-root", root, "-debs", debs, "-out", out, "-platforms", "linux/" + runtime.GOARCH, "-version", "v1.2.3", "-unpinned"},
		func(string) string { return "1700000000" })
	if err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	if err := run(t.Context(), o, &printed); err != nil {
		t.Fatal(err)
	}
	return out, printed.String()
}

// once holds the images that all tests check, and the sources that they are made from.
var once = struct {
	sync.Once
	dir, digests string
}{}

// made returns the images of this repository. The first call builds them.
func made(t *testing.T) (out, digests string) {
	t.Helper()
	once.Do(func() {
		dir, err := os.MkdirTemp("", "pitcrew-images-test-")
		if err != nil {
			t.Fatal(err)
		}
		once.dir = dir
		copySources(t, dir+"/sources")
		built, digests := makeImages(t, dir+"/sources")
		if err := os.CopyFS(dir+"/out", os.DirFS(built)); err != nil {
			t.Fatal(err)
		}
		once.digests = digests
	})
	if once.digests == "" {
		t.Fatal("the images could not be built")
	}
	return once.dir + "/out", once.digests
}

func TestMain(m *testing.M) {
	m.Run()
	os.RemoveAll(once.dir)
}

// copySources copies the files of this repository that git tracks or would add.
func copySources(t *testing.T, to string) {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "ls-files", "--cached", "--others", "--exclude-standard", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, not yet committed
		}
		path := filepath.Join(to, name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// content is an image as a container runtime sees it.
type content struct {
	config  v1.Config
	headers map[string]*tar.Header
	files   map[string]string
}

func open(t *testing.T, name string) content {
	t.Helper()
	out, _ := made(t)
	archive, err := os.Open(filepath.Join(out, name+".tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	dir := t.TempDir()
	each(t, archive, func(h *tar.Header, text string) {
		path := filepath.Join(dir, h.Name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil && h.Typeflag == tar.TypeReg {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	images, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	image := sole(t, sole(t, images, v1.ImageIndex.ImageIndex), v1.ImageIndex.Image)
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !config.Created.Equal(time.Unix(epoch, 0)) || config.Architecture != runtime.GOARCH {
		t.Errorf("%s is of %s, for %s", name, config.Created, config.Architecture)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	c := content{config.Config, map[string]*tar.Header{}, map[string]string{}}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		each(t, r, func(h *tar.Header, text string) {
			c.headers["/"+strings.TrimSuffix(h.Name, "/")] = h
			c.files["/"+h.Name] = text
		})
	}
	return c
}

// sole returns the only entry of an index.
func sole[T any](t *testing.T, index v1.ImageIndex, get func(v1.ImageIndex, v1.Hash) (T, error)) T {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("index %v: %v", manifest, err)
	}
	one, err := get(index, manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return one
}

func each(t *testing.T, archive io.Reader, do func(*tar.Header, string)) {
	t.Helper()
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		do(h, string(text))
	}
}

func TestImagesBelongToRootAndToOneTime(t *testing.T) {
	for _, i := range images {
		for path, h := range open(t, i.name).headers {
			if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(time.Unix(epoch, 0)) || h.Mode&0o022 != 0 && h.Mode&0o1000 == 0 && h.Typeflag != tar.TypeSymlink {
				t.Errorf("%s: %s is of %d:%d, %s, mode %o", i.name, path, h.Uid, h.Gid, h.ModTime, h.Mode)
			}
		}
	}
}

// NPD ends, with all its monitors, when a program that one of them names is missing.
func TestEveryMonitorFindsItsPlugin(t *testing.T) {
	shipped, err := filepath.Glob("../../monitors/*.json")
	if err != nil || len(shipped) == 0 {
		t.Fatal(shipped, err)
	}
	for _, name := range []string{"npd-plugins", "plugins"} {
		c := open(t, name)
		for _, path := range shipped {
			var monitor struct{ Rules []struct{ Path string } }
			text := c.files["/opt/pitcrew/monitors/"+filepath.Base(path)]
			if err := json.Unmarshal([]byte(text), &monitor); err != nil || len(monitor.Rules) == 0 {
				t.Errorf("%s: %s: %v", name, filepath.Base(path), err)
			}
			for _, rule := range monitor.Rules {
				if h, ok := c.headers[rule.Path]; !ok || h.Mode != 0o755 {
					t.Errorf("%s: %s runs %s, which does not exist or is not a program", name, filepath.Base(path), rule.Path)
				}
			}
		}
	}
}

// The Dockerfiles are for users. Their settings for running the image must be those of the images made here.
func TestDockerfilesAgree(t *testing.T) {
	for _, i := range images {
		text, err := os.ReadFile(filepath.Join("..", i.name, "Dockerfile"))
		if err != nil {
			t.Fatal(err)
		}
		c := open(t, i.name)
		entrypoint, err := json.Marshal(c.config.Entrypoint)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"USER " + c.config.User, "WORKDIR " + c.config.WorkingDir, "ENTRYPOINT " + string(entrypoint)} {
			if !slices.Contains(strings.Split(string(text), "\n"), want) {
				t.Errorf("%s/Dockerfile has no %q", i.name, want)
			}
		}
		if h, ok := c.headers[c.config.Entrypoint[0]]; !ok || h.Mode != 0o755 {
			t.Errorf("%s has no program %s", i.name, c.config.Entrypoint[0])
		}
		for _, match := range regexp.MustCompile(`(?m)^FROM (?:--platform=\S+ )?golang:([0-9.]+)-`).FindAllStringSubmatch(string(text), -1) {
			if "go"+match[1] != runtime.Version() {
				t.Errorf("%s/Dockerfile compiles with Go %s; these images are made with %s", i.name, match[1], runtime.Version())
			}
		}
	}
}

// A chroot is enough to test whether a program finds the libraries that it loads.
func TestProgramsStart(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("chroot needs root")
	}
	for image, commands := range map[string][][]string{
		"npd-plugins": {{"/node-problem-detector", "--version"}, {"/opt/pitcrew/bin/gpucount", "-version"}, {"/opt/pitcrew/bin/dcgm", "-version"}, {"/opt/pitcrew/bin/xid", "-version"}, {"/opt/pitcrew/bin/repair", "-version"}},
		"remediator":  {{"/remediator", "-h"}, {"/remediator", "-version"}, {"/kubectl-pitcrew", "-h"}},
		"preflight":   {{"/opt/pitcrew/bin/preflight", "-h"}, {"/opt/pitcrew/bin/preflight", "-version"}, {"/bin/sh", "-c", "/opt/pitcrew/bin/ecc -version"}},
		"plugins":     {{"/install", "/tmp"}},
	} {
		c, root := open(t, image), t.TempDir()
		for path, h := range c.headers {
			to := filepath.Join(root, path)
			err := os.MkdirAll(filepath.Dir(to), 0o755)
			switch {
			case err != nil:
			case h.Typeflag == tar.TypeDir:
				err = os.MkdirAll(to, 0o755)
			case h.Typeflag == tar.TypeSymlink:
				err = os.Symlink(h.Linkname, to)
			default:
				err = os.WriteFile(to, []byte(c.files[path]), fs.FileMode(h.Mode).Perm())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, command := range commands {
			out, err := exec.CommandContext(t.Context(), "chroot", append([]string{root}, command...)...).CombinedOutput()
			var exit *exec.ExitError
			if help := command[len(command)-1] == "-h" && errors.As(err, &exit) && exit.ExitCode() <= 2; err != nil && !help {
				t.Errorf("%s: %q: %v\n%s", image, command, err, out)
			}
			if command[1] == "-version" && !strings.HasSuffix(string(out), "v1.2.3\n") {
				t.Errorf("%s: %q prints %s", image, command, out)
			}
		}
	}
}

func TestTheSameSourcesElsewhereGiveTheSameBits(t *testing.T) {
	_, want := made(t)
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.CopyFS(elsewhere, os.DirFS(once.dir+"/sources")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(elsewhere + "/bin"); err != nil {
		t.Fatal(err)
	}
	if _, digests := makeImages(t, elsewhere); digests != want {
		t.Error(cmp.Diff(want, digests))
	}
}

func TestTheListNamesModulesAndPackages(t *testing.T) {
	out, _ := made(t)
	file, err := os.Open(filepath.Join(out, "npd-plugins-"+runtime.GOARCH+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(file, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, c := range *bom.Components {
		versions[c.Name] = c.Version
	}
	locked, err := readLock("../debian.lock")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libc6", "ca-certificates"} {
		if !slices.ContainsFunc(locked, func(d debianPackage) bool { return d.name == name }) || versions[name] == "" {
			t.Errorf("%s: %q", name, versions[name])
		}
	}
	for module, dir := range map[string]string{"github.com/NVIDIA/go-nvml": "../..", "k8s.io/node-problem-detector": "../../e2e/components/npd"} {
		pinned, err := exec.CommandContext(t.Context(), "go", "list", "-C", dir, "-m", "-f", "{{.Version}}", module).Output()
		if err != nil {
			t.Fatal(err)
		}
		if versions[module] != strings.TrimSpace(string(pinned)) {
			t.Errorf("%s: %q, pinned is %s", module, versions[module], pinned)
		}
	}
	if versions["node-problem-detector"] != versions["k8s.io/node-problem-detector"] || versions["xid"] != "v1.2.3" || versions["stdlib"] != runtime.Version() {
		t.Errorf("detector %q, xid %q, Go %q", versions["node-problem-detector"], versions["xid"], versions["stdlib"])
	}
}

func TestAnotherPackageThanThePinnedOneIsRefused(t *testing.T) {
	debs := t.TempDir()
	if err := os.WriteFile(filepath.Join(debs, "libc6_2.36-10_amd64.deb"), []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := platform{architecture: "amd64", debs: debs, packages: []debianPackage{{"libc6", "amd64", "2.36-9", "00"}}}
	if _, _, err := p.find("libc6"); err == nil || !strings.Contains(err.Error(), "is not version 2.36-9 with SHA-256 00") {
		t.Errorf("got %v", err)
	}
	p.unpinned = true
	if d, _, err := p.find("libc6"); err != nil || d.version != "2.36-10" {
		t.Errorf("unpinned: %v, %v", d, err)
	}
}

func TestAProgramThatCannotStartInItsImageIsRefused(t *testing.T) {
	c := open(t, "npd-plugins")
	detector := file{path: "/node-problem-detector", content: []byte(c.files["/node-problem-detector"])}
	plugin := file{path: "/opt/pitcrew/bin/ecc", content: []byte(c.files["/opt/pitcrew/bin/ecc"])}
	if err := linked([][]file{{}, {detector}}); err != nil {
		t.Errorf("a static program: %v", err)
	}
	if err := linked([][]file{{}, {plugin}}); err == nil || err.Error() != "/opt/pitcrew/bin/ecc: libc.so.6 is not in the image" {
		t.Errorf("without the C library: %v", err)
	}
	// It defines a few versions, as an old C library would.
	for path, text := range c.files {
		if filepath.Base(path) == "libBrokenLocale.so.1" {
			old := file{path: "/lib/libc.so.6", content: []byte(text)}
			if err := linked([][]file{{old}, {plugin}}); err == nil || !strings.Contains(err.Error(), "compile it on an older distribution") {
				t.Errorf("with an older C library: %v", err)
			}
		}
	}
}
