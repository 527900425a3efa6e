package preflight

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/schedule"
)

// sweepAPI has the pods and the Jobs of a group, and the nodes. It keeps the conditions that are written.
type sweepAPI struct {
	*fakeAPI
	group   map[string]string // by Job
	written map[string]string // by node
}

func (s *sweepAPI) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	switch o := into.(type) {
	case *metav1.PartialObjectMetadata:
		group, ok := s.group[key.Name]
		if !ok {
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		}
		o.Name, o.UID = key.Name, types.UID("uid-"+key.Name)
		if group != "" {
			o.Labels = map[string]string{conditions.LabelGroup: group}
		}
		return nil
	case *corev1.Node:
		o.Name = key.Name
		return nil
	}
	return s.fakeAPI.Get(ctx, key, into, opts...)
}

func (s *sweepAPI) Status() client.SubResourceWriter { return sweepStatus{api: s} }

type sweepStatus struct {
	client.SubResourceWriter
	api *sweepAPI
}

func (s sweepStatus) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	data, err := p.Data(o)
	s.api.written[o.GetName()] = string(data)
	return err
}

// The pods of a group have a Job each. Their reports are one run, where only admins create Jobs. A run that is not complete was ended, and
// says nothing about anybody.
func TestTheReportsOfAGroupAreOneRun(t *testing.T) {
	const n, slow = 4, 2
	for name, tt := range map[string]struct {
		trusted bool
		group   string
		reports int
		want    string
	}{
		"all":                   {true, "g", n, "node-2"},
		"one is missing":        {true, "g", n - 1, ""},
		"Jobs without a group":  {true, "", n, ""},
		"the label of a tenant": {false, "g", n, ""},
		"that of another group": {true, "other", n, ""},
	} {
		t.Run(name, func(t *testing.T) {
			api := &sweepAPI{&fakeAPI{pods: map[string]*corev1.Pod{}}, map[string]string{}, map[string]string{}}
			c, _, clock := newTestController(api.fakeAPI)
			c.client, c.apiReader = api, api
			if tt.trusted {
				c.trusted = []string{"pitcrew-repair"}
			}
			for i := range n {
				pod := podOfJob("pitcrew-repair", fmt.Sprint(i))
				job := fmt.Sprint("sweep-", i)
				pod.OwnerReferences[0] = metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: types.UID("uid-" + job), Controller: new(true)}
				api.pods[pod.Name] = pod
				if api.group[job] = tt.group; tt.group == "other" && i > 0 {
					api.group[job] = "g"
				}
				if i < tt.reports {
					api.reports = append(api.reports, reportOf(t, pod, sweepReport(n, i, slow)))
				}
			}
			for range 2 {
				if _, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "pitcrew-repair", Name: "r"}}); err != nil {
					t.Fatal(err)
				}
				clock.SetTime(clock.Now().Add(2 * time.Hour)) // after the deadline of the run
			}
			got := ""
			for node := range api.written {
				got += node
			}
			if got != tt.want {
				t.Errorf("conditions %q", api.written)
			}
		})
	}
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
