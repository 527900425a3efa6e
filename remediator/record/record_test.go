package record

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

type inner struct {
	At   time.Time   `json:"at"`
	Many []time.Time `json:"many"`
	Name string      `json:"name"`
	Long string      `json:"long" max:"text"`
}

type Embedded struct {
	Few   []string          `json:"few" max:"2,4"`
	Named map[string]string `json:"named" max:"2"`
}

type whole struct {
	Embedded
	Short string             `json:"short" max:"3"`
	List  []inner            `json:"list" max:"2"`
	To    *inner             `json:"to"`
	All   map[string][]inner `json:"all"`
	count int
}

func TestCheck(t *testing.T) {
	name, text := strings.Repeat("x", Name), strings.Repeat("x", Text)
	for want, r := range map[string]whole{
		"": {
			Short: "abc", List: []inner{{Name: name}, {Long: text}}, To: &inner{Name: name, Long: text}, count: 9,
			Embedded: Embedded{Few: []string{"abcd", "abcd"}, Named: map[string]string{name: name}},
		},
		"short has 4 bytes, more than 3":          {Short: "abcd"},
		"list has 3 entries, more than 2":         {List: make([]inner, 3)},
		"few has 3 entries, more than 2":          {Embedded: Embedded{Few: make([]string, 3)}},
		"few has 5 bytes, more than 4":            {Embedded: Embedded{Few: []string{"abcde"}}},
		"named has 513 bytes, more than 512":      {Embedded: Embedded{Named: map[string]string{name + "x": ""}}},
		"list.name has 513 bytes, more than 512":  {List: []inner{{}, {Name: name + "x"}}},
		"to.long has 2049 bytes, more than 2048":  {To: &inner{Long: text + "x"}},
		"to.many has 513 entries, more than 512":  {To: &inner{Many: make([]time.Time, Entries+1)}},
		"all.long has 2049 bytes, more than 2048": {All: map[string][]inner{"a": {{Long: text + "x"}}}},
		"all has 513 entries, more than 512":      {All: map[string][]inner{"a": make([]inner, Entries+1)}},
	} {
		got := ""
		if err := Check(&r); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	wrong := struct {
		Short string `json:"short" max:"x"`
	}{"a"}
	if err := Check(&wrong); err == nil || err.Error() != "short has 1 bytes, more than 0" {
		t.Errorf("a tag that is no number: %v", err)
	}
}

func TestClampAndClone(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	near, ahead := now.Add(conditions.MaxClockSkew), now.Add(conditions.MaxClockSkew+1)
	made := func(at time.Time) *whole {
		return &whole{
			Embedded: Embedded{Few: []string{"a"}, Named: map[string]string{"a": "b"}},
			List:     []inner{{At: at, Many: []time.Time{near, at}}},
			To:       &inner{At: at},
			All:      map[string][]inner{"a": {{Name: "n"}}},
		}
	}
	r := made(ahead)
	c := Clone(r)
	Clamp(c, now)
	c.Few[0], c.Named["a"], c.All["a"][0].Name, c.List[0].Name, c.To.Name = "-", "-", "-", "-", "-"
	if diff := cmp.Diff(made(ahead), r, cmp.AllowUnexported(whole{})); diff != "" {
		t.Errorf("the record that was copied has changed: %s", diff)
	}
	want := made(now)
	want.Few[0], want.Named["a"], want.All["a"][0].Name, want.List[0].Name, want.To.Name = "-", "-", "-", "-", "-"
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(whole{})); diff != "" {
		t.Error(diff)
	}
	if Clone[whole](nil) != nil {
		t.Error("nothing is something")
	}
	if empty := Clone(&whole{}); empty.List != nil || empty.Named != nil || empty.To != nil {
		t.Errorf("%+v", empty)
	}
}
