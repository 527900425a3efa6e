package nodes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

func TestAnInvalidPolicyIsReportedOnceAndTheLastGoodOneStays(t *testing.T) {
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
	close(elected)
	recorder := events.NewFakeRecorder(10)
	changes := make(chan event.GenericEvent, 1)
	r := &reloader{&Controller{policy: file, elected: elected, recorder: recorder, metrics: newMetrics(), reports: newReports(), namespace: "pitcrew"}, changes, ""}

	write(strings.Replace(testPolicy, "for: 1m", "for: soon", 1))
	for range 3 {
		r.reload(t.Context())
	}
	if len(recorder.Events) != 1 {
		t.Fatalf("said %d times", len(recorder.Events))
	}
	if e := <-recorder.Events; !strings.Contains(e, quarantine.PolicyInvalid) || !strings.Contains(e, "line ") {
		t.Errorf("said %q", e)
	}
	if len(changes) != 0 || len(file.Policy().Rules) == 0 {
		t.Error("the last good policy is gone")
	}
	write(strings.Replace(testPolicy, "for: 1m", "for: 2m", 1))
	r.reload(t.Context())
	r.reload(t.Context())
	if len(changes) != 1 {
		t.Error("nobody decides by the new policy")
	}
}
