package progress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

// The first job that is found is stalled for the shortest time that any job names. Others of the same moment are still within theirs.
func TestJobsThatMayBeSilentForLongerAreKnownToShareTheCause(t *testing.T) {
	f, _ := newFollower()
	f.DryRun = true
	p, ask := &policy.Policy{}, &asked{}
	p.Restart.Stalls.Mode = policy.StallsRestart
	f.Policy, f.Jobs, f.quiet = policy.Fixed(p), ask, map[request]time.Time{}
	type job struct {
		request
		*followed
		text string
	}
	var all []*job
	for namespace, after := range map[string]string{"a": "5m", "b": "30m", "c": "2h", "d": "3h"} {
		settings, err := stall.Parse(stall.Annotations{Progress: `step (?P<step>\d+)`, StalledAfter: after}, stall.Compile)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &job{
			request:  request{Kind: kinds.BuiltIn()[0].GVK, NamespacedName: types.NamespacedName{Namespace: namespace, Name: "train"}},
			followed: &followed{uid: types.UID(namespace), said: sets.New[string](), settings: settings},
		})
	}
	now, object := noon, &metav1.PartialObjectMetadata{}
	minutes := func(n int, steps string) {
		for range n {
			now = now.Add(time.Minute)
			for _, j := range all {
				if strings.Contains(steps, j.Namespace) {
					j.text = now.Format(time.RFC3339Nano) + " step " + fmt.Sprint(now.Unix()) + "\n"
				}
				if j.job.NeedsPods(j.settings, now) {
					j.job.Observe([]stall.Pod{{Name: "p", UID: j.uid, Running: true, StartedAt: noon, ClockTrusted: true}}, true, now)
				}
				for _, l := range j.job.Wanted(j.settings, now) {
					j.job.Answer(l.Rank, stall.Read([]byte(j.text), usual, j.settings, l.Anchor), now)
				}
				v := j.job.Judge(j.settings, now)
				f.enter(j.request, j.followed, v)
				if err := f.report(t.Context(), j.request, object, j.followed, v); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	minutes(10, "abcd")
	minutes(15, "")
	if len(ask.stalls) > 0 {
		t.Errorf("restarted while jobs of three other namespaces make no progress: %+v", ask.stalls)
	}
	minutes(3, "bcd")
	if len(ask.stalls) == 0 || ask.stalls[0].UID != "a" {
		t.Errorf("not restarted when the others went on: %+v", ask.stalls)
	}
}
