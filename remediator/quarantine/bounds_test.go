package quarantine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
)

// A forged record has no more of a broken link and of an isolation than its tags allow.
func TestLinksAndIsolationsAreBounded(t *testing.T) {
	name := strings.Repeat("x", record.Name)
	many := func(text string) []string { return slices.Repeat([]string{text}, record.Entries) }
	for want, change := range map[string]func(r *causes.Record){
		"": func(r *causes.Record) {
			r.Causes[0].Link = causes.Link{Role: "victim", Origin: name}
			r.Isolation = &causes.Isolation{GPUs: []causes.IsolatedGPU{{Address: name, UUID: name, Devices: append(many("d")[1:], name)}}}
		},
		"the most GPUs": func(r *causes.Record) {
			r.Isolation = &causes.Isolation{GPUs: make([]causes.IsolatedGPU, record.Entries)}
		},
		"causes.link.role has 513 bytes":        func(r *causes.Record) { r.Causes[0].Link.Role = limits.LinkRole(name + "x") },
		"causes.link.origin has 513 bytes":      func(r *causes.Record) { r.Causes[0].Link.Origin = name + "x" },
		"last.causes.link.origin has 513 bytes": func(r *causes.Record) { r.Last[0].Causes[0].Link.Origin = name + "x" },
		"isolation.gpus has 513 entries": func(r *causes.Record) {
			r.Isolation = &causes.Isolation{GPUs: make([]causes.IsolatedGPU, record.Entries+1)}
		},
		"isolation.gpus.address has 513 bytes":   func(r *causes.Record) { r.Isolation = isolationOf(causes.IsolatedGPU{Address: name + "x"}) },
		"isolation.gpus.uuid has 513 bytes":      func(r *causes.Record) { r.Isolation = isolationOf(causes.IsolatedGPU{UUID: name + "x"}) },
		"isolation.gpus.devices has 513 entries": func(r *causes.Record) { r.Isolation = isolationOf(causes.IsolatedGPU{Devices: append(many("d"), "d")}) },
		"isolation.gpus.devices has 513 bytes":   func(r *causes.Record) { r.Isolation = isolationOf(causes.IsolatedGPU{Devices: []string{name + "x"}}) },
		"last.isolation.gpus.devices has 513 entries": func(r *causes.Record) {
			r.Last[0].Isolation = isolationOf(causes.IsolatedGPU{Devices: append(many("d"), "d")})
		},
	} {
		r := full()
		r.Last[0].Causes = slices.Clone(r.Last[0].Causes)
		change(r)
		switch _, err := causes.ParseRecord(r.String()); {
		case want == "" || want == "the most GPUs":
			if err != nil {
				t.Errorf("%q: %v", want, err)
			}
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%v, want %q", err, want)
		}
	}
	// Times are those of a clock.
	r, now := full(), time.Date(2026, 11, 20, 13, 0, 0, 0, time.UTC)
	ahead := now.Add(24 * time.Hour)
	r.Causes[0].Link = causes.Link{Role: "victim", Since: ahead, Seen: ahead}
	r.Isolation = &causes.Isolation{PendingSince: ahead}
	r.ClampTimes(now)
	if link := r.Causes[0].Link; !link.Since.Equal(now) || !link.Seen.Equal(now) || !r.Isolation.PendingSince.Equal(now) {
		t.Errorf("%+v, %+v", link, r.Isolation)
	}
}

func isolationOf(gpus ...causes.IsolatedGPU) *causes.Isolation { return &causes.Isolation{GPUs: gpus} }

// A kubelet publishes very many devices for a GPU that is isolated already: the record stays one that is read.
func TestAnIsolatedGPUWithVeryManyDevicesMakesNoRecordUnreadable(t *testing.T) {
	w := newDeviceWorld(t)
	isolates(w)
	w.policy = policyOf(t, strings.Replace(devicePolicy, "mode: enforce", "mode: observe", 1)) // the node itself is not quarantined instead
	w.devices.Slices = nil
	for i := range 128 {
		s := slice(1)
		s.Name, s.Spec.Pool.ResourceSliceCount = fmt.Sprint("s-", i), 128
		part := s.Spec.Devices[0]
		s.Spec.Devices = nil
		for j := range resourceapi.ResourceSliceMaxDevices {
			part.Name = fmt.Sprintf("gpu-%d-%d-%s", i, j, strings.Repeat("x", 40))
			s.Spec.Devices = append(s.Spec.Devices, part)
		}
		w.devices.Slices = append(w.devices.Slices, s)
	}
	settled(w)
	text := w.node.Annotations[conditions.AnnotationQuarantine]
	r, err := causes.ParseRecord(text)
	if err != nil || r.Isolation == nil || len(r.Isolation.GPUs[0].Devices) == 0 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
