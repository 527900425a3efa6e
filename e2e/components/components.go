// Package components builds the real programs that the end-to-end tests and the demo run. They are pinned in modules
// below this folder, so that their dependencies never mix with the product's. The module of Kubernetes also pins KWOK and
// JobSet: they are built with its libraries, not with the older ones of their own releases, so that these compile once.
package components

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/components/fetch"
)

// Component is a program built from a pinned module.
type Component struct {
	// Name is the binary's name in bin/components.
	Name string
	// Dir is the folder below e2e/components with the go.mod that pins it.
	Dir string
	// Package is what is built, from inside Dir.
	Package string
	// Module is the module that Dir pins and whose version is the component's version.
	Module string

	arch string // the architecture it is built for; empty for this machine's
	// idle is true if the tests ask little of it, so that it need not be quick, and compiling it may be.
	idle bool
	tags string
	// patch is a file in Dir, with what is changed in the module's source before it is built.
	patch string
	// versionVars are the variables that upstream's own release build sets to the version.
	versionVars func(version string) map[string]string
	// release lists the files of the official release for this machine, given the component's version and, for [Kube], that of etcd; nil:
	// the component is always compiled.
	release func(version, etcd string) []fetch.File
}

// The components, in the order in which [Build] builds them.
var (
	// Kube is etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl in one program.
	Kube = kube(os.Getenv(VariableKubernetes))
	// Kubelet is not in [Kube]: only the tests with a real node need it.
	Kubelet = Component{
		Name: "kubelet", Dir: "kubernetes", Package: "k8s.io/kubernetes/cmd/kubelet", Module: "k8s.io/kubernetes",
		versionVars: kubernetesVersion,
		release: func(version, _ string) []fetch.File {
			return kubernetesRelease(version, runtime.GOARCH, "kubelet")
		},
	}
	// KWOK simulates the kubelets.
	KWOK = Component{
		Name: "kwok", Dir: "kubernetes", Package: "sigs.k8s.io/kwok/cmd/kwok", Module: "sigs.k8s.io/kwok",
		release: func(version, _ string) []fetch.File {
			return []fetch.File{{URL: githubReleases + "kubernetes-sigs/kwok/releases/download/" + version + "/kwok-linux-" + runtime.GOARCH}}
		},
	}
	// JobSet is the JobSet controller with its webhooks.
	JobSet = Component{
		Name: "jobset-controller", Dir: "kubernetes", Package: "sigs.k8s.io/jobset", Module: "sigs.k8s.io/jobset",
	}
	// NodeProblemDetector is built without journald, which would need cgo, and without the Stackdriver exporter.
	NodeProblemDetector = Component{
		Name: "node-problem-detector", Dir: "npd", Package: "k8s.io/node-problem-detector/cmd/nodeproblemdetector",
		Module: "k8s.io/node-problem-detector",
		tags:   "disable_stackdriver_exporter",
		versionVars: func(version string) map[string]string {
			return map[string]string{"k8s.io/node-problem-detector/pkg/version.version": version}
		},
		release: func(version, _ string) []fetch.File {
			url := githubReleases + "kubernetes/node-problem-detector/releases/download/" + version +
				"/node-problem-detector-" + version + "-linux_" + runtime.GOARCH + ".tar.gz"
			return []fetch.File{{URL: url, Sums: url + ".sha512", Member: "bin/node-problem-detector"}}
		},
	}
	// Helm renders and installs the chart as a user's helm does.
	Helm = Component{
		Name: "helm", Dir: "helm", Package: "helm.sh/helm/v4/cmd/helm", Module: "helm.sh/helm/v4",
		versionVars: func(version string) map[string]string {
			return map[string]string{"helm.sh/helm/v4/internal/version.version": version}
		},
	}
	// PrometheusOperator is never run: its module has the CRDs of the chart's monitoring objects.
	PrometheusOperator = Component{
		Name: "prometheus-operator", Dir: "prometheus-operator", Module: "github.com/prometheus-operator/prometheus-operator",
	}
	// Karpenter and ClusterAPI are never run: their modules have the CRDs that the example receiver writes.
	Karpenter  = Component{Name: "karpenter", Dir: "karpenter", Module: "sigs.k8s.io/karpenter"}
	ClusterAPI = Component{Name: "cluster-api", Dir: "cluster-api", Module: "sigs.k8s.io/cluster-api"}
	// The job operators, each with the CRDs and webhooks of its module. Those whose libraries of Kubernetes are of about the same version are pinned
	// in one module: what they share takes longest to compile, and is compiled once.

	// TrainingOperator is kubeflow's, for PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob and the v1 MPIJob.
	TrainingOperator = jobOperator("training-operator", "0.35", "github.com/kubeflow/training-operator", "/cmd/training-operator.v1")
	// MPIOperator is kubeflow's, for the v2beta1 MPIJob.
	MPIOperator = jobOperator("mpi-operator", "0.36", "github.com/kubeflow/mpi-operator", "/cmd/mpi-operator")
	// Trainer is kubeflow's, for TrainJob; it makes JobSets.
	Trainer = jobOperator("trainer", "0.36", "github.com/kubeflow/trainer/v2", "/cmd/trainer-controller-manager")
	// KubeRay is for RayCluster and RayJob.
	KubeRay = jobOperator("kuberay", "0.35", "github.com/ray-project/kuberay/ray-operator", "")
	// SchedulerPlugins is never run: its module, which KubeRay needs, has the CRD of the PodGroups that KubeRay makes.
	SchedulerPlugins = Component{Name: "scheduler-plugins", Dir: KubeRay.Dir, Module: "sigs.k8s.io/scheduler-plugins"}
	// LWS is the LeaderWorkerSet controller.
	LWS = jobOperator("lws", "0.36", "sigs.k8s.io/lws", "/cmd")
	// Kueue queues other controllers' jobs.
	Kueue = jobOperator("kueue", "0.36", "sigs.k8s.io/kueue", "/cmd/kueue")
	// VolcanoControllers, VolcanoWebhooks and VolcanoScheduler are Volcano.
	VolcanoControllers = volcano("controller-manager")
	VolcanoWebhooks    = volcano("webhook-manager")
	VolcanoScheduler   = volcano("scheduler")

	// SlurmOperator runs Slurm on Kubernetes. It is here because it reads cordons.
	SlurmOperator = Component{
		Name: "slurm-operator", Dir: "slurm-operator", Package: "github.com/SlinkyProject/slurm-operator/cmd/manager",
		Module: "github.com/SlinkyProject/slurm-operator", idle: true,
	}
	// DRAExampleDriver is a DRA driver whose devices are simulated. The patch gives them addresses on the PCI bus, as NVIDIA's driver does, and
	// the variable FIRST_CARD says which of them is gpu-0, as a boot may change it.
	DRAExampleDriver = Component{
		Name: "dra-example-driver", Dir: "dra-example-driver", Package: "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin",
		Module: "sigs.k8s.io/dra-example-driver", patch: "pci.patch", idle: true,
	}

	// GolangCILint is the linter.
	GolangCILint = Component{
		Name: "golangci-lint", Dir: "golangci-lint", Package: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint",
		Module: "github.com/golangci/golangci-lint/v2",
	}
	// Gotestsum runs go test, and a test that failed once more by itself.
	Gotestsum = Component{Name: "gotestsum", Dir: "gotestsum", Package: "gotest.tools/gotestsum", Module: "gotest.tools/gotestsum"}
	// Actionlint checks the workflows of GitHub.
	Actionlint = Component{
		Name: "actionlint", Dir: "actionlint", Package: "github.com/rhysd/actionlint/cmd/actionlint", Module: "github.com/rhysd/actionlint",
	}
	// Hugo makes the site of `make site`. No test of `make test` needs it.
	Hugo = Component{Name: "hugo", Dir: "hugo", Package: "github.com/gohugoio/hugo", Module: "github.com/gohugoio/hugo"}
	// Govulncheck reports known vulnerabilities.
	Govulncheck = Component{
		Name: "govulncheck", Dir: "govulncheck", Package: "golang.org/x/vuln/cmd/govulncheck", Module: "golang.org/x/vuln",
	}
)

// All lists every component.
var All = []Component{
	Kube, Kubelet, KWOK, JobSet, NodeProblemDetector, Helm, DRAExampleDriver,
	TrainingOperator, MPIOperator, Trainer, KubeRay, LWS, Kueue, SlurmOperator, VolcanoControllers, VolcanoWebhooks, VolcanoScheduler,
	GolangCILint, Gotestsum, Govulncheck, Actionlint, Hugo,
}

// VariableKubernetes is the environment variable that chooses an older minor version of [Kube], for example 1.36, among
// the folders kubernetes-VERSION below e2e/components; empty: the newest.
const VariableKubernetes = "KUBERNETES"

// kube has a binary of its own for each version, so that a change of the variable builds nothing again.
func kube(version string) Component {
	suffix := ""
	if version != "" {
		suffix = "-" + version
	}
	return Component{
		Name: "kube" + suffix, Dir: "kubernetes" + suffix, Package: ".", Module: "k8s.io/kubernetes",
		versionVars: kubernetesVersion,
		release: func(version, etcd string) []fetch.File {
			return append(kubernetesRelease(version, runtime.GOARCH, "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
				etcdRelease(etcd, runtime.GOARCH))
		},
	}
}

func jobOperator(name, libraries, module, program string) Component {
	return Component{Name: name, Dir: "job-operators-" + libraries, Package: module + program, Module: module, idle: true}
}

func volcano(program string) Component {
	return Component{
		Name: "volcano-" + program, Dir: "volcano", Package: "volcano.sh/volcano/cmd/" + program,
		Module: "volcano.sh/volcano", idle: true,
	}
}

// kubernetesVersion sets what hack/lib/version.sh of kubernetes sets; without it the API server reports
// v0.0.0-master, which misleads clients that check the version.
func kubernetesVersion(version string) map[string]string {
	vars := map[string]string{}
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		vars[pkg+".gitVersion"] = version
		vars[pkg+".gitMajor"] = major
		vars[pkg+".gitMinor"] = minor
		vars[pkg+".gitTreeState"] = "clean"
		vars[pkg+".gitCommit"] = "pinned"
		vars[pkg+".buildDate"] = "1970-01-01T00:00:00Z"
	}
	return vars
}

// Root returns the root of the repository that the working directory is in.
func Root() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/pitcrew-dev/pitcrew\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside the pitcrew repository", wd)
		}
	}
}

// For returns the component built for another architecture, in Go's spelling.
func (c Component) For(arch string) Component {
	c.arch = arch
	if arch == runtime.GOARCH {
		c.arch = ""
	}
	return c
}

// Path returns where the component's binary is, built or not.
func (c Component) Path(root string) string {
	return filepath.Join(root, "bin", "components", c.arch, c.Name)
}

// ModuleDir returns the folder of the component's source, with the manifests that upstream ships; it downloads the
// module when needed.
func (c Component) ModuleDir(ctx context.Context, root string) (string, error) {
	var module struct{ Dir string }
	out, err := download(ctx, []string{"CGO_ENABLED=0"}, c.dir(root), "mod", "download", "-json", c.Module)
	if err == nil {
		err = json.Unmarshal(out, &module)
	}
	return module.Dir, err
}

// Build makes sure that the components are built and up to date, and that no two programs build them at the same time.
// It writes to progress what it builds and about how long that takes. An up-to-date component costs a few milliseconds.
func Build(ctx context.Context, progress io.Writer, root string, wanted ...Component) error {
	return BuildWith(ctx, progress, root, wanted, nil)
}

// BuildOurs builds programs of this repository into bin, once in each process. packages are paths from the root, e.g. "./plugins/xid".
func BuildOurs(ctx context.Context, root string, packages ...string) error {
	return BuildWith(ctx, nil, root, nil, packages)
}

// built has the programs, by their path from the root, that this process has built: go build takes half a second of CPU time to find that
// nothing has changed.
var built sync.Map

// BuildWith is [Build] and then [BuildOurs], with one estimate of the time that is left. It writes nothing if progress is nil.
func BuildWith(ctx context.Context, progress io.Writer, root string, wanted []Component, packages []string) error {
	root, err := filepath.Abs(root) // the go command runs in the component's folder
	if err != nil {
		return fmt.Errorf("build components: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(root, "bin", "components"), 0o755); err != nil {
		return fmt.Errorf("build components: %w", err)
	}
	var missing []recipe
	for _, c := range wanted {
		r, err := c.recipe(ctx, root)
		if err != nil {
			return fmt.Errorf("build %s: %w", c.Name, err)
		}
		if !r.built() {
			missing = append(missing, r)
		}
	}
	if missing, err = fetchReleases(ctx, progress, missing); err != nil {
		return err
	}
	var tasks []task
	for _, r := range missing {
		tasks = append(tasks, r.task())
	}
	packages = slices.DeleteFunc(slices.Clone(packages), func(p string) bool {
		_, found := built.Load(filepath.Join(root, p))
		return found
	})
	ours, err := ourTasks(ctx, root, packages)
	if err != nil {
		return fmt.Errorf("build %s: %w", strings.Join(packages, " "), err)
	}
	var e *estimate
	if progress != nil && len(tasks)+len(ours) > 0 {
		if len(missing) > 0 {
			fmt.Fprintln(progress, "reading what there is to compile; sources that are missing are downloaded")
		}
		if e, err = newEstimate(ctx, progress, append(tasks, ours...)); err != nil {
			return fmt.Errorf("build components: %w", err)
		}
	}
	for _, r := range missing {
		if err := r.build(ctx, e); err != nil {
			return fmt.Errorf("build %s: %w", r.Name, err)
		}
	}
	if err := buildOurs(ctx, e, root, ours); err != nil {
		return fmt.Errorf("build %s: %w", strings.Join(packages, " "), err)
	}
	for _, p := range packages {
		built.Store(filepath.Join(root, p), true)
	}
	return nil
}

func buildOurs(ctx context.Context, e *estimate, root string, tasks []task) error {
	if len(tasks) == 0 {
		return nil
	}
	unlock, err := lock(ctx, filepath.Join(root, "bin", ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	for _, t := range tasks {
		if err := t.compile(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// ourTasks compile programs that need cgo, for go-nvml and go-dcgm, apart from the others. The others share what they
// compile with the components, whose flags are the same.
func ourTasks(ctx context.Context, root string, packages []string) (tasks []task, err error) {
	if len(packages) == 0 {
		return nil, nil
	}
	// The tags keep the standard library out of cgo.
	cgo := []string{"-tags=netgo,osusergo"}
	const format = `{{.ImportPath}}{{range .Deps}}{{if eq . "runtime/cgo"}} cgo{{end}}{{end}}`
	list, err := runWith(ctx, []string{"CGO_ENABLED=1"}, root, append([]string{"list", cgo[0], "-f", format}, packages...)...)
	if err != nil {
		return nil, err
	}
	var static, dynamic []string
	for line := range strings.Lines(string(list)) {
		if program, found := strings.CutSuffix(strings.TrimSpace(line), " cgo"); found {
			dynamic = append(dynamic, program)
		} else {
			static = append(static, program)
		}
	}
	flags := []string{"-trimpath", noDebugger, "-ldflags=-s -w"}
	out := "bin" + string(filepath.Separator)
	if len(static) > 0 {
		tasks = append(tasks, task{
			name: "pitcrew", env: environment("0", ""), dir: root, out: out, flags: flags, packages: static,
		})
	}
	if len(dynamic) > 0 {
		tasks = append(tasks, task{
			name: "pitcrew", env: environment("1", ""), dir: root, out: out, flags: append(flags, cgo...), packages: dynamic,
		})
	}
	return tasks, nil
}

func (c Component) dir(root string) string { return filepath.Join(root, "e2e", "components", c.Dir) }

// recipe is how a component is built.
type recipe struct {
	Component
	root, version string
	flags         []string
	// stamp is a hash of everything the binary is made from. It is beside the binary once that is built.
	stamp string
	// files are those of the release that may be fetched in its place.
	files []fetch.File
}

func (c Component) recipe(ctx context.Context, root string) (recipe, error) {
	version, err := c.version(ctx, root)
	if err != nil {
		return recipe{}, err
	}
	ldflags := []string{"-s", "-w"}
	if c.versionVars != nil {
		for name, value := range c.versionVars(version) {
			ldflags = append(ldflags, "-X="+name+"="+value)
		}
		slices.Sort(ldflags)
	}
	flags := []string{"-trimpath", c.compiler(), "-tags=" + c.tags, "-ldflags=" + strings.Join(ldflags, " ")}
	stamp, err := c.stamp(root, flags)
	r := recipe{Component: c, root: root, version: version, flags: flags, stamp: stamp}
	switch how := os.Getenv(VariableComponents); {
	case err != nil:
	case how == "":
		r.files, err = r.releaseFiles(ctx)
	case how != "build":
		err = fmt.Errorf("%s=%s is unknown; it is empty or build", VariableComponents, how)
	}
	return r, err
}

// built reports whether the component is built, or fetched if that is allowed, and up to date.
func (r recipe) built() bool {
	path := r.Path(r.root)
	stamp, err := os.ReadFile(path + ".stamp")
	if err != nil || string(stamp) != r.stamp && (len(r.files) == 0 || string(stamp) != releaseStamp(r.files)) {
		return false
	}
	_, err = os.Stat(path)
	return err == nil
}

// unstamp makes the component count as not built until it is stamped again: a fetch or build that is interrupted may have replaced a part of it.
func (r recipe) unstamp() error {
	if err := os.Remove(r.Path(r.root) + ".stamp"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// noDebugger leaves out what the linker would drop, the tables of debuggers: an eighth of the compiler's CPU time. The Makefile has the same
// flag for the tests, so that they share what is compiled.
const noDebugger = "-gcflags=all=-dwarf=false"

// compiler is the flag of go build for the compiler. Without inlining it takes a quarter less CPU time.
func (c Component) compiler() string {
	if c.idle {
		return noDebugger + " -l"
	}
	return noDebugger
}

// environment is that of a task. The same one means that what two tasks share is compiled once.
func environment(cgo, arch string) []string {
	return []string{"CGO_ENABLED=" + cgo, "GOARCH=" + cmp.Or(arch, runtime.GOARCH)}
}

// task compiles the component, unless its source has to be patched before.
func (r recipe) task() task {
	return task{
		name: r.Name, env: environment("0", r.arch),
		dir: r.dir(r.root), out: r.Path(r.root), flags: r.flags, packages: []string{r.Package},
		patched: r.patch != "", idle: r.idle,
	}
}

func (r recipe) build(ctx context.Context, e *estimate) (err error) {
	path := r.Path(r.root)
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	t := r.task()
	if r.built() { // by another program meanwhile
		e.finish(t)
		return nil
	}
	if err := r.unstamp(); err != nil {
		return err
	}
	e.printf("building %s (%s %s)\n", r.Name, r.Module, r.version)
	begun := time.Now()
	// The go command replaces no script.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if r.patch != "" {
		dir, failed := os.MkdirTemp("", "pitcrew-component-")
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		if err := r.patchInto(ctx, dir); err != nil {
			return err
		}
		t.flags = append(slices.Clip(t.flags), "-modfile="+filepath.Join(dir, "go.mod"))
	}
	if err := t.compile(ctx, e); err != nil {
		return err
	}
	if err := os.WriteFile(path+".stamp", []byte(r.stamp), 0o644); err != nil {
		return err
	}
	e.printf("built %s in %s\n", r.Name, time.Since(begun).Round(100*time.Millisecond))
	return nil
}

// patchInto makes a patched copy of the module in a folder, and a go.mod there that takes this copy in place of the module.
func (r recipe) patchInto(ctx context.Context, dir string) error {
	source, err := r.ModuleDir(ctx, r.root)
	if err != nil {
		return err
	}
	patched := filepath.Join(dir, "source")
	if err := os.CopyFS(patched, os.DirFS(source)); err != nil {
		return err
	}
	git := exec.CommandContext(ctx, "git", "apply", filepath.Join(r.dir(r.root), r.patch))
	// In a repository it would ignore files outside that.
	git.Dir, git.Env = patched, append(os.Environ(), "GIT_CEILING_DIRECTORIES="+dir)
	if out, err := git.CombinedOutput(); err != nil {
		return fmt.Errorf("apply %s to %s: %w\n%s", r.patch, r.version, err, out)
	}
	for name, more := range map[string]string{"go.mod": fmt.Sprintf("\nreplace %s => %s\n", r.Module, patched), "go.sum": ""} {
		text, err := os.ReadFile(filepath.Join(r.dir(r.root), name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), append(text, more...), 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// version reads the pinned version from go.mod.
func (c Component) version(ctx context.Context, root string) (string, error) {
	var mod struct {
		Require []struct{ Path, Version string }
	}
	if err := goJSON(ctx, c.dir(root), &mod, "mod", "edit", "-json"); err != nil {
		return "", err
	}
	for _, r := range mod.Require {
		if r.Path == c.Module {
			return r.Version, nil
		}
	}
	return "", fmt.Errorf("%s/go.mod does not require %s", c.dir(root), c.Module)
}

// stamp is a hash of everything the binary is made from.
func (c Component) stamp(root string, flags []string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), cmp.Or(c.arch, runtime.GOARCH), flags, c.Package)
	files, err := os.ReadDir(c.dir(root))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(c.dir(root), f.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s %x\n", f.Name(), sha256.Sum256(text))
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// lock holds an exclusive file lock; the kernel drops it when this program dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("wait for another build that holds %s: %w", path, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// run runs the go command without cgo.
func run(ctx context.Context, dir string, args ...string) (stdout []byte, err error) {
	return runWith(ctx, []string{"CGO_ENABLED=0"}, dir, args...)
}

// runWith runs the go command. If it fails, the error quotes its output.
func runWith(ctx context.Context, env []string, dir string, args ...string) (stdout []byte, err error) {
	cmd := command(ctx, env, dir, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w\n%s", args[0], dir, err, stderr.String())
	}
	return out, nil
}

// pauses are those before a go command asks a registry again that has refused.
var pauses = []time.Duration{5 * time.Second, 15 * time.Second, time.Minute}

// download runs a go command that downloads modules when needed. If it fails it runs again, a few times.
func download(ctx context.Context, env []string, dir string, args ...string) (stdout []byte, err error) {
	for _, pause := range pauses {
		if stdout, err = runWith(ctx, env, dir, args...); err == nil {
			return stdout, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
	return runWith(ctx, env, dir, args...)
}

func command(ctx context.Context, env []string, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	return cmd
}

func goJSON(ctx context.Context, dir string, into any, args ...string) error {
	out, err := run(ctx, dir, args...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("go %s in %s: %w", strings.Join(args, " "), dir, err)
	}
	return nil
}
