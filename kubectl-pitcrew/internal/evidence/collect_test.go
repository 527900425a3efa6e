package evidence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const written = "gpu-1-20261128T033000Z.tar.gz"

// fleet is a cluster in which Jobs end at once, with what answers says to their arguments.
type fleet struct {
	*fetch
	out     bytes.Buffer
	ran     []string
	answers map[string]string
	log     map[string]string
}

func newFleet(t *testing.T, n *corev1.Node, volume corev1.VolumeSource) *fleet {
	t.Helper()
	t.Chdir(t.TempDir())
	template := func(name string) *corev1.PodTemplate {
		return &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: name},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "evidence", VolumeSource: volume}},
				Containers: []corev1.Container{{Name: name, Args: []string{name, "-node=$(NODE)"}}}}}}
	}
	f := &fleet{answers: map[string]string{}, log: map[string]string{}}
	api := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(n, template("collect"), template("print-bundle"))
	f.fetch = &fetch{out: &f.out, every: time.Millisecond, now: func() time.Time { return clitest.Now }}
	f.api = api.WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			job := o.(*batchv1.Job)
			args := strings.Join(job.Spec.Template.Spec.Containers[0].Args, " ")
			f.ran = append(f.ran, args)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name + "-0", Labels: map[string]string{batchv1.JobNameLabel: job.Name}}}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: f.answers[args]}}}}
			f.log[pod.Name] = f.log[args]
			if err := c.Create(ctx, pod); err != nil {
				return err
			}
			if f.answers[args] == "" {
				job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
			}
			return c.Create(ctx, job, options...)
		},
	}).Build()
	f.logs = func(_ context.Context, namespace, pod string) (io.ReadCloser, error) {
		if namespace != conditions.RepairNamespace {
			return nil, fmt.Errorf("namespace %s", namespace)
		}
		return io.NopCloser(iotest.HalfReader(strings.NewReader(f.log[pod]))), nil
	}
	return f
}

// has prints a bundle in parts.
func (f *fleet) has(parts ...string) {
	whole := strings.Join(parts, "")
	for i, part := range parts {
		args := fmt.Sprintf("print-bundle -node=gpu-1 -at=20261128T033000Z -slice=%d", i+1)
		f.answers[args] = fmt.Sprintf(`{"result":"done","message":"slice %d of %d, %d bytes, sha256 %x"}`, i+1, len(parts), len(whole), sha256.Sum256([]byte(whole)))
		for chunk := range slices.Chunk([]byte(part), 3<<10) {
			f.log[args] += base64.StdEncoding.EncodeToString(chunk) + "\n"
		}
		f.log[args] += f.answers[args] + "\n"
	}
}

const asked = "collect -node=gpu-1"

// does makes the changes, and returns what a person sees.
func (f *fleet) does(t *testing.T) (string, error) {
	t.Helper()
	changes, err := f.changes(t.Context(), "gpu-1")
	for _, c := range changes {
		fmt.Fprintln(&f.out, c.Text)
		if err == nil {
			err = c.Do(t.Context())
		}
	}
	return f.out.String(), err
}

func (f *fleet) collected() {
	f.answers[asked] = `{"result":"done","message":"bundle ` + written + ` of 9 KiB","bundle":"` + written + `"}`
}

func TestABundleIsCollectedAndFetched(t *testing.T) {
	f := newFleet(t, clitest.NodeNamed("gpu-1"), corev1.VolumeSource{})
	f.collected()
	parts := []string{strings.Repeat("first\n", 2000), "last"}
	f.has(parts...)
	out, err := f.does(t)
	got, readErr := os.ReadFile(written)
	if err != nil || readErr != nil || string(got) != strings.Join(parts, "") || !strings.Contains(out, "Bundle "+written+" of node gpu-1 is in file "+written) {
		t.Errorf("%v, %v, %d bytes\n%s", err, readErr, len(got), out)
	}
	var jobs batchv1.JobList
	if err := f.api.List(t.Context(), &jobs); err != nil || len(jobs.Items) != 1 || !strings.HasPrefix(jobs.Items[0].Name, "collect-") {
		t.Errorf("%v, Jobs left: %v", err, jobs.Items)
	}
	// What is there is not overwritten.
	if _, err := f.does(t); err == nil || !strings.Contains(err.Error(), "file exists") {
		t.Errorf("%v", err)
	}
	if kept, err := os.ReadFile(written); err != nil || !bytes.Equal(kept, got) {
		t.Errorf("%v, %d bytes", err, len(kept))
	}
}

func TestAnOlderBundleIsFetchedIntoAFile(t *testing.T) {
	f := newFleet(t, clitest.NodeNamed("gpu-1"), corev1.VolumeSource{})
	f.has("all")
	f.bundle, f.file = written, "mine"
	_, err := f.does(t)
	if got, readErr := os.ReadFile("mine"); err != nil || readErr != nil || string(got) != "all" || len(f.ran) != 1 {
		t.Errorf("%v, %v, %q, ran %q", err, readErr, got, f.ran)
	}
	f.bundle = "gpu-2-20261128T033000Z.tar.gz"
	if _, err := f.does(t); err == nil || !strings.Contains(err.Error(), "is no bundle of node gpu-1") {
		t.Errorf("%v", err)
	}
}

func TestABundleOnAClaimIsNamed(t *testing.T) {
	f := newFleet(t, clitest.NodeNamed("gpu-1"), corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "shared"}})
	f.collected()
	out, err := f.does(t)
	if err != nil || !strings.Contains(out, "Bundle "+written+" is on PersistentVolumeClaim pitcrew-repair/shared") || len(f.ran) != 1 {
		t.Errorf("%v, ran %q\n%s", err, f.ran, out)
	}
}

// What a node prints is input.
func TestWhatANodePrintsIsChecked(t *testing.T) {
	const first = "print-bundle -node=gpu-1 -at=20261128T033000Z -slice=1"
	for name, test := range map[string]struct {
		spoil func(f *fleet)
		want  string
	}{
		"no result":        {func(f *fleet) { delete(f.answers, asked) }, "has ended without a result"},
		"no JSON":          {func(f *fleet) { f.answers[asked] = "oom" }, `"oom" is not a result`},
		"a full disk":      {func(f *fleet) { f.answers[asked] = `{"result":"refused","message":"9 % of the disk is free"}` }, "refused: 9 % of the disk is free"},
		"another's bundle": {func(f *fleet) { f.answers[asked] = strings.ReplaceAll(f.answers[asked], "gpu-1", "gpu-2") }, "has written no bundle of the node"},
		"a path":           {func(f *fleet) { f.answers[asked] = strings.ReplaceAll(f.answers[asked], `:"gpu-1`, `:"../gpu-1`) }, "has written no bundle of the node"},
		"a broken log":     {func(f *fleet) { f.log[first] = "?\n" }, `the log has the line "?"`},
		"an endless line":  {func(f *fleet) { f.log[first] = strings.Repeat("A", 1<<20) }, "token too long"},
		"too much":         {func(f *fleet) { f.log[first] = strings.Repeat(strings.Repeat("A", 4096)+"\n", 2049) }, "more than 6291456 bytes"},
		"half of it":       {func(f *fleet) { f.log[first] = "" }, "has not arrived whole"},
		"too many parts": {func(f *fleet) {
			f.answers[first] = `{"result":"done","message":"slice 1 of 999999, 9 bytes, sha256 x"}`
		}, "the node answers"},
		"no part":           {func(f *fleet) { f.answers[first] = `{"result":"done","message":"slice 1 of 0, 9 bytes, sha256 x"}` }, "the node answers"},
		"a bundle is gone":  {func(f *fleet) { f.answers[first] = `{"result":"failed","message":"no such file"}` }, "failed: no such file"},
		"a missing printer": {func(f *fleet) { delete(f.answers, first) }, "has ended without a result"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, clitest.NodeNamed("gpu-1"), corev1.VolumeSource{})
			f.collected()
			f.has("all of it")
			test.spoil(f)
			out, err := f.does(t)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q\n%s", err, test.want, out)
			}
			if left, _ := os.ReadDir("."); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestNothingIsCollectedWhereItWouldDisturb(t *testing.T) {
	skipped := clitest.NodeNamed("gpu-1")
	skipped.Labels[conditions.LabelSkip] = "true"
	master, deleted := clitest.NodeNamed("gpu-1"), clitest.NodeNamed("gpu-1")
	master.Labels["node-role.kubernetes.io/control-plane"] = ""
	deleted.DeletionTimestamp, deleted.Finalizers = &metav1.Time{Time: clitest.Now}, []string{"example.com/stays"}
	for want, n := range map[string]*corev1.Node{
		"is being visited (repair, Working)":                           clitest.UnderRepair(t, visit.Working),
		"gpu-1: no Job runs there: it has label pitcrew.dev/skip=true": skipped,
		"gpu-1: no Job runs there: it belongs to the control plane":    master,
		"gpu-1: no Job runs there: it is being deleted":                deleted,
	} {
		f := newFleet(t, n, corev1.VolumeSource{})
		if _, err := f.changes(t.Context(), "gpu-1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	f := newFleet(t, clitest.UnderRepair(t, visit.Emptying), corev1.VolumeSource{})
	if _, err := f.changes(t.Context(), "gpu-1"); err != nil {
		t.Error(err)
	}
	if err := f.api.Delete(t.Context(), &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "print-bundle"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.changes(t.Context(), "gpu-1"); err == nil || !strings.Contains(err.Error(), "set repair.collect.enabled of the chart") {
		t.Errorf("%v", err)
	}
}
