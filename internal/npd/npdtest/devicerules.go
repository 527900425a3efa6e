package npdtest

import (
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of linux/bpf.h.
const (
	bpfProgLoad     = 5
	bpfProgAttach   = 8
	bpfCgroupDevice = 15
	bpfAttachDevice = 6
)

// AttachDeviceRules gives a cgroup of version 2 a BPF program that decides which devices its processes may open, with BPF_F_* flags of the
// attachment. It needs root and stays until the cgroup is removed.
func AttachDeviceRules(t *testing.T, cgroup string, program []byte, flags uint32) {
	t.Helper()
	folder, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	license := []byte("Apache-2.0\x00")
	load := struct {
		kind, count       uint32
		code, license     uint64
		level, size       uint32
		log               uint64
		version, flags    uint32
		name              [16]byte
		ifindex, expected uint32
	}{kind: bpfCgroupDevice, count: uint32(len(program) / 8), code: address(&program[0]), license: address(&license[0])}
	load.expected = bpfAttachDevice
	fd, err := bpf(bpfProgLoad, unsafe.Pointer(&load), unsafe.Sizeof(load))
	runtime.KeepAlive(program)
	runtime.KeepAlive(license)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	defer func() { _ = unix.Close(fd) }() // the cgroup holds the program
	attach := struct{ target, program, kind, flags uint32 }{uint32(folder.Fd()), uint32(fd), bpfAttachDevice, flags}
	if _, err := bpf(bpfProgAttach, unsafe.Pointer(&attach), unsafe.Sizeof(attach)); err != nil {
		t.Fatalf("attach: %v", err)
	}
}

func address(p *byte) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

func bpf(command uintptr, attributes unsafe.Pointer, size uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attributes), size)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
