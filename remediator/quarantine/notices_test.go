package quarantine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

func hooks(events ...string) step {
	return func(w *world) {
		w.policy.Webhooks = []policy.Webhook{{Name: "pager", Events: policy.WebhookEvents}, {Name: "tickets", Events: events}}
	}
}

// told has a webhook told everything.
func told(name string) step {
	return func(w *world) {
		w.told = map[handoff.Receipt]bool{}
		for _, notice := range w.record().Notices {
			w.told[handoff.Receipt{Webhook: name, NoticeID: notice.ID}] = true
		}
	}
}

func unhooked(w *world) { w.policy.Webhooks = nil }

func TestNotices(t *testing.T) {
	tests := map[string]struct {
		steps []step
		want  string // event>webhook,webhook of each notice
	}{
		"without webhooks nothing is noted":          {[]step{gpu(ecc), decide}, ""},
		"a suspicion is no news":                     {[]step{hooks(), others(1), gpu(ecc), decide}, ""},
		"a quarantine is":                            {[]step{hooks(), gpu(ecc), decide, decide}, "NodeQuarantined>pager"},
		"to all who want to know":                    {[]step{hooks("NodeQuarantined"), gpu(ecc), decide}, "NodeQuarantined>pager,tickets"},
		"one was told":                               {[]step{hooks("NodeQuarantined"), gpu(ecc), decide, told("pager"), decide}, "NodeQuarantined>tickets"},
		"all were told":                              {[]step{hooks(), gpu(ecc), decide, told("pager"), decide, decide, lasts(time.Hour)}, ""},
		"an upgrade":                                 {[]step{hooks(), gpu(drain), decide, told("pager"), passes(time.Second), gpu(lost), decide}, "QuarantineUpgraded>pager"},
		"a taint that is put back":                   {[]step{hooks(), gpu(ecc), decide, told("pager"), untaints, decide}, "TaintRestored>pager"},
		"an upgrade after it is no restoration":      {[]step{hooks(), gpu(drain), decide, untaints, decide, told("pager"), passes(time.Second), gpu(lost), decide}, "QuarantineUpgraded>pager"},
		"an upgrade together with one":               {[]step{hooks(), gpu(drain), decide, told("pager"), untaints, passes(time.Second), gpu(lost), decide}, "QuarantineUpgraded>pager"},
		"a release":                                  {[]step{hooks(), gpu(ecc), decide, told("pager"), gpuFine, decide, lasts(10 * time.Minute)}, "NodeReleased>pager"},
		"a person's removal of the taint":            {[]step{hooks(), gpu(ecc), decide, untaints, decide, told("pager"), untaints, decide}, "ReleaseByHand>pager"},
		"a person's release, which nobody wrote":     {[]step{hooks(), gpu(ecc), decide, told("pager"), decide, pardoned, decide}, "ReleaseByHand>pager"},
		"a person's quarantine":                      {[]step{hooks(), ordered, decide}, "NodeQuarantined>pager"},
		"what nobody was told is told in order":      {[]step{hooks(), gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}, "NodeQuarantined>pager NodeReleased>pager"},
		"and outlives the next suspicion":            {[]step{hooks(), gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute), says("DiskFailing", "True", "x"), decide}, "NodeQuarantined>pager NodeReleased>pager"},
		"a new webhook is told what stands":          {[]step{gpu(ecc), decide, hooks(), decide}, "NodeQuarantined>pager"},
		"and not what was":                           {[]step{gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute), hooks(), decide}, ""},
		"a webhook that is gone is told nothing":     {[]step{hooks("NodeQuarantined"), gpu(ecc), decide, unhooked, decide}, ""},
		"and everything that stands when it is back": {[]step{hooks(), gpu(ecc), decide, unhooked, decide, hooks(), decide}, "NodeQuarantined>pager"},
		"during a pause nothing is noted":            {[]step{hooks(), gpu(ecc), decide, told("pager"), decide, pauses("x"), pardoned, decide}, ""},
		"after it everything is":                     {[]step{hooks(), gpu(ecc), decide, told("pager"), decide, pauses("x"), pardoned, decide, pauses(""), decide}, "ReleaseByHand>pager"},
		"observed rules are no news":                 {[]step{hooks(), watched, decide, lasts(time.Hour)}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			var got []string
			if r := w.record(); r != nil {
				for _, notice := range r.Notices {
					got = append(got, notice.Event+">"+strings.Join(notice.To, ","))
				}
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("noted %q, want %q", got, test.want)
			}
		})
	}
}

func TestNoticesAreBounded(t *testing.T) {
	w := newWorld(t)
	hooks()(w)
	for i := range handoff.MaxNotices {
		for _, s := range []step{gpu(fmt.Sprintf("ResetGPU gpu %d: Xid 95 uncontained ECC error", i)), decide, gpuFine, decide, lasts(10 * time.Minute), passes(time.Minute), beats} {
			s(w)
		}
	}
	notices := w.record().Notices
	if len(notices) != handoff.MaxNotices || notices[handoff.MaxNotices-1].Event != causes.NodeReleased || notices[handoff.MaxNotices-1].Quarantine != w.record().ID {
		t.Errorf("%d notices, the last is %+v", len(notices), notices[len(notices)-1])
	}
}

// However a node comes and goes, and whoever does what: once everything was told, a webhook knows whether it is quarantined.
func TestAWebhookThatIsToldEverythingKnowsTheNode(t *testing.T) {
	events := []step{gpu(ecc), gpu(lost), gpu(drain), gpuFine, reboots, says("DiskFailing", "True", "x"), says("DiskFailing", "False", ""), untaints,
		pardonedIfQuarantined, lasts(time.Second), lasts(time.Minute), lasts(11 * time.Minute), pauses("x"), pauses("")}
	quarantines := 0
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 4))
		w := newWorld(t)
		hooks()(w)
		var heard []string
		seen := map[string]bool{}
		for range 60 {
			events[random.IntN(len(events))](w)
			w.decide()
			r := w.record()
			if r == nil {
				continue
			}
			for _, notice := range r.Notices {
				if !seen[notice.ID] {
					seen[notice.ID] = true
					heard = append(heard, fmt.Sprint(notice.Event, " ", notice.Quarantine))
				}
			}
			if random.IntN(2) == 0 {
				told("pager")(w)
			}
			if w.paused != "" {
				continue
			}
			if r.Phase == causes.Quarantined {
				quarantines++
				if !slices.Contains(heard, causes.NodeQuarantined+" "+r.ID) || strings.HasPrefix(heard[len(heard)-1], causes.NodeReleased) {
					t.Fatalf("seed %d: the node is quarantined, heard %q", seed, heard)
				}
			} else if len(heard) > 0 && !strings.HasPrefix(heard[len(heard)-1], "NodeReleased ") && !strings.HasPrefix(heard[len(heard)-1], "ReleaseByHand ") {
				t.Fatalf("seed %d: the node is %s, heard %q", seed, r.Phase, heard)
			}
		}
	}
	if quarantines < 100 {
		t.Errorf("only %d decisions on quarantines: the walks prove little", quarantines)
	}
}

func TestTheEventsOfWebhooksAreOurs(t *testing.T) {
	want := []string{causes.NodeQuarantined, causes.QuarantineUpgraded, causes.TaintRestored, causes.NodeReleased, causes.ReleaseByHand}
	if diff := cmp.Diff(want, policy.WebhookEvents); diff != "" {
		t.Error(diff)
	}
}
