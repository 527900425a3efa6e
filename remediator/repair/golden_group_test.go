package repair

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// keptNodes are the nodes of a group, or one that is new, as the API server has them.
type keptNodes struct {
	Policy string
	Nodes  map[string]kept
}

// answeredNode is a node an hour later: nothing is under way on it, whatever has become of the check.
type answeredNode struct {
	Busy, Jobs bool
	Taints     []string
}

// ofEarlierVersion stands for a moment that this version does not make any more: its visits end.
func ofEarlierVersion(t *testing.T) keptNodes {
	t.Fatal("this version makes no visits to groups of nodes")
	return keptNodes{}
}

const firstCheck = "firstCheck: {conditions: [GPUXidError, GPUMemoryError], template: check, args: [-level, \"2\"]}\n  repair:"

// goldenNodes are moments of checks of a group and of new nodes.
var goldenNodes = map[string]func(*testing.T) keptNodes{
	"group-emptying": ofEarlierVersion,
	"group-working":  ofEarlierVersion,
	"group-proving":  ofEarlierVersion,
	"group-closed":   ofEarlierVersion,
	"first-check-waits": func(t *testing.T) keptNodes {
		w, m := newcomer(t)
		w.set(m, "GPUXidError", corev1.ConditionUnknown, "")
		return w.keepNodes(t, "repair:", firstCheck, func() bool { return m.waiting != nil })
	},
	"first-check-works": func(t *testing.T) keptNodes {
		w, m := newcomer(t)
		return w.keepNodes(t, "repair:", firstCheck, func() bool { return m.phase() == visit.Working && m.record().Current.JobUID != "" })
	},
	"first-check-proving": func(t *testing.T) keptNodes {
		w, m := newcomer(t)
		w.ends(repairresult.Healthy, "a")
		m.silent = true
		return w.keepNodes(t, "repair:", firstCheck, func() bool { return m.phase() == visit.Proving })
	},
}

// newcomer is a node that has been registered with the taint of new nodes.
func newcomer(t *testing.T) (*world, *machine) {
	t.Helper()
	w := newWorld(t, parse(t, "repair:", firstCheck), "a")
	m := w.nodes["a"]
	m.CreationTimestamp = metav1.NewTime(w.now.Add(-time.Minute))
	m.Status.Allocatable = requests("cpu", "nvidia.com/gpu")
	m.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	return w, m
}

func (w *world) keepNodes(t *testing.T, old, text string, is func() bool) keptNodes {
	t.Helper()
	w.until("it is as kept", time.Hour, is)
	k := keptNodes{Policy: strings.Replace(testPolicy, old, text, 1), Nodes: map[string]kept{}}
	for name, m := range w.nodes {
		n := w.keep(m)
		n.Policy = ""
		k.Nodes[name] = n
	}
	return k
}

func TestGoldenNodes(t *testing.T) {
	for name, made := range goldenNodes {
		t.Run(name, func(t *testing.T) {
			k := goldentest.Read(t, "visits/"+name, made)
			goldentest.Answer(t, "visits/"+name, k.goesOn(t))
		})
	}
}

func (k keptNodes) goesOn(t *testing.T) map[string]answeredNode {
	p, err := policy.Parse([]byte(k.Policy))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, p, "a")
	delete(w.nodes, "a")
	w.templates["preflight"] = template("preflight")
	for name, n := range k.Nodes {
		w.now = n.Now
		for i := range n.Node.Status.Conditions {
			if c := &n.Node.Status.Conditions[i]; c.Status == corev1.ConditionUnknown {
				c.Status = corev1.ConditionFalse
			}
		}
		w.nodes[name] = &machine{Node: n.Node, pods: n.Pods, jobs: orEmpty(n.Jobs), ended: orEmpty(n.Ended)}
		w.ends(repairresult.Healthy, name)
	}
	for range 360 {
		w.step(10 * time.Second)
	}
	answers := map[string]answeredNode{}
	for name, m := range w.nodes {
		answers[name] = answeredNode{Busy: m.phase() != "", Jobs: len(m.jobs) > 0, Taints: taintsOf(m.Node)}
	}
	return answers
}

// ends has the Jobs of the nodes end with a result.
func (w *world) ends(result repairresult.Kind, nodes ...string) {
	for _, name := range nodes {
		m := w.nodes[name]
		m.run = func(job *batchv1.Job) {
			w.end(m, job, int32(result.ExitCode()), fmt.Sprintf(`{"result":%q,"message":"rank of %s"}`, result, m.Name))
		}
	}
}
