package status

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func TestStatusShowsWhatIsUnderWay(t *testing.T) {
	p, err := policy.Parse([]byte(clitest.RepairPolicy))
	if err != nil {
		t.Fatal(err)
	}
	checked := func(name string, ago time.Duration) *corev1.Node {
		return clitest.Visited(clitest.NodeNamed(name), &visit.Record{Checked: &visit.Checked{At: clitest.Now.Add(-ago), BootID: "b1", Template: "check", Args: []string{"-level", "2"}}})
	}
	busy := checked("gpu-3", 200*time.Hour)
	record, _ := visit.RecordOf(busy)
	record.Swept = map[string]time.Time{"weekly": clitest.Now.Add(-2 * time.Hour)} // it has found a fault
	record.Current = &visit.Visit{ID: "s", Kind: visit.Sweep, Sweep: "weekly", Phase: visit.Working, StartedAt: clitest.Now.Add(-time.Minute), PhaseSince: clitest.Now, Attempt: 1, Template: "check"}
	clitest.Visited(busy, record)
	unchecked := clitest.NodeNamed("gpu-4")
	unchecked.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	plain, skipped := clitest.NodeNamed("cpu-1"), clitest.NodeNamed("gpu-9")
	plain.Status.Allocatable, skipped.Labels[conditions.LabelSkip] = nil, "true"
	elsewhere := clitest.NodeNamed("gpu-8")
	elsewhere.Labels = nil

	var nodes []corev1.Node
	var f Fleet
	waiting := clitest.QuarantinedBy(t, "gpu-5", "gpu", conditions.Reboot)
	waiting.Status.Conditions = []corev1.NodeCondition{{Type: "GPUXidError", Status: corev1.ConditionTrue, Message: clitest.Lost, LastHeartbeatTime: metav1.NewTime(clitest.Now), LastTransitionTime: metav1.NewTime(clitest.Now)}}
	for _, n := range []*corev1.Node{clitest.UnderRepair(t, visit.Emptying), waiting, checked("gpu-2", time.Hour), busy, unchecked, plain, skipped, elsewhere} {
		nodes = append(nodes, *n)
		r := RowOf(n, clitest.Now)
		r.addVisit(n)
		r.addApproval(p, n, clitest.Now)
		f.Nodes = append(f.Nodes, r)
	}
	f.addVisits(p, nodes, clitest.Now)
	var out strings.Builder
	cli.PrintFacts(&out, f.Pitcrew.Facts, false)
	want := `VISITS      gpu-1: repair, 30m, Emptying: waits for pod ml/train-0�[2J
            gpu-3: sweep weekly, check, 60s, Working
APPROVAL    gpu-5 waits for approval (Reboot): kubectl pitcrew repair gpu-5 --approve
SWEEPS      weekly: 2 of 5 nodes checked within 7d, 3 never; now: gpu-3
NEW NODES   1 wait for their first check: gpu-4
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if got := f.Nodes[0].cells(true, clitest.Now); got[8] != "3d, level 3" {
		t.Errorf("the column CHECKED: %q", got)
	}
	if f.Nodes[0].Advice == nil {
		t.Error("the advice is missing")
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"sweeps":[{"name":"weekly","every":"7d","nodes":5,"checked":2,"never":3,"underWay":["gpu-3"]}]`, `"visit":{"id":"v2","kind":"repair","phase":"Emptying"`, `"checked":{"at":`, `"advice":{`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
}

func TestStatusNamesSomeVisitsOnly(t *testing.T) {
	var f Fleet
	for i := range linesOfVisits + 5 {
		f.Nodes = append(f.Nodes, Row{Node: fmt.Sprintf("n%d", i), Visit: &visit.Visit{Kind: visit.Sweep, Phase: visit.Working, StartedAt: clitest.Now}})
	}
	f.addVisits(nil, nil, clitest.Now)
	if got := f.Pitcrew.Facts; len(got) != linesOfVisits+1 || got[linesOfVisits].Seen != "and 5 more" {
		t.Errorf("%d lines, the last one %q", len(got), got[len(got)-1].Seen)
	}
}

func TestHowHardANodeWasChecked(t *testing.T) {
	for want, c := range map[string]*visit.Checked{
		"":            nil,
		"3d, level 3": {At: clitest.Now.Add(-72 * time.Hour), Template: "check", Args: []string{"-x", "-level", "3"}},
		"3d, level 2": {At: clitest.Now.Add(-72 * time.Hour), Template: "check", Args: []string{"-level=2"}},
		"3d, ours":    {At: clitest.Now.Add(-72 * time.Hour), Template: "ours", Args: []string{"-level"}},
		"3d":          {At: clitest.Now.Add(-72 * time.Hour)},
	} {
		if got := checkedText(c, clitest.Now); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}
