// Package suggest finds the name that a misspelt one was probably meant to be.
package suggest

import "strings"

// Closest is the name of the list that is most like the given one; empty if none is close: then a guess would only confuse. Upper
// and lower case are the same, and names that differ in their digits only are different things. The first of several counts.
func Closest(name string, list []string) string {
	best, found := len(name)/4+2, ""
	for _, other := range list {
		if other == name {
			return other
		}
		if letters(other) == letters(name) && !strings.EqualFold(other, name) {
			continue
		}
		if d := Distance(strings.ToLower(name), strings.ToLower(other)); d < best && d < len(other) {
			best, found = d, other
		}
	}
	return found
}

// letters is a name without its digits.
func letters(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, strings.ToLower(name))
}

// Distance is that of Levenshtein: how many bytes have to be inserted, removed or replaced.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
