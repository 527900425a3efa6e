package preflight

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/schedule"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
)

// keptRun is what the pods of a run and the remediator have written.
type keptRun struct {
	Now     time.Time
	Reports []corev1.ConfigMap
	Pods    map[string]*corev1.Pod
	Nodes   map[string]*corev1.Node
}

// answeredRun is what the conditions are after the same run once more, after that of another namespace, and when the verdict has expired.
type answeredRun struct{ Same, Second, Expired map[string]string }

// keptAPI is an API server with the pods and reports of runs, and their nodes.
type keptAPI struct {
	*fakeAPI
	nodes map[string]*corev1.Node
}

func (k *keptAPI) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if n, ok := into.(*corev1.Node); ok && k.nodes[key.Name] != nil {
		k.nodes[key.Name].DeepCopyInto(n)
		return nil
	}
	return k.fakeAPI.Get(ctx, key, into, opts...)
}

func (k *keptAPI) Patch(_ context.Context, object client.Object, p client.Patch, _ ...client.PatchOption) error {
	data, err := p.Data(object)
	if err != nil {
		return err
	}
	for i := range k.reports {
		if k.reports[i].Name == object.GetName() {
			err = json.Unmarshal(data, &k.reports[i])
		}
	}
	return err
}

func (k *keptAPI) Status() client.SubResourceWriter { return keptStatus{api: k} }

type keptStatus struct {
	client.SubResourceWriter
	api *keptAPI
}

func (s keptStatus) Patch(_ context.Context, object client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	data, err := p.Data(object)
	if err != nil {
		return err
	}
	var patch corev1.Node
	if err := json.Unmarshal(data, &patch); err != nil {
		return err
	}
	n := s.api.nodes[object.GetName()]
	for _, c := range patch.Status.Conditions {
		n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions, func(old corev1.NodeCondition) bool { return old.Type == c.Type }), c)
	}
	return nil
}

// writes has the four pods of a run of a namespace report that node 2 is slow and that the storage of node 1 failed its check.
func (k *keptAPI) writes(t *testing.T, namespace string, at time.Time) {
	t.Helper()
	for i := range 4 {
		pod := podOfJob(namespace, fmt.Sprint(i))
		pod.UID, pod.CreationTimestamp = types.UID(namespace+"-"+string(pod.UID)), metav1.NewTime(at)
		pod.Name = namespace + "-" + pod.Name
		r := sweepReport(4, i, 2)
		if r.RunID = namespace; i == 1 {
			r.Storage = report.Failed
		}
		k.pods[pod.Name] = pod
		r.Node = pod.Spec.NodeName
		cm, err := reportconfigmap.New(pod, r)
		if err != nil {
			t.Fatal(err)
		}
		cm.UID, cm.CreationTimestamp = "cm-"+pod.UID, metav1.NewTime(at)
		k.reports = append(k.reports, *cm)
	}
}

func (k *keptAPI) judges(t *testing.T, namespace string, now time.Time) *Controller {
	t.Helper()
	c, _, clock := newTestController(k.fakeAPI)
	clock.SetTime(now)
	c.client, c.apiReader, c.reports = k, k, k
	if _, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: namespace}}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (k *keptAPI) conditions() map[string]string {
	all := map[string]string{}
	for name, n := range k.nodes {
		for _, c := range n.Status.Conditions {
			all[name+" "+string(c.Type)] = fmt.Sprintf("%s, confirmed: %t, at %s", c.Status, isConfirmed(c), c.LastHeartbeatTime.UTC().Format(time.RFC3339))
		}
	}
	return all
}

func TestGoldenRuns(t *testing.T) {
	k := goldentest.Read(t, "preflight/run", func(t *testing.T) keptRun {
		api := &keptAPI{&fakeAPI{pods: map[string]*corev1.Pod{}}, map[string]*corev1.Node{}}
		for i := range 4 {
			name := fmt.Sprint("node-", i)
			api.nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		}
		api.writes(t, "team-a", noon)
		api.judges(t, "team-a", noon.Add(time.Minute))
		return keptRun{noon.Add(time.Minute), api.reports, api.pods, api.nodes}
	})
	for _, r := range k.Reports {
		if r.Annotations[conditions.AnnotationPreflightVerdict] == "" && r.Annotations[conditions.AnnotationPreflightNode] == "node-2" {
			t.Error("the verdict is not on the report of the slow node")
		}
	}
	api := &keptAPI{&fakeAPI{pods: k.Pods, reports: k.Reports}, k.Nodes}
	var a answeredRun
	api.judges(t, "team-a", k.Now)
	a.Same = api.conditions()
	for _, n := range api.nodes { // created anew: the reports alone lead to the same conditions
		n.Status.Conditions = nil
	}
	api.judges(t, "team-a", k.Now)
	if diff := cmp.Diff(a.Same, api.conditions()); diff != "" {
		t.Error(diff)
	}
	api.writes(t, "team-b", k.Now)
	c := api.judges(t, "team-b", k.Now.Add(time.Minute))
	a.Second = api.conditions()
	c.clock.(interface{ SetTime(time.Time) }).SetTime(k.Now.Add(25 * time.Hour))
	for _, name := range slices.Sorted(maps.Keys(api.nodes)) {
		if _, err := c.expire(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	a.Expired = api.conditions()
	goldentest.Answer(t, "preflight/run", a)
}

// sweepReport is that of a rank of a run in which one is slow.
func sweepReport(n, rank, slow int) report.Report {
	r := report.Report{RunID: "r", Size: n, Rank: rank, IP: sweepAddress(rank), GPU: report.Passed, Storage: report.Passed}
	for index, pairs := range schedule.Rounds(n, schedule.MaxRounds, 1, nil) {
		for _, p := range pairs {
			if p[0] != rank && p[1] != rank {
				continue
			}
			gibps := 100.0
			if p[0] == slow || p[1] == slow {
				gibps = 50
			}
			r.Batches = append(r.Batches, report.Batch{
				Index: index, Pair: [2]netip.Addr{sweepAddress(min(p[0], p[1])), sweepAddress(max(p[0], p[1]))}, Self: r.IP, Bandwidth: gibps,
			})
		}
	}
	return r
}

func sweepAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}) }
