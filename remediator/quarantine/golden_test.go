package quarantine

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
)

// kept is a node as the API server has it, the other nodes, and what belongs to all of them.
type kept struct {
	Now     time.Time
	Policy  string
	Node    *corev1.Node
	Others  []*corev1.Node `json:",omitempty"`
	Devices *devices.Look  `json:",omitempty"`
	Breaker string         `json:",omitempty"`
	// Marks is set if the answer has the labels, annotations and conditions for others, and what webhooks receive.
	Marks bool `json:",omitempty"`
}

// answered is what a new process decides about a node, and what becomes of it once it is healthy.
type answered struct {
	First, Healthy answer
}

type answer struct {
	Phase          causes.Phase
	ReleasedBy     string
	Status, Repair string
	Taints         []string
	Events         []string
	Blocked        string
	RestartJobs    bool
	Requeue        string
	Rules          string
	// Marks are the labels and annotations for others, Notified what webhooks receive, Suspected is soperator's condition.
	Marks     map[string]string `json:",omitempty"`
	Notified  []string          `json:",omitempty"`
	Suspected string            `json:",omitempty"`
}

// one makes a node by steps; rack makes node i of a rack by what is done to its nodes.
func one(text string, world func(*testing.T) *world, steps ...step) func(*testing.T) kept {
	return func(t *testing.T) kept {
		w := world(t)
		w.policy = policyOf(t, text)
		play(w, steps...)
		return kept{Now: w.now, Policy: text, Node: w.node, Devices: w.devices}
	}
}

const rackPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  domains: [{label: clique, incidents: {}}]
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      restartJobs: true
      for: 5s
    memory: {match: {condition: GPUMemoryError, repair: [ResetGPU]}, for: 5s}
    ports: {match: {condition: HCAPortDown, repair: [Inspect]}, for: 5s, clearAfter: 1m, restartJobs: true}
`

func rack(i int, happens func(f *fleet)) func(*testing.T) kept {
	return func(t *testing.T) kept {
		f := newRack(t, rackSize, "budget: {maxNodes: 1}")
		for _, w := range f.worlds {
			w.policy = policyOf(t, rackPolicy)
			portsUp(w)
		}
		f.passes(time.Hour)
		happens(f)
		k := kept{Now: f.worlds[i].now, Policy: rackPolicy, Node: f.worlds[i].node, Breaker: f.broken.String()}
		for j, w := range f.worlds {
			if j != i {
				k.Others = append(k.Others, w.node)
			}
		}
		return k
	}
}

var goldens = map[string]func(*testing.T) kept{
	"suspect":           one(testPolicy, newWorld, says("DiskFailing", "True", "x"), decide, passes(10*time.Second)),
	"suspect-blocked":   one(testPolicy, newWorld, gpu(ecc), others(1), decide),
	"observed":          one(testPolicy, newWorld, watched, decide, lasts(2*time.Minute)),
	"quarantined":       one(testPolicy, newWorld, gpu(lost), decide, lasts(time.Minute)),
	"drained":           one(testPolicy, newWorld, says("DiskFailing", "True", "x"), decide, lasts(2*time.Minute)),
	"clearing":          one(testPolicy, newWorld, gpu(ecc), decide, lasts(time.Minute), gpuFine, decide, lasts(time.Minute)),
	"two-causes":        one(testPolicy, newWorld, gpu(ecc), decide, says("DiskFailing", "True", "x"), decide, lasts(2*time.Minute)),
	"taint-restored":    one(testPolicy, newWorld, gpu(ecc), decide, untaints, decide),
	"taint-of-others":   one(testPolicy, newWorld, taints(theirs), says("FanFailing", "True", "Inspect fan"), decide),
	"rebooted":          one(testPolicy, newWorld, gpu(lost), decide, lasts(time.Minute), reboots, decide),
	"flaps":             one(testPolicy, newWorld, dips(2)),
	"sticky":            one(testPolicy, newWorld, flaps(3), flapping, decide, lasts(2*time.Minute)),
	"released":          one(testPolicy, newWorld, gpu(ecc), decide, lasts(time.Minute), gpuFine, decide, lasts(time.Hour)),
	"released-by-hand":  one(testPolicy, newWorld, gpu(ecc), decide, lasts(time.Minute), releases, decide),
	"by-hand":           one(testPolicy, newWorld, byHand, decide),
	"cordoned":          one(cordonPolicy, newWorld, gpu(ecc), decide),
	"isolated":          one(devicePolicy, newDeviceWorld, isolates),
	"isolated-two":      one(devicePolicy, newDeviceWorld, gpu(eccTwo), decide, settled),
	"isolation-unknown": one(devicePolicy, newDeviceWorld, gone, gpu(ecc), decide),
	"link-origin":       rack(0, func(f *fleet) { f.worlds[0].says(xid149); f.worlds[1].says(xid145); f.settles() }),
	"link-victim":       rack(1, func(f *fleet) { f.worlds[0].says(xid149); f.worlds[1].says(xid145); f.settles() }),
	"incident":          rack(0, func(f *fleet) { f.fail(0, rackSize, portsDown, memoryBad); f.settles() }),
}

var cordonPolicy = strings.Replace(testPolicy, "budget: {maxNodes: 1}", "budget: {maxNodes: 1}\n  handOff: {cordon: true}", 1)

func (w *world) says(message string) { gpu(message)(w) }

func releases(w *world) {
	n, err := ReleaseManually(w.node, Manual{User: "eve", Reason: "because"}, nil, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	w.node = n
}

func byHand(w *world) {
	n, err := QuarantineManually(w.node, Manual{User: "eve", Reason: "because"}, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	w.node = n
}

func TestGoldenQuarantines(t *testing.T) {
	for name, made := range goldens {
		t.Run(name, func(t *testing.T) {
			k := goldentest.Read(t, "quarantines/"+name, made)
			r, err := causes.RecordOf(k.Node)
			if err != nil || r == nil {
				t.Fatalf("record %v: %v", r, err)
			}
			if text := k.Node.Annotations[conditions.AnnotationQuarantine]; r.String() != text && !hasNotices(text) {
				t.Errorf("reads %s\nand writes %s", text, r)
			}
			goldentest.Answer(t, "quarantines/"+name, k.goesOn(t))
		})
	}
}

func (k kept) goesOn(t *testing.T) (a answered) {
	w := newWorld(t)
	w.policy, w.node, w.now, w.devices = policyOf(t, k.Policy), k.Node, k.Now, k.Devices
	w.broken = limits.ParseBreaker(k.Breaker, k.Now)
	for _, other := range k.Others {
		w.peers = append(w.peers, peers.Of(w.policy, other))
	}
	w.decide()
	a.First = k.answer(w)
	w.reasons = nil
	for i := range w.node.Status.Conditions {
		c := &w.node.Status.Conditions[i]
		if handoff.IsOurSuspicion(*c) {
			continue
		}
		says(string(c.Type), map[bool]string{true: "True", false: "False"}[c.Type == corev1.NodeReady], "")(w)
	}
	settled(w)
	lasts(2 * time.Hour)(w)
	settled(w)
	a.Healthy = k.answer(w)
	return a
}

func (k kept) answer(w *world) answer {
	a := w.answer()
	if k.Marks {
		k.mark(w, &a)
	}
	return a
}

func (w *world) answer() answer {
	r, a := w.record(), answer{Events: slices.Clone(w.reasons), RestartJobs: w.last.RestartJobs, Requeue: w.last.RequeueAfter.String()}
	if r != nil {
		a.Phase, a.ReleasedBy = r.Phase, r.ReleasedBy
	}
	a.Status, a.Repair = w.node.Labels[conditions.LabelStatus], w.node.Labels[conditions.LabelRepair]
	for _, taint := range w.node.Spec.Taints {
		a.Taints = append(a.Taints, taint.ToString())
	}
	if w.last.Blocked != nil {
		a.Blocked = w.last.Blocked.Reason
	}
	if w.last.Devices != nil && w.devices != nil {
		written(w)
	}
	a.Rules = w.rulesOf()
	return a
}
