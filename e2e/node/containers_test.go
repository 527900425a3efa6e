package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

// containers returns the answer of the plugin about this node's kubelet and containerd, without a wait for faults that last.
func (m *host) containers(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(m.Root, "bin", "containers"), "-after", "0s", "-min-repair", "RestartApp",
		"-state-dir", filepath.Join(m.Dir, "containers"),
		"-tasks", "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
		"-pod-resources", filepath.Join(m.KubeletDir(), "pod-resources/kubelet.sock"))
	out, _ := cmd.Output() // its exit code is in its answer
	return fmt.Sprintf("exit %d\n%s", cmd.ProcessState.ExitCode(), out)
}

// says waits until the plugin's answer contains the text.
func (m *host) says(t *testing.T, text string) {
	t.Helper()
	clustertest.Until(t, patience, fmt.Sprintf("containers says %q", text), func() error {
		if got := m.containers(t); !strings.Contains(got, text) {
			return fmt.Errorf("it says %s", got)
		}
		return nil
	})
}

// runs makes a pod of one container on this node and waits until it runs.
func (m *host) runs(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	pod.Namespace, pod.Spec.NodeName, pod.Spec.RestartPolicy = "jobs", machine.NodeName, corev1.RestartPolicyNever
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	c := &pod.Spec.Containers[0]
	c.Name, c.Image, c.ImagePullPolicy = "train", "ghcr.io/pitcrew-dev/preflight:"+tag, corev1.PullNever
	if err := m.AddNamespace(t.Context(), "jobs", nil); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	if err := m.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		ctx := context.Background()
		if err := m.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	clustertest.Until(t, patience, pod.Name+" runs", func() error {
		if err := m.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Running == nil {
			return fmt.Errorf("%+v\n%s", pod.Status, m.Logs("kubelet"))
		}
		return nil
	})
}

// A pod that stays Terminating is seen on the node by what keeps it: a process that sleeps in the kernel, or a shim that hangs. The kubelet,
// containerd, runc and the kernel are real.
func TestContainersThatCannotEnd(t *testing.T) {
	m := theMachine(t)
	if err := components.BuildOurs(t.Context(), m.Root, "./plugins/containers"); err != nil {
		t.Fatal(err)
	}
	const healthy = "exit 0\ncontainers have their GPUs and end when they are killed"
	frozen := npdtest.Freeze(t)
	directory := corev1.HostPathDirectory
	stuck := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "stuck"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Command:      []string{"/bin/sh", "-c", "echo x >/frozen/checkpoint; exec /bin/busybox sleep 3600"},
				VolumeMounts: []corev1.VolumeMount{{Name: "frozen", MountPath: "/frozen"}},
			}},
			Volumes: []corev1.Volume{{Name: "frozen", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: frozen.Dir, Type: &directory},
			}}},
		},
	}
	m.runs(t, stuck)
	m.says(t, healthy)
	if err := m.Client.Delete(t.Context(), stuck, client.GracePeriodSeconds(1)); err != nil {
		t.Fatal(err)
	}
	m.says(t, "exit 1\nInspect pod jobs/stuck: container train was killed, and a process of it sleeps in the kernel")
	frozen.Thaw()
	m.says(t, healthy)

	hangs := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hangs"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Command: []string{"/bin/busybox", "sleep", "3600"}}}},
	}
	m.runs(t, hangs)
	pid := m.pid(t, hangs)
	shim := parent(t, pid)
	if err := unix.Kill(shim, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(shim, unix.SIGCONT) }) // it may have ended
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	m.says(t, "exit 1\nInspect pod jobs/hangs: container train has ended, but its shim has not cleaned up")
	if err := unix.Kill(shim, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := m.Client.Delete(t.Context(), hangs, client.GracePeriodSeconds(1)); err != nil {
		t.Fatal(err)
	}
	m.says(t, healthy)
}

// parent returns the parent of a process.
func parent(t *testing.T, pid int) (ppid int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if _, err := fmt.Sscan(strings.Fields(rest)[1], &ppid); err != nil {
		t.Fatal(err)
	}
	return ppid
}
