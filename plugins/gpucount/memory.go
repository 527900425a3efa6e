package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// memory is what one look leaves to the next. Where the state directory outlives a boot, so does what was missing.
type memory struct {
	// Seen are the GPUs that were on the PCI bus in this boot.
	Seen []string `json:"seen,omitempty"`
	// Missing are the GPUs that were missing at the last look.
	Missing []string `json:"missing,omitempty"`
	// Before are those of an earlier boot that have not been well since.
	Before []string `json:"before,omitempty"`
	// Mismatch is the mismatch of versions that the driver has, Since the uptime since when.
	Mismatch string        `json:"mismatch,omitempty"`
	Since    time.Duration `json:"since,omitempty"`
	// Most is how many GPUs were on the bus at best, in any boot.
	Most int `json:"most"`
}

// nextBoot is what another boot starts with.
func (m memory) nextBoot() memory { return memory{Before: m.Missing, Most: m.Most} }

// note takes in a look.
func (m *memory) note(s snapshot) (changed bool) {
	was := *m
	onBus, well := map[string]bool{}, map[string]bool{}
	var missing []string
	for _, d := range s.Bus {
		onBus[d.Address] = true
		if !slices.Contains(m.Seen, d.Address) {
			m.Seen = append(m.Seen, d.Address)
		}
	}
	for _, g := range s.GPUs {
		well[g.Address] = !g.Lost && g.Silent() == ""
		if g.Lost || (g.NotInNVML || s.gone(g)) && s.Uptime >= s.Grace {
			missing = append(missing, g.Address)
		}
	}
	if m.Mismatch != s.Mismatch {
		// Another version of either is an upgrade under way.
		m.Mismatch, m.Since = s.Mismatch, s.Uptime
	}
	m.Most = max(m.Most, len(s.Bus))
	// With as many GPUs as ever, the bus gave one that is back another address.
	m.Before = slices.DeleteFunc(slices.Clone(m.Before), func(address string) bool {
		return well[address] || !onBus[address] && len(s.Bus) == m.Most
	})
	missing = append(missing, m.Before...)
	for _, address := range m.Seen {
		if !onBus[address] {
			missing = append(missing, address)
		}
	}
	slices.Sort(missing)
	m.Missing = slices.Compact(missing)
	return m.Mismatch != was.Mismatch || m.Most != was.Most || !slices.Equal(m.Seen, was.Seen) ||
		!slices.Equal(m.Missing, was.Missing) || !slices.Equal(m.Before, was.Before)
}

// forget drops the GPUs whose subject contains the text and returns the subjects of those that were missing.
func (m *memory) forget(text string) (forgotten []string) {
	matches := func(address string) bool { return strings.Contains("gpu "+address, text) }
	for _, address := range m.Missing {
		if matches(address) {
			forgotten = append(forgotten, "gpu "+address)
		}
	}
	for _, list := range []*[]string{&m.Seen, &m.Missing, &m.Before} {
		*list = slices.DeleteFunc(*list, matches)
	}
	return forgotten
}

func (r *reader) store() (*npd.Store[memory], error) {
	store, err := npd.BootStore[memory](npd.Proc, r.plugin.StateDir, "gpucount")
	if err != nil {
		return nil, err
	}
	store.Carry = memory.nextBoot
	return store, nil
}

// clear forgets what was missing, e.g. because it was taken out on purpose.
func (r *reader) clear(_ context.Context, subject string) (forgotten []string, err error) {
	store, err := r.store()
	if err != nil {
		return nil, err
	}
	_, err = store.Update(func(m *memory) bool {
		forgotten = m.forget(subject)
		return true
	})
	return forgotten, err
}
