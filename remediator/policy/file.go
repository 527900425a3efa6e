package policy

import (
	"bytes"
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
	f := &File{path: path}
	if _, err := f.Reload(); err != nil {
		return nil, err
	}
	return f, nil
}

// Fixed is a policy that does not change.
func Fixed(p *Policy) *File {
	f := &File{}
	f.current.Store(p)
	return f
}

// Path is the path that the file was opened by. It is empty for a [Fixed] policy.
func (f *File) Path() string { return f.path }

// Policy is the last valid policy. Any goroutine may call it.
func (f *File) Policy() *Policy { return f.current.Load() }

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
