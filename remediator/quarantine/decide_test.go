package quarantine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
)

const testPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      restartJobs: true
    gpu-drain:
      match: {condition: GPUXidError, repair: [ResetGPU], message: Drain}
      priority: 10
    gpu-inspect:
      match: {condition: GPUXidError, repair: [Inspect]}
      alertOnly: true
    disk:
      match: {condition: DiskFailing, repair: [Replace]}
      for: 1m
      taint: {key: example.com/disk, value: "true", effect: NoExecute}
    watched:
      match: {condition: WatchedFailing, repair: [Reboot]}
      mode: observe
      for: 1m
      restartJobs: true
    flap:
      match: {condition: PortFlapping, repair: [Inspect]}
      for: 1m
      flaps: {max: 3, window: 24h}
    mute:
      match: {condition: NT_NPU_CARD_LOSE, repair: [Reboot]}
      unknownAfter: never
    slow-node:
      match: {condition: SlowNode, repair: [Inspect]}
      taint: {effect: PreferNoSchedule}
    fan:
      match: {condition: FanFailing, repair: [Inspect]}
      clearAfter: 30m
      taint: {key: example.com/fan}
    z:
      match: {condition: ZFailing, repair: [Inspect]}
    accelerator:
      match: {condition: AcceleratorReady, status: "False", repair: [Inspect]}
      for: 1m
      clearAfter: 2m
`

const (
	lost    = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	ecc     = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"
	drain   = "ResetGPU gpu 0000:1b:00: Xid 154 recovery action Drain and Reset"
	inspect = "Inspect gpu 0000:1b:00: Xid 999 unknown"
	replace = "Replace gpu 0000:1b:00: remap failed"

	gpuTaint  = "pitcrew.dev/unhealthy=GPUXidError:NoSchedule"
	diskTaint = "example.com/disk=true:NoExecute"
)

// world is a cluster of one node and a clock. Between decisions nothing is kept but what is on the node, and seen.
type world struct {
	t      *testing.T
	policy *policy.Policy
	node   *corev1.Node
	now    time.Time
	paused string
	peers  []limits.Peer
	broken *limits.BreakerState
	told   map[handoff.Receipt]bool
	// seen is what the remediator knows from elsewhere than from the node; restarted drops it.
	seen seen.Seen
	// visits is what the visits to the node say.
	visits Visits
	// devices are those of the node and their rules, as the API server has them.
	devices *devices.Look
	// leadingSince is zero for a remediator that has led for long.
	leadingSince time.Time
	last         Decision
	// blocked is what held the last decision back.
	blocked *causes.Blocked
	// reasons of all Events so far, and of the decisions that were held back.
	reasons []string
}

// policyOf is a policy of its own with that text. Random walks begin thousands of times with the same few texts.
func policyOf(t *testing.T, text string) *policy.Policy {
	t.Helper()
	known, found := parsedPolicies.Load(text)
	if !found {
		p, err := policy.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		known, _ = parsedPolicies.LoadOrStore(text, p)
	}
	p := *known.(*policy.Policy)
	p.Rules = slices.Clone(p.Rules)
	return &p
}

var parsedPolicies sync.Map

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, policy: policyOf(t, testPolicy), now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)}
	w.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "uid-1"},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"}},
	}
	return w
}

// decide decides, applies the decision, and makes sure that deciding again changes nothing.
func (w *world) decide() {
	w.t.Helper()
	w.last = w.look()
	w.seen = w.last.SeenAfter(w.observe(), w.now)
	for _, e := range w.last.Events {
		w.reasons = append(w.reasons, e.Reason)
	}
	if b, before := w.last.Blocked, w.blocked; b != nil && (before == nil || before.Rule != b.Rule || before.Reason != b.Reason) {
		w.reasons = append(w.reasons, "blocked:"+b.Reason)
	}
	w.blocked = w.last.Blocked
	if w.last.State == nil {
		return
	}
	w.last.State.Apply(w.node)
	if w.last.AWS != nil {
		w.last.AWS.Show(w.node, w.now)
	}
	applied := w.node.DeepCopy()
	again := w.look()
	again.State.Apply(applied)
	if len(again.Events) > 0 || again.AWS != nil && again.AWS.Changes(applied) || !equality.Semantic.DeepEqual(applied, w.node) {
		w.t.Fatalf("deciding again is not idle: %+v\n%s", again, cmp.Diff(w.node, applied))
	}
}

func (w *world) observe() Observation {
	record, err := causes.RecordOf(w.node)
	return Observation{
		Node: w.node, Record: record, RecordErr: err, Paused: w.paused, Peers: limits.PeersOf(w.peers...), Breaker: w.broken, Delivered: w.told, Seen: w.seen,
		LeadingSince: w.leadingSince, Visits: w.visits, Devices: w.devices,
	}
}

func (w *world) look() Decision { return Decide(w.policy, w.observe(), w.now) }

func (w *world) record() *causes.Record {
	w.t.Helper()
	r, err := causes.RecordOf(w.node)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// A step is something that happens.
type step func(*world)

// says is a condition reported now.
func says(condition, status, message string) step {
	return func(w *world) {
		c := corev1.NodeCondition{
			Type: corev1.NodeConditionType(condition), Status: corev1.ConditionStatus(status), Message: message,
			LastHeartbeatTime: metav1.NewTime(w.now), LastTransitionTime: metav1.NewTime(w.now),
		}
		for i, old := range w.node.Status.Conditions {
			if old.Type != c.Type {
				continue
			}
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			w.node.Status.Conditions[i] = c
			return
		}
		w.node.Status.Conditions = append(w.node.Status.Conditions, c)
	}
}

func gpu(message string) step { return says("GPUXidError", "True", message) }

var (
	gpuFine = says("GPUXidError", "False", "no fault")
	decide  = step(func(w *world) { w.decide() })
)

// mute is a writer that sends no heartbeats.
func mute(w *world) {
	for i := range w.node.Status.Conditions {
		w.node.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
	}
}

var (
	watched  = says("WatchedFailing", "True", "x")
	flapping = says("PortFlapping", "True", "x")
	slow     = says("SlowNode", "True", "Inspect node: slow in 1 run")
)

const flapTaint = "pitcrew.dev/unhealthy=PortFlapping:NoSchedule"

// flaps has a port fail for two minutes and be fine until the node is released, n times.
func flaps(n int) step {
	return func(w *world) {
		for range n {
			for _, s := range []step{flapping, decide, lasts(2 * time.Minute), says("PortFlapping", "False", ""), decide, lasts(10 * time.Minute)} {
				s(w)
			}
		}
	}
}

// dips has a port fail for half a minute, n times.
func dips(n int) step {
	return func(w *world) {
		for range n {
			for _, s := range []step{flapping, decide, passes(30 * time.Second), says("PortFlapping", "False", ""), decide, passes(time.Minute)} {
				s(w)
			}
		}
	}
}

func renamed(w *world) {
	for i := range w.policy.Rules {
		w.policy.Rules[i].Name += "-new"
	}
}

func noConditions(w *world) { w.node.Status.Conditions = nil }

// beats is a heartbeat of every condition.
func beats(w *world) {
	for i := range w.node.Status.Conditions {
		w.node.Status.Conditions[i].LastHeartbeatTime = metav1.NewTime(w.now)
	}
}

// passes lets time pass without a heartbeat.
func passes(d time.Duration) step { return func(w *world) { w.now = w.now.Add(d) } }

// lasts lets time pass as it does on a live node: with heartbeats every five minutes and a decision whenever the last one
// asked for it.
func lasts(d time.Duration) step { return passing(d, 5*time.Minute) }

// starves lets time pass as lasts does, but without heartbeats.
func starves(d time.Duration) step { return passing(d, d+1) }

func passing(d, beat time.Duration) step {
	return func(w *world) {
		for end, nextBeat := w.now.Add(d), w.now.Add(beat); w.now.Before(end); {
			wake := end.Add(1)
			if w.last.RequeueAfter > 0 {
				wake = w.now.Add(w.last.RequeueAfter)
			}
			w.now = slices.MinFunc([]time.Time{wake, nextBeat, end}, time.Time.Compare)
			if w.now.Equal(nextBeat) {
				beats(w)
				nextBeat = nextBeat.Add(beat)
			}
			if w.now.Equal(wake) {
				w.decide()
			} else if w.last.RequeueAfter > 0 {
				w.last.RequeueAfter = wake.Sub(w.now)
			}
		}
	}
}

func reboots(w *world) { w.node.Status.NodeInfo.BootID += "+" }

func untaints(w *world) { w.node.Spec.Taints = nil }

func taints(t corev1.Taint) step {
	return func(w *world) { w.node.Spec.Taints = append(w.node.Spec.Taints, t) }
}

func labels(key, value string) step {
	return changes(func(c *handoff.NodeChanges) { c.SetLabel(key, value) })
}

// changes is what others do to the labels, annotations and taints of the node.
func changes(change func(*handoff.NodeChanges)) step {
	return func(w *world) {
		c := handoff.Of(w.node)
		change(&c)
		c.Apply(w.node)
	}
}

func pauses(why string) step { return func(w *world) { w.paused = why } }

// others are so many nodes out of service.
func others(n int) step {
	return func(w *world) { w.peers = slices.Repeat([]limits.Peer{{OutOfService: true, Rule: "gpu"}}, n) }
}

var theirs = corev1.Taint{Key: "example.com/fan", Value: "theirs", Effect: corev1.TaintEffectNoSchedule}

var maintenance = corev1.Taint{Key: conditions.TaintMaintenance, Value: "sweep", Effect: corev1.TaintEffectNoSchedule}

// outcome is what is left in the end.
type outcome struct {
	Phase    causes.Phase
	By       string
	Taints   string
	Status   string
	Repair   string
	Said     string // all Events and what was held back
	Restart  bool
	Requeue  time.Duration // zero in a case means that it does not matter
	Unmarked bool          // no annotation
}

func switchedOff(w *world) {
	for i := range w.policy.Rules {
		w.policy.Rules[i].Observe = true
	}
}

func (w *world) outcome() outcome {
	o := outcome{
		Status: w.node.Labels[conditions.LabelStatus], Repair: w.node.Labels[conditions.LabelRepair],
		Said: strings.Join(w.reasons, " "), Restart: w.last.RestartJobs, Requeue: w.last.RequeueAfter,
	}
	var taints []string
	for _, t := range w.node.Spec.Taints {
		taints = append(taints, t.ToString())
	}
	o.Taints = strings.Join(taints, " ")
	r, err := causes.RecordOf(w.node)
	o.Unmarked = r == nil && err == nil
	if r != nil {
		o.Phase, o.By = r.Phase, r.ReleasedBy
	}
	return o
}

// The usual ends.
var (
	untouched   = outcome{Unmarked: true}
	quarantined = outcome{Phase: causes.Quarantined, Taints: gpuTaint, Status: "quarantined", Repair: "Reboot", Said: "NodeQuarantined", Restart: true}
	released    = outcome{Phase: causes.Released, By: causes.ByPitcrew, Status: "healthy", Said: "NodeQuarantined NodeReleased"}
)

// but changes an outcome.
func (o outcome) but(change func(*outcome)) outcome {
	change(&o)
	return o
}

func TestDecide(t *testing.T) {
	tests := map[string]struct {
		steps []step
		want  outcome
	}{
		// What quarantines.
		"nothing is said":                 {[]step{decide}, untouched},
		"a healthy node is left as it is": {[]step{gpuFine, decide}, untouched},
		"a fault quarantines, with jobs restarted": {[]step{gpu(lost), decide},
			quarantined.but(func(o *outcome) { o.Requeue = 2 * time.Second })},
		"the jobs are looked at again after 2 s, 15 s and 60 s": {[]step{gpu(lost), decide, passes(15 * time.Second), decide},
			quarantined.but(func(o *outcome) { o.Requeue = 45 * time.Second })},
		"a rule without restartJobs restarts none": {[]step{gpu(drain), decide},
			quarantined.but(func(o *outcome) { o.Repair, o.Restart = "ResetGPU", false })},
		"an alertOnly class leaves the node as it is":                    {[]step{gpu(inspect), decide}, untouched},
		"a class of no rule leaves the node as it is":                    {[]step{gpu("RestartApp gpu a: Xid 94 contained"), decide}, untouched},
		"a message of ours that does not parse leaves the node as it is": {[]step{gpu("Reboot"), decide}, untouched},
		"Unknown never taints":                                           {[]step{says("GPUXidError", "Unknown", lost), decide}, untouched},
		"a stale condition never taints, is said and looked at again": {[]step{gpu(lost), passes(11*time.Minute + time.Second), decide},
			untouched.but(func(o *outcome) { o.Said, o.Requeue = "blocked:stale", time.Minute })},
		"a healthy node is looked at when its heartbeat would be too old": {[]step{gpuFine, passes(time.Minute), decide},
			untouched.but(func(o *outcome) { o.Requeue = 10*time.Minute + time.Second })},
		"one condition that is confirmed speaks for its writer": {[]step{gpu(inspect), passes(11*time.Minute + time.Second),
			says("FanFailing", "False", ""), decide}, untouched},
		"a condition of no rule speaks for nobody": {[]step{gpuFine, passes(11*time.Minute + time.Second), says("Ready", "True", ""), decide},
			untouched.but(func(o *outcome) { o.Said = "blocked:stale" })},
		"a verdict of ours does not, for it says nothing about the detector": {[]step{gpuFine, passes(11*time.Minute + time.Second), says("SlowNode", "False", ""), decide},
			untouched.but(func(o *outcome) { o.Said = "blocked:stale" })},
		"an old verdict is no silent detector": {[]step{says("SlowNode", "False", ""), passes(24 * time.Hour), decide}, untouched},
		"in maintenance nobody needs to confirm anything": {[]step{gpuFine, taints(maintenance), passes(time.Hour), decide},
			untouched.but(func(o *outcome) { o.Taints = "pitcrew.dev/maintenance=sweep:NoSchedule" })},
		"in a driver upgrade nothing is believed":           {[]step{labels("nvidia.com/gpu-driver-upgrade-state", "pod-restart-required"), gpu(lost), decide}, untouched},
		"a driver upgrade that is only due changes nothing": {[]step{labels("nvidia.com/gpu-driver-upgrade-state", "upgrade-required"), gpu(lost), decide}, quarantined},
		"a stale condition that speaks again taints": {[]step{gpu(lost), passes(12 * time.Minute), decide, passes(time.Minute), beats, decide},
			quarantined.but(func(o *outcome) { o.Said = "blocked:stale NodeQuarantined" })},
		"a condition without any heartbeat never taints": {[]step{gpu(lost), func(w *world) {
			w.node.Status.Conditions[0].LastHeartbeatTime = metav1.Time{}
		}, decide}, untouched.but(func(o *outcome) { o.Said, o.Requeue = "blocked:stale", time.Minute })},
		"positive polarity: False is the fault": {[]step{says("AcceleratorReady", "False", "x"), decide, lasts(time.Minute)},
			outcome{Phase: causes.Quarantined, Taints: "pitcrew.dev/unhealthy=AcceleratorReady:NoSchedule", Status: "quarantined", Repair: "Inspect", Said: "NodeQuarantined"}},

		"a writer without heartbeats is believed where the policy says so": {[]step{says("NT_NPU_CARD_LOSE", "True", "x"), mute, passes(24 * time.Hour), decide},
			quarantined.but(func(o *outcome) { o.Taints, o.Restart = "pitcrew.dev/unhealthy=NT_NPU_CARD_LOSE:NoSchedule", false })},
		"but not for what it said before the boot": {[]step{says("NT_NPU_CARD_LOSE", "True", "x"), mute, passes(time.Hour), says("Ready", "True", ""), decide}, untouched},
		"its health releases": {[]step{says("NT_NPU_CARD_LOSE", "True", "x"), mute, decide, passes(time.Minute), reboots, decide, passes(time.Minute),
			says("NT_NPU_CARD_LOSE", "False", "ok"), mute, decide, starves(10 * time.Minute)}, released},

		// Timers.
		"for: a fault is suspect until it is due": {[]step{says("DiskFailing", "True", "x"), decide, passes(59 * time.Second), decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Replace", Requeue: time.Second}},
		"for: then it quarantines, with its own taint": {[]step{says("DiskFailing", "True", "x"), decide, lasts(time.Minute)},
			outcome{Phase: causes.Quarantined, Taints: diskTaint, Status: "quarantined", Repair: "Replace", Said: "NodeQuarantined"}},
		"for: a changed message does not start the clock again": {[]step{says("DiskFailing", "True", "x"), decide, passes(30 * time.Second),
			says("DiskFailing", "True", "y"), decide, passes(30 * time.Second), decide},
			outcome{Phase: causes.Quarantined, Taints: diskTaint, Status: "quarantined", Repair: "Replace", Said: "NodeQuarantined"}},
		"for: a suspicion that comes to nothing leaves no trace": {[]step{says("DiskFailing", "True", "x"), decide,
			says("DiskFailing", "False", ""), decide}, untouched},
		"for: a suspicion that is only worth an alert in the end leaves no trace": {[]step{others(1), gpu(lost), decide, gpu(inspect), decide},
			untouched.but(func(o *outcome) { o.Said = "blocked:budget" })},
		"for: Unknown neither taints nor forgets": {[]step{says("DiskFailing", "True", "x"), decide, passes(2 * time.Minute),
			says("DiskFailing", "Unknown", ""), decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Replace", Requeue: time.Minute}},
		"for: a condition that went stale is not due": {[]step{says("DiskFailing", "True", "x"), decide, passes(12 * time.Minute), decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Replace", Said: "blocked:stale", Requeue: time.Minute}},

		// Release.
		"ResetGPU: released when healthy for clearAfter": {[]step{gpu(ecc), decide, lasts(time.Hour), gpuFine, decide, lasts(10 * time.Minute)}, released},
		"ResetGPU: not a moment sooner": {[]step{gpu(ecc), decide, lasts(time.Hour), gpuFine, decide, lasts(10*time.Minute - time.Second), decide},
			quarantined.but(func(o *outcome) { o.Repair, o.Requeue = "ResetGPU", time.Second })},
		"a fault that returns within clearAfter starts the clock again": {[]step{gpu(ecc), decide, gpuFine, decide, lasts(9 * time.Minute),
			gpu(ecc), decide, gpuFine, decide, lasts(9 * time.Minute)},
			quarantined.but(func(o *outcome) { o.Repair = "ResetGPU" })},
		"Unknown never releases": {[]step{gpu(ecc), decide, says("GPUXidError", "Unknown", ""), decide, lasts(time.Hour)},
			quarantined.but(func(o *outcome) { o.Repair = "ResetGPU" })},
		"Unknown in between starts the clock again": {[]step{gpu(ecc), decide, gpuFine, decide, lasts(9 * time.Minute),
			says("GPUXidError", "Unknown", ""), decide, gpuFine, decide, lasts(9 * time.Minute)},
			quarantined.but(func(o *outcome) { o.Repair = "ResetGPU" })},
		"a healthy condition that goes stale never releases": {[]step{says("AcceleratorReady", "False", "x"), decide, lasts(time.Minute),
			passes(time.Minute), says("AcceleratorReady", "True", ""), passes(12 * time.Minute), decide, passes(3 * time.Minute), decide},
			outcome{Phase: causes.Quarantined, Taints: "pitcrew.dev/unhealthy=AcceleratorReady:NoSchedule", Status: "quarantined", Repair: "Inspect",
				Said: "NodeQuarantined blocked:stale", Requeue: time.Minute}},
		"a healthy condition that was stale for a while starts the clock again": {[]step{says("FanFailing", "True", "x"), decide, says("FanFailing", "False", ""), decide,
			starves(25 * time.Minute), beats, starves(5 * time.Minute)},
			outcome{Phase: causes.Quarantined, Taints: "example.com/fan=FanFailing:NoSchedule", Status: "quarantined", Repair: "Inspect",
				Said: "NodeQuarantined blocked:stale"}},
		"a missing condition never releases": {[]step{gpu(ecc), decide, noConditions, decide, lasts(time.Hour)},
			quarantined.but(func(o *outcome) { o.Repair = "ResetGPU" })},
		"positive polarity: True releases": {[]step{says("AcceleratorReady", "False", "x"), decide, lasts(time.Minute),
			says("AcceleratorReady", "True", ""), decide, lasts(2 * time.Minute)}, released},
		"Reboot: healthy for long is not enough": {[]step{gpu(lost), decide, gpuFine, decide, lasts(24 * time.Hour)}, quarantined},
		"Reboot: a new boot alone is not enough": {[]step{gpu(lost), decide, reboots, decide, lasts(time.Minute)}, quarantined},
		"Reboot: released in a new boot, healthy for clearAfter": {[]step{gpu(lost), decide, passes(time.Minute), reboots, decide,
			passes(time.Minute), gpuFine, decide, lasts(10 * time.Minute)}, released},
		"Reboot: a node without boot ids is never released": {[]step{func(w *world) { w.node.Status.NodeInfo.BootID = "" },
			gpu(lost), decide, gpuFine, decide, lasts(time.Hour)}, quarantined},
		"Reboot: a boot id that is gone is no new boot": {[]step{gpu(lost), decide, func(w *world) { w.node.Status.NodeInfo.BootID = "" },
			gpuFine, decide, lasts(time.Hour)}, quarantined},
		"Reboot: the fault again in the new boot wants yet another boot": {[]step{gpu(lost), decide, passes(time.Minute), reboots, decide,
			passes(time.Minute), gpu(lost), decide, gpuFine, decide, lasts(time.Hour)}, quarantined},
		"Reboot: a milder message in the same boot wants the reboot still": {[]step{gpu(lost), decide, gpu(ecc), decide, gpuFine, decide, lasts(time.Hour)}, quarantined},
		"Reboot: a milder fault in the new boot wants what it needs": {[]step{gpu(lost), decide, passes(time.Minute), reboots, decide,
			passes(time.Minute), gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, released},
		"Reboot: a fault left over from before the boot is no fault of the new boot": {[]step{gpu(lost), decide, passes(time.Minute), reboots, decide,
			lasts(4 * time.Minute), gpuFine, decide, lasts(10 * time.Minute)}, released},
		"Reboot: health reported before the boot never releases": {[]step{gpu(lost), decide, gpuFine, decide, passes(time.Minute), reboots, decide,
			passes(10*time.Minute - time.Second), decide}, quarantined.but(func(o *outcome) { o.Requeue = 2 * time.Second })},
		"Replace: never released by itself": {[]step{gpu(replace), decide, reboots, decide, lasts(time.Minute), gpuFine, decide, lasts(24 * time.Hour)},
			quarantined.but(func(o *outcome) { o.Repair = "Replace" })},
		"Replace: a boot does not make it milder": {[]step{gpu(replace), decide, passes(time.Minute), reboots, decide, passes(time.Minute), gpu(ecc), decide,
			gpuFine, decide, lasts(time.Hour)}, quarantined.but(func(o *outcome) { o.Repair = "Replace" })},
		"every cause must clear": {[]step{gpu(ecc), says("AcceleratorReady", "False", "x"), decide, gpuFine, decide, lasts(time.Hour)},
			quarantined.but(func(o *outcome) { o.Repair = "ResetGPU" })},
		"and then the node is released": {[]step{gpu(ecc), says("AcceleratorReady", "False", "x"), decide, gpuFine, says("AcceleratorReady", "True", ""),
			decide, lasts(10 * time.Minute)}, released},
		"a rule that is gone never releases, and it is said": {[]step{gpu(ecc), decide, func(w *world) { w.policy.Rules = nil }, gpuFine, decide},
			quarantined.but(func(o *outcome) { o.Repair, o.Restart, o.Said = "ResetGPU", false, "NodeQuarantined blocked:rule-gone" })},
		"a renamed rule takes over while the fault stands": {[]step{gpu(ecc), decide, renamed, decide, gpuFine, decide, lasts(10 * time.Minute)}, released.but(func(o *outcome) { o.Said = "NodeQuarantined QuarantineUpgraded NodeReleased" })},
		"a class that became alertOnly releases":           {[]step{gpu(ecc), decide, gpu(inspect), decide, lasts(10 * time.Minute)}, released},
		"a new fault after a release is a new quarantine": {[]step{gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute), gpu(lost), decide},
			quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined NodeReleased NodeQuarantined" })},
		"a suspicion after a release leaves the release as it was": {[]step{gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute),
			says("DiskFailing", "True", "x"), decide, says("DiskFailing", "False", ""), decide}, released},

		// A worse fault.
		"a worse class upgrades": {[]step{gpu(drain), decide, gpu(lost), decide},
			quarantined.but(func(o *outcome) { o.Said, o.Requeue = "NodeQuarantined QuarantineUpgraded", 2*time.Second })},
		"the same class with a restart upgrades": {[]step{gpu(drain), decide, gpu(ecc), decide},
			quarantined.but(func(o *outcome) { o.Said, o.Repair = "NodeQuarantined QuarantineUpgraded", "ResetGPU" })},
		"a milder one does not downgrade": {[]step{gpu(lost), decide, gpu(drain), decide, lasts(time.Hour)}, quarantined},
		"a worse condition that goes before it is due is forgotten": {[]step{gpu(ecc), says("DiskFailing", "True", "x"), decide, passes(30 * time.Second),
			says("DiskFailing", "False", ""), gpuFine, decide, lasts(10 * time.Minute)}, released},
		"a worse condition brings its taint, once it is due, and the jobs restart for the other": {[]step{gpu(lost), says("DiskFailing", "True", "x"), decide, lasts(time.Minute)},
			outcome{Phase: causes.Quarantined, Taints: diskTaint, Status: "quarantined", Repair: "Replace", Said: "NodeQuarantined QuarantineUpgraded", Restart: true}},
		"the worst decides from the start": {[]step{says("AcceleratorReady", "False", "x"), says("DiskFailing", "True", "x"), decide, lasts(time.Minute)},
			outcome{Phase: causes.Quarantined, Taints: diskTaint, Status: "quarantined", Repair: "Replace", Said: "NodeQuarantined"}},

		"the same class with a harder taint upgrades": {[]step{slow, decide, says("FanFailing", "True", "x"), decide},
			outcome{Phase: causes.Quarantined, Taints: "example.com/fan=FanFailing:NoSchedule", Status: "quarantined", Repair: "Inspect", Said: "NodeQuarantined QuarantineUpgraded"}},
		"of one class the harder taint decides from the start": {[]step{slow, says("ZFailing", "True", "x"), decide},
			outcome{Phase: causes.Quarantined, Taints: "pitcrew.dev/unhealthy=ZFailing:NoSchedule", Status: "quarantined", Repair: "Inspect", Said: "NodeQuarantined"}},
		"a softer one does not downgrade": {[]step{says("FanFailing", "True", "x"), decide, slow, decide},
			outcome{Phase: causes.Quarantined, Taints: "example.com/fan=FanFailing:NoSchedule", Status: "quarantined", Repair: "Inspect", Said: "NodeQuarantined"}},

		// A taint that goes, and a person's word.
		"a lost taint is put back once": {[]step{gpu(lost), decide, untaints, decide},
			quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined TaintRestored" })},
		"a second removal is a person's word": {[]step{gpu(lost), decide, untaints, decide, untaints, decide, lasts(time.Hour)},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "Reboot", Said: "NodeQuarantined TaintRestored ReleaseByHand"}},
		"an upgrade in between does not count it anew": {[]step{gpu(ecc), decide, untaints, decide, gpu(lost), decide, untaints, decide},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "Reboot", Said: "NodeQuarantined TaintRestored QuarantineUpgraded ReleaseByHand"}},
		"a person's word holds against what is milder on the same GPU": {[]step{gpu(lost), decide, untaints, decide, untaints, decide,
			gpu("ResetGPU gpu 0000:4e:00: Xid 95 uncontained ECC error"), decide, gpu(lost), decide},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "Reboot", Said: "NodeQuarantined TaintRestored ReleaseByHand"}},
		"a person's word holds against another fault, and it is said": {[]step{gpu(ecc), decide, untaints, decide, untaints, decide,
			says("FanFailing", "True", "x"), decide},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined TaintRestored ReleaseByHand blocked:released-by-hand"}},
		"a person's word holds until the cause has cleared for clearAfter": {[]step{gpu(ecc), decide, untaints, decide, untaints, decide,
			gpuFine, decide, lasts(9 * time.Minute), gpu(ecc), decide},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined TaintRestored ReleaseByHand"}},
		"and no longer": {[]step{gpu(ecc), decide, untaints, decide, untaints, decide, gpuFine, decide, lasts(10 * time.Minute)},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy", Said: "NodeQuarantined TaintRestored ReleaseByHand"}},
		"after that a fault quarantines": {[]step{gpu(ecc), decide, untaints, decide, untaints, decide, gpuFine, decide, lasts(11 * time.Minute), gpu(lost), decide},
			quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined TaintRestored ReleaseByHand NodeQuarantined" })},
		"a cleared node is released even if its taint is gone": {[]step{gpu(ecc), decide, gpuFine, decide, passes(10 * time.Minute), untaints, decide}, released},
		"an edited value is not a removal": {[]step{gpu(lost), decide, func(w *world) { w.node.Spec.Taints[0].Value = "mine" }, decide},
			quarantined.but(func(o *outcome) { o.Taints = "pitcrew.dev/unhealthy=mine:NoSchedule" })},

		// What is not ours.
		"foreign taints stay, cordon included": {[]step{taints(corev1.Taint{Key: "node.kubernetes.io/unschedulable", Effect: corev1.TaintEffectNoSchedule}),
			gpu(ecc), decide, taints(corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute}), gpuFine, decide, lasts(10 * time.Minute)},
			released.but(func(o *outcome) { o.Taints = "node.kubernetes.io/unschedulable:NoSchedule a:NoExecute" })},
		"an equal taint of somebody else outlives the quarantine": {[]step{taints(theirs), says("FanFailing", "True", "x"), decide,
			says("FanFailing", "False", ""), decide, lasts(30 * time.Minute)}, released.but(func(o *outcome) { o.Taints = "example.com/fan=theirs:NoSchedule" })},
		"one that its owner removed and we put back is ours": {[]step{taints(theirs), says("FanFailing", "True", "x"), decide, untaints, decide,
			says("FanFailing", "False", ""), decide, lasts(30 * time.Minute)},
			released.but(func(o *outcome) { o.Said = "NodeQuarantined TaintRestored NodeReleased" })},
		"a taint of ours without a record is ours again": {[]step{taints(corev1.Taint{Key: conditions.TaintUnhealthy, Value: "old", Effect: corev1.TaintEffectNoSchedule}),
			gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, released},
		"skip means hands off": {[]step{labels(conditions.LabelSkip, "true"), gpu(lost), decide}, untouched},
		"skip on a quarantined node leaves it as it is": {[]step{gpu(ecc), decide, labels(conditions.LabelSkip, "true"), untaints, gpuFine, decide, passes(time.Hour), beats, decide},
			outcome{Phase: causes.Quarantined, Status: "quarantined", Repair: "ResetGPU", Said: "NodeQuarantined"}},
		"the control plane is left alone, by label": {[]step{labels("node-role.kubernetes.io/control-plane", "x"), gpu(lost), decide}, untouched},
		"the control plane is left alone, by taint": {[]step{taints(corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}),
			gpu(lost), decide}, untouched.but(func(o *outcome) { o.Taints = "node-role.kubernetes.io/control-plane:NoSchedule" })},
		"a node that is being deleted is left alone": {[]step{func(w *world) { w.node.DeletionTimestamp = &metav1.Time{Time: w.now} }, gpu(lost), decide}, untouched},
		"in maintenance conditions mean nothing": {[]step{taints(maintenance), gpu(lost), decide},
			untouched.but(func(o *outcome) { o.Taints = "pitcrew.dev/maintenance=sweep:NoSchedule" })},
		"in maintenance no taint is put back and no job restarted": {[]step{gpu(lost), decide, untaints, taints(maintenance), decide},
			quarantined.but(func(o *outcome) {
				o.Taints, o.Status, o.Restart = "pitcrew.dev/maintenance=sweep:NoSchedule", "repairing", false
			})},
		"health in maintenance does not count": {[]step{gpu(ecc), decide, gpuFine, decide, taints(maintenance), decide, lasts(time.Hour),
			func(w *world) { w.node.Spec.Taints = w.node.Spec.Taints[:1] }, decide, lasts(9 * time.Minute)},
			quarantined.but(func(o *outcome) { o.Repair = "ResetGPU" })},

		// Limits.
		"the budget blocks, and it is tried again": {[]step{others(1), gpu(lost), decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Reboot", Said: "blocked:budget", Requeue: time.Minute}},
		"and goes on when there is room": {[]step{others(1), gpu(lost), decide, others(0), passes(5 * time.Second), decide},
			quarantined.but(func(o *outcome) { o.Said = "blocked:budget NodeQuarantined" })},
		"the budget blocks neither upgrade nor release": {[]step{gpu(drain), decide, others(9), gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)},
			released.but(func(o *outcome) { o.Said = "NodeQuarantined QuarantineUpgraded NodeReleased" })},
		"a pause says and does nothing": {[]step{pauses("upgrade"), gpu(lost), decide}, untouched.but(func(o *outcome) { o.Said = "blocked:paused" })},
		"a pause releases nothing": {[]step{gpu(ecc), decide, gpuFine, decide, pauses("upgrade"), passes(10 * time.Minute), decide},
			quarantined.but(func(o *outcome) { o.Repair, o.Restart, o.Said = "ResetGPU", false, "NodeQuarantined blocked:paused" })},

		// What only observes.
		"observe: nothing is done before it would be due": {[]step{watched, decide, passes(59 * time.Second), decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Reboot", Requeue: time.Second}},
		"observe: then it is said, and nothing else done": {[]step{watched, decide, lasts(time.Hour)},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Reboot", Said: "blocked:observe-only"}},
		"observe: switched on, it acts on what stands, at once": {[]step{watched, decide, lasts(time.Hour), func(w *world) {
			for i := range w.policy.Rules {
				w.policy.Rules[i].Observe = false
			}
		}, decide}, quarantined.but(func(o *outcome) {
			o.Taints, o.Said = "pitcrew.dev/unhealthy=WatchedFailing:NoSchedule", "blocked:observe-only NodeQuarantined"
		})},
		"observe: health leaves no trace": {[]step{watched, decide, lasts(time.Hour), says("WatchedFailing", "False", ""), decide},
			untouched.but(func(o *outcome) { o.Said = "blocked:observe-only" })},
		"observe: the worse of two does not hide the one that acts": {[]step{watched, decide, lasts(2 * time.Minute), gpu(drain), decide},
			quarantined.but(func(o *outcome) {
				o.Repair, o.Restart, o.Said = "ResetGPU", false, "blocked:observe-only NodeQuarantined"
			})},
		"observe: it upgrades nothing and keeps nothing": {[]step{gpu(drain), decide, watched, decide, lasts(2 * time.Minute), gpuFine, decide, lasts(10 * time.Minute)},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Reboot", Said: "NodeQuarantined NodeReleased"}},
		"observe: it keeps nothing, even if it says nothing just then": {[]step{watched, decide, lasts(2 * time.Minute), says("WatchedFailing", "Unknown", ""), gpu(drain), decide,
			gpuFine, decide, lasts(10 * time.Minute)},
			released.but(func(o *outcome) { o.Said = "blocked:observe-only NodeQuarantined NodeReleased" })},
		"observe: a suspicion that no rule asks about any more leaves no trace": {[]step{watched, decide, lasts(2 * time.Minute), func(w *world) { w.policy.Rules = nil }, decide},
			untouched.but(func(o *outcome) { o.Said = "blocked:observe-only" })},
		"observe: a rule that is switched off releases by itself": {[]step{gpu(ecc), decide, switchedOff, lasts(time.Hour), gpuFine, decide, lasts(10 * time.Minute)}, released},

		"observe: a rule that is switched off restarts no jobs": {[]step{gpu(ecc), decide, switchedOff, lasts(time.Minute), decide},
			quarantined.but(func(o *outcome) { o.Repair, o.Restart = "ResetGPU", false })},
		"observe: a rule that is switched off puts no taint back": {[]step{gpu(ecc), decide, switchedOff, untaints, decide},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined ReleaseByHand"}},

		// Coming and going.
		"a fault back within clearAfter of the release does not wait again": {[]step{flaps(1), lasts(9 * time.Minute), flapping, decide},
			outcome{Phase: causes.Quarantined, Taints: flapTaint, Status: "quarantined", Repair: "Inspect", Said: "NodeQuarantined NodeReleased NodeQuarantined"}},
		"a fault back later waits": {[]step{flaps(1), lasts(11 * time.Minute), flapping, decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Inspect", Said: "NodeQuarantined NodeReleased"}},
		"the third time within a day it stays": {[]step{flaps(2), flapping, decide, lasts(2 * time.Minute), says("PortFlapping", "False", ""), decide, lasts(24 * time.Hour)},
			outcome{Phase: causes.Quarantined, Taints: flapTaint, Status: "quarantined", Repair: "Inspect",
				Said: "NodeQuarantined NodeReleased NodeQuarantined NodeReleased NodeQuarantined"}},
		"a day later it counts anew": {[]step{flaps(2), lasts(24 * time.Hour), flaps(1)},
			outcome{Phase: causes.Released, By: causes.ByPitcrew, Status: "healthy",
				Said: "NodeQuarantined NodeReleased NodeQuarantined NodeReleased NodeQuarantined NodeReleased"}},
		"after a person's release it counts anew": {[]step{flaps(2), flapping, decide, lasts(2 * time.Minute), untaints, decide, untaints, decide,
			says("PortFlapping", "False", ""), decide, lasts(11 * time.Minute), flaps(1)},
			outcome{Phase: causes.Released, By: causes.ByPitcrew, Status: "healthy",
				Said: "NodeQuarantined NodeReleased NodeQuarantined NodeReleased NodeQuarantined TaintRestored ReleaseByHand NodeQuarantined NodeReleased"}},

		"dips shorter than for count, too": {[]step{dips(2), flapping, decide},
			outcome{Phase: causes.Quarantined, Taints: flapTaint, Status: "quarantined", Repair: "Inspect", Said: "NodeQuarantined"}},
		"and then it stays": {[]step{dips(2), flapping, decide, passes(time.Minute), says("PortFlapping", "False", ""), decide, lasts(24 * time.Hour)},
			outcome{Phase: causes.Quarantined, Taints: flapTaint, Status: "quarantined", Repair: "Inspect", Said: "NodeQuarantined"}},
		"in between the node is healthy":     {[]step{dips(1)}, outcome{Phase: causes.Suspect, Status: "healthy"}},
		"when it is back it waits as before": {[]step{dips(1), flapping, decide, passes(59 * time.Second), decide}, outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Inspect", Requeue: time.Second}},
		"a day later the dips are forgotten": {[]step{dips(2), lasts(24 * time.Hour)}, untouched},
		"dips and quarantines count together": {[]step{dips(1), lasts(time.Hour), flaps(1), lasts(time.Hour), flapping, decide},
			outcome{Phase: causes.Quarantined, Taints: flapTaint, Status: "quarantined", Repair: "Inspect", Said: "NodeQuarantined NodeReleased NodeQuarantined"}},
		"Unknown is no dip": {[]step{dips(1), says("PortFlapping", "Unknown", ""), decide, says("PortFlapping", "False", ""), decide,
			says("PortFlapping", "Unknown", ""), decide, says("PortFlapping", "False", ""), decide, flapping, decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Inspect"}},
		"what the budget held back is a dip": {[]step{others(1), flapping, decide, lasts(2 * time.Minute), says("PortFlapping", "False", ""), decide,
			others(0), passes(time.Minute), dips(1), flapping, decide},
			outcome{Phase: causes.Quarantined, Taints: flapTaint, Status: "quarantined", Repair: "Inspect", Said: "blocked:budget NodeQuarantined"}},
		"another fault makes its own quarantine": {[]step{dips(2), gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, released},

		// A person's word ends when nobody can speak against it any more.
		"a release by hand does not hold for a rule that is gone": {[]step{gpu(ecc), decide, pardoned, decide, func(w *world) {
			w.policy.Rules = slices.DeleteFunc(w.policy.Rules, func(r policy.Rule) bool { return r.Condition == "GPUXidError" })
		}, decide}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy", Said: "NodeQuarantined"}},
		"it holds for one that is renamed":  {[]step{gpu(ecc), decide, pardoned, renamed, decide, lasts(time.Hour)}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined"}},
		"until the fault has cleared by it": {[]step{gpu(ecc), decide, pardoned, gpuFine, renamed, decide, lasts(10 * time.Minute)}, outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy", Said: "NodeQuarantined"}},
		"it holds for clearAfter when the condition is gone": {[]step{gpu(ecc), decide, pardoned, noConditions, decide, passes(10*time.Minute - time.Second), decide},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined", Requeue: time.Second}},
		"and no longer than that": {[]step{gpu(ecc), decide, pardoned, noConditions, decide, passes(10 * time.Minute), decide},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy", Said: "NodeQuarantined"}},
		"a renamed rule releases a node that is healthy": {[]step{gpu(ecc), decide, gpuFine, renamed, decide, lasts(10 * time.Minute)}, released},

		// The record.
		"a record that does not parse is left alone, and it is said": {[]step{func(w *world) {
			w.node.Annotations = map[string]string{conditions.AnnotationQuarantine: `{"v":2}`}
		}, gpu(lost), decide}, outcome{Said: "blocked:record-unreadable"}},
		"a node created anew starts over": {[]step{gpu(lost), decide, func(w *world) { w.node.UID = "uid-2" }, gpuFine, decide},
			untouched.but(func(o *outcome) { o.Said = "NodeQuarantined" })},
		"a node created anew with the fault is quarantined anew": {[]step{gpu(lost), decide, func(w *world) { w.node.UID = "uid-2" }, decide},
			quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined NodeQuarantined" })},

		// Boots, when the remediator was not there to see them.
		"without a record a fault from before the node became Ready does not taint": {[]step{gpu(lost), passes(time.Minute), says("Ready", "True", ""), passes(time.Second), decide},
			untouched.but(func(o *outcome) { o.Requeue = time.Minute })},
		"its next heartbeat does":                       {[]step{gpu(lost), passes(time.Minute), says("Ready", "True", ""), passes(time.Minute), beats, decide}, quarantined},
		"a node that is not Ready is still quarantined": {[]step{gpu(lost), passes(time.Minute), says("Ready", "Unknown", ""), passes(time.Second), decide}, quarantined},
		"a boot nobody saw: health from before it never releases": {[]step{gpu(lost), decide, passes(time.Hour), gpuFine, passes(time.Second), reboots, decide,
			passes(10 * time.Minute), decide}, quarantined.but(func(o *outcome) { o.Requeue = time.Minute })},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			got := w.outcome()
			if test.want.Requeue == 0 {
				got.Requeue = 0
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s\nrecord %s", diff, w.node.Annotations[conditions.AnnotationQuarantine])
			}
		})
	}
}

func TestRecordOfAQuarantine(t *testing.T) {
	w := newWorld(t)
	start := w.now
	for _, s := range []step{gpu(ecc), decide, lasts(time.Minute), gpu(lost), decide, lasts(time.Minute), gpuFine, decide} {
		s(w)
	}
	r := w.record()
	want := &causes.Record{
		V: 1, NodeUID: "uid-1", Boot: causes.Boot{ID: "boot-1"},
		Quarantine: causes.Quarantine{
			ID: r.ID, Phase: causes.Quarantined, QuarantinedAt: start,
			Causes: []causes.Cause{{
				Condition: "GPUXidError", Rule: "gpu", Repair: conditions.Reboot, Message: lost, FirstSeen: start, Due: true, BootID: "boot-1",
				HealthySince: start.Add(2 * time.Minute),
			}},
			Taint: &causes.Taint{
				Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: "NoSchedule",
				Rule: "gpu", Repair: conditions.Reboot, Since: start.Add(time.Minute),
			},
			HandOff: &handoff.Added{Annotations: policy.KeepNode},
		},
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}

func TestRecordKeepsTheLastFive(t *testing.T) {
	w := newWorld(t)
	var ids []string
	for i := range 8 {
		for _, s := range []step{gpu(fmt.Sprintf("ResetGPU gpu %d: Xid 95 uncontained ECC error", i)), decide, gpuFine, decide, lasts(10 * time.Minute), passes(time.Minute), beats} {
			s(w)
		}
		ids = append([]string{w.record().ID}, ids...)
	}
	r := w.record()
	got := []string{r.ID}
	for _, q := range r.Last {
		got = append(got, q.ID)
		if q.Phase != causes.Released || q.ReleasedBy != causes.ByPitcrew || q.ReleasedAt.IsZero() {
			t.Errorf("a closed quarantine is %+v", q)
		}
	}
	if diff := cmp.Diff(ids[:6], got); diff != "" {
		t.Error(diff)
	}
}

func TestARecordFitsTheNodeWhateverFails(t *testing.T) {
	const limit = 256 << 10 // of all annotations of an object
	w := newWorld(t)
	rule := w.policy.Rules[slices.IndexFunc(w.policy.Rules, func(r policy.Rule) bool { return r.Name == "fan" })]
	w.policy.Rules = nil
	for i := range 40 {
		rule.Name, rule.Condition = fmt.Sprintf("rule-%d", i), corev1.NodeConditionType(fmt.Sprintf("Failing%d", i))
		w.policy.Rules = append(w.policy.Rules, rule)
	}
	all := func(status string) {
		for _, r := range w.policy.Rules {
			says(string(r.Condition), status, strings.Repeat(`"`, 4000))(w)
		}
		w.decide()
	}
	for range 7 {
		all("True")
		all("False")
		lasts(time.Hour)(w)
	}
	all("True")
	r := w.record()
	if size := len(r.String()); size > limit*4/5 || r.Phase != causes.Quarantined || len(r.Causes) != 40 {
		t.Errorf("a record with %d causes, %s, has %d bytes", len(r.Causes), r.Phase, size)
	}
}

func TestQuarantineIDsDifferFromNodeToNode(t *testing.T) {
	ids := map[string]bool{}
	for _, uid := range []string{"a", "b", "c"} {
		w := newWorld(t)
		w.node.UID = types.UID(uid)
		gpu(lost)(w)
		w.decide()
		ids[w.record().ID] = true
	}
	if len(ids) != 3 {
		t.Errorf("three nodes at the same moment have ids %v", ids)
	}
}

func TestEventsFitTheirLimit(t *testing.T) {
	// events.k8s.io/v1 refuses a longer note.
	const limit = 1024
	long := strings.Repeat("é", 4000)
	for _, o := range []Observation{
		{RecordErr: errors.New("invalid character")},
		{},
		{Peers: limits.PeersOf(limits.Peer{OutOfService: true})},
		{Paused: strings.Repeat("p", 200)},
	} {
		w := newWorld(t)
		w.policy.Rules[0].For = 0
		says("DiskFailing", "True", long)(w)
		for i := range w.policy.Rules {
			w.policy.Rules[i].For = 0
		}
		o.Node = w.node
		d := Decide(w.policy, o, w.now)
		texts := []string{}
		for _, e := range d.Events {
			texts = append(texts, e.Message)
		}
		if d.Blocked != nil {
			texts = append(texts, d.Blocked.Message)
		}
		if len(texts) == 0 {
			t.Errorf("%+v says nothing", o)
		}
		for _, text := range texts {
			if n := len(fmt.Sprintf("dry run: %s", text)); n > limit {
				t.Errorf("%d bytes: %s", n, text)
			}
		}
	}
}

// Whatever comes in whatever order, the taint never becomes milder than it was, nor than what any fault asks for by itself.
func TestDecideIsMonotoneInSeverity(t *testing.T) {
	faults := []step{
		gpu(lost), gpu(ecc), gpu(drain), gpu(replace), slow, says("DiskFailing", "True", "x"), says("FanFailing", "True", "x"), says("ZFailing", "True", "x"),
		says("AcceleratorReady", "False", "x"), watched,
	}
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 5))
		w := newWorld(t)
		before := 0
		for range 8 {
			faults[random.IntN(len(faults))](w)
			w.decide()
			lasts(2 * time.Minute)(w) // longer than any rule waits
			r := w.record()
			if r.Phase != causes.Quarantined {
				continue // only observed so far
			}
			rule, _ := w.policy.Rule(r.Taint.Rule)
			decided := causes.Strength(r.Taint.Repair, r.Taint.Effect, r.IsIsolated(), rule.RestartJobs)
			if decided < before {
				t.Fatalf("seed %d: %s is milder than what was decided before", seed, r)
			}
			for _, p := range newDecider(w.policy, Observation{Node: w.node, Record: r}, w.now).conditions.Sorted() {
				if p.IsEnforced() && p.Strength() > decided {
					t.Fatalf("seed %d: %s asks for more than %s", seed, p.Condition.Type, r)
				}
			}
			before = decided
		}
		if before == 0 {
			t.Errorf("seed %d: nothing was decided", seed)
		}
	}
}

// A walk through random events, by whatever a node and its people may do. What must never happen is checked after every
// decision; that deciding again is idle is checked by the world itself.
func TestDecideOnRandomWalks(t *testing.T) {
	foreign := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoExecute}
	events := []step{
		gpu(lost), gpu(ecc), gpu(drain), gpu(inspect), gpu(replace), gpu("Reboot"), gpuFine, says("GPUXidError", "Unknown", ""),
		says("DiskFailing", "True", "x"), says("DiskFailing", "False", ""), says("AcceleratorReady", "False", "x"), says("AcceleratorReady", "True", ""), watched, says("WatchedFailing", "False", ""), flaps(1), dips(1), flapping, says("PortFlapping", "False", ""), pardonedIfQuarantined,
		says("Ready", "True", ""), says("Ready", "Unknown", ""), beats, reboots, others(0), others(1), pauses("x"), pauses(""),
		lasts(time.Second), lasts(time.Minute), lasts(10 * time.Minute), passes(12 * time.Minute),
		func(w *world) { w.node.Spec.Taints = []corev1.Taint{foreign} },
		func(w *world) { w.node.Spec.Taints = []corev1.Taint{foreign, maintenance} },
		func(w *world) { w.node.Status.Conditions = nil },
		func(w *world) { w.node.UID += "+" },
	}
	quarantines, held := 0, 0
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(t)
		w.node.Spec.Taints = []corev1.Taint{foreign}
		for range 40 {
			events[random.IntN(len(events))](w)
			before := w.node.DeepCopy()
			w.decide()
			if !node.HasTaint(w.node.Spec.Taints, foreign.Key) {
				t.Fatalf("seed %d: a foreign taint is gone", seed)
			}
			if w.paused != "" && !equality.Semantic.DeepEqual(before, w.node) {
				t.Fatalf("seed %d: something was written during a pause", seed)
			}
			if w.last.RestartJobs && (w.record().Phase != causes.Quarantined || !causes.HasTaint(w.node.Spec.Taints, w.record().Taint)) {
				t.Fatalf("seed %d: jobs are restarted while the node is not tainted", seed)
			}
			if r := w.record(); r != nil && r.ManualReleaseActive {
				held++
				if len(w.last.Events) > 0 && w.last.Events[0].Reason != causes.ReleaseByHand || causes.HasTaint(w.node.Spec.Taints, r.Taint) {
					t.Fatalf("seed %d: a person's release was passed over: %+v", seed, w.last.Events)
				}
			}
			for _, e := range w.last.Events {
				if e.Reason != causes.NodeQuarantined {
					continue
				}
				quarantines++
				if len(w.peers) >= w.policy.Budget.MaxNodes || node.Maintained(before, w.now) {
					t.Fatalf("seed %d: quarantined without leave", seed)
				}
				problem := slices.ContainsFunc(w.node.Status.Conditions, func(c corev1.NodeCondition) bool {
					rule, _, ok := w.policy.Match(nil, c)
					return ok && !rule.AlertOnly && !rule.Observe && w.now.Sub(c.LastHeartbeatTime.Time) <= rule.UnknownAfter
				})
				if !problem {
					t.Fatalf("seed %d: quarantined without a fresh problem", seed)
				}
			}
		}
	}
	if quarantines < 100 || held < 100 {
		t.Errorf("only %d quarantines, %d decisions under a person's release: the walks prove little", quarantines, held)
	}
}
