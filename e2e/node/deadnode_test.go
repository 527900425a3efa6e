package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// deadPolicy has the shipped rule for dead nodes with shorter times. RESTART are the fields of spec.restart.
const deadPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxPercent: 100}
  correlated: {maxPercent: 50, minNodes: 4, window: 2m, scopes: []}
  restart: {RESTART}
  rules:
    node-not-ready:
      match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}
      for: 1s
      clearAfter: 1s
      restartJobs: true
`

// deadLabel, on a node, is the namespace of the job that may run there.
const deadLabel = "e2e.pitcrew.dev/job"

// deadRanks is how many ranks the job has: one on the machine, the others on simulated nodes.
const deadRanks = 3

// deadJob is a training job with one rank on each node. A rank writes a heartbeat, and ends when it is asked to.
const deadJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: $NAME, labels: {$OPTIN: "true"}}
spec:
  completions: $RANKS
  parallelism: $RANKS
  completionMode: Indexed
  template:
    metadata: {labels: {job: $NAME}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 2
      nodeSelector: {$LABEL: $NAME}
      affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {job: $NAME}}}]}}
      tolerations: [$TOLERATIONS]
      containers:
      - name: rank
        image: ghcr.io/pitcrew-dev/preflight:$TAG
        imagePullPolicy: Never
        command: [/bin/sh, -c, "trap 'exit 143' TERM; while :; do echo >>/beats/$HOSTNAME; /bin/busybox usleep 100000; done"]
        volumeMounts: [{name: beats, mountPath: /beats}]
      volumes: [{name: beats, hostPath: {path: $BEATS}}]
`

// deadCase is a job with a rank on the machine, and a remediator.
type deadCase struct {
	*testing.T
	m         *host
	namespace string
	// rank is the pod on the machine before the fault, pid its process, beats the file of its heartbeat.
	rank  *corev1.Pod
	pid   int
	beats string
	pods  *clustertest.Pods
	later *laterPods
}

// startDeadCase starts a remediator and a job, one rank of which runs on the machine. restartFields are the fields of spec.restart
// of the policy, tolerations those of the pods.
func startDeadCase(t *testing.T, restartFields, tolerations string) *deadCase {
	t.Helper()
	d := &deadCase{T: t, m: theMachine(t), namespace: fmt.Sprintf("dead-%d", deadCases.Add(1))}
	d.m.uninstall(t)
	nodes := d.addNodes(deadRanks)
	for _, name := range append(nodes[1:], machine.NodeName) {
		d.takePods(name)
	}
	d.Cleanup(func() {
		// Also after a test that failed half-way.
		select {
		case <-d.m.Agent.Ended:
			d.m.StartKubelet(t)
		default:
			d.thaw()
		}
		if err := d.m.Client.Delete(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: d.namespace}}); err != nil {
			t.Error(err)
		}
	})
	d.runRemediator(restartFields)
	beats := filepath.Join(d.m.Dir, "beats", d.namespace)
	if err := errors.Join(os.MkdirAll(beats, 0o755), os.Chmod(beats, 0o777)); err != nil { // the image has a user of its own
		t.Fatal(err)
	}
	if err := d.m.AddNamespace(t.Context(), d.namespace, nil); err != nil {
		t.Fatal(err)
	}
	d.pods = clustertest.WatchPods(t, d.m.Cluster, d.namespace)
	if err := d.m.Apply(t.Context(), []byte(strings.NewReplacer("$NAME", d.namespace, "$OPTIN", conditions.LabelRestartOnNodeFault,
		"$RANKS", strconv.Itoa(deadRanks), "$LABEL", deadLabel, "$TOLERATIONS", tolerations, "$TAG", tag, "$BEATS", beats).Replace(deadJob))); err != nil {
		t.Fatal(err)
	}
	first := d.run()
	d.rank = onMachine(first)
	if d.rank == nil {
		t.Fatalf("no rank runs on the machine: %+v", d.pods.Lives())
	}
	d.pid, d.beats = d.m.pid(t, d.rank), filepath.Join(beats, d.rank.Spec.Hostname)
	d.beatsOn()
	d.later = d.watchLater(first)
	d.takePods(nodes[0]) // for the rank of the machine
	return d
}

var deadCases atomic.Int32

// uninstall removes the chart of other tests: its remediator must not run beside that of a test.
func (m *host) uninstall(t *testing.T) {
	t.Helper()
	if m.installed == "" {
		return
	}
	helm := exec.CommandContext(t.Context(), components.Helm.Path(m.Root), "uninstall", "pitcrew", "--ignore-not-found", "--wait",
		"--namespace", namespace, "--kubeconfig", m.Kubeconfig)
	helm.Env = append(os.Environ(), "HOME="+m.Dir)
	if out, err := helm.CombinedOutput(); err != nil {
		t.Fatalf("helm: %v\n%s", err, out)
	}
	m.installed = ""
}

// runRemediator runs a remediator until the test ends. Then its roles are removed, because Helm does not take over those of others.
func (d *deadCase) runRemediator(restartFields string) {
	d.Helper()
	policy := d.m.Write(d.T, d.namespace+".yaml", strings.Replace(deadPolicy, "RESTART", restartFields, 1))
	remediator, err := d.m.StartRemediator(d.Context(), "-policy", policy, "-leader-elect=false")
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() {
		remediator.Stop(patience)
		if d.Failed() {
			d.Log(remediator.Log())
		}
		for _, file := range []string{"admission-self.yaml", "rbac.yaml"} {
			if _, err := d.m.Kubectl(context.Background(), "delete", "--ignore-not-found", "--filename", filepath.Join(d.m.Root, "manifests", "remediator", file)); err != nil {
				d.Error(err)
			}
		}
	})
}

// addNodes adds simulated nodes, whose kubelets report as often as the machine's.
func (d *deadCase) addNodes(n int) []string {
	d.Helper()
	if d.m.others == nil {
		others, err := d.m.StartKubelets(d.Context(), "others")
		if err != nil {
			d.Fatal(err)
		}
		d.m.others = others
	}
	names, err := d.m.AddNodes(d.Context(), d.namespace, n, d.m.others.Own)
	d.Cleanup(func() {
		if err := d.m.DeleteNodes(context.Background(), names...); err != nil {
			d.Error(err)
		}
	})
	if err != nil {
		d.Fatal(err)
	}
	return names
}

// takePods has a node take pods of the job.
func (d *deadCase) takePods(name string) {
	d.Helper()
	if _, err := d.m.Kubectl(d.Context(), "label", "--overwrite", "node", name, deadLabel+"="+d.namespace); err != nil {
		d.Fatal(err)
	}
}

func (d *deadCase) node() *corev1.Node {
	d.Helper()
	node, err := d.m.Node(d.T)
	if err != nil {
		d.Fatal(err)
	}
	return node
}

// signal sends a signal to the kubelet.
func (m *host) signal(s syscall.Signal) { _ = syscall.Kill(m.Agent.PID, s) }

// run waits until all ranks run, and returns them.
func (d *deadCase) run() []corev1.Pod {
	d.Helper()
	var running []corev1.Pod
	clustertest.Until(d, patience, "all ranks run", func() error {
		var pods corev1.PodList
		if err := d.m.Client.List(d.Context(), &pods, client.InNamespace(d.namespace)); err != nil {
			return err
		}
		running = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
			return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning
		})
		if len(running) != deadRanks {
			return fmt.Errorf("%d run: %+v", len(running), d.pods.Lives())
		}
		return nil
	})
	return running
}

func onMachine(pods []corev1.Pod) *corev1.Pod {
	for i := range pods {
		if pods[i].Spec.NodeName == machine.NodeName {
			return &pods[i]
		}
	}
	return nil
}

// alive reports whether a process exists and has not ended.
func alive(pid int) bool {
	if pid == 0 {
		return false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

// beatsOn waits for heartbeats of the rank that was on the machine before the fault.
func (d *deadCase) beatsOn() {
	d.Helper()
	size := func() int64 {
		info, err := os.Stat(d.beats)
		if err != nil {
			return -1
		}
		return info.Size()
	}
	before := size()
	clustertest.Until(d, patience, "a heartbeat of the rank on the machine", func() error {
		if now := size(); now <= before {
			return fmt.Errorf("the file had %d bytes and has %d", before, now)
		}
		return nil
	})
}

// laterPods are the pods that were created after the first incarnation of the job.
type laterPods struct {
	mu   sync.Mutex
	seen map[types.UID]*laterPod
}

type laterPod struct {
	name, node string
	// beside: the process of the first incarnation's rank on the machine had not ended when the pod was seen for the first time.
	beside bool
}

// watchLater follows the pods of the job until the test ends.
func (d *deadCase) watchLater(first []corev1.Pod) *laterPods {
	d.Helper()
	old := map[types.UID]bool{}
	for _, pod := range first {
		old[pod.UID] = true
	}
	w, err := d.m.Client.Watch(d.Context(), &corev1.PodList{}, client.InNamespace(d.namespace))
	if err != nil {
		d.Fatal(err)
	}
	later := &laterPods{seen: map[types.UID]*laterPod{}}
	go func() {
		for e := range w.ResultChan() {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok || old[pod.UID] {
				continue
			}
			beside := alive(d.pid)
			later.mu.Lock()
			if later.seen[pod.UID] == nil {
				later.seen[pod.UID] = &laterPod{name: pod.Name, beside: beside}
			}
			later.seen[pod.UID].node = pod.Spec.NodeName
			later.mu.Unlock()
		}
	}()
	return later
}

// of returns what was seen of pods.
func (l *laterPods) of(pods []corev1.Pod) []laterPod {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []laterPod
	for _, pod := range pods {
		if p := l.seen[pod.UID]; p != nil {
			found = append(found, *p)
		}
	}
	return found
}

// quarantined waits until the machine is quarantined because it is not Ready, or not any more.
func (d *deadCase) quarantined(want bool) {
	d.Helper()
	clustertest.Until(d, patience, fmt.Sprintf("quarantined: %v", want), func() error {
		node := d.node()
		has := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == conditions.TaintUnhealthy && t.Value == string(corev1.NodeReady)
		})
		if has != want {
			return fmt.Errorf("taints %v, record %s", node.Spec.Taints, node.Annotations[conditions.AnnotationQuarantine])
		}
		return nil
	})
}

// record is what the remediator keeps on the job.
func (d *deadCase) record() restart.Record {
	d.Helper()
	var job batchv1.Job
	if err := d.m.Client.Get(d.Context(), client.ObjectKey{Namespace: d.namespace, Name: "train"}, &job); err != nil {
		d.Fatal(err)
	}
	record, err := restart.ReadRecord(&job)
	if err != nil {
		d.Fatal(err)
	}
	return record
}

// event waits for an Event on the job with that reason and all the texts.
func (d *deadCase) event(reason string, texts ...string) {
	d.Helper()
	clustertest.Until(d, patience, fmt.Sprintf("Event %s with %q", reason, texts), func() error {
		var events eventsv1.EventList
		if err := d.m.Client.List(d.Context(), &events, client.InNamespace(d.namespace)); err != nil {
			return err
		}
		var notes []string
		for _, e := range events.Items {
			if e.Regarding.Name != "train" || !strings.HasPrefix(e.Reason, "JobRestart") {
				continue
			}
			notes = append(notes, e.Reason+": "+e.Note)
			if e.Reason == reason && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Note, text) }) {
				return nil
			}
		}
		return fmt.Errorf("notes %q", notes)
	})
}

// waits waits until the job is stopped but for the rank on the machine, and checks that it says what it waits for.
func (d *deadCase) waits() {
	d.Helper()
	d.event("JobRestartBlocked", d.rank.Name, machine.NodeName, corev1.TaintNodeOutOfService)
	clustertest.Until(d, patience, "only the rank on the machine is left", func() error {
		var pods corev1.PodList
		if err := d.m.Client.List(d.Context(), &pods, client.InNamespace(d.namespace)); err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].UID != d.rank.UID {
			return fmt.Errorf("%+v", d.pods.Lives())
		}
		return nil
	})
	if r := d.record(); r.Current == nil || r.Current.Phase != restart.Stopping {
		d.Errorf("the job does not wait: %+v", r)
	}
}

// runsElsewhere waits until the restart is closed and checks that it was the only one, that no rank is on the machine, and
// that every rank was created after the last pod before it was gone. With the process of the old rank it is as beside says: it
// had ended before the first of the ranks was created, or it still ran.
func (d *deadCase) runsElsewhere(beside bool) {
	d.Helper()
	clustertest.Until(d, patience, "the end of the restart", func() error {
		if r := d.record(); r.Current != nil || r.Total != 1 {
			return fmt.Errorf("%+v, pods %+v", r, d.pods.Lives())
		}
		return nil
	})
	ranks := d.run()
	if on := onMachine(ranks); on != nil {
		d.Errorf("rank %s runs on the machine", on.Name)
	}
	var seen []laterPod
	var lives []clustertest.Life
	clustertest.Until(d, patience, "the watches show all ranks", func() error {
		seen, lives = d.later.of(ranks), d.pods.Lives()
		shown := slices.DeleteFunc(slices.Clone(ranks), func(p corev1.Pod) bool {
			return !slices.ContainsFunc(lives, func(l clustertest.Life) bool { return l.Name == p.Name })
		})
		if len(seen) != deadRanks || len(shown) != deadRanks {
			return fmt.Errorf("%+v of %+v", seen, lives)
		}
		return nil
	})
	for _, rank := range seen {
		if rank.beside != beside {
			d.Errorf("when rank %s was created, the old rank on the machine was alive: %v", rank.name, rank.beside)
		}
	}
	for i, old := range lives {
		for _, rank := range lives[len(lives)-deadRanks:] {
			if i < len(lives)-deadRanks && (old.Gone == 0 || old.Gone > rank.Created) {
				d.Errorf("%+v was created before %+v was gone", rank, old)
			}
		}
	}
}

// onlyOnce checks, when all is over, that the job had this many pods and was restarted once.
func (d *deadCase) onlyOnce(pods int) {
	d.Helper()
	if r := d.record(); r.Current != nil || r.Total != 1 {
		d.Errorf("the job was not restarted exactly once: %+v", r)
	}
	if lives := d.pods.Lives(); len(lives) != pods {
		d.Errorf("the job had %d pods, want %d: %+v", len(lives), pods, lives)
	}
}

// pause has the remediator quarantine no node and restart no job until resume.
func (d *deadCase) pause() (resume func()) {
	d.Helper()
	pause := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: conditions.PauseConfigMap}, Data: map[string]string{"reason": "a test"},
	}
	if err := d.m.Client.Create(d.Context(), pause); err != nil {
		d.Fatal(err)
	}
	return func() {
		if err := d.m.Client.Delete(d.Context(), pause); err != nil {
			d.Fatal(err)
		}
	}
}

// freeze stops the kubelet, and with hung the processes of the pod as well, as when the whole machine hangs. Without, only
// the node's connection is lost.
func (d *deadCase) freeze(hung bool) {
	d.m.signal(syscall.SIGSTOP)
	if hung {
		_ = syscall.Kill(d.pid, syscall.SIGSTOP)
	}
}

// thaw continues what freeze has stopped.
func (d *deadCase) thaw() {
	if alive(d.pid) {
		_ = syscall.Kill(d.pid, syscall.SIGCONT)
	}
	d.m.signal(syscall.SIGCONT)
}

// powerOff kills the kubelet and the processes of the pod.
func (d *deadCase) powerOff() {
	d.m.signal(syscall.SIGKILL)
	_ = syscall.Kill(d.pid, syscall.SIGKILL)
	<-d.m.Agent.Ended
}

// powerOn starts the kubelet again, in another boot.
func (d *deadCase) powerOn() {
	d.Helper()
	boot := d.m.NewBoot(d.T)
	d.m.StartKubelet(d.T)
	d.m.UntilBoot(d.T, boot)
}

// A node that was only away. The kubelet, when it is back, ends the old rank; that is the proof that the job waits for.
func TestAJobWaitsForAFrozenNodeAndRunsElsewhereWhenItReturns(t *testing.T) {
	for name, hung := range map[string]bool{"the whole machine": true, "only its kubelet": false} {
		t.Run(name, func(t *testing.T) {
			d := startDeadCase(t, "forceDelete: never", "")
			d.freeze(hung)
			d.quarantined(true)
			d.waits()
			if !hung {
				d.beatsOn() // what the wait is for: the old rank is at work
			}
			d.thaw()
			d.runsElsewhere(false)
			d.quarantined(false)
			d.onlyOnce(2 * deadRanks)
		})
	}
}

// Kubernetes evicts the pod from the unreachable node, and the Job controller replaces it at once, beside the old one. The job is
// then restarted whole, and waits as without the eviction.
func TestAJobIsRestartedOnceBesideKubernetesOwnEviction(t *testing.T) {
	d := startDeadCase(t, "forceDelete: never",
		"{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 0}")
	resume := d.pause() // the Job controller first backs off
	d.freeze(false)
	clustertest.Until(t, patience, "the eviction by Kubernetes", func() error {
		var pod corev1.Pod
		if err := d.m.Client.Get(t.Context(), client.ObjectKeyFromObject(d.rank), &pod); err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Reason == "DeletionByTaintManager" && pod.DeletionTimestamp != nil {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", pod.Status.Conditions)
	})
	d.run()
	clustertest.Until(t, patience, "the watch shows that Kubernetes has replaced the evicted rank alone", func() error {
		if lives := d.pods.Lives(); len(lives) != deadRanks+1 {
			return fmt.Errorf("%+v", lives)
		}
		return nil
	})
	resume()
	d.quarantined(true)
	d.waits()
	d.beatsOn()
	d.thaw()
	d.runsElsewhere(false)
	d.quarantined(false)
	d.onlyOnce(2*deadRanks + 1)
}

// A node that is off. Without a proof of that the job waits.
func TestAJobRunsElsewhereOnceItsNodeIsProvenDead(t *testing.T) {
	t.Run("by the taint out-of-service", func(t *testing.T) {
		d := startDeadCase(t, "forceDelete: never", "")
		d.powerOff()
		d.quarantined(true)
		d.waits()
		if _, err := d.m.Kubectl(t.Context(), "taint", "node", machine.NodeName, corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute"); err != nil {
			t.Fatal(err)
		}
		d.runsElsewhere(false)
		d.powerOn()
		if _, err := d.m.Kubectl(t.Context(), "taint", "node", machine.NodeName, corev1.TaintNodeOutOfService+"-"); err != nil {
			t.Fatal(err)
		}
		d.quarantined(false)
		d.onlyOnce(2 * deadRanks)
	})
	t.Run("by the end of the Node object", func(t *testing.T) {
		d := startDeadCase(t, "forceDelete: never", "")
		d.powerOff()
		d.quarantined(true)
		d.waits()
		if err := d.m.Client.Delete(t.Context(), d.node()); err != nil {
			t.Fatal(err)
		}
		d.runsElsewhere(false)
		d.powerOn()
		d.quarantined(false)
		d.onlyOnce(2 * deadRanks)
	})
	t.Run("by its return in a new boot", func(t *testing.T) {
		d := startDeadCase(t, "forceDelete: never", "")
		d.powerOff()
		d.quarantined(true)
		d.waits()
		d.powerOn()
		d.runsElsewhere(false)
		d.quarantined(false)
		d.onlyOnce(2 * deadRanks)
	})
}

// The risk of forceDelete: the old rank runs on beside the new ones until the node is back. The Event says so.
func TestAForceDeletedRankRunsOnUntilItsNodeReturns(t *testing.T) {
	d := startDeadCase(t, "forceDelete: unreachable, forceDeleteAfter: 3s", "")
	d.freeze(false)
	d.quarantined(true)
	d.runsElsewhere(true)
	d.event("JobRestarting", d.rank.Name, machine.NodeName, "may still")
	d.beatsOn()
	d.thaw()
	clustertest.Until(t, patience, "the end of the old rank", func() error {
		if alive(d.pid) {
			return fmt.Errorf("process %d is still there", d.pid)
		}
		return nil
	})
	d.quarantined(false)
	d.onlyOnce(2 * deadRanks)
}
