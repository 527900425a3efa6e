package progress

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	clustertest.Main(m, cluster.Options{})
}

const patience = 2 * time.Minute

// movedClock is the real clock, which a test can move on.
type movedClock struct {
	clock.RealClock
	ahead atomic.Int64
}

func (c *movedClock) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.ahead.Load())) }

func (c *movedClock) Since(at time.Time) time.Duration { return c.Now().Sub(at) }

// kubelet answers for the logs of all pods, as kubelets do: the API server asks it.
type kubelet struct {
	port  int32
	clock clock.PassiveClock

	mu    sync.Mutex
	lines map[string][]string // by pod
	asked map[string]int      // how often, by pod
	dead  map[string]bool
	// first is called with a question about a pod, and reports whether it has answered.
	first map[string]func(http.ResponseWriter, *http.Request) bool
}

func startKubelet(t *testing.T, c clock.PassiveClock) *kubelet {
	t.Helper()
	k := &kubelet{clock: c, lines: map[string][]string{}, asked: map[string]int{}, dead: map[string]bool{}, first: map[string]func(http.ResponseWriter, *http.Request) bool{}}
	server := httptest.NewTLSServer(k)
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	k.port = int32(n)
	return k
}

// ServeHTTP answers /containerLogs/NAMESPACE/POD/CONTAINER.
func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	part := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(part) != 4 || part[0] != "containerLogs" || part[3] != "main" {
		http.Error(w, "what is this: "+r.URL.Path, http.StatusNotFound)
		return
	}
	pod := part[2]
	k.mu.Lock()
	k.asked[pod]++
	first := k.first[pod]
	k.mu.Unlock()
	if first != nil && first(w, r) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead[pod] {
		http.Error(w, "secret of the runtime", http.StatusInternalServerError)
		return
	}
	query := r.URL.Query()
	tail, err := strconv.Atoi(query.Get("tailLines"))
	limit, err2 := strconv.Atoi(query.Get("limitBytes"))
	if err != nil || err2 != nil || query.Get("timestamps") != "true" || query.Get("follow") == "true" {
		http.Error(w, "no bounds: "+r.URL.RawQuery, http.StatusBadRequest)
		return
	}
	all := k.lines[pod]
	text := strings.Join(all[max(0, len(all)-tail):], "")
	fmt.Fprint(w, text[:min(len(text), limit)])
}

func (k *kubelet) print(pod, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lines[pod] = append(k.lines[pod], k.clock.Now().UTC().Format(time.RFC3339Nano)+" "+text+"\n")
}

func (k *kubelet) reads() (all int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range k.asked {
		all += n
	}
	return all
}

// rig is a gang, its kubelet and a follower.
type rig struct {
	*testing.T
	c      *cluster.Cluster
	name   string
	clock  *movedClock
	k      *kubelet
	config *policy.Policy
	job    *batchv1.Job
	pods   []string // by rank
	ticks  int
	// registry is that of the follower that was started last.
	registry *prometheus.Registry
}

var optIn = map[string]string{
	conditions.AnnotationProgress: `step (?P<step>\d+)`, conditions.AnnotationProgressPause: "saving checkpoint", conditions.AnnotationStalledAfter: "15m",
}

func newRig(t *testing.T, name string, ranks int, annotations map[string]string) *rig {
	t.Helper()
	c := clustertest.Get(t)
	r := &rig{T: t, c: c, name: name, clock: &movedClock{}, config: &policy.Policy{}}
	r.config.Restart.Stalls.Mode = policy.StallsObserve
	r.k = startKubelet(t, r.clock)
	if err := c.AddNamespace(t.Context(), name, nil); err != nil {
		t.Fatal(err)
	}
	nodes, err := c.AddNodes(t.Context(), name, ranks, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.DeleteNodes(context.Background(), nodes...); err != nil { //nolint:usetesting // the test's own context has ended by now
			t.Error(err)
		}
	})
	for _, node := range nodes {
		r.eventually("the kubelet of node "+node, func() error {
			var n corev1.Node
			if err := c.Client.Get(t.Context(), client.ObjectKey{Name: node}, &n); err != nil {
				return err
			}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
			n.Status.DaemonEndpoints.KubeletEndpoint.Port = r.k.port
			return c.Client.Status().Update(t.Context(), &n)
		})
	}
	n := int32(ranks)
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	r.job = &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "train", Annotations: annotations},
		Spec: batchv1.JobSpec{
			Parallelism: &n, Completions: &n, CompletionMode: ptr.To(batchv1.IndexedCompletion), BackoffLimit: ptr.To[int32](0),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{cluster.LabelPool: name},
				Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus}}, {Name: "proxy", Image: "none"}},
			}},
		},
	}
	if err := c.Client.Create(t.Context(), r.job); err != nil {
		t.Fatal(err)
	}
	r.running(ranks)
	return r
}

// running waits until so many pods of the gang run, and no others are there.
func (r *rig) running(ranks int) {
	r.Helper()
	r.eventually("the gang runs", func() error {
		var list corev1.PodList
		if err := r.c.Client.List(r.Context(), &list, client.InNamespace(r.name)); err != nil {
			return err
		}
		r.pods = nil
		for _, p := range list.Items {
			if p.Status.Phase == corev1.PodRunning {
				r.pods = append(r.pods, p.Name)
			}
		}
		if len(r.pods) != ranks || len(list.Items) != ranks {
			return fmt.Errorf("%d pods run of %d", len(r.pods), len(list.Items))
		}
		slices.SortFunc(r.pods, compareNatural)
		return nil
	})
}

// run starts a follower, as one process of the remediator would, with the rights that we ship. The returned function ends it.
func (r *rig) run() func() {
	r.Helper()
	cfg := jobstest.Config(r.T, r.c)
	role, err := os.ReadFile(filepath.Join(r.c.Root, "manifests", "progress", "rbac.yaml"))
	if err != nil {
		r.Fatal(err)
	}
	if err := r.c.Apply(r.Context(), role); err != nil {
		r.Fatal(err)
	}
	return r.runWith(cfg)
}

// runWith starts a follower with the rights that there are.
func (r *rig) runWith(cfg *rest.Config) func() {
	r.Helper()
	_, stop := jobstest.Run(r.T, cfg, interceptor.Funcs{}, func(ctx context.Context, mgr ctrl.Manager) (*jobs.Controller, error) {
		registry, recorder, file := prometheus.NewRegistry(), mgr.GetEventRecorder("pitcrew"), policy.Fixed(r.config)
		r.registry = registry
		restarter, err := jobs.SetupWithManager(ctx, mgr, registry, jobs.Options{Policy: file, Recorder: recorder, Clock: r.clock})
		if err != nil {
			return nil, err
		}
		return restarter, SetupWithManager(mgr, registry, Options{Policy: file, Jobs: restarter, Recorder: recorder, Clock: r.clock})
	})
	return stop
}

func (r *rig) eventually(what string, check func() error) {
	r.Helper()
	clustertest.Until(r.T, patience, what, check)
}

// minute moves the clock, and waits until the follower has looked at the job.
func (r *rig) minute() {
	r.Helper()
	before, looks := r.k.reads(), r.looks()
	r.clock.ahead.Add(int64(time.Minute))
	r.touch(map[string]any{"e2e.pitcrew.dev/tick": strconv.Itoa(r.ticks)})
	r.ticks++
	r.eventually("a look", func() error {
		if r.k.reads() == before || r.looks() == looks {
			return fmt.Errorf("no log was read")
		}
		return nil
	})
	r.idle()
}

// idle waits until no look is under way: one during which the clock is moved would count as one of the next minute.
func (r *rig) idle() {
	r.Helper()
	r.eventually("the looks end", func() error {
		if n := r.metric("controller_runtime_active_workers"); n > 0 {
			return fmt.Errorf("%g are under way", n)
		}
		return nil
	})
}

// looks is how many looks have ended.
func (r *rig) looks() float64 { return r.metric("controller_runtime_reconcile_total") }

// metric is the sum of a metric of the follower.
func (r *rig) metric(name string) (all float64) {
	r.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			if family.GetName() == name && slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetValue() == "job-progress" }) {
				all += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return all
}

// touch changes annotations of the job, at which the follower looks at it.
func (r *rig) touch(annotations map[string]any) {
	r.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		r.Fatal(err)
	}
	if err := r.c.Client.Patch(r.Context(), r.job.DeepCopy(), client.RawPatch("application/merge-patch+json", patch)); err != nil {
		r.Fatal(err)
	}
}

// all has all ranks print a line.
func (r *rig) all(text string) {
	for _, pod := range r.pods {
		r.k.print(pod, text)
	}
}

// notes are those of the Events about the job with a reason.
func (r *rig) notes(reason string) (notes []string) {
	r.Helper()
	var list eventsv1.EventList
	if err := r.c.Client.List(r.Context(), &list, client.InNamespace(r.name)); err != nil {
		r.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Reason == reason {
			notes = append(notes, e.Note)
		}
	}
	return notes
}

// evidence is that of the job's stalls.
func (r *rig) evidence() (all []Evidence) {
	r.Helper()
	var list corev1.ConfigMapList
	if err := r.c.Client.List(r.Context(), &list, client.InNamespace(r.name), client.MatchingLabels{"app.kubernetes.io/managed-by": quarantine.ControllerName}); err != nil {
		r.Fatal(err)
	}
	for _, m := range list.Items {
		var e Evidence
		if err := json.Unmarshal([]byte(m.Data["stall.json"]), &e); err != nil {
			r.Fatal(err)
		}
		if owner := m.OwnerReferences; len(owner) != 1 || owner[0].UID != r.job.UID || owner[0].Kind != "Job" {
			r.Errorf("the evidence is owned by %+v", owner)
		}
		all = append(all, e)
	}
	return all
}

func TestAGangOf64WhoseRank37Stops(t *testing.T) {
	r := newRig(t, "rank-37", 64, optIn)
	begun := r.clock.Now()
	stop := r.run()
	for i := range 5 {
		r.all(fmt.Sprintf("step %d", 1195+i))
		r.minute()
	}
	// On a busy machine more than five minutes go by.
	if n, most := r.k.reads(), 1+int(r.clock.Since(begun)/stall.Interval); n > most {
		t.Errorf("%d reads while all was well, want at most %d", n, most)
	}
	r.all("step 1200")
	for i, pod := range r.pods {
		if i != 37 {
			r.k.print(pod, "step 1201 secret")
		}
	}
	minutes := 0
	for ; minutes < 20 && len(r.notes(eventStalled)) == 0; minutes++ {
		r.minute()
	}
	r.eventually("the Event", func() error {
		if len(r.notes(eventStalled)) == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
	if minutes > 17 {
		t.Errorf("found after %d minutes", minutes)
	}
	note := r.notes(eventStalled)[0]
	for _, want := range []string{"all 64 ranks run", "most stand at step 1201", "but rank 37 at step 1200 (pod " + r.pods[37] + ", node rank-37-", "ConfigMap pitcrew-stall-"} {
		if !strings.Contains(note, want) {
			t.Errorf("%q does not have %q", note, want)
		}
	}
	all := r.evidence()
	if len(all) != 1 || !slices.Equal(all[0].Behind, []int{37}) || all[0].Ranks[0].Rank != 37 || len(all[0].Ranks) != 64 || len(all[0].Nodes) != 1 ||
		len(all[0].Nodes[0].Conditions) == 0 || strings.Contains(fmt.Sprint(all), "secret") {
		t.Errorf("%+v", all)
	}
	if e := all[0]; e.EventsNotRead != "" || !slices.ContainsFunc(e.Events, func(e EventEvidence) bool {
		return e.Kind == "Pod" && e.Name == r.pods[37] && e.Reason == "Scheduled" && e.Count == 1 && !e.Last.IsZero()
	}) {
		t.Errorf("%s %+v", e.EventsNotRead, e.Events)
	}
	// A new leader says it again, and writes it once.
	stop()
	defer r.run()()
	for range 3 {
		r.minute()
	}
	if n := len(r.evidence()); n != 1 {
		t.Errorf("%d ConfigMaps", n)
	}
	r.all("step 1202")
	r.minute()
}

// With mode restart the job is restarted as a whole, and once: not again while it starts, and not without having opted in.
func TestAJobThatStandsStillIsRestartedOnce(t *testing.T) {
	r := newRig(t, "restarted", 4, optIn)
	r.config.Restart.Stalls.Mode = policy.StallsRestart
	defer r.run()()
	old := slices.Clone(r.pods)
	for i := range 3 {
		r.all(fmt.Sprintf("step %d", i))
		r.minute()
	}
	for range 20 {
		if len(r.notes("RestartNotOptedIn")) > 0 {
			break
		}
		r.minute()
	}
	r.eventually("the Event", func() error {
		if notes := r.notes("RestartNotOptedIn"); len(notes) != 1 || !strings.HasPrefix(notes[0], "no rank has made progress since ") {
			return fmt.Errorf("%q", notes)
		}
		return nil
	})
	if rec := r.record(); rec.Current != nil || rec.Total > 0 {
		t.Fatalf("restarted without having opted in: %+v", rec)
	}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+conditions.LabelRestartOnNodeFault+`":"true"}}}`))
	if err := r.c.Client.Patch(t.Context(), r.job.DeepCopy(), patch); err != nil {
		t.Fatal(err)
	}
	r.clock.ahead.Add(int64(time.Minute))
	r.touch(map[string]any{"e2e.pitcrew.dev/tick": "opted in"})
	r.eventually("the restart", func() error {
		if rec := r.record(); len(rec.Last) != 1 {
			return fmt.Errorf("%+v", rec.Current)
		}
		return nil
	})
	rec := r.record()
	if cause := rec.Last[0].Quarantines; rec.Total != 1 || rec.Last[0].Phase != restart.Done || len(cause) != 1 || cause[0].Node != "" || cause[0].Taint.Key != "" {
		t.Errorf("%+v", rec)
	}
	r.running(4)
	for _, pod := range r.pods {
		if slices.Contains(old, pod) {
			t.Errorf("pod %s was not replaced", pod)
		}
	}
	if notes := r.notes("JobRestarting"); len(notes) != 1 || !strings.Contains(notes[0], "restarting all ranks") || strings.Contains(notes[0], "no record of a node") {
		t.Errorf("%q", notes)
	}
	// The next look finds that the pods are gone, and the one after that the new ones.
	looks := r.looks()
	r.clock.ahead.Add(int64(time.Minute))
	r.touch(map[string]any{"e2e.pitcrew.dev/tick": "other pods"})
	r.eventually("a look", func() error {
		if r.looks() == looks {
			return fmt.Errorf("none")
		}
		return nil
	})
	r.idle()
	r.all("step 0")
	r.minute()
	r.all("step 1")
	r.minute()
	if rec := r.record(); rec.Total != 1 {
		t.Errorf("%+v", rec)
	}
	var nodes corev1.NodeList
	if err := r.c.Client.List(t.Context(), &nodes, client.MatchingLabels{cluster.LabelPool: r.name}); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		if len(n.Spec.Taints) > 0 {
			t.Errorf("node %s: %v", n.Name, n.Spec.Taints)
		}
	}
}

// record is that of the job's restarts.
func (r *rig) record() restart.Record {
	r.Helper()
	var job batchv1.Job
	if err := r.c.Client.Get(r.Context(), client.ObjectKeyFromObject(r.job), &job); err != nil {
		r.Fatal(err)
	}
	rec, err := restart.ReadRecord(&job)
	if err != nil {
		r.Fatal(err)
	}
	return rec
}

func TestWhatIsNotFollowed(t *testing.T) {
	r := newRig(t, "not-followed", 2, nil)
	defer r.run()()
	r.all("step 1")
	// The namespace opts in.
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.name}}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": optIn}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.c.Client.Patch(t.Context(), namespace, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
	r.eventually("a look", func() error {
		if r.k.reads() == 0 {
			return fmt.Errorf("no log was read")
		}
		return nil
	})
	// The job opts out; then it names what is no duration.
	r.touch(map[string]any{conditions.AnnotationProgress: ""})
	r.touch(map[string]any{conditions.AnnotationProgress: "step", conditions.AnnotationStalledAfter: "soon"})
	r.eventually("the Event", func() error {
		if notes := r.notes(eventUnknown); len(notes) != 1 || !strings.Contains(notes[0], `annotation pitcrew.dev/stalled-after: "soon" is no duration`) {
			return fmt.Errorf("%q", notes)
		}
		return nil
	})
}

func TestADeadNodeIsReportedWithoutItsAnswer(t *testing.T) {
	r := newRig(t, "dead-node", 2, optIn)
	defer r.run()()
	r.all("step 1")
	r.minute()
	r.k.mu.Lock()
	r.k.dead[r.pods[1]] = true
	r.k.mu.Unlock()
	for range 40 {
		r.minute()
	}
	r.eventually("the Event", func() error {
		if notes := r.notes(eventUnknown); len(notes) != 1 || !strings.Contains(notes[0], "the log of pod "+r.pods[1]) || strings.Contains(notes[0], "secret") {
			return fmt.Errorf("%q", notes)
		}
		return nil
	})
	if notes := r.notes(eventStalled); len(notes) > 0 {
		t.Error(notes)
	}
}

// Without the role nothing is watched, and the rest of the remediator runs on: a watch that is refused would end it.
func TestWithoutTheRoleNothingIsWatched(t *testing.T) {
	r := newRig(t, "no-role", 1, optIn)
	role := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "pitcrew-remediator-progress"}}
	if err := r.c.Client.Delete(t.Context(), role); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	var refused, watches, lists atomic.Int32
	cfg := jobstest.Config(t, r.c)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return jobstest.RoundTripper(func(q *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(q)
			switch {
			case err != nil:
			case q.URL.Path == "/api/v1/namespaces" && q.URL.Query().Get("watch") == "" && response.StatusCode == http.StatusForbidden:
				refused.Add(1)
			case q.URL.Path == "/api/v1/namespaces":
				watches.Add(1)
			case strings.HasSuffix(q.URL.Path, "/jobs") && !strings.Contains(q.URL.RawQuery, "labelSelector"):
				lists.Add(1)
			}
			return response, err
		})
	})
	stop := r.runWith(cfg)
	r.eventually("a refused list", func() error {
		if refused.Load() == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
	stop()
	if watches.Load() > 0 || lists.Load() > 0 || r.k.reads() > 0 {
		t.Errorf("%d watches of namespaces, %d lists of jobs, %d reads", watches.Load(), lists.Load(), r.k.reads())
	}
}
