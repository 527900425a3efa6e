package status

import "fmt"

// dropImpossibleTime replaces a time that JSON cannot express, of the year 10000 for example, by words: a kubelet may write any time
// into the conditions of its node, and it must not hide the other nodes.
func (r *Row) dropImpossibleTime() {
	if _, err := r.Since.MarshalJSON(); err == nil {
		return
	}
	r.Cause += fmt.Sprintf(" (since a time that is impossible, in the year %d)", r.Since.UTC().Year())
	r.Since = Row{}.Since
}
