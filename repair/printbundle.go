package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/repair/collect"
)

// printAction is the command print-bundle. It reads one bundle of one node and no other file.
type printAction struct {
	stdout        io.Writer
	dir, node, at string
	slice         int
}

// sliceSize is how much of a bundle one run prints: as base64 it is less than the 10 MiB after which the kubelet begins another log.
const sliceSize = 6 << 20

func (a *printAction) flags(f *flags.Set) {
	bundleFlags(f, &a.dir, &a.node)
	f.StringVar(&a.at, "at", "", "`time` in the name of the bundle, such as 20261128T033000Z")
	f.IntVar(&a.slice, "slice", 1, fmt.Sprintf("which `part` of it, of %d MiB each, is printed", sliceSize>>20), 1, 1000)
}

func (a *printAction) check(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

func (a *printAction) run(_ context.Context, _ func(repairresult.Result)) (result repairresult.Result, err error) {
	file, err := collect.Open(a.dir, a.node, a.at)
	if err != nil {
		return result, err
	}
	defer file.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		return result, err
	}
	begin, slices := int64(a.slice-1)*sliceSize, max(1, (size+sliceSize-1)/sliceSize)
	if int64(a.slice) > slices {
		return result, refuse("-slice %d: the bundle of %d bytes has %d", a.slice, size, slices)
	}
	section := io.NewSectionReader(file, begin, sliceSize)
	// Of 3 KiB each, so that the lines of base64 follow on each other.
	for buf := make([]byte, 3<<10); ; {
		n, err := io.ReadFull(section, buf)
		if n > 0 {
			if _, err := fmt.Fprintln(a.stdout, base64.StdEncoding.EncodeToString(buf[:n])); err != nil {
				return result, err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			break
		}
		if err != nil {
			return result, err
		}
	}
	result.Result = repairresult.Done
	result.Message = fmt.Sprintf("slice %d of %d, %d bytes, sha256 %x", a.slice, slices, size, hash.Sum(nil))
	return result, nil
}
