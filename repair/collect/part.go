package collect

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Part is one file of a bundle.
type Part struct {
	// Name is its path in the bundle. One that ends with .gz is compressed by itself, as vendors expect it.
	Name string
	// Limit is how long it may take.
	Limit time.Duration
	// Read writes it. It returns soon after ctx is done; a Read that does not is left behind.
	Read func(ctx context.Context, w io.Writer) error
}

// settle is how long a part may take to return after its limit: to kill a program, and to see that it cannot be killed.
const settle = 4 * time.Second

// outcome is what became of a part.
type outcome struct {
	name string
	data []byte
	// bytes is the length of data, lines of how many lines of it the filter took something out.
	bytes, lines int
	took         time.Duration
	// notes say what is not as it should be.
	notes []string
}

// read reads a part, at most so many bytes of it. It returns within the limit, whatever the part does.
func (p Part) read(ctx context.Context, bytes int) outcome {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, p.Limit)
	defer cancel()
	into := newCapture(bytes, strings.HasSuffix(p.Name, ".gz"))
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- fmt.Errorf("panic: %v", v)
			}
		}()
		done <- p.Read(ctx, into)
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(settle):
			err = fmt.Errorf("gave no answer within %s, and was left behind", p.Limit)
		}
	}
	o := into.close()
	o.name, o.took = p.Name, time.Since(begin)
	if err != nil {
		// A program's own words may have what the filter takes out.
		o.notes = append(o.notes, (&Filter{}).Line(strings.Join(strings.Fields(err.Error()), " ")))
	}
	return o
}

// errFull ends a part that is larger than its bound.
var errFull = errors.New("the part is larger than its bound")

// capture keeps the beginning of what is written to it, filtered. It outlives a part that was left behind.
type capture struct {
	mu   sync.Mutex
	max  int
	out  bytes.Buffer
	zip  *gzip.Writer
	text filtered
	// some is set when there is a line.
	some, cut, closed bool
}

func newCapture(max int, zip bool) *capture {
	c := &capture{max: max}
	if zip {
		c.zip = gzip.NewWriter(&c.out)
	}
	c.text.write = c.line
	return c
}

// Write fails when the part is full or was given up.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.cut {
		return 0, errFull
	}
	return c.text.Write(p)
}

// line keeps a line, if there is room for it.
func (c *capture) line(line []byte) {
	// What the compressor still holds, and its end, need room too.
	const held = 128 << 10
	c.some = true
	switch {
	case c.cut:
	case c.zip == nil && c.out.Len()+len(line) > c.max, c.zip != nil && c.out.Len()+held > c.max:
		c.cut = true
	case c.zip != nil:
		_, _ = c.zip.Write(line) // into memory
	default:
		c.out.Write(line)
	}
}

// close returns what was kept. Nothing more is.
func (c *capture) close() outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.cut {
		c.text.close()
	}
	c.closed = true
	if c.zip != nil {
		_ = c.zip.Close() // into memory
	}
	o := outcome{data: c.out.Bytes(), lines: c.text.filter.Lines}
	if !c.some {
		o.data = nil // an empty one in gzip's format is not empty
	}
	if c.cut {
		o.notes = append(o.notes, "cut: the bundle has no more room for it")
	}
	return o
}

// Unzip writes what a file in gzip's format has. Of one that was cut it writes what is there.
func Unzip(w io.Writer, r io.Reader) error {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, zip) //nolint:gosec // a part is bounded, and so is what fails
	return err
}
