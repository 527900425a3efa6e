package preflight

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// submitted is a report of a rank of a run of four, some seconds after noon.
func submitted(rank, seconds int, change ...func(*submission)) submission {
	name := string(rune('a' + rank))
	s := submission{
		uid: types.UID("cm-" + name), name: "cm-" + name, created: noon.Add(time.Duration(seconds) * time.Second), run: "r",
		owner: metav1.OwnerReference{Kind: "Job", Name: "train", UID: "job"}, workload: "job",
		pod: "train-" + name, podUID: types.UID("pod-" + name),
		report: report.Report{Size: 4, Rank: rank, Node: "node-" + name, GPU: report.Passed, Storage: report.Passed},
	}
	for _, c := range change {
		c(&s)
	}
	return s
}

func TestAssemble(t *testing.T) {
	const timeout = 10 * time.Minute
	size := func(n int) func(*submission) { return func(s *submission) { s.report.Size = n } }
	again := func(s *submission) { s.uid += "-2"; s.name += "-2" }
	otherPod := func(s *submission) { again(s); s.podUID += "-2" }
	tests := map[string]struct {
		submissions []submission
		// want is a string for each run: its size, its ranks and whether it is complete
		want    []string
		refused []string
	}{
		"complete":            {[]submission{submitted(0, 0), submitted(1, 1), submitted(2, 2), submitted(3, 3)}, []string{"4:0123 complete"}, nil},
		"incomplete":          {[]submission{submitted(0, 0), submitted(2, 2)}, []string{"4:02"}, nil},
		"a wrong size":        {[]submission{submitted(0, 0, size(6)), submitted(1, 1), submitted(2, 2), submitted(3, 3)}, []string{"4:123"}, []string{"cm-a: workload_size is 6, but the run has 4"}},
		"one against one":     {[]submission{submitted(0, 0, size(6)), submitted(1, 1)}, []string{"6:0"}, []string{"cm-b: workload_size is 4, but the run has 6"}},
		"replayed by its pod": {[]submission{submitted(0, 0), submitted(0, 1, again)}, []string{"4:0"}, []string{"cm-a-2: pod train-a has already reported"}},
		"a rank twice":        {[]submission{submitted(0, 0), submitted(0, 1, otherPod)}, []string{"4:0"}, []string{"cm-a-2: rank 0 has already reported, in cm-a"}},
		"just in time":        {[]submission{submitted(0, 0), submitted(1, 600)}, []string{"4:01"}, nil},
		"late":                {[]submission{submitted(0, 0), submitted(1, 601)}, []string{"4:0"}, []string{"cm-b: it is late: the run ended at 2026-11-20T12:10:00Z"}},
		"two ranks on one node": {[]submission{submitted(0, 0), submitted(1, 0, func(s *submission) { s.report.Node = "node-a" }), submitted(2, 0), submitted(3, 0)},
			[]string{"4:0123 complete"}, nil},
		"two jobs with one run id": {[]submission{submitted(0, 0), submitted(1, 0, func(s *submission) { s.workload = "other" })}, []string{"4:0", "4:1"}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 1))
			for range 5 { // in any order
				runs, refusals := assembleRuns(tt.submissions, timeout)
				var got, refused []string
				for _, r := range runs {
					text := string(rune('0'+r.size)) + ":"
					ranks := make([]bool, 10)
					for _, s := range r.submissions {
						ranks[s.report.Rank] = true
					}
					for rank, is := range ranks {
						if is {
							text += string(rune('0' + rank))
						}
					}
					if r.isComplete() {
						text += " complete"
					}
					got = append(got, text)
				}
				for _, r := range refusals {
					refused = append(refused, r.submission.name+": "+r.reason)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(tt.refused, refused); diff != "" {
					t.Error(diff)
				}
				random.Shuffle(len(tt.submissions), func(i, j int) { tt.submissions[i], tt.submissions[j] = tt.submissions[j], tt.submissions[i] })
			}
		})
	}
}

func TestARunIsDueWhenAllHaveReportedOrTimeIsUp(t *testing.T) {
	runs, _ := assembleRuns([]submission{submitted(0, 0), submitted(1, 5)}, time.Minute)
	if r := runs[0]; r.isDue(noon.Add(59*time.Second)) || !r.isDue(noon.Add(time.Minute)) || !r.decidedAt().Equal(noon.Add(time.Minute)) {
		t.Errorf("%+v", r)
	}
	runs, _ = assembleRuns([]submission{submitted(0, 0), submitted(1, 1), submitted(3, 7), submitted(2, 3)}, time.Minute)
	if r := runs[0]; !r.isDue(noon) || !r.decidedAt().Equal(noon.Add(7*time.Second)) {
		t.Errorf("%+v", r)
	}
}

// testPod is a pod of a job on node-a.
func testPod() *corev1.Pod {
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: "train-a", UID: "pod-a", CreationTimestamp: metav1.NewTime(noon),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: "job", Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: "node-a"},
	}
}

func TestAReportBelongsToItsPod(t *testing.T) {
	no, yes := false, true
	tests := map[string]struct {
		cm    func(*corev1.ConfigMap)
		pod   func(*corev1.Pod)
		wrong string
	}{
		"as it is":               {},
		"no run":                 {cm: func(cm *corev1.ConfigMap) { delete(cm.Labels, conditions.LabelPreflightRun) }, wrong: "no label"},
		"another run":            {cm: func(cm *corev1.ConfigMap) { cm.Labels[conditions.LabelPreflightRun] = "x" }, wrong: "run_id is r, but label"},
		"mutable":                {cm: func(cm *corev1.ConfigMap) { cm.Immutable = &no }, wrong: "not immutable"},
		"a second key":           {cm: func(cm *corev1.ConfigMap) { cm.Data["x"] = "y" }, wrong: "only key"},
		"another node annotated": {cm: func(cm *corev1.ConfigMap) { cm.Annotations[conditions.AnnotationPreflightNode] = "node-b" }, wrong: "annotation"},
		"no pod":                 {cm: func(cm *corev1.ConfigMap) { delete(cm.Annotations, conditions.AnnotationPreflightPod) }, wrong: "must name the reporting pod"},
		"no owner":               {cm: func(cm *corev1.ConfigMap) { cm.OwnerReferences = nil }, wrong: "0 owners"},
		"another owner":          {cm: func(cm *corev1.ConfigMap) { cm.OwnerReferences[0].UID = "x" }, wrong: "not owned by the controller"},
		"another owner's name":   {cm: func(cm *corev1.ConfigMap) { cm.OwnerReferences[0].Name = "x" }, wrong: "not owned by the controller"},
		"another owner's kind":   {cm: func(cm *corev1.ConfigMap) { cm.OwnerReferences[0].Kind = "Secret" }, wrong: "not owned by the controller"},
		"no pod's name":          {cm: func(cm *corev1.ConfigMap) { cm.Annotations[conditions.AnnotationPreflightPod] = "a/b" }, wrong: "must name the reporting pod"},
		"not a report":           {cm: func(cm *corev1.ConfigMap) { cm.Data[reportconfigmap.Key] = "{}" }, wrong: "workload_size"},
		"the pod's successor":    {pod: func(p *corev1.Pod) { p.UID = "pod-2" }, wrong: "was replaced"},
		"a pod elsewhere":        {pod: func(p *corev1.Pod) { p.Spec.NodeName = "node-b" }, wrong: `on node "node-b"`},
		"a pod of another job": {pod: func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", UID: "x", Controller: &yes}}
		}, wrong: "not owned by the controller"},
		"older than its pod": {cm: func(cm *corev1.ConfigMap) { cm.CreationTimestamp = metav1.NewTime(noon.Add(-time.Second)) }, wrong: "older than pod"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pod := testPod()
			cm, err := reportconfigmap.New(pod, report.Report{RunID: "r", Size: 4, Node: "node-a", GPU: report.Passed})
			if err != nil {
				t.Fatal(err)
			}
			cm.UID, cm.CreationTimestamp = "cm", metav1.NewTime(noon.Add(time.Minute))
			if tt.cm != nil {
				tt.cm(cm)
			}
			if tt.pod != nil {
				tt.pod(pod)
			}
			s, err := readSubmission(cm)
			if err == nil {
				err = s.checkPod(pod)
			}
			switch {
			case tt.wrong == "" && err != nil:
				t.Error(err)
			case tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)):
				t.Errorf("error %v, want one with %q", err, tt.wrong)
			}
		})
	}
}
