package starts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/record/ring"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func start(node string, at time.Time) Start {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "u", Labels: map[string]string{"rack": "r1"}}}
	return Of(&policy.Repair{Scope: "rack"}, n, "q-"+node, "reboot", at)
}

func TestARingIsReadAsItWasWritten(t *testing.T) {
	p := &policy.Repair{Lemon: policy.Lemon{Window: 48 * time.Hour}}
	written := Ring{}.With(start("a", now.Add(-50*time.Hour)), p, now.Add(-50*time.Hour)).With(start("b", now.Add(-time.Hour)), p, now).
		With(start("c", now), p, now).With(start("c", now), p, now)
	read, err := Parse(written.String(), now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Ring{start("c", now), start("b", now.Add(-time.Hour))}, read); diff != "" {
		t.Error(diff)
	}
	// The next version adds fields.
	next, err := Parse(strings.ReplaceAll(written.String(), `{"n":`, `{"next":{"a":[1]},"n":`), now)
	if diff := cmp.Diff(read, next); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if left := read.Without(start("c", now)); len(left) != 1 || len(read) != 2 {
		t.Errorf("%v of %v", left, read)
	}
}

func TestARingIsBounded(t *testing.T) {
	p := &policy.Repair{Lemon: policy.Lemon{Window: 30 * day}}
	var all Ring
	for i := range ring.MaxEntries + 10 {
		all = append(all, start(fmt.Sprint(i, strings.Repeat("x", 240)), now.Add(time.Duration(i)*time.Second)))
	}
	kept := Ring(ring.Latest(all)).With(start("last", now.Add(time.Hour)), p, now.Add(time.Hour))
	if text := kept.String(); len(kept) != ring.MaxEntries || len(text) > maxText {
		t.Errorf("%d starts, %d bytes", len(kept), len(text))
	}
	read, err := Parse(kept.String(), now.Add(time.Hour))
	if err != nil || len(read) == 0 || read[0].Node != "last" {
		t.Errorf("%d starts are read: %v", len(read), err)
	}
}

// A kubelet may write any text as the SystemUUID of its node. The text of the ring ended before the first start that did not fit, so that all
// that were older were forgotten, those of other nodes too.
func TestAForgedMachineForgetsNoStart(t *testing.T) {
	all := Ring{start("b", now.Add(-time.Minute))}
	for i, uuid := range []string{strings.Repeat("x", 1<<20), "no UTF-8 \xff"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("a", i), UID: "u"}}
		n.Status.NodeInfo.SystemUUID = uuid
		all = append(Ring{Of(nil, n, "q", "reset", now)}, all...)
		if read, err := Parse(all.String(), now); len(read) != i+2 || err != nil {
			t.Errorf("%d starts are read, want %d: %v", len(read), i+2, err)
		} else if !read[0].isOf(n) {
			t.Errorf("the start is not of its node: %+v", read[0])
		}
	}
}

func TestNoRemediatorWritesThese(t *testing.T) {
	for _, text := range []string{
		`[{"n":"","u":"u","q":"q","a":"t","t":"2026-11-22T11:00:00Z"}]`,
		`[{"n":"a","u":"u","q":"","a":"t","t":"2026-11-22T11:00:00Z"}]`,
		`[{"n":"a","u":"u","q":"q","a":"t","t":"2026-11-22T13:00:00Z"}]`,
		`[{"n":"a","u":"u","q":"q","a":"t"}]`,
		`[{"n":"` + strings.Repeat("a", 300) + `","u":"u","q":"q","a":"t","t":"2026-11-22T11:00:00Z"}]`,
		`[]`, ``,
	} {
		if r, err := Parse(text, now); err != nil || len(r) > 0 {
			t.Errorf("%s: %v, %v", text, r, err)
		}
	}
	if _, err := Parse("{", now); err == nil {
		t.Error("half a text is read")
	}
}

func TestStartsCountWithinADayAndAScope(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"rack": "r2", "row": "w"}}}
	starts := Ring{start("a", now.Add(-time.Hour)), start("b", now.Add(-25*time.Hour))}
	for scope, want := range map[string]int{"": 1, "rack": 0, "row": 1} {
		if got := starts.Today(&policy.Repair{Scope: scope}, n, now); len(got) != want {
			t.Errorf("scope %q: %v", scope, got)
		}
	}
}
