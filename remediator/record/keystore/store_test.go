package keystore

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

func TestAReadThatIsLateUndoesNoChange(t *testing.T) {
	api := fake.NewFakeClient()
	key := Key{Client: api, Reader: api, ConfigMap: client.ObjectKey{Namespace: "pitcrew", Name: "kept"}, Name: "text"}
	s := Store[string]{
		Key: key, Parse: func(text string, _ time.Time) string { return text }, Text: func(text string) string { return text },
		Clock: clocktesting.NewFakePassiveClock(time.Now()),
	}
	version := s.Version()
	s.Set("changed")
	if s.Take("read", version); s.Get() != "changed" {
		t.Errorf("the value is %q", s.Get())
	}
	if err := s.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := Store[string]{Key: key, Parse: s.Parse, Text: s.Text, Clock: s.Clock}
	if err := next.Load(t.Context()); err != nil || next.Get() != "changed" {
		t.Errorf("who takes over reads %q, %v", next.Get(), err)
	}
	if _, unsaved := next.State(); unsaved {
		t.Error("what was read is to be written")
	}
}
