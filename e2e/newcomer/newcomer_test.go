// Package newcomer is the walk of somebody who has never seen the project: it runs the commands of the pages as they are, on a real
// kubelet and containerd, from the installation to an uninstall that leaves nothing.
package newcomer

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/e2e/pager"
)

func TestMain(m *testing.M) { machine.Main(m) }

// What the pages ask the reader to replace. No page names this registry.
var own = strings.NewReplacer("REGISTRY", registry, "export NODE=gpu-17", "export NODE="+machine.NodeName)

const registry = "registry.example/pitcrew"

// busybox is the image that the pages run commands in.
const busybox = "docker.io/library/busybox:1.36"

// walk is one shell session after the other in a folder of its own: a copy of the repository.
type walk struct {
	*testing.T
	m   *machine.Machine
	dir string
	env []string
}

func TestFromTheFirstPageToAnUninstallThatLeavesNothing(t *testing.T) {
	m := machine.Get(t, func(m *machine.Machine) {
		// What a node of a cloud has.
		if err := os.MkdirAll("/run/systemd", 0o755); err != nil {
			t.Fatal(err)
		}
		m.Ctr(t, "images", "import", m.Busybox(t, busybox))
	})
	w := newWalk(t, m)
	w.sh("kubectl label node " + machine.NodeName + " nvidia.com/gpu.present=true") // as GPU feature discovery does
	before := w.cluster()
	// The plugin that has set the node's state runs on no reader's node.
	files := slices.DeleteFunc(w.files(), func(path string) bool { return strings.HasPrefix(path, "/run/pitcrew") })
	// The images are those that the tests make, for this architecture only, and they come to the node without a registry.
	for _, image := range machine.Images {
		m.Ctr(t, "images", "tag", "ghcr.io/pitcrew-dev/"+image+":"+machine.Tag, registry+"/"+image+":0.1.0")
	}
	uninstall := section(t, m.Root, "docs/install.md", "## Uninstall")

	w.start()
	w.block(uninstall[1]) // by Helm
	w.same(before)

	w.install()
	// Where the job of the drill goes. They come after the installation, because nothing really runs there.
	nodes, err := m.AddNodes(t.Context(), "spare", 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.run("docs/try-it.md", "## Prepare")
	inbox := pager.New(t)
	inbox.Watch(t, m.Cluster, w.addresses("pitcrew-node-problem-detector", 20257)[0], w.addresses("pitcrew-remediator", 8080)...)
	w.run("docs/try-it.md", "## Observe")
	w.run("docs/try-it.md", "## Enforce")
	inbox.Until(t, "firing", "GPUXidError", "node="+machine.NodeName, "repair=ResetGPU", "handled=true")
	inbox.Until(t, "resolved", "GPUXidError", "node="+machine.NodeName, "repair=ResetGPU", "handled=true")
	w.run("docs/try-it.md", "## Abort a restart")
	w.run("docs/try-it.md", "## Release by hand")
	w.run("docs/try-it.md", "## Take it back")

	w.block(block{"commands", strings.Replace(uninstall[0].text, "uninstall", "uninstall --yes", 1)}) // there is no terminal to ask
	w.block(uninstall[len(uninstall)-1])
	if err := m.DeleteNodes(t.Context(), nodes...); err != nil {
		t.Fatal(err)
	}
	w.same(before)
	if diff := cmp.Diff(files, w.files(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("files on the node, -before +after: %s", diff)
	}
}

// newWalk makes a folder with the repository's files and the programs that a reader has: kubectl and helm.
func newWalk(t *testing.T, m *machine.Machine) *walk {
	t.Helper()
	w := &walk{T: t, m: m, dir: t.TempDir()}
	bin := filepath.Join(w.dir, "path")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"kubectl": "exec " + components.Kube.Path(m.Root) + ` kubectl "$@"`,
		"helm":    "exec " + components.Helm.Path(m.Root) + ` "$@"`,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	clone := filepath.Join(w.dir, "clone")
	if err := os.Mkdir(clone, 0o755); err != nil {
		t.Fatal(err)
	}
	copies := exec.CommandContext(t.Context(), "sh", "-euc", "git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "+clone)
	copies.Dir = m.Root
	if out, err := copies.CombinedOutput(); err != nil {
		t.Fatalf("clone: %v\n%s", err, out)
	}
	w.dir = clone
	gobin := filepath.Join(filepath.Dir(clone), "gobin")
	w.env = append(os.Environ(), "PATH="+strings.Join([]string{bin, gobin, os.Getenv("PATH")}, ":"), "GOBIN="+gobin, "KUBECONFIG="+m.Kubeconfig,
		"HELM_CACHE_HOME="+m.Dir, "HELM_CONFIG_HOME="+m.Dir, "HELM_DATA_HOME="+m.Dir, "KUBECACHEDIR="+m.Dir, "NODE="+machine.NodeName)
	return w
}

// sh runs commands and returns what they print.
func (w *walk) sh(commands string) string {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = w.dir, w.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		state, _ := w.m.Kubectl(w.Context(), "get", "pods,nodes,events", "-A")
		w.Fatalf("%s\n%v\n%s\n%s", commands, err, &out, state)
	}
	return out.String()
}

// run runs the section of a page: it writes the files, runs the commands, and compares what the last ones print.
func (w *walk) run(page, heading string) {
	w.Helper()
	var printed string
	for _, b := range section(w.T, w.m.Root, page, heading) {
		if b.kind != "text" {
			printed = w.block(b)
			continue
		}
		for line := range strings.Lines(b.text) {
			if line = strings.TrimSpace(line); !strings.Contains(printed, line) {
				w.Errorf("%s, %s: not printed: %q, but:\n%s", page, heading, line, printed)
			}
		}
	}
}

func (w *walk) block(b block) string {
	w.Helper()
	text := own.Replace(b.text)
	if b.kind == "yaml" {
		head, _, _ := strings.Cut(text, "\n")
		name := strings.TrimPrefix(head, "# ")
		if !strings.HasSuffix(name, ".yaml") {
			w.Fatalf("a block does not begin with the name of its file: %q", head)
		}
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o644); err != nil {
			w.Fatal(err)
		}
		return ""
	}
	w.Logf("$ %s", text)
	printed := w.sh(text)
	w.Log(printed)
	return printed
}

// start follows the README, but for the images.
func (w *walk) start() {
	w.Helper()
	images, commands, _ := strings.Cut(section(w.T, w.m.Root, "README.md", "## Start")[0].text, "\n")
	if !strings.HasPrefix(images, "make images ") {
		w.Fatalf("README.md does not make the images first: %s", images)
	}
	w.block(block{"commands", commands})
}

// install follows the page, but for the images.
func (w *walk) install() {
	w.Helper()
	begin := section(w.T, w.m.Root, "docs/install.md", "# Install")
	if !strings.HasPrefix(begin[0].text, "make images\nfor image in bin/images/*.tar; do\n") {
		w.Fatalf("the page does not push every image that is made: %s", begin[0].text)
	}
	w.block(begin[1])
	for _, b := range section(w.T, w.m.Root, "docs/install.md", "## With Helm") {
		if strings.Contains(b.text, "policy.mode=enforce") {
			continue // after the drill, and a week
		}
		w.block(b)
	}
}

// same waits until the cluster has the same objects as before.
func (w *walk) same(before []string) {
	w.Helper()
	clustertest.Until(w.T, machine.Patience, "all objects are as before", func() error {
		if diff := cmp.Diff(before, w.cluster()); diff != "" {
			return fmt.Errorf("-before +after: %s", diff)
		}
		return nil
	})
}

// addresses are those of the running pods with a name, and of a port.
func (w *walk) addresses(name string, port int) (all []string) {
	w.Helper()
	var pods corev1.PodList
	if err := w.m.Client.List(w.Context(), &pods, client.InNamespace("pitcrew"), client.MatchingLabels{"app.kubernetes.io/name": name}); err != nil {
		w.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil && pod.Status.PodIP != "" {
			all = append(all, fmt.Sprintf("%s:%d", pod.Status.PodIP, port))
		}
	}
	if len(all) == 0 {
		w.Fatalf("no pod of %s runs", name)
	}
	return all
}

// unstable are kinds of objects that Kubernetes itself makes and removes.
var unstable = []string{"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses", "endpoints", "endpointslices.discovery.k8s.io"}

// cluster are all objects, and of the nodes, what is on them.
func (w *walk) cluster() []string {
	w.Helper()
	kinds := slices.DeleteFunc(strings.Fields(w.sh("kubectl api-resources --verbs=list -o name 2>/dev/null")), func(kind string) bool {
		return slices.Contains(unstable, kind)
	})
	lines := strings.Split(w.sh("kubectl get "+strings.Join(kinds, ",")+` -A -o jsonpath='{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\n"}{end}' 2>/dev/null`), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "Node /spare-") || strings.HasPrefix(line, "CSINode /spare-")
	})
	node, err := w.m.Node(w.T)
	if err != nil {
		w.Fatal(err)
	}
	for key := range node.Labels {
		lines = append(lines, "label "+key)
	}
	for key := range node.Annotations {
		lines = append(lines, "annotation "+key)
	}
	for _, taint := range node.Spec.Taints {
		lines = append(lines, "taint "+taint.ToString())
	}
	for _, c := range node.Status.Conditions {
		lines = append(lines, "condition "+string(c.Type))
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// files are the files on the node where Pitcrew's pods mount its folders. The folders that the kubelet makes for the mounts are left out,
// if they are empty.
func (w *walk) files() (files []string) {
	w.Helper()
	for _, root := range []string{"/run", "/var/lib/pitcrew", "/opt/pitcrew", "/etc/pitcrew"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case os.IsNotExist(err):
				return nil
			case err != nil:
				return err
			case path == "/run/containerd" || path == "/run/cni" || path == "/run/netns" || strings.HasPrefix(path, "/run/runc"):
				return fs.SkipDir
			case !d.IsDir() || path == "/run/pitcrew":
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			w.Fatal(err)
		}
	}
	return files
}
