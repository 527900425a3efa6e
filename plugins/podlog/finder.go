package main

import "bytes"

// finder looks for many literals in one pass. It is Wu and Manber's algorithm ("A fast algorithm for multi-pattern
// searching", 1994) with blocks of two bytes: a window as long as the shortest literal moves over the text, and the two
// bytes at its end tell how far it can move without missing a literal. Most bytes of a log are never looked at.
type finder struct {
	// window is the length of the shortest literal; of a longer one only so much is looked for.
	window int
	// shift tells for each block how far the window can move; 0 means that a literal may be in it.
	shift [1 << 16]uint8
	// ending lists the literals, cut to the window, whose last block it is.
	ending map[uint16][][]byte
}

// newFinder returns a finder for literals of at least two bytes.
func newFinder(literals [][]byte) *finder {
	f := &finder{window: 1 << 8, ending: map[uint16][][]byte{}}
	for _, l := range literals {
		f.window = min(f.window, len(l))
	}
	for i := range f.shift {
		f.shift[i] = uint8(f.window - 1)
	}
	for _, l := range literals {
		l = l[:f.window]
		for end := 1; end < f.window; end++ {
			b := block(l, end)
			f.shift[b] = min(f.shift[b], uint8(f.window-1-end))
		}
		last := block(l, f.window-1)
		f.ending[last] = append(f.ending[last], l)
	}
	return f
}

// block is the two bytes that end at i.
func block(b []byte, i int) uint16 { return uint16(b[i-1]) | uint16(b[i])<<8 }

// next returns where in text the first literal may begin, -1 if there is none. It compares no more than the window.
func (f *finder) next(text []byte) int {
	for i := f.window - 1; i < len(text); {
		b := block(text, i)
		if s := f.shift[b]; s > 0 {
			i += int(s)
			continue
		}
		start := i - f.window + 1
		for _, l := range f.ending[b] {
			if bytes.Equal(l, text[start:i+1]) {
				return start
			}
		}
		i++
	}
	return -1
}
