package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"fmt"
	"io"
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

	"sigs.k8s.io/yaml"
)

const root = "../.."

const version = "v0.2.0"

var epoch = time.Unix(1700000000, 0).UTC()

// here is the platform of the tests, the only one that they build the plugin for.
var here = platform{runtime.GOOS, runtime.GOARCH}

// newOptions are those of `make release` for this platform; the images are not real.
func newOptions(t *testing.T, out string) options {
	t.Helper()
	o, err := parse([]string{"-root", root, "-out", out, "-images", fakeImages(t, version), "-version", version, "-platforms", here.os + "/" + here.arch},
		func(string) string { return fmt.Sprint(epoch.Unix()) })
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// fakeImages are archives that contain only a tag, and their lists.
func fakeImages(t *testing.T, tag string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range images {
		var packed bytes.Buffer
		w := tar.NewWriter(&packed)
		index := fmt.Sprintf(`{"manifests": [{"annotations": {"org.opencontainers.image.ref.name": %q}}]}`, tag)
		for _, f := range []file{{name: "oci-layout", content: []byte("{}")}, {name: "index.json", content: []byte(index)}} {
			if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.content))}); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(f.content); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name+".tar"), packed.String())
		write(t, filepath.Join(dir, name+"-amd64.cdx.json"), "{}")
	}
	return dir
}

var (
	once    sync.Once
	madeDir string
)

// made returns the folder of a release. The first call makes it.
func made(t *testing.T) string {
	t.Helper()
	once.Do(func() {
		dir, err := os.MkdirTemp("", "pitcrew-release-test-")
		if err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), newOptions(t, dir), io.Discard); err != nil {
			t.Fatal(err)
		}
		madeDir = dir
	})
	if madeDir == "" {
		t.Fatal("the release could not be made")
	}
	return madeDir
}

func TestMain(m *testing.M) {
	m.Run()
	os.RemoveAll(madeDir)
}

func TestTheReleaseIsComplete(t *testing.T) {
	var want []string
	for _, name := range images {
		want = append(want, name+".tar", name+"-amd64.cdx.json")
	}
	want = append(want, "checksums.txt", "install.yaml", "krew.yaml", "pitcrew-0.2.0.tgz", "policy.yaml", here.archive())
	slices.Sort(want)
	if got := names(t, made(t)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestThePluginRunsAndPrintsTheRelease(t *testing.T) {
	files, err := unpackTar(filepath.Join(made(t), here.archive()))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.content, f.mode()); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := names(t, dir), []string{"LICENSE", "kubectl-pitcrew", "kubectl_complete-pitcrew"}; !slices.Equal(got, want) {
		t.Errorf("the archive holds %q, want %q", got, want)
	}
	if read(t, filepath.Join(dir, "LICENSE")) != read(t, filepath.Join(root, "LICENSE")) {
		t.Error("its licence is another one")
	}
	for _, args := range [][]string{{"version"}, {"--version"}} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "kubectl-pitcrew"), args...).CombinedOutput()
		// The command also says what runs in the cluster, or why it does not know.
		if err != nil || !strings.HasPrefix(string(out), "kubectl-pitcrew v0.2.0\n") {
			t.Errorf("kubectl-pitcrew %q: %v, %s", args, err, out)
		}
	}
	complete := exec.CommandContext(t.Context(), filepath.Join(dir, "kubectl_complete-pitcrew"), "vers")
	complete.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	if out, err := complete.Output(); err != nil || !strings.HasPrefix(string(out), "version\t") {
		t.Errorf("completion: %v, %s", err, out)
	}
}

func TestTheChecksumsAreThoseOfTheFiles(t *testing.T) {
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "checksums.txt")
	check.Dir = made(t)
	out, err := check.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range names(t, made(t)) {
		if name != "checksums.txt" && !strings.Contains(string(out), name+": OK\n") {
			t.Errorf("%s has no checksum", name)
		}
	}
}

// plugin is what krew reads of the manifest.
type plugin struct {
	APIVersion, Kind string
	Metadata         struct{ Name string }
	Spec             struct {
		Version, ShortDescription, Description, Homepage string
		Platforms                                        []struct {
			Selector         struct{ MatchLabels map[string]string }
			URI, SHA256, Bin string
		}
	}
}

func parsePlugin(t *testing.T, text string) (p plugin) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" || p.Metadata.Name != "pitcrew" || p.Spec.Version != version ||
		p.Spec.ShortDescription == "" || p.Spec.Description == "" || p.Spec.Homepage == "" {
		t.Errorf("%+v", p)
	}
	return p
}

func TestTheKrewManifestHasTheChecksumsOfTheArchives(t *testing.T) {
	p := parsePlugin(t, read(t, filepath.Join(made(t), "krew.yaml")))
	if len(p.Spec.Platforms) != 1 {
		t.Fatalf("%+v", p)
	}
	sum, err := checksum(filepath.Join(made(t), filepath.Base(p.Spec.Platforms[0].URI)))
	if err != nil || p.Spec.Platforms[0].SHA256 != sum {
		t.Errorf("%+v: %v, the file has %s", p.Spec.Platforms[0], err, sum)
	}
}

func TestTheKrewManifestHasEveryPlatform(t *testing.T) {
	sums := map[platform]string{}
	for i, p := range platforms {
		sums[p] = strings.Repeat(fmt.Sprint(i), 64)
	}
	text, err := krew(options{root: root, version: version, platforms: platforms}, sums)
	if err != nil {
		t.Fatal(err)
	}
	p := parsePlugin(t, text)
	if len(p.Spec.Platforms) != len(platforms) {
		t.Fatalf("%+v", p)
	}
	for i, got := range p.Spec.Platforms {
		want := platforms[i]
		if got.Selector.MatchLabels["os"] != want.os || got.Selector.MatchLabels["arch"] != want.arch || len(got.Selector.MatchLabels) != 2 ||
			got.SHA256 != sums[want] || got.Bin != want.program() ||
			got.URI != "https://github.com/pitcrew-dev/pitcrew/releases/download/v0.2.0/"+want.archive() {
			t.Errorf("%+v: %+v", want, got)
		}
	}
}

func TestTheChartRendersWithTheRelease(t *testing.T) {
	o := newOptions(t, t.TempDir())
	chart := filepath.Join(made(t), "pitcrew-0.2.0.tgz")
	shown, err := helm(t.Context(), o, "show", "chart", chart)
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ Version, AppVersion string }
	if err := yaml.Unmarshal(shown, &about); err != nil || about.Version != "0.2.0" || about.AppVersion != version {
		t.Errorf("%v: %s", err, shown)
	}
	rendered, err := helm(t.Context(), o, "template", "pitcrew", chart, "--namespace", "pitcrew", "--set", "pools[0].name=gpu,pools[0].preset=nvidia")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"the chart": string(rendered), "install.yaml": read(t, filepath.Join(made(t), "install.yaml"))} {
		if got := imagesIn(text); !slices.Equal(got, []string{"npd-plugins:v0.2.0", "remediator:v0.2.0"}) {
			t.Errorf("%s has the images %q", file, got)
		}
	}
}

func TestTheSameCommitGivesTheSameBits(t *testing.T) {
	again := t.TempDir()
	if err := run(t.Context(), newOptions(t, again), io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, name := range names(t, made(t)) {
		if read(t, filepath.Join(made(t), name)) != read(t, filepath.Join(again, name)) {
			t.Errorf("%s differs", name)
		}
	}
}

func TestImagesOfAnotherReleaseAreRefused(t *testing.T) {
	o := newOptions(t, t.TempDir())
	o.images = fakeImages(t, "v0.1.0")
	if err := run(t.Context(), o, io.Discard); err == nil || !strings.HasSuffix(err.Error(), "is of v0.1.0, not of v0.2.0: run `make images VERSION=v0.2.0`") {
		t.Error(err)
	}
}

func TestOtherVersionsAndPlatformsAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-version=0.2.0"}, {"-version=v0.2"}, {"-version=v0.2.0+build"}, {"-version=v01.2.0"}, {"-version=v0.2.0", "-platforms=plan9/amd64"},
	} {
		if _, err := parse(args, func(string) string { return "" }); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
	if _, err := parse([]string{"-version=v0.2.0-rc.1"}, func(string) string { return "" }); err != nil {
		t.Error(err)
	}
}

func TestAZipArchiveHasOneTimeAndTheModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.zip")
	if err := packZip(path, []file{{"kubectl-pitcrew.exe", true, []byte("program")}, {"LICENSE", false, []byte("text")}}, epoch); err != nil {
		t.Fatal(err)
	}
	r, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got []string
	for _, f := range r.File {
		content, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(content)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(f.Name, " ", f.Mode(), " ", f.Modified.Unix(), " ", string(text)))
	}
	if want := []string{"kubectl-pitcrew.exe -rwxr-xr-x 1700000000 program", "LICENSE -rw-r--r-- 1700000000 text"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// Chart.yaml names the images of the last release. So must every manifest that is used without the chart.
func TestEveryManifestNamesTheImagesOfTheChart(t *testing.T) {
	var chart struct{ AppVersion string }
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(root, "manifests/chart/Chart.yaml"))), &chart); err != nil {
		t.Fatal(err)
	}
	checked := 0
	list := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "manifests/*.yaml")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(string(out)) {
		for _, image := range imagesIn(read(t, filepath.Join(root, path))) {
			checked++
			if _, tag, _ := strings.Cut(image, ":"); tag != chart.AppVersion {
				t.Errorf("%s names %s; Chart.yaml names %s", path, image, chart.AppVersion)
			}
		}
	}
	if checked == 0 {
		t.Error("found no image")
	}
}

var image = regexp.MustCompile(`ghcr\.io/pitcrew-dev/([a-z-]+:[A-Za-z0-9._-]+)`)

// imagesIn returns our images that a text names, each once.
func imagesIn(text string) (found []string) {
	for _, match := range image.FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
