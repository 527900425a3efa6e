package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// row is a measured quantity: one duration per fault.
type row struct {
	name    string
	samples []time.Duration
	// limit is the largest median that is expected; 0 expects nothing.
	limit time.Duration
}

// percentile is the smallest sample that at least p percent of the samples do not exceed (nearest rank).
func percentile(samples []time.Duration, p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(0, int(math.Ceil(p/100*float64(len(sorted))))-1)]
}

// write prints the rows as a Markdown table and returns an error that names the medians above their limits.
func write(out io.Writer, rows []row) error {
	fmt.Fprintln(out, "| | n | median | p99 | expected median |\n|---|--:|--:|--:|--:|")
	var missed error
	for _, r := range rows {
		median, expected := percentile(r.samples, 50), ""
		if r.limit > 0 {
			expected = "<= " + ms(r.limit)
			if median > r.limit {
				missed = fmt.Errorf("%s: median %s, expected %s", r.name, ms(median), expected)
			}
		}
		fmt.Fprintf(out, "| %s | %d | %s | %s | %s |\n", r.name, len(r.samples), ms(median), ms(percentile(r.samples, 99)), expected)
	}
	return missed
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }
