package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestTheDoctorFindsWhatRepairsLack(t *testing.T) {
	const on = "-repair-namespace=pitcrew-repair"
	templates := []string{"check", "reboot", "reset-gpu"}
	noFirstCheck := strings.Replace(clitest.RepairPolicy, "  firstCheck: {}\n", "", 1)
	none := strings.Split(clitest.RepairPolicy, "  repair:")[0] + "  rules: {}\n"
	for name, test := range map[string]struct {
		policy, flag string
		templates    []string
		refuses      string
		tainted      string
		want         string
	}{
		"all is there":   {clitest.RepairPolicy, on, templates, "", conditions.TaintUnchecked, "ok: on, by Jobs in namespace pitcrew-repair; templates: check, reboot, reset-gpu"},
		"off":            {none, "-x", nil, "", "", "ok: off: the policy asks for no repair, no sweep and no check"},
		"no flag":        {clitest.RepairPolicy, "-x", nil, "", "", "problem: the policy asks for repairs or checks of nodes, but the remediator runs without -repair-namespace: none is made"},
		"no templates":   {noFirstCheck, on, nil, "", "", "problem: repair.validate, sweep weekly names template check, and there is no such PodTemplate in namespace pitcrew-repair (there are: none)\nproblem: repair.actions.ResetGPU, repair.actions.Reboot names template reboot"},
		"one is missing": {noFirstCheck, on, []string{"check", "reboot"}, "", "", "problem: repair.actions.ResetGPU names template reset-gpu, and there is no such PodTemplate in namespace pitcrew-repair (there are: check, reboot)"},
		"nothing collects": {strings.Replace(noFirstCheck, "    mode: approve\n", "    mode: approve\n    collect: {template: collect}\n", 1), on, templates, "", "",
			"problem: repair.collect names template collect, and there is no such PodTemplate in namespace pitcrew-repair (there are: check, reboot, reset-gpu)"},
		"no right":                 {clitest.RepairPolicy, on, templates, "jobs", "", "problem: in namespace pitcrew-repair the remediator may not get jobs.batch, list jobs.batch, watch jobs.batch, create jobs.batch, delete jobs.batch"},
		"no right of admission":    {clitest.RepairPolicy, on, templates, "repairjobs", "", "problem: in namespace pitcrew-repair the remediator may not create repairjobs.pitcrew.dev"},
		"nodes wait for no check":  {noFirstCheck, on, templates, "", conditions.TaintUnchecked, "ok: on, by Jobs in namespace pitcrew-repair; templates: check, reboot, reset-gpu\nwarning: taint pitcrew.dev/unchecked is on nodes, and the policy has no firstCheck that removes it: new"},
		"and nothing is on":        {none, "-x", nil, "", conditions.TaintUnchecked, "ok: off: the policy asks for no repair, no sweep and no check\nwarning: taint pitcrew.dev/unchecked is on nodes"},
		"visits were not finished": {none, "-x", nil, "", conditions.TaintMaintenance, "ok: off: the policy asks for no repair, no sweep and no check\nproblem: visits were not finished before the remediator ran without -repair-namespace: their taint pitcrew.dev/maintenance stays on nodes: new"},
		"a new node waits for long": {strings.Replace(clitest.RepairPolicy, "firstCheck: {}", "firstCheck: {}\n  pools: {a: {conditions: [GPUXidError]}}", 1), on, templates, "", conditions.TaintUnchecked,
			"problem: waiting for a first check for up to 60m: new: no report of this boot yet of GPUXidError"},
		"a visit is under way": {clitest.RepairPolicy, on, templates, "", conditions.TaintMaintenance, "ok: on, by Jobs in namespace pitcrew-repair; templates: check, reboot, reset-gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := policy.Parse([]byte(test.policy))
			if err != nil {
				t.Fatal(err)
			}
			var objects []client.Object
			for _, name := range test.templates {
				objects = append(objects, &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: name}})
			}
			api := fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					review := o.(*authorizationv1.SubjectAccessReview)
					asked := review.Spec.ResourceAttributes
					review.Status.Allowed = asked.Namespace == conditions.RepairNamespace && asked.Resource != test.refuses
					return nil
				},
			}).Build()
			d := &doctor{Target: &cli.Target{Namespace: "pitcrew", Now: time.Now}, api: api, Inspection: &health.Inspection{Installation: health.Installation{
				Parsed: p, Pods: []corev1.Pod{{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{test.flag}}}}}},
			}}}
			if test.tainted != "" {
				created := metav1.NewTime(d.Now().Add(-time.Hour))
				if !strings.Contains(test.policy, "pools:") {
					created = metav1.Time{}
				}
				d.nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "new", CreationTimestamp: created}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: test.tainted, Value: "repair"}}}}}
			}
			found, err := d.repairs(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, f := range found {
				lines = append(lines, fmt.Sprintf("%s: %s", f.Level, f.Seen))
				if (f.Level == cli.IsProblem || f.Level == cli.IsWarning) && f.Do == "" {
					t.Errorf("nothing to do about %s", f.Seen)
				}
			}
			if got := strings.Join(lines, "\n"); !strings.HasPrefix(got, test.want) || strings.Contains(got, "not finished") != strings.Contains(test.want, "not finished") {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// What a pod needs in the namespace of the Jobs is easily forgotten there.
func TestTheDoctorFindsWhatPodsOfTemplatesLack(t *testing.T) {
	key := corev1.LocalObjectReference{Name: "key"}
	pod := corev1.PodSpec{
		ServiceAccountName: "pitcrew-repair", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}},
		Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "evidence"}}},
			{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: key}}},
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "optional", Optional: new(true)}}},
		},
		Containers: []corev1.Container{{
			EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: key}}},
			Env: []corev1.EnvVar{{Name: "plain"}, {ValueFrom: &corev1.EnvVarSource{
				ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}},
			}}},
		}},
	}
	template := func(name string, pod corev1.PodSpec) *corev1.PodTemplate {
		t := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: name}}
		t.Template.Spec = pod
		return t
	}
	in := metav1.ObjectMeta{Namespace: conditions.RepairNamespace}
	account, settings := &corev1.ServiceAccount{ObjectMeta: in}, &corev1.ConfigMap{ObjectMeta: in}
	account.Name, settings.Name = pod.ServiceAccountName, "settings"
	api := fake.NewClientBuilder().WithObjects(account, settings).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind().Kind == "Secret" && key.Name == "key" {
				return apierrors.NewForbidden(corev1.Resource("secrets"), key.Name, nil)
			}
			return c.Get(ctx, key, o)
		},
	}).Build()
	d := &doctor{Target: &cli.Target{}, api: api}
	found, err := d.templateNeeds(t.Context(), []corev1.PodTemplate{
		*template("check", corev1.PodSpec{ImagePullSecrets: pod.ImagePullSecrets}), *template("collect", pod),
	})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range found {
		lines = append(lines, fmt.Sprintf("%s: %s", f.Level, f.Seen))
	}
	const none = "problem: pods of template %s do not start: there is no %s in namespace pitcrew-repair"
	want := []string{
		fmt.Sprintf(none, "check, collect", "Secret registry"), fmt.Sprintf(none, "collect", "PersistentVolumeClaim evidence"),
		fmt.Sprintf(none, "collect", "ConfigMap key"),
		`unknown: whether Secret key of template collect is there: secrets "key" is forbidden: <nil>`,
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
