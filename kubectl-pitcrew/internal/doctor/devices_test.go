package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// The role is the one that is shipped, for the account of another namespace than the other tests'.
func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{}) }

func TestTheDoctorAsksForTheRightsOnDevicesThatThePolicyNeeds(t *testing.T) {
	c := clustertest.Get(t)
	const account = "system:serviceaccount:ward-of-devices:pitcrew-remediator"
	examine := func(spec string) []string {
		t.Helper()
		parsed, err := policy.Parse([]byte("apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nspec:\n  budget: {maxNodes: 9}\n" + spec))
		if err != nil {
			t.Fatal(err)
		}
		d := &doctor{Target: &cli.Target{Namespace: "ward-of-devices"}, api: c.Client, Inspection: &health.Inspection{Installation: health.Installation{Parsed: parsed}}}
		found, err := d.deviceRights(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, f := range found {
			lines = append(lines, fmt.Sprintf("%s: %s -> %s", f.Level, f.Seen, f.Do))
		}
		return lines
	}
	const (
		rule     = "  rules: {gpu: {match: {condition: GPUXidError, repair: [ResetGPU]}"
		plain    = rule + "}}\n"
		isolates = rule + ", isolate: device}}\n"
	)
	if got := examine(plain); len(got) != 0 {
		t.Errorf("a policy that needs none: %q", got)
	}
	missing := []string{
		"problem: " + account + " may not list devicetaintrules.resource.k8s.io, create devicetaintrules.resource.k8s.io, update devicetaintrules.resource.k8s.io, " +
			"delete devicetaintrules.resource.k8s.io, list resourceslices.resource.k8s.io, get resourceclaims.resource.k8s.io, which isolate: device needs: whole nodes are quarantined -> " +
			"helm upgrade adds role pitcrew-remediator-devices; without Helm: kubectl apply -f manifests/remediator/devices.yaml",
	}
	if diff := cmp.Diff(missing, examine(isolates)); diff != "" {
		t.Error(diff)
	}
	text, err := os.ReadFile(filepath.Join(c.Root, "manifests", "remediator", "devices.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), []byte(strings.ReplaceAll(string(text), "namespace: pitcrew", "namespace: ward-of-devices"))); err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: "pitcrew-remediator-devices"}
	t.Cleanup(func() {
		for _, object := range []client.Object{&rbacv1.ClusterRole{ObjectMeta: meta}, &rbacv1.ClusterRoleBinding{ObjectMeta: meta}} {
			if err := c.Client.Delete(c.Context(), object); err != nil {
				t.Error(err)
			}
		}
	})
	want := []string{"ok: " + account + " has role pitcrew-remediator-devices -> "}
	clustertest.Until(t, time.Minute, "wait for the API server to know the role", func() error { // its cache is late
		if diff := cmp.Diff(want, examine(isolates)); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
}
