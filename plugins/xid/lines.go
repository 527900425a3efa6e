package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// longest is what is read of a line: no record of the kernel is as long in any form.
const longest = 256 << 10

// lines reads a text line by line, whatever it has in it.
type lines struct{ in *bufio.Reader }

func newLines(in io.Reader) lines { return lines{bufio.NewReaderSize(in, longest)} }

// next returns a line without its end, and of one that is too long the start. It is good until the next call.
func (l lines) next() ([]byte, error) {
	line, err := l.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		for line = bytes.Clone(line); errors.Is(err, bufio.ErrBufferFull); {
			_, err = l.in.ReadSlice('\n')
		}
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil
	}
	return bytes.TrimRight(line, "\n"), err
}
