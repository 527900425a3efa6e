package record

import (
	"maps"
	"testing"
)

func TestOnceReportsWhatIsNew(t *testing.T) {
	var once Once[string, string]
	for i, test := range []struct {
		subject, what string
		want          bool
	}{
		{"a", "", false}, {"a", "late", true}, {"a", "late", false}, {"b", "late", true}, {"a", "gone", true}, {"a", "late", true},
		{"a", "", false}, {"a", "late", true},
	} {
		if got := once.Note(test.subject, test.what); got != test.want {
			t.Errorf("%d: %s of %s is news: %v", i, test.what, test.subject, got)
		}
	}
	once.ForgetIf(func(subject string) bool { return subject == "b" })
	if got := once.All(); !maps.Equal(got, map[string]string{"a": "late"}) {
		t.Errorf("remembers %v", got)
	}
	if once.Forget("a"); !once.Note("a", "late") {
		t.Error("what was forgotten is no news")
	}
}
