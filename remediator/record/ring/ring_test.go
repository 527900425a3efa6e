package ring

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type entry struct {
	Name string    `json:"n" max:"8"`
	At   time.Time `json:"t"`
}

func (e entry) StartedAt() time.Time {
	if e.Name == "" {
		return time.Time{}
	}
	return e.At
}

var now = time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC)

func TestTheLatestThatFitAreKept(t *testing.T) {
	entries := Latest([]entry{{"a", now.Add(-2 * time.Hour)}, {"b", now.Add(-time.Hour)}, {"c", now}})
	one := len(`{"n":"a","t":"2026-11-28T06:00:00Z"}`)
	for limit, want := range map[int]string{3*one + 4: "cba", 3*one + 3: "cb", one + 2: "c", one + 1: ""} {
		text := Text(entries, limit)
		read, err := Parse[entry](text, now)
		got := ""
		for _, e := range read {
			got += e.Name
		}
		if err != nil || got != want || len(text) > limit {
			t.Errorf("within %d bytes %s keeps %q, want %q: %v", limit, text, got, want, err)
		}
	}
	var many []entry
	for i := range MaxEntries + 1 {
		many = append(many, entry{"n", now.Add(time.Duration(i) * time.Second)})
	}
	if kept := Latest(many); len(kept) != MaxEntries || !kept[MaxEntries-1].At.Equal(now.Add(time.Second)) {
		t.Errorf("%d are kept, the last from %s", len(kept), kept[len(kept)-1].At)
	}
}

func TestWhatNoRemediatorWritesIsLeftOut(t *testing.T) {
	text := `[{"n":"","t":"2026-11-28T07:00:00Z"},{"n":"a"},{"n":"` + strings.Repeat("x", 9) + `","t":"2026-11-28T07:00:00Z"},` +
		`{"n":"late","t":"2026-11-28T09:00:00Z"},{"n":"good","t":"2026-11-28T07:00:00Z"}]`
	read, err := Parse[entry](text, now)
	if diff := cmp.Diff([]entry{{"good", now.Add(-time.Hour)}}, read); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := Parse[entry]("{", now); err == nil {
		t.Error("half a text is read")
	}
}
