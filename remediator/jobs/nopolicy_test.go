package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Attack 24: what is read at the start is read when the first valid policy comes.
func TestAPolicyThatBecomesValidLaterIsTakenOver(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 3, nil)
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("spec: invalid")
	file, err := policy.Follow(path)
	if err == nil {
		t.Fatal("the policy is valid")
	}
	r, _ := run(t, tm.config(), interceptor.Funcs{}, func(o *Options) { o.Policy = file })
	g := tm.createJob("train", optedIn, tm.jobSpec(2, tm.watched))
	ranks := g.runs()
	if r.reconciler.watcher.watchAll(t.Context()); r.reconciler.watcher.tried.Load() {
		t.Error("all kinds are known without a policy")
	}
	write(fmt.Sprintf(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  budget: {maxNodes: 1}
  restart: {podFailures: {enabled: true, podSelector: {team: %s}}}
`, tm.name))
	if _, err := file.Reload(); err != nil {
		t.Fatal(err)
	}
	if r.reconciler.watcher.watchAll(t.Context()); !r.reconciler.watcher.tried.Load() || r.reconciler.watcher.Unread() != nil {
		t.Error("some kinds are still not known")
	}
	tm.crash(ranks[0])
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
}
