package main

import (
	"context"
	"math/rand/v2"
	"time"
)

// result is what a number of lives gave.
type result struct {
	days, looks int
	played      map[string]int
	alarms      []alarm
}

// finish adds what a life gave.
func (r *result) finish(l *life) {
	r.looks += l.looks
	r.alarms = append(r.alarms, l.alarms...)
}

// playOnce plays each noise once on each machine that has what it changes.
func (w *world) playOnce(ctx context.Context) (*result, error) {
	all := &result{played: map[string]int{}}
	for _, m := range w.machines {
		if err := w.playMachine(ctx, m, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (w *world) playMachine(ctx context.Context, m *machine, all *result) error {
	quiet, err := w.newLife(m)
	if err != nil {
		return err
	}
	if err := quiet.settle(ctx); err != nil {
		return err
	}
	all.finish(quiet)
	for _, n := range w.noise {
		if !n.fits(m) {
			continue
		}
		l, err := w.newLife(m)
		if err != nil {
			return err
		}
		if err := l.look(ctx, l.concernedBy(n)); err != nil {
			return err
		}
		if err := l.play(ctx, n, rand.New(rand.NewPCG(1, 1))); err != nil {
			return err
		}
		all.played[n.name]++
		all.finish(l)
	}
	return nil
}

// settle looks at a quiet node until a check that cannot say anything has had time to alert.
func (l *life) settle(ctx context.Context) error {
	for _, pause := range []time.Duration{0, 2 * time.Minute, unknownAfter} {
		l.now = l.now.Add(pause)
		if err := l.look(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// playDays plays a number of days on each machine, with the noise at its rates.
func (w *world) playDays(ctx context.Context, days int, seed uint64) (*result, error) {
	all := &result{played: map[string]int{}}
	for i, m := range w.machines {
		l, err := w.newLife(m)
		if err != nil {
			return nil, err
		}
		if err := l.settle(ctx); err != nil {
			return nil, err
		}
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		for range days {
			if err := l.day(ctx, r, all.played); err != nil {
				return nil, err
			}
		}
		all.days += days
		all.finish(l)
	}
	return all, nil
}

// day plays what happens to the node on one day, in the order of the time that is drawn for each.
func (l *life) day(ctx context.Context, r *rand.Rand, played map[string]int) error {
	end := l.now.Add(24 * time.Hour)
	total := 0.0
	for _, n := range l.world.noise {
		if n.fits(l.machine) {
			total += n.rate / 1000
		}
	}
	for at := l.now; ; {
		at = at.Add(time.Duration(r.ExpFloat64() / total * float64(24*time.Hour)))
		if at.After(end) {
			break
		}
		if at.After(l.now) {
			l.now = at
		}
		n := l.draw(r, total)
		played[n.name]++
		if err := l.play(ctx, n, r); err != nil {
			return err
		}
	}
	if end.After(l.now) {
		l.now = end
	}
	return nil
}

// draw draws one noise by the rates.
func (l *life) draw(r *rand.Rand, total float64) (last *noise) {
	left := r.Float64() * total
	for _, n := range l.world.noise {
		if !n.fits(l.machine) {
			continue
		}
		if last, left = n, left-n.rate/1000; left < 0 {
			break
		}
	}
	return last
}
