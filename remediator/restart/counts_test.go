package restart

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestCounted(t *testing.T) {
	b := policy.BackOff{First: time.Second, Max: 10 * time.Minute}
	old := noon.Add(-25 * time.Hour)
	tests := map[string]struct{ rec, want Record }{
		"the first":                       {Record{}, Record{Total: 1, Recent: []time.Time{noon}, Current: &Restart{Streak: 1}}},
		"soon after another":              {Record{Last: []Restart{{Streak: 2, EndedAt: noon.Add(-9 * time.Minute)}}}, Record{Total: 1, Recent: []time.Time{noon}, Current: &Restart{Streak: 3}}},
		"long after another":              {Record{Last: []Restart{{Streak: 2, EndedAt: noon.Add(-11 * time.Minute)}}}, Record{Total: 1, Recent: []time.Time{noon}, Current: &Restart{Streak: 1}}},
		"what is a day old need not stay": {Record{Total: 7, Recent: []time.Time{old, noon.Add(-time.Hour)}}, Record{Total: 8, Recent: []time.Time{noon.Add(-time.Hour), noon}, Current: &Restart{Streak: 1}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			current := &Restart{}
			test.rec.Current = current
			got := test.rec.Counted(noon, b)
			test.want.Last = got.Last
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if current.Streak != 0 {
				t.Error("the record it was called on was changed")
			}
		})
	}
	rec := Record{Current: &Restart{}}
	for i := range 2 * policy.MaxPerDayLimit {
		rec = rec.Counted(noon.Add(time.Duration(i)*time.Second), b)
	}
	if n := len(rec.Recent); n != policy.MaxPerDayLimit || !rec.Recent[n-1].After(rec.Recent[0]) {
		t.Errorf("remembers %d restarts, the last at %s", n, rec.Recent[n-1])
	}
}

func TestARestartFitsItsRecord(t *testing.T) {
	if p := FitsRecord(MaxPods); !p.Passed {
		t.Errorf("%d pods: %+v", MaxPods, p)
	}
	if p := FitsRecord(MaxPods + 1); p.Passed || p.Reason != "TooManyPods" || p.Text != "it has 5001 pods, and the record of a restart holds 5000" {
		t.Errorf("%+v", p)
	}
}
