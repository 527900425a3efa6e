package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/bounded"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot boot.Boot `json:"boot"`
	// Validation is the report of Health Validation, Certification that of the Cluster Readiness Engine; nil if it is not asked for.
	Validation    *validation    `json:"validation,omitempty"`
	Certification *certification `json:"certification,omitempty"`
}

// file is what is known of a file.
type file struct {
	// Age is how long ago it was written.
	Age time.Duration `json:"age"`
	// Err is why it, or a part of it, could not be read.
	Err string `json:"err,omitempty"`
}

// validation is a NodeVerdict.
type validation struct {
	file
	Overall    severity    `json:"overall"`
	Components []component `json:"components,omitempty"`
}

// certification is what a certification says of this node.
type certification struct {
	file
	Failures []failure `json:"failures,omitempty"`
	// Passed: the node is in the list of those that have succeeded, if there is one.
	Passed bool `json:"passed"`
}

type reader struct {
	procfs, node, verdict, failed, succeeded string
	calls                                    bounded.Calls
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	switch {
	case r.verdict == "" && r.failed == "":
		return snapshot{}, errors.New("nothing to judge: neither -node-verdict nor -nvcre-failed is given")
	case r.failed != "" && r.node == "":
		return snapshot{}, errors.New("-nvcre-failed needs -node")
	case r.failed == "" && r.succeeded != "":
		return snapshot{}, errors.New("-nvcre-succeeded needs -nvcre-failed")
	}
	b, err := boot.Read(r.procfs)
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Boot: b}
	if r.verdict != "" {
		s.Validation = &validation{}
		data := s.Validation.load(ctx, &r.calls, r.verdict)
		if s.Validation.Err == "" {
			s.Validation.Overall, s.Validation.Components, err = parseVerdict(data)
			s.Validation.note(err)
		}
	}
	if r.failed != "" {
		s.Certification = &certification{}
		s.Certification.read(ctx, r)
	}
	return s, nil
}

func (c *certification) read(ctx context.Context, r *reader) {
	data := c.load(ctx, &r.calls, r.failed)
	if c.Err != "" {
		return
	}
	all, err := parseFailures(data)
	c.note(err)
	for _, f := range all {
		if f.Name == r.node {
			c.Failures = append(c.Failures, f)
		}
	}
	if r.succeeded == "" || c.Err != "" {
		return
	}
	var other file
	data = other.load(ctx, &r.calls, r.succeeded)
	c.Age, c.Err = max(c.Age, other.Age), other.Err
	c.Passed = c.Err == "" && listed(data, r.node)
}

func (f *file) note(err error) {
	if err != nil {
		f.Err = err.Error()
	}
}

// load reads a file, which may be compressed. One that does not answer, such as a pipe without a writer, leaves time for the others.
func (f *file) load(ctx context.Context, calls *bounded.Calls, path string) []byte {
	read, err := bounded.Do(ctx, calls, path, func() (content, error) { return load(path) })
	if errors.Is(err, bounded.ErrNoAnswer) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	f.Age = read.age
	f.note(err)
	return read.data
}

// most is far more than the lists of 10,000 nodes.
const most = 16 << 20

// content is what a file has, and how long ago it was written.
type content struct {
	data []byte
	age  time.Duration
}

func load(path string) (content, error) {
	in, err := os.Open(path)
	if err != nil {
		return content{}, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return content{}, err
	}
	age := time.Since(info.ModTime())
	data, err := io.ReadAll(io.LimitReader(in, most))
	if err == nil && bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		data, err = unpack(data)
	}
	if err == nil && len(data) == most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	if err != nil {
		return content{age: age}, fmt.Errorf("%s: %w", path, err)
	}
	return content{data, age}, nil
}

// unpack fails for what is cut short.
func unpack(data []byte) ([]byte, error) {
	in, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(in, most))
}
