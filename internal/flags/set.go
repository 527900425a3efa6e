package flags

import (
	"cmp"
	"flag"
	"fmt"
	"time"
)

// Day and Year are bounds of durations; a year is the longest time that a flag takes.
const Day, Year = 24 * time.Hour, 365 * Day

// Set is a [flag.FlagSet] whose numbers and durations have bounds, which are the last two arguments of the methods that define them. A
// default may be out of them, to say that a flag was not given.
type Set struct {
	*flag.FlagSet
	// check returns what is wrong with the value of a flag, by its name.
	check map[string]func() error
}

// NewSet returns a set of no flags whose errors are returned.
func NewSet(name string) *Set {
	return &Set{flag.NewFlagSet(name, flag.ContinueOnError), map[string]func() error{}}
}

// DurationVar adds a flag for a duration.
func (s *Set) DurationVar(to *time.Duration, name string, value time.Duration, usage string, least, most time.Duration) {
	s.FlagSet.DurationVar(to, name, value, usage)
	bound(s, name, to, least, most)
}

// IntVar adds a flag for an int.
func (s *Set) IntVar(to *int, name string, value int, usage string, least, most int) {
	s.FlagSet.IntVar(to, name, value, usage)
	bound(s, name, to, least, most)
}

// Int64Var adds a flag for an int64.
func (s *Set) Int64Var(to *int64, name string, value int64, usage string, least, most int64) {
	s.FlagSet.Int64Var(to, name, value, usage)
	bound(s, name, to, least, most)
}

// Uint64Var adds a flag for a uint64.
func (s *Set) Uint64Var(to *uint64, name string, value uint64, usage string, least, most uint64) {
	s.FlagSet.Uint64Var(to, name, value, usage)
	bound(s, name, to, least, most)
}

// Float64Var adds a flag for a float64. NaN is out of all bounds.
func (s *Set) Float64Var(to *float64, name string, value float64, usage string, least, most float64) {
	s.FlagSet.Float64Var(to, name, value, usage)
	bound(s, name, to, least, most)
}

func bound[T cmp.Ordered](s *Set, name string, to *T, least, most T) {
	s.check[name] = func() error {
		if *to >= least && *to <= most {
			return nil
		}
		return fmt.Errorf("invalid value %q for flag -%s: not from %v to %v", fmt.Sprint(*to), name, least, most)
	}
}

// Parse parses the flags and returns an error also for the first one that is out of its bounds.
func (s *Set) Parse(args []string) error {
	err := s.FlagSet.Parse(args)
	s.Visit(func(f *flag.Flag) {
		if check := s.check[f.Name]; check != nil && err == nil {
			err = check()
		}
	})
	return err
}
