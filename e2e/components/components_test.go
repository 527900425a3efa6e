package components

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tiny is a component that builds in no time.
var tiny = Component{
	Name: "tiny", Dir: "tiny", Package: ".", Module: "golang.org/x/sys",
	versionVars: func(version string) map[string]string { return map[string]string{"main.version": version} },
}

const tinyMain = `package main

import "os"

var version string

func main() { os.Stdout.WriteString("tiny " + version) }
`

func TestAComponentIsBuiltOnceAndAgainWhenItChanges(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	build := func() string {
		t.Helper()
		var progress bytes.Buffer
		if err := Build(t.Context(), &progress, root, tiny); err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(progress.String(), "\n")
		return line
	}
	const building = "reading what there is to compile; sources that are missing are downloaded"
	if diff := cmp.Diff(building, build()); diff != "" {
		t.Error("first build:", diff)
	}
	if diff := cmp.Diff("", build()); diff != "" {
		t.Error("nothing has changed:", diff)
	}
	if err := os.Remove(tiny.Path(root)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(building, build()); diff != "" {
		t.Error("the binary is gone:", diff)
	}
	main := filepath.Join(root, "e2e", "components", "tiny", "main.go")
	if err := os.WriteFile(main, []byte(tinyMain+"// changed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(building, build()); diff != "" {
		t.Error("a file has changed:", diff)
	}
	out, err := os.ReadFile(tiny.Path(root))
	if err != nil || !bytes.Contains(out, []byte("v0.47.0")) {
		t.Errorf("the binary does not know its version: %v", err)
	}
}

func TestTheRootMayBeARelativePath(t *testing.T) {
	t.Chdir(filepath.Join(repository(t, "require golang.org/x/sys v0.47.0\n"), "e2e"))
	if err := Build(t.Context(), &bytes.Buffer{}, "..", tiny); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tiny.Path("..")); err != nil {
		t.Error(err)
	}
}

func TestTwoBuildsAtOnceBuildOnce(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	var progress [2]bytes.Buffer
	var all sync.WaitGroup
	for i := range progress {
		all.Go(func() {
			if err := Build(t.Context(), &progress[i], root, tiny); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if lines := progress[0].String() + progress[1].String(); strings.Count(lines, "building tiny (golang.org/x/sys v0.47.0)") != 1 {
		t.Errorf("progress of both builds:\n%s", lines)
	}
}

func TestAComponentIsBuiltForAnotherArchitectureBesideThisOnes(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		if err := Build(t.Context(), &bytes.Buffer{}, root, tiny.For(arch)); err != nil {
			t.Fatal(err)
		}
		binary, err := elf.Open(tiny.For(arch).Path(root))
		if err != nil {
			t.Fatal(err)
		}
		if binary.Machine != machine {
			t.Errorf("built for %s: %s", arch, binary.Machine)
		}
	}
	if _, err := os.Stat(tiny.Path(root)); err != nil {
		t.Errorf("this machine's: %v", err)
	}
}

// The patch adds a package to the module.
func TestAPatchedComponentIsBuiltFromThePatchedSource(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "e2e", "components", "tiny", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("main.go", "package main\n\nimport \"golang.org/x/sys/tiny\"\n\nfunc main() { println(tiny.Text) }\n")
	patched := tiny
	patched.patch, patched.versionVars = "tiny.patch", nil
	const text = "--- /dev/null\n+++ b/tiny/tiny.go\n@@ -0,0 +1,3 @@\n+package tiny\n+\n+const Text = \"first\"\n"
	for _, word := range []string{"first", "second"} {
		write("tiny.patch", strings.Replace(text, "first", word, 1))
		if err := Build(t.Context(), &bytes.Buffer{}, root, patched); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), patched.Path(root)).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != word {
			t.Errorf("the program prints %q, %v", out, err)
		}
	}
	write("tiny.patch", "--- a/LICENSE\n+++ b/LICENSE\n@@ -1 +1 @@\n-another text\n+text\n")
	err := Build(t.Context(), &bytes.Buffer{}, root, patched)
	if err == nil || !strings.HasPrefix(err.Error(), "build tiny: apply tiny.patch to v0.47.0: ") {
		t.Errorf("got %v", err)
	}
}

func TestAFailedBuildQuotesTheCompiler(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	main := filepath.Join(root, "e2e", "components", "tiny", "main.go")
	if err := os.WriteFile(main, []byte("package main\n\nfunc main() { undefinedName() }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := Build(t.Context(), &bytes.Buffer{}, root, tiny)
	if err == nil || !strings.HasPrefix(err.Error(), "build tiny: go build in ") || !strings.Contains(err.Error(), "undefined: undefinedName") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(tiny.Path(root) + ".stamp"); err == nil {
		t.Error("it is stamped as built")
	}
}

// With other settings than those of the components, Kubernetes' libraries would compile twice.
func TestOnlyProgramsThatLoadALibraryAreBuiltWithCgo(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := BuildOurs(t.Context(), root, "./plugins/xid", "./plugins/ecc"); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{"xid": "0", "ecc": "1"} {
		info, err := buildinfo.ReadFile(filepath.Join(root, "bin", program))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range info.Settings {
			if s.Key == "CGO_ENABLED" && s.Value != want || want == "0" && s.Key == "-tags" {
				t.Errorf("%s is built with %s=%s", program, s.Key, s.Value)
			}
		}
	}
}

func TestARegistryThatRefusesOnceIsAskedAgain(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	if _, err := tiny.ModuleDir(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	cache, err := run(t.Context(), root, "env", "GOMODCACHE")
	if err != nil {
		t.Fatal(err)
	}
	files := http.FileServer(http.Dir(filepath.Join(strings.TrimSpace(string(cache)), "cache", "download")))
	var asked atomic.Int32
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(registry.Close)
	before := pauses
	t.Cleanup(func() { pauses = before })
	pauses = []time.Duration{0}
	empty := t.TempDir()
	for name, value := range map[string]string{"GOPROXY": registry.URL, "GOMODCACHE": empty, "GOSUMDB": "off", "GOFLAGS": "-modcacherw"} {
		t.Setenv(name, value)
	}
	dir, err := tiny.ModuleDir(t.Context(), root)
	if err != nil || !strings.HasPrefix(dir, empty) || asked.Load() < 2 {
		t.Errorf("%s, %v after %d requests", dir, err, asked.Load())
	}
}

func TestAComponentWithoutAPinIsRefused(t *testing.T) {
	root := repository(t, "")
	err := Build(t.Context(), &bytes.Buffer{}, root, tiny)
	if err == nil || !strings.HasSuffix(err.Error(), "e2e/components/tiny/go.mod does not require golang.org/x/sys") {
		t.Errorf("got %v", err)
	}
}

func TestEveryComponentIsPinned(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range append(slices.Clone(All), older(t, root)...) {
		t.Run(c.Name, func(t *testing.T) {
			if version, err := c.version(t.Context(), root); err != nil || !strings.HasPrefix(version, "v") {
				t.Errorf("version %q, %v", version, err)
			}
		})
	}
}

func TestRenovateKnowsEveryComponent(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "renovate.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		PackageRules []struct {
			GroupName         string
			MatchPackageNames []string
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	for _, rule := range config.PackageRules {
		if rule.GroupName != "components" {
			continue
		}
		for _, c := range All {
			if !slices.Contains(rule.MatchPackageNames, c.Module) {
				t.Errorf("renovate.json updates no %s", c.Module)
			}
		}
		return
	}
	t.Error("renovate.json lacks the group components")
}

// repository makes a folder with the component tiny in it.
func repository(t *testing.T, require string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "e2e", "components", "tiny")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod": "module example.com/tiny\n\ngo 1.26\n\n" + require, "main.go": tinyMain,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
