// Package plain makes text of others safe to show. Whoever may write a Node, Job, Pod, Event or ConfigMap writes text that an administrator
// reads in a terminal, in an Event and in a log.
package plain

import (
	"strings"
	"unicode"
)

// invisible are letters and marks that are printable by their category and show nothing, see Default_Ignorable_Code_Point of
// https://www.unicode.org/reports/tr44/.
var invisible = []*unicode.RangeTable{unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector}

// Line returns text on one line. White space is a blank. Each other character that a terminal obeys or does not show (control characters,
// bidirectional and other format characters, https://trojansource.codes) is the replacement character U+FFFD, and so are bytes that are no
// UTF-8.
func Line(text string) string { return strings.Map(Visible, strings.ToValidUTF8(text, "\uFFFD")) }

// Lines is the same, and keeps line feeds.
func Lines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return Visible(r)
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// Visible returns what [Line] has for a character: that character, if it is visible.
func Visible(r rune) rune {
	switch {
	case unicode.IsSpace(r):
		return ' '
	case !unicode.IsPrint(r) || unicode.IsOneOf(invisible, r):
		return unicode.ReplacementChar
	}
	return r
}
