package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"sync/atomic"
)

// File is a policy file that may change while it is in use. The last valid policy stays in force.
type File struct {
	path    string
	read    []byte
	current atomic.Pointer[Policy]
}

// Open reads and checks a policy file.
func Open(path string) (*File, error) {
	f, err := Follow(path)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Follow is [Open] for a program that must start even so: after an error, which says what is wrong with the file, there is no
// policy until a [File.Reload] finds the file valid.
func Follow(path string) (*File, error) {
	f := &File{path: path}
	_, err := f.Reload()
	return f, err
}

// Fixed is a policy that does not change.
func Fixed(p *Policy) *File {
	f := &File{}
	f.current.Store(p)
	return f
}

// Path is the path that the file was opened by. It is empty for a [Fixed] policy.
func (f *File) Path() string { return f.path }

// none is in force while no valid policy is known: it has no rules and the default limits.
var none = func() *Policy {
	var p Policy
	p.SetDefaults()
	return &p
}()

// Known reports whether a valid policy was read. Once it is true it stays true. Any goroutine may call it.
func (f *File) Known() bool { return f.current.Load() != nil }

// Policy is the last valid policy. While none is [File.Known] it is a policy without rules: that a record names a rule which it
// lacks then means nothing. Any goroutine may call it.
func (f *File) Policy() *Policy {
	if p := f.current.Load(); p != nil {
		return p
	}
	return none
}

// Hash is the [Hash] of the file with the last valid policy; empty while none is [File.Known]. Only the goroutine that calls
// [File.Reload] may call it.
func (f *File) Hash() string {
	if f.read == nil {
		return ""
	}
	return Hash(f.read)
}

// Hash names the text of a policy file, in 12 hexadecimal digits.
func Hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// Reload reads the file again and returns whether a new policy is in force. An error leaves the last valid policy in force, and
// every call returns it until the file is valid. Only one goroutine may call Reload.
//
// It compares contents: the kubelet changes a mounted ConfigMap by replacing a symbolic link, which a watch on the file itself
// does not see.
func (f *File) Reload() (bool, error) {
	data, err := os.ReadFile(f.path)
	if err != nil {
		return false, fmt.Errorf("read policy: %w", err)
	}
	if f.read != nil && bytes.Equal(data, f.read) {
		return false, nil
	}
	p, err := Parse(data)
	if err != nil {
		return false, fmt.Errorf("policy %s: %w", f.path, err)
	}
	f.read = data
	f.current.Store(p)
	return true, nil
}
