package visits

import (
	"context"
	"errors"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/record/keystore"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func storeOn(api client.WithWatch, now time.Time) *startsStore {
	key := client.ObjectKey{Namespace: "pitcrew", Name: conditions.KnownConfigMap}
	return newStartsStore(keystore.Key{Client: api, Reader: api, ConfigMap: key, Name: starts.Key}, clocktesting.NewFakePassiveClock(now))
}

// A next leader knows of repairs of nodes that are gone, and what others keep in the ConfigMap stays.
func TestStartsOfRepairsSurviveTheNodeAndTheLeader(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	p := &policy.Policy{Repair: &policy.Repair{MaxPerDay: 2}}
	api := fake.NewClientBuilder().WithIndex(&corev1.Node{}, indexCounts, counts).WithObjects(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.KnownConfigMap}, Data: map[string]string{"known": "{}"},
	}).Build()
	v := visit.Visit{ID: "v", Kind: visit.Repair, Quarantine: "q", Phase: visit.Working, StartedAt: now, PhaseSince: now, Attempt: 1}
	record := visit.Record{Current: &v, Repairs: []visit.Action{{At: now, Template: "reboot", Quarantine: "q"}}}
	gone := recordedNode("gone", record)
	first := storeOn(api, now)
	if err := first.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := first.save(t.Context(), p.Repair, gone, &record, now); err != nil {
			t.Fatal(err)
		}
	}
	next := &Controller{client: api, pending: newWrites(), records: newRecords(), starts: storeOn(api, now)}
	if err := next.starts.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	me := &repair.Facts{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "me"}}}
	for at, want := range map[time.Duration]int{time.Hour: 1, 25 * time.Hour: 0} {
		peers, err := next.peersOf(t.Context(), p, me, now.Add(at))
		begun := 0
		for _, peer := range peers {
			begun += peer.Repairs
		}
		if err != nil || begun != want {
			t.Errorf("after %s %d repairs count, want %d: %v", at, begun, want, err)
		}
	}
	// A record that has the start is not counted twice.
	if err := api.Create(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if peers, err := next.peersOf(t.Context(), p, me, now); err != nil || len(peers) != 2 || peers[0].Repairs != 1 || peers[1].Repairs != 0 {
		t.Errorf("%+v: %v", peers, err)
	}
	var stored corev1.ConfigMap
	if err := api.Get(t.Context(), next.starts.ConfigMap, &stored); err != nil || stored.Data["known"] != "{}" {
		t.Errorf("%v: %v", stored.Data, err)
	}
	// An action that has done nothing does not count.
	after := record
	after.Repairs = nil
	next.starts.dropUndone(gone, &record, &after)
	if all := next.starts.all(); len(all) != 0 {
		t.Errorf("%v", all)
	}
}

func TestNoRepairBeginsBeforeItsStartIsStored(t *testing.T) {
	refused := errors.New("refused")
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return refused
		},
		Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
			t.Errorf("%T is created", object)
			return nil
		},
	})
	v := visit.Visit{ID: "v", Kind: visit.Repair, Quarantine: "q", Phase: visit.Working, Attempt: 1}
	v.StartedAt, v.PhaseSince = time.Now(), time.Now()
	n := recordedNode("x", visit.Record{Current: &v, Repairs: []visit.Action{{At: time.Now(), Template: "reboot", Quarantine: "q"}}})
	c := &Controller{
		client: api, policy: policy.Fixed(&policy.Policy{Repair: &policy.Repair{}}), clock: clocktesting.NewFakePassiveClock(time.Now()),
		starts: storeOn(api, time.Now()),
	}
	if err := c.act(t.Context(), n, repair.Step{Create: &batchv1.Job{}}); !errors.Is(err, refused) {
		t.Errorf("error %v", err)
	}
}
