package breaker

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var (
	start  = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	reboot = Action{"reboot", "GPUXidError"}
	there  = func(types.UID) bool { return true }
)

func noted(notes ...any) *State {
	s := &State{}
	for i := 0; i < len(notes); i += 2 {
		uid := notes[i].(string)
		name, _, _ := strings.Cut(uid, " anew")
		s.Note(reboot, Node{types.UID(uid), name}, notes[i+1].(Outcome), start)
	}
	return s
}

func TestHeld(t *testing.T) {
	for name, test := range map[string]struct {
		state *State
		want  int
	}{
		"nothing":                   {noted(), 0},
		"two nodes":                 {noted("a", Failed, "b", Failed), 0},
		"three nodes":               {noted("a", Failed, "b", Failed, "c", Failed), 3},
		"three times on two nodes":  {noted("a", Failed, "b", Failed, "a", Failed), 0},
		"it helped between":         {noted("a", Failed, "b", Failed, "d", Helped, "c", Failed), 0},
		"one runs":                  {noted("a", Failed, "b", Failed, "c", Started), 0},
		"one was begun in vain":     {noted("a", Failed, "b", Failed, "c", Started, "c", Undone), 0},
		"what failed is not undone": {noted("a", Failed, "b", Failed, "c", Failed, "c", Started, "c", Undone), 3},
		"gone":                      {noted("a", Failed, "b", Failed, "gone", Started), 3},
		"one that is created anew":  {noted("a", Failed, "a anew", Failed, "a anew again", Failed, "b", Failed), 0},
		"and went away":             {noted("a", Failed, "b", Failed, "c", Started, "c anew", Started), 3},
		"and has failed before":     {noted("a", Failed, "b", Failed, "c", Failed, "c anew", Started, "c anew", Undone), 3},
		"and helps":                 {noted("a", Failed, "b", Failed, "c", Failed, "c anew", Started, "c anew", Helped), 0},
	} {
		t.Run(name, func(t *testing.T) {
			text := test.state.String()
			s, err := Parse(text, start)
			if err != nil || s.String() != text {
				t.Fatalf("%q: %v", text, err)
			}
			want := map[Action]int{}
			if test.want > 0 {
				want[reboot] = test.want
			}
			if got := s.Held(3, func(uid types.UID) bool { return uid != "gone" }); !maps.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if got := s.Held(0, there); len(got) > 0 {
				t.Errorf("without a bound %v", got)
			}
		})
	}
}

func TestActionsAreHeldByThemselves(t *testing.T) {
	s := noted("a", Failed, "b", Failed, "c", Failed)
	s.Note(Action{"reboot", "GPUMemoryError"}, Node{"a", "a"}, Failed, start)
	s.Note(Action{"reset-gpu", "GPUXidError"}, Node{"a", "a"}, Failed, start)
	if got := s.Held(3, there); len(got) != 1 || got[reboot] != 3 {
		t.Errorf("%v", got)
	}
}

func TestTheStateIsBounded(t *testing.T) {
	s := &State{}
	for action := range 2 * maxStreaks {
		for node := range 2 * maxTries {
			s.Note(Action{fmt.Sprint(action), "GPUXidError"}, Node{UID: types.UID(fmt.Sprintf("%036d", node))}, Failed, start)
		}
	}
	if len(s.Streaks) != maxStreaks || len(s.Streaks[0].Tries) != maxTries {
		t.Errorf("%d, %d", len(s.Streaks), len(s.Streaks[0].Tries))
	}
	for _, text := range []string{"{", `{"streaks":[{"template":"` + strings.Repeat("x", 600) + `"}]}`, strings.Repeat(" ", maxState+1)} {
		if _, err := Parse(text, start); err == nil {
			t.Errorf("%.40q is read", text)
		}
	}
	ahead, err := Parse(`{"streaks":[{"template":"reboot","condition":"GPUXidError","tries":[{"node":"a","at":"2099-01-01T00:00:00Z"}]}]}`, start)
	if err != nil || ahead.Streaks[0].Tries[0].At.After(start) {
		t.Errorf("%v, %v", ahead, err)
	}
}

// An earlier version wrote no names: its tries count by the UID.
func TestTriesWithoutANameCountByTheirUID(t *testing.T) {
	s, err := Parse(`{"streaks":[{"template":"reboot","condition":"GPUXidError","tries":[
		{"node":"a","at":"2026-11-27T11:00:00Z","failed":true},{"node":"b","at":"2026-11-27T11:00:00Z"}]}]}`, start)
	if err != nil {
		t.Fatal(err)
	}
	s.Note(reboot, Node{"b", "x"}, Failed, start)
	s.Note(reboot, Node{"c", "y"}, Failed, start)
	if got := s.Held(3, there)[reboot]; got != 3 || len(s.Streaks[0].Tries) != 3 {
		t.Errorf("%d failures of %s", got, s)
	}
}
