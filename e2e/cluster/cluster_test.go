package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is far more than anything here takes on an idle machine.
const patience = 3 * time.Minute

// owner is the environment variable with which this program owns a cluster until it is killed.
const owner = "PITCREW_E2E_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(owner) != "" {
		if err := own(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	m.Run()
}

// own starts a cluster, prints where it is and waits for the end.
func own() error {
	ctx := context.Background()
	c, err := Start(ctx, Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.AddThisMachine(ctx, "here"); err != nil {
		return err
	}
	monitor := filepath.Join(c.Dir, "sleeper.json")
	if err := os.WriteFile(monitor, []byte(sleeper), 0o644); err != nil {
		return err
	}
	if _, err := c.StartNPD(ctx, NPD{Node: "here", Monitors: []Monitor{{File: monitor}}}); err != nil {
		return err
	}
	if _, err := c.runWithCertificate("/etc/certs", "private", "/bin/sleep", nil, "1h"); err != nil {
		return err
	}
	fmt.Println(c.Dir, c.Admin.Host)
	<-c.Context().Done()
	return context.Cause(c.Context())
}

// sleeper is a monitor whose plugin reports a problem.
const sleeper = `{
  "plugin": "custom",
  "pluginConfig": {"invoke_interval": "1s", "timeout": "5s", "max_output_length": 512, "concurrency": 1, "skip_initial_status": true},
  "source": "sleeper",
  "conditions": [{"type": "Sleepy", "reason": "Awake", "message": "awake"}],
  "rules": [{"type": "permanent", "condition": "Sleepy", "reason": "Asleep", "path": "/bin/sh", "args": ["-c", "echo zzz; exit 1"]}]
}`

func TestTwoClustersAtOnceDoNotSeeEachOtherAndLeaveNothingBehind(t *testing.T) {
	var clusters [2]*Cluster
	if err := parallel(t.Context(),
		func(ctx context.Context) (err error) { clusters[0], err = Start(ctx, Options{}); return err },
		func(ctx context.Context) (err error) {
			clusters[1], err = Start(ctx, Options{JobSet: true})
			return err
		},
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range clusters {
		t.Cleanup(func() { c.Close() })
	}
	if err := clusters[0].AddNamespace(t.Context(), "mine", nil); err != nil {
		t.Fatal(err)
	}
	if err := clusters[1].AddNamespace(t.Context(), "mine", nil); err != nil {
		t.Fatalf("the other cluster has the namespace already: %v", err)
	}
	for _, c := range clusters {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for _, p := range c.processes {
			if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("%s (%d) is still there: %v", p.Name, p.PID(), err)
			}
		}
		if _, err := os.Stat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", c.Dir, err)
		}
		refuses(t, c.Admin.Host)
	}
}

func TestNothingOutlivesAKilledOwner(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), owner+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dir, host string
	_, err = fmt.Fscanln(out, &dir, &host)
	defer os.RemoveAll(dir)
	children := children(cmd.Process.Pid)
	if err := errors.Join(err, cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	// The owner was killed, so its exit status has no meaning.
	_ = cmd.Wait()
	// etcd, API server, controller manager, scheduler, KWOK, NPD and one in a mount namespace.
	if len(children) != 7 {
		t.Errorf("%d children, want 7", len(children))
	}
	for _, pid := range children {
		err := within(t, func(context.Context) error {
			if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				return nil
			}
			return fmt.Errorf("process %d is still there", pid)
		})
		if err != nil {
			t.Error(err)
		}
	}
	refuses(t, host)
}

func TestATakenPortIsNotUsed(t *testing.T) {
	taken, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	asked := 0
	c, err := Start(t.Context(), Options{freePort: func() (int, error) {
		if asked++; asked == 1 {
			return port, nil
		}
		return freePort()
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if strings.HasSuffix(c.Admin.Host, ":"+strconv.Itoa(port)) || asked != 2 {
		t.Errorf("the API server is at %s after %d tries, %d is taken", c.Admin.Host, asked, port)
	}
}

func TestAStartThatFailsQuotesTheLogAndLeavesNothingBehind(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	taken, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	before := children(os.Getpid())
	_, err = Start(t.Context(), Options{freePort: func() (int, error) { return taken.Addr().(*net.TCPAddr).Port, nil }})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver") || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("the error does not name the API server's address as in use: %v", err)
	}
	if diff := cmp.Diff(before, children(os.Getpid())); diff != "" {
		t.Errorf("children before and after: %s", diff)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary folder: %v, %v", left, err)
	}
}

func TestTheEndOfAComponentIsReported(t *testing.T) {
	c := start(t, Options{})
	for _, p := range c.processes {
		if p.Name == "kwok" {
			if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	select {
	case <-c.Context().Done():
	case <-time.After(patience):
		t.Fatal("no end was reported")
	}
	if cause := context.Cause(c.Context()); !strings.HasPrefix(cause.Error(), "kwok ended: signal: killed; the end of its log:\n") {
		t.Errorf("cause: %v", cause)
	}
}

func TestTheAPIServerComesBackWithEverythingInIt(t *testing.T) {
	c := start(t, Options{})
	if err := c.AddNamespace(t.Context(), "stays", nil); err != nil {
		t.Fatal(err)
	}
	c.StopAPIServer()
	refuses(t, c.Admin.Host)
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Client.Get(t.Context(), client.ObjectKey{Name: "stays"}, &corev1.Namespace{}); err != nil {
		t.Error(err)
	}
	schedulers := func() (all []*Process) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, p := range c.processes {
			if p.Name == "kube-scheduler" {
				all = append(all, p)
			}
		}
		return all
	}
	if err := syscall.Kill(schedulers()[0].PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := within(t, func(context.Context) error {
		if n := len(schedulers()); n != 2 {
			return fmt.Errorf("%d schedulers were started", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := context.Cause(c.Context()); err != nil {
		t.Error(err)
	}
}

func TestAProgramFindsACertificateWhereItInsistsOnIt(t *testing.T) {
	c := start(t, Options{})
	p, err := c.runWithCertificate("/etc/some/certs", "reader", "/bin/sh", nil, "-c", "ls /etc /etc/some/certs")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff("/etc:\nsome\n\n/etc/some/certs:\ntls.crt\ntls.key\n", p.Log()); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat("/etc/some"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is seen outside too: %v", err)
	}
}

func TestAPodEndsLikeUnderAKubelet(t *testing.T) {
	c := start(t, Options{})
	ctx := t.Context()
	if _, err := c.AddNodes(ctx, "pool", 1, nil); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name        string
		annotations map[string]string
		phase       corev1.PodPhase
		exitCode    int32
	}{
		{"by-default", nil, corev1.PodFailed, 143},
		{"with-a-handler", map[string]string{"e2e.pitcrew.dev/exit-code": "0"}, corev1.PodSucceeded, 0},
		{"slowly", map[string]string{"e2e.pitcrew.dev/term-delay": "1s", "e2e.pitcrew.dev/exit-code": "7"}, corev1.PodFailed, 7},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			annotations := map[string]string{"e2e.pitcrew.dev/delete-delay": "1h"} // it is listed until it was seen
			for k, v := range tt.annotations {
				annotations[k] = v
			}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: tt.name, Annotations: annotations},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{LabelPool: "pool"},
					Containers:   []corev1.Container{{Name: "c", Image: "none"}},
				},
			}
			if err := c.Client.Create(ctx, pod); err != nil {
				t.Fatal(err)
			}
			reach := func(phase corev1.PodPhase) {
				t.Helper()
				if err := within(t, func(ctx context.Context) error {
					err := c.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
					if err == nil && pod.Status.Phase != phase {
						err = fmt.Errorf("phase %s, want %s", pod.Status.Phase, phase)
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			reach(corev1.PodRunning)
			if err := c.Client.Delete(ctx, pod); err != nil {
				t.Fatal(err)
			}
			reach(tt.phase)
			if got := pod.Status.ContainerStatuses[0].State.Terminated; got == nil || got.ExitCode != tt.exitCode {
				t.Errorf("terminated: %v, want exit code %d", got, tt.exitCode)
			}
			seen := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"e2e.pitcrew.dev/delete-delay":null}}}`))
			if err := c.Client.Patch(ctx, pod, seen); err != nil {
				t.Fatal(err)
			}
			if err := within(t, func(ctx context.Context) error {
				err := c.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
				if apierrors.IsNotFound(err) {
					return nil
				}
				return errors.Join(err, errors.New("the pod is still there"))
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNPDReportsUnderItsOwnRole(t *testing.T) {
	c := start(t, Options{})
	ctx := t.Context()
	if err := c.AddThisMachine(ctx, "here"); err != nil {
		t.Fatal(err)
	}
	monitor := filepath.Join(t.TempDir(), "sleeper.json")
	if err := os.WriteFile(monitor, []byte(sleeper), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := c.StartNPD(ctx, NPD{Node: "here", Monitors: []Monitor{{File: monitor}}})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{}
	if err := within(t, func(ctx context.Context) error {
		if err := c.Client.Get(ctx, client.ObjectKey{Name: "here"}, node); err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == "Sleepy" && condition.Status == corev1.ConditionTrue && condition.Message == "zzz" {
				return nil
			}
		}
		return fmt.Errorf("no Sleepy among %v", node.Status.Conditions)
	}); err != nil {
		t.Fatalf("%v\n%s", err, p.Log())
	}
	// The same identity may not do what NPD does not need.
	cfg, err := c.ServiceAccountConfig(ctx, "kube-system", "node-problem-detector")
	if err != nil {
		t.Fatal(err)
	}
	npd, err := client.New(cfg, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	node.Spec.Unschedulable = true
	if err := npd.Update(ctx, node); !apierrors.IsForbidden(err) {
		t.Errorf("NPD cordons a node: %v", err)
	}
}

func TestAJobSetRuns(t *testing.T) {
	c := start(t, Options{JobSet: true})
	ctx := t.Context()
	if _, err := c.AddNodes(ctx, "train", 2, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, []byte(`
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train, namespace: default}
spec:
  replicatedJobs:
  - name: rank
    template:
      spec:
        parallelism: 2
        completions: 2
        template:
          spec:
            restartPolicy: Never
            containers: [{name: c, image: none, resources: {limits: {nvidia.com/gpu: 8}}}]
`)); err != nil {
		t.Fatal(err)
	}
	if err := within(t, func(ctx context.Context) error {
		pods := &corev1.PodList{}
		if err := c.Client.List(ctx, pods, client.InNamespace("default"), client.HasLabels{"jobset.sigs.k8s.io/jobset-name"}); err != nil {
			return err
		}
		nodes := map[string]corev1.PodPhase{}
		for _, pod := range pods.Items {
			nodes[pod.Spec.NodeName] = pod.Status.Phase
		}
		if diff := cmp.Diff(map[string]corev1.PodPhase{"train-0": "Running", "train-1": "Running"}, nodes); diff != "" {
			return errors.New(diff)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, opts Options) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func within(t *testing.T, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return Poll(ctx, check)
}

func refuses(t *testing.T, host string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(host, "https://"))
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s is still served: %v, %v", host, conn, err)
	}
}

// Two components with the same account start one after the other: the first may still read the file.
func TestAKubeconfigIsReplacedAsAWhole(t *testing.T) {
	c := &Cluster{Dir: t.TempDir()}
	path, err := c.WriteKubeconfig("component", &rest.Config{Host: "https://first"})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if _, err := c.WriteKubeconfig("component", &rest.Config{Host: "https://second"}); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(reader); err != nil || !strings.Contains(string(text), "https://first") {
		t.Errorf("who has the first file open reads %q, %v", text, err)
	}
	if text, err := os.ReadFile(path); err != nil || !strings.Contains(string(text), "https://second") {
		t.Errorf("the file is %q, %v", text, err)
	}
}

func TestTheNodesOfFrozenKubeletsBecomeUnknown(t *testing.T) {
	c := start(t, Options{NodeGrace: 3 * time.Second})
	group, err := c.StartKubelets(t.Context(), "mortal")
	if err != nil {
		t.Fatal(err)
	}
	mortal, err := c.AddNodes(t.Context(), "mortal", 2, group.Own)
	if err != nil {
		t.Fatal(err)
	}
	ready := func(want corev1.ConditionStatus) {
		t.Helper()
		if err := within(t, func(ctx context.Context) error {
			for _, name := range mortal {
				var node corev1.Node
				if err := c.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
					return err
				}
				for _, condition := range node.Status.Conditions {
					if condition.Type == corev1.NodeReady && condition.Status != want {
						return fmt.Errorf("%s: Ready is %s", name, condition.Status)
					}
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	group.Freeze()
	ready(corev1.ConditionUnknown)
	group.Thaw()
	ready(corev1.ConditionTrue)
	group.Kill()
	ready(corev1.ConditionUnknown)
}
