package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

// kcover's container has left its report on the host, in its own form. The next container of the pod sends it.
func TestSendTheReportOfKcover(t *testing.T) {
	raw, err := os.ReadFile("../internal/preflight/report/testdata/kcover-raw.json")
	if err != nil {
		t.Fatal(err)
	}
	const file = "ml/train-4-0.json"
	now := time.Now()
	tests := map[string]struct {
		change func(folder string) error
		args   []string
		want   string
	}{
		"sent":         {},
		"another id":   {args: []string{"-run=attempt-2"}},
		"not there":    {change: func(f string) error { return os.Remove(filepath.Join(f, file)) }, want: "it is not there; this container must run after kcover's"},
		"another node": {args: []string{"-node=gpu-b"}, want: `it is of node "gpu-a", this pod is on gpu-b`},
		"another rank": {change: func(f string) error { return os.Rename(filepath.Join(f, file), filepath.Join(f, "ml/train-4-1.json")) }, args: []string{"-rank=1"}, want: "it is of rank 0, this is 1"},
		"older":        {change: func(f string) error { return os.Chtimes(filepath.Join(f, file), now, now.Add(-2*time.Hour)) }, want: "older than this pod"},
		"cut off":      {change: func(f string) error { return os.WriteFile(filepath.Join(f, file), raw[:200], 0o600) }, want: "unexpected EOF"},
		"a folder": {change: func(f string) error {
			return errors.Join(os.Remove(filepath.Join(f, file)), os.Mkdir(filepath.Join(f, file), 0o755))
		}, want: "it is not a file"},
		"a link out": {change: func(f string) error {
			return errors.Join(os.Remove(filepath.Join(f, file)), os.Symlink("/etc/passwd", filepath.Join(f, file)))
		}, want: "path escapes from parent"},
		"of a run": {change: func(f string) error {
			return os.WriteFile(filepath.Join(f, file), []byte(`{"run_id":"x",`+string(raw[1:])), 0o600)
		}, want: `it is of run "x", this is 5-b`},
		"no rank given": {args: []string{"-rank="}, want: "-rank"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(folder, "ml"), 0o755), os.WriteFile(filepath.Join(folder, file), raw, 0o600)); err != nil {
				t.Fatal(err)
			}
			if test.change != nil {
				if err := test.change(folder); err != nil {
					t.Fatal(err)
				}
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train-4-0-x", UID: "7-a", OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "batch/v1", Kind: "Job", Name: "train-4", UID: "5-b", Controller: ptr.To(true)},
			}}}
			pod.Status.StartTime = &metav1.Time{Time: now.Add(-time.Hour)}
			env := map[string]string{"POD_NAMESPACE": "ml", "POD_NAME": "train-4-0-x", "WORKLOAD": "train-4", "NODE_NAME": "gpu-a"}
			c := fake.NewClientset(pod)
			o, err := parse(append([]string{"-send", folder, "-rank=0"}, test.args...), func(key string) string { return env[key] })
			if err == nil {
				o.connect = func() (kubernetes.Interface, error) { return c, nil }
				var code int
				if code, err = run(t.Context(), o); (code == exitOK) != (err == nil) || code == exitNodeBad {
					t.Errorf("exit %d, %v", code, err)
				}
			}
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("%v, want %s", err, test.want)
				}
				if list, _ := c.CoreV1().ConfigMaps("ml").List(t.Context(), metav1.ListOptions{}); len(list.Items) > 0 {
					t.Errorf("ConfigMaps %v", list.Items)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			list, err := c.CoreV1().ConfigMaps("ml").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 {
				t.Fatalf("%v, %v", list, err)
			}
			cm, id := list.Items[0], "5-b"
			if len(test.args) > 0 {
				id = "attempt-2"
			}
			r, err := report.Parse([]byte(cm.Data[reportconfigmap.Key]))
			if err != nil || r.RunID != id || r.Node != "gpu-a" || r.Size != 4 || len(r.Batches) != 3 || cm.Labels[conditions.LabelPreflightRun] != id {
				t.Errorf("%v, labels %v: %+v", err, cm.Labels, r)
			}
		})
	}
}
