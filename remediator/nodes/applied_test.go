package nodes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/version"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// appliedWriter keeps what is written to the key [conditions.AppliedKey].
type appliedWriter struct {
	laggard
	written []string
}

func (w *appliedWriter) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if w.refuse != nil {
		return w.refuse
	}
	w.written = append(w.written, object.(*corev1.ConfigMap).Data[conditions.AppliedKey])
	return nil
}

func TestTheLeaderShowsWhichPolicyItAppliesWhenThatChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(testPolicy)
	file, err := policy.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	elected := make(chan struct{})
	api := &appliedWriter{}
	r := &reloader{Controller: &Controller{
		client: api, policy: file, elected: elected, recorder: events.NewFakeRecorder(10), metrics: newMetrics(), reports: newReports(), namespace: "pitcrew",
	}, changes: make(chan event.GenericEvent, 1)}
	reload := func(want ...string) {
		t.Helper()
		for range 3 {
			r.reload(t.Context())
		}
		if diff := cmp.Diff(want, api.written); diff != "" {
			t.Fatal(diff)
		}
	}
	reload() // a replica that does not lead writes nothing
	close(elected)
	api.refuse = errors.New("connection refused")
	reload()
	api.refuse = nil
	hash := policy.Hash([]byte(testPolicy))
	first := `{"version":"` + version.String() + `","policy":"` + hash + `"}`
	reload(first)

	write(strings.Replace(testPolicy, "for: 1m", "for: soon", 1))
	r.reload(t.Context())
	if len(api.written) != 2 || !strings.HasPrefix(api.written[1], strings.TrimSuffix(first, "}")+`,"invalid":"policy `) || !strings.Contains(api.written[1], "soon") {
		t.Fatalf("written %q", api.written)
	}
	refused := api.written[1]
	reload(first, refused)

	changed := strings.Replace(testPolicy, "for: 1m", "for: 2m", 1)
	write(changed)
	reload(first, refused, strings.Replace(first, hash, policy.Hash([]byte(changed)), 1))

	r.applied, r.dryRun = nil, true
	reload(api.written...)
}
