package asshipped_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// runner is the kubelet of a machine: it runs the program of each pod of a Job with the pod's own arguments, on files that stand for what the
// template mounts, and serves its log.
type runner struct {
	*machine
	dir  string
	mu   sync.Mutex
	logs map[string][]byte
	ran  map[types.UID]bool
}

// The tools of a driver. Their output has secrets.
var tools = map[string]string{
	"nvidia-smi":           `echo "    Serial Number    : 1650522000000"; echo "        Name     : python3 train.py PLANTED"`,
	"journalctl":           `echo "2026-11-28T03:40:00+0000 host nvidia-dcgm[7]: agent --token PLANTED HF_TOKEN=PLANTED"`,
	"nvidia-bug-report.sh": `{ echo "root 42 0.0 0.1 12 34 ? Ssl 03:10 0:07 python3 train.py PLANTED"; echo "WANDB_API_KEY=PLANTED"; echo "the end"; } | gzip >"$2.gz"`,
	"plugins/xid":          `echo '{"faults": [], "password": "PLANTED"}'`,
}

func newRunner(m *machine) *runner {
	m.Helper()
	r := &runner{machine: m, dir: m.TempDir(), logs: map[string][]byte{}, ran: map[types.UID]bool{}}
	for name, script := range tools {
		r.write(name, "#!/bin/sh\n"+script+"\n")
	}
	r.write("kmsg", "3,1,60000000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, name=x, GPU has fallen off the bus.\n6,2,61000000,-;agent: API_KEY=PLANTED\n")
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		_, _ = w.Write(r.logs[strings.Split(request.URL.Path, "/")[3]]) // whoever asks may have gone
	}))
	m.Cleanup(kubelet.Close)
	_, text, err := net.SplitHostPort(kubelet.Listener.Addr().String())
	if err != nil {
		m.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		m.Fatal(err)
	}
	m.patchStatus(map[string]any{
		"addresses":       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": port}},
	})
	return r
}

func (r *runner) path(name string) string { return filepath.Join(r.dir, name) }

func (r *runner) write(name, content string) {
	r.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(r.path(name)), 0o755), os.WriteFile(r.path(name), []byte(content), 0o755)); err != nil {
		r.Fatal(err)
	}
}

// work runs the program of each pod on the machine that KWOK has started, once.
func (r *runner) work() error {
	var pods corev1.PodList
	if err := r.Client.List(r.T.Context(), &pods, client.InNamespace(conditions.RepairNamespace)); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if pod.Spec.NodeName == r.node && pod.Status.Phase == corev1.PodRunning && !r.ran[pod.UID] {
			r.ran[pod.UID] = true
			if err := r.run(&pod); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) run(pod *corev1.Pod) error {
	c := pod.Spec.Containers[0]
	args := append(append([]string{}, c.Args...), "-termination-log=", "-dir="+r.path("evidence"))
	if c.Name == "collect" {
		// The disk of the tests may be fuller than that of a node.
		args = append(args, "-min-free=1", "-plugins="+r.path("plugins"), "-kmsg="+r.path("kmsg"), "-sysfs="+r.path("sys"), "-state-dir="+r.path("state"), "-systemd="+r.path("systemd"))
	}
	cmd := exec.CommandContext(r.T.Context(), filepath.Join(r.Root, "bin", filepath.Base(c.Command[0])), args...)
	cmd.Env = append(os.Environ(), "PATH="+r.dir+":"+os.Getenv("PATH"))
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return err
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	r.mu.Lock()
	r.logs[pod.Name] = out
	r.mu.Unlock()
	before, now := pod.DeepCopy(), metav1.Now()
	pod.Status.Phase = map[bool]corev1.PodPhase{true: corev1.PodSucceeded, false: corev1.PodFailed}[err == nil]
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: c.Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: int32(cmd.ProcessState.ExitCode()), Message: string(lines[len(lines)-1]), StartedAt: now, FinishedAt: now, ContainerID: "x://1",
	}}}}
	return r.Client.Status().Patch(r.T.Context(), pod, client.MergeFrom(before))
}

// fetched has a person collect and fetch the evidence of a machine, and returns the files of the bundle that has arrived.
func fetched(t *testing.T, m *machine) map[string]string {
	t.Helper()
	if err := components.BuildOurs(t.Context(), m.Root, "./kubectl-pitcrew", "./repair"); err != nil {
		t.Fatal(err)
	}
	r := newRunner(m)
	file := r.path("fetched")
	cmd := exec.CommandContext(t.Context(), filepath.Join(m.Root, "bin", "kubectl-pitcrew"), "--kubeconfig", m.Kubeconfig, "collect", m.node, "-y", "-o", file)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	m.until("the evidence is fetched", func() error {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("%v\n%s", err, out.String())
			}
			return nil
		default:
			return errors.Join(errors.New("not yet"), r.work())
		}
	})
	bundle, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer bundle.Close()
	return unpacked(t, bundle)
}

// unpacked are the files of a bundle, those in gzip's format uncompressed.
func unpacked(t *testing.T, bundle io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bundle)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		from := io.Reader(archive)
		if err == nil && strings.HasSuffix(head.Name, ".gz") {
			from, err = gzip.NewReader(archive)
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(from)
		if err != nil {
			t.Fatal(err)
		}
		files[head.Name] = string(text)
	}
}

// fetches: what is planted in argv, env, kernel log, journal and the vendor's report does not arrive.
func fetches(t *testing.T, m *machine) {
	t.Helper()
	files := fetched(t, m)
	for name, text := range files {
		if strings.Contains(text, "PLANTED") {
			t.Errorf("%s has a secret: %.1000s", name, text)
		}
	}
	for name, want := range map[string]string{
		"dmesg.txt": "agent: API_KEY=[removed]", "journal-units.txt": "agent --token [removed] HF_TOKEN=[removed]", "nvidia-smi-q.txt": "python3 [removed]",
		"nvidia-bug-report.log.gz": "WANDB_API_KEY=[removed]\nthe end\n", "plugins/xid.json": `"password": [removed]`, "index.txt": fmt.Sprintf("node %s, ", m.node),
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %q: %.1000s\n%s", name, want, files[name], files["index.txt"])
		}
	}
}
