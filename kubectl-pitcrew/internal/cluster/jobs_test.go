package cluster

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

func TestAnUnfinishedRestartIsNotCleaned(t *testing.T) {
	const current = `{"v":1,"jobUID":"u","current":{"phase":"Stopping"}}`
	for name, test := range map[string]struct {
		label  bool
		record string
		want   bool
	}{
		"under restart":                {true, current, true},
		"the restart has ended":        {false, `{"v":1,"jobUID":"u","last":[{}]}`, false},
		"the label was copied":         {true, "", false},
		"the record is of another job": {true, strings.Replace(current, `"u"`, `"other"`, 1), false},
		"a record of the past":         {true, `{"v":1,"jobUID":"u"}`, false},
	} {
		job := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "u", Annotations: map[string]string{conditions.AnnotationRestart: test.record}}}
		if test.label {
			metav1.SetMetaDataLabel(&job.ObjectMeta, conditions.LabelRestarting, "true")
		}
		if got := unfinished(job); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func TestAnUninstallThatGivesUpEndsItsOwnPauseOnly(t *testing.T) {
	stopped := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stopped", Labels: map[string]string{conditions.LabelRestarting: "true"}}}
	c := &cli.Target{Namespace: "pitcrew"}
	for name, test := range map[string]struct {
		objects      []client.Object
		interrupted  bool
		fails, pause bool
	}{
		"no restart is under way":       {pause: true},
		"a restart does not end":        {objects: []client.Object{stopped}, fails: true},
		"interrupted":                   {objects: []client.Object{stopped}, interrupted: true, fails: true},
		"it was paused before by users": {objects: []client.Object{stopped, configMap(c, conditions.PauseConfigMap)}, fails: true, pause: true},
	} {
		t.Run(name, func(t *testing.T) {
			api := fake.NewClientBuilder().WithObjects(test.objects...).WithInterceptorFuncs(interceptor.Funcs{
				Delete: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					return errors.Join(ctx.Err(), api.Delete(context.WithoutCancel(ctx), o, opts...))
				},
			}).Build()
			now := time.Now()
			c := &cli.Target{Namespace: "pitcrew", Now: func() time.Time { now = now.Add(quietPeriod); return now }}
			var out strings.Builder
			changes, err := finishRestarts(t.Context(), c, &out, api, []schema.GroupVersionKind{batchv1.SchemeGroupVersion.WithKind("Job")}, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			cmd := &cobra.Command{}
			cmd.SetOut(io.Discard)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if cmd.SetContext(ctx); test.interrupted {
				cancel()
			}
			err = (&cli.Confirmation{Yes: true}).Apply(cmd, changes)
			if (err != nil) != test.fails || test.fails && !strings.Contains(err.Error(), "Job default/stopped is being restarted") {
				t.Errorf("it fails: %v, want %t", err, test.fails)
			}
			if said := strings.Contains(out.String(), "the remediator goes on"); said != (test.fails && !test.pause) {
				t.Errorf("printed %q", out.String())
			}
			err = api.Get(t.Context(), client.ObjectKey{Namespace: "pitcrew", Name: conditions.PauseConfigMap}, &corev1.ConfigMap{})
			if client.IgnoreNotFound(err) != nil || (err == nil) != test.pause {
				t.Errorf("it is paused: %v, want %t", err == nil, test.pause)
			}
		})
	}
}
