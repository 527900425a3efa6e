package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

// samples are kcover's documented run of four.
const samples = "../internal/preflight/report/testdata"

func TestPreflightOffline(t *testing.T) {
	tests := map[string]struct {
		args string
		want []string
	}{
		"text": {"preflight -f " + samples, []string{"slow: gpu-c (p 0.9", "failed: gpu-d (a local check", "31.3", "6.2", "1 of 4 nodes is slow: gpu-c, 80 % below the median"}},
		"html": {"preflight -o html -f " + samples, []string{"1 of 4 nodes is slow: gpu-c, 80 % below the median", "gpu-c", "6.2"}},
		"json": {"preflight -o json -f " + samples, []string{`"complete":true`, `"slow":[{"node":"gpu-c","p":0.9`, `"drop":0.8,"partners":2}]`, `"failed":["gpu-d"],"missing":[],"retest":[],"fabric":[]`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := newCommand()
			cmd.SetArgs(strings.Fields(tt.args))
			cmd.SetOut(&out)
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
		})
	}
	for args, want := range map[string]string{
		"preflight":                      "name a run",
		"preflight r -f " + samples:      "name a run",
		"preflight -f " + t.TempDir():    "no *.json file in ",
		"preflight -f /nope":             "open /nope: no such file or directory",
		"preflight -o pdf -f " + samples: "not text, html or json",
	} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetErr(&bytes.Buffer{})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// The reports of kcover's documented run of four, as a pod's init container would have written them: a job's, in one
// namespace of several.
func TestPreflightOnline(t *testing.T) {
	p := NewPerson(t)
	ctx := t.Context()
	leaf := map[string]string{"gpu-a": "left", "gpu-b": "right", "gpu-c": "left", "gpu-d": "right"}
	for name, rack := range leaf {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"topology.kubernetes.io/rack": rack}}}
		if err := p.Client.Create(ctx, node); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			//nolint:usetesting // the test's own context has ended by now
			if err := p.DeleteNodes(p.Cluster.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	for _, namespace := range []string{"team", "other"} {
		if err := p.AddNamespace(ctx, namespace, nil); err != nil {
			t.Fatal(err)
		}
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "train"}, Spec: batchv1.JobSpec{
			Suspend: new(true),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "train", Image: "train"}},
			}},
		}}
		if err := p.Client.Create(ctx, job); err != nil {
			t.Fatal(err)
		}
		paths, err := filepath.Glob(samples + "/*.json")
		if err != nil || len(paths) != 4 {
			t.Fatalf("%q, %v", paths, err)
		}
		for i, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r, err := report.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			r.RunID = "run-" + namespace
			if namespace == "other" && i > 0 {
				r.RunID = "run-team" // the same name by chance, or by intent
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("train-", i), UID: types.UID(fmt.Sprint(namespace, i)),
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}}}
			cm, err := reportconfigmap.New(pod, r)
			if err != nil {
				t.Fatal(err)
			}
			if namespace == "other" && i == 1 {
				cm.Annotations[conditions.AnnotationPreflightVerdict] = reportconfigmap.RefusedPrefix + "it is older than its pod"
			}
			if err := p.Client.Create(ctx, cm); err != nil {
				t.Fatal(err)
			}
		}
	}

	// One line of JSON, in the documented order.
	want := `{"run":"run-team","complete":true,"slow":[{"node":"gpu-c","p":0.997,"drop":0.8,"partners":2}],"failed":["gpu-d"],"missing":[],"retest":[],"fabric":[]}` + "\n"
	if diff := cmp.Diff(want, p.run("preflight", "run-team", "--reports-namespace", "team", "-o", "json")); diff != "" {
		t.Error(diff)
	}
	p.says("preflight run-team --reports-namespace team", "slow: gpu-c (p 0.997, 80 % below the others, seen by 2 healthy partners)")
	p.says("preflight run-team --reports-namespace team", "Job team/train")
	// Rows by rack.
	page := p.run("preflight", "run-team", "--reports-namespace", "team", "-o", "html")
	rows := regexp.MustCompile(`<td class="muted">(\w+)</td><th class="name" scope="row">([-\w]+)</th>`).FindAllStringSubmatch(page, -1)
	var order []string
	for _, row := range rows {
		order = append(order, row[1]+" "+row[2])
	}
	if diff := cmp.Diff([]string{"left gpu-a", "left gpu-c", "right gpu-b", "right gpu-d"}, order); diff != "" {
		t.Error(diff)
	}
	p.fails("preflight run-team", "have reports of run run-team; choose with --reports-namespace")
	p.says("preflight run-team --reports-namespace other", "refused by the remediator: other/preflight-")
	p.says("preflight run-team --reports-namespace other", "incomplete: not every rank has reported")
	p.fails("preflight no-such-run", "there is no report")
}
