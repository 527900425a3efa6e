package components

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components/fetch"
)

// released is a repository whose component tiny has a release of two programs.
type released struct {
	*testing.T
	root  string
	tiny  Component
	files map[string]string // what the server has
	asked int
}

func newReleased(t *testing.T, programs ...string) *released {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv(VariableComponents, "")
	r := &released{T: t, root: repository(t, "require golang.org/x/sys v0.47.0\n"), tiny: tiny, files: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Method == http.MethodGet {
			r.asked++
		}
		text, found := r.files[request.URL.Path]
		if !found {
			http.NotFound(w, request)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	before := kubernetesReleases
	t.Cleanup(func() { kubernetesReleases = before })
	kubernetesReleases = server.URL + "/release/"
	for _, program := range programs {
		path, text := "/release/v0.47.0/bin/linux/amd64/"+program, "#!/bin/sh\nprintf '%s|' fetched "+program+" \"$@\"\n"
		r.files[path], r.files[path+".sha256"] = text, fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	}
	r.has(programs...)
	return r
}

// has are the programs that the release of the component has from now on.
func (r *released) has(programs ...string) {
	r.tiny.release = func(version, _ string) []fetch.File { return kubernetesRelease(version, "amd64", programs...) }
}

// build returns what it printed, and what the program prints then.
func (r *released) build() (progress, output string, err error) {
	r.Helper()
	var lines bytes.Buffer
	if err := Build(r.Context(), &lines, r.root, r.tiny); err != nil {
		return lines.String(), "", err
	}
	out, err := exec.CommandContext(r.Context(), r.tiny.Path(r.root), "two", "words and more").CombinedOutput()
	return lines.String(), string(out), err
}

func (r *released) wants(what, output string) (progress string) {
	r.Helper()
	progress, got, err := r.build()
	if err != nil || got != output {
		r.Errorf("%s: the program prints %q, %v; the build\n%s", what, got, err, progress)
	}
	return progress
}

const compiled = "tiny v0.47.0"

func TestAReleaseIsFetchedInPlaceOfABuild(t *testing.T) {
	r := newReleased(t, "one")
	progress := r.wants("fetched", "fetched|one|two|words and more|")
	if want := "fetching tiny v0.47.0 from " + kubernetesReleases + "v0.47.0/bin/linux/amd64/one\n"; progress != want {
		t.Errorf("progress %q", progress)
	}
	asked := r.asked
	if progress := r.wants("nothing has changed", "fetched|one|two|words and more|"); progress != "" || r.asked != asked {
		t.Errorf("progress %q, asked %d times", progress, r.asked-asked)
	}
	t.Setenv(VariableComponents, "build")
	r.wants("forced to compile", compiled)
	t.Setenv(VariableComponents, "")
	r.wants("what is compiled stays", compiled)
	if r.asked != asked {
		t.Errorf("asked %d times more", r.asked-asked)
	}
}

func TestSeveralProgramsOfAReleaseAreStartedByTheirNames(t *testing.T) {
	r := newReleased(t, "one", "two")
	r.wants("fetched", "fetched|two|words and more|")
	t.Setenv(VariableComponents, "build")
	r.wants("forced to compile", compiled)
	if err := os.Remove(r.tiny.Path(r.root) + ".stamp"); err != nil {
		t.Fatal(err)
	}
	t.Setenv(VariableComponents, "")
	r.wants("fetched in place of what was compiled", "fetched|two|words and more|")
}

// After a fetch of another release that has replaced a part of the programs and has failed then, as after Ctrl-C, the first one is fetched again.
func TestAPartOfAnotherReleaseIsNotTakenForThisOne(t *testing.T) {
	r := newReleased(t, "one", "two", "three")
	r.has("one", "two")
	r.wants("fetched", "fetched|two|words and more|")
	r.files["/release/v0.47.0/bin/linux/amd64/three"] += "# more\n"
	r.has("two", "three")
	if _, _, err := r.build(); err == nil {
		t.Fatal("another release is fetched")
	}
	asked := r.asked
	r.has("one", "two")
	r.wants("fetched again", "fetched|two|words and more|")
	if r.asked == asked {
		t.Error("the server was not asked again")
	}
}

func TestWhatCannotBeFetchedIsCompiled(t *testing.T) {
	r := newReleased(t, "one")
	delete(r.files, "/release/v0.47.0/bin/linux/amd64/one")
	progress := r.wants("missing", compiled)
	if want := "compiles tiny: its release cannot be fetched: " + kubernetesReleases + "v0.47.0/bin/linux/amd64/one answers 404 Not Found\n"; !strings.Contains(progress, want) {
		t.Errorf("progress %q", progress)
	}
	r = newReleased(t, "one")
	gone := httptest.NewServer(nil)
	gone.Close()
	kubernetesReleases = gone.URL + "/"
	if progress := r.wants("no network", compiled); !strings.HasPrefix(progress, "compiles tiny: their releases cannot be reached (") {
		t.Errorf("progress %q", progress)
	}
}

func TestAWrongReleaseEndsTheBuild(t *testing.T) {
	r := newReleased(t, "one")
	r.files["/release/v0.47.0/bin/linux/amd64/one"] += "# more\n"
	_, _, err := r.build()
	if err == nil || !strings.HasPrefix(err.Error(), "fetch tiny: "+kubernetesReleases+"v0.47.0/bin/linux/amd64/one is refused: its checksum is sha256:") ||
		!strings.HasSuffix(err.Error(), ". With COMPONENTS=build it is compiled") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(r.tiny.Path(r.root)); err == nil {
		t.Error("it is there")
	}
	t.Setenv(VariableComponents, "builds")
	if _, _, err := r.build(); err == nil || err.Error() != `build tiny: COMPONENTS=builds is unknown; it is empty or build` {
		t.Errorf("got %v", err)
	}
}

// The addresses of the four kinds of release, for a look at what they are.
func TestTheReleasesOfTheComponents(t *testing.T) {
	t.Setenv(VariableComponents, "")
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	for component, want := range map[*Component]string{
		&KWOK:                `https://github.com/kubernetes-sigs/kwok/releases/download/v0\.[0-9.]+/kwok-linux-(amd|arm)64`,
		&Kubelet:             `https://dl.k8s.io/release/v1\.[0-9.]+/bin/linux/(amd|arm)64/kubelet`,
		&NodeProblemDetector: `https://github.com/kubernetes/node-problem-detector/releases/download/(v[0-9.]+)/node-problem-detector-v[0-9.]+-linux_(amd|arm)64\.tar\.gz`,
	} {
		r, err := component.recipe(t.Context(), root)
		if err != nil || len(r.files) != 1 || !matches(want, r.files[0].URL) {
			t.Errorf("%s: %+v, %v", component.Name, r.files, err)
		}
	}
	r, err := kube("").recipe(t.Context(), root)
	if err != nil || len(r.files) != 5 || !matches(`https://github.com/etcd-io/etcd/releases/download/v3\.[0-9.]+/etcd-v3\.[0-9.]+-linux-(amd|arm)64\.tar\.gz`, r.files[4].URL) {
		t.Errorf("%+v, %v", r.files, err)
	}
	if other, err := KWOK.For("riscv64").recipe(t.Context(), root); err != nil || len(other.files) > 0 {
		t.Errorf("for another architecture: %+v, %v", other.files, err)
	}
}

func matches(pattern, text string) bool {
	return regexp.MustCompile("^" + pattern + "$").MatchString(text)
}
