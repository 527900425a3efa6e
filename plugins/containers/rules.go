package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// verdict reports whether processes of a cgroup may read and write the character device with these numbers.
type verdict func(major, minor uint32) (bool, error)

// rules returns the device rules of a cgroup: the kernel's own, not those that somebody has asked for.
func (r *reader) rules(cgroup string) (verdict, error) {
	if _, err := os.Stat(filepath.Join(r.cgroups, "devices")); err == nil {
		list, err := os.ReadFile(filepath.Join(r.cgroups, "devices", cgroup, "devices.list"))
		if err != nil {
			return nil, err
		}
		return func(major, minor uint32) (bool, error) { return listed(string(list), major, minor) }, nil
	}
	programs, err := devicePrograms(filepath.Join(r.cgroups, cgroup))
	if err != nil {
		return nil, fmt.Errorf("device rules of its cgroup: %w", err)
	}
	return func(major, minor uint32) (bool, error) {
		// Those of all levels must agree.
		for _, program := range programs {
			if allowed, err := program.run(major, minor); err != nil || !allowed {
				return false, err
			}
		}
		return true, nil
	}, nil
}

// listed looks into devices.list of cgroup v1, as "c 195:0 rw" and "a *:* rwm" (Documentation/admin-guide/cgroup-v1/devices.rst).
func listed(list string, major, minor uint32) (bool, error) {
	access := ""
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return false, fmt.Errorf("malformed line of devices.list: %.80q", line)
		}
		a, b, _ := strings.Cut(fields[1], ":")
		is := func(text string, n uint32) bool { return text == "*" || text == strconv.FormatUint(uint64(n), 10) }
		if fields[0] == "a" || fields[0] == "c" && is(a, major) && is(b, minor) {
			access += fields[2]
		}
	}
	return strings.Contains(access, "r") && strings.Contains(access, "w"), nil
}

// Numbers of linux/bpf.h.
const (
	bpfProgGetFDByID   = 13
	bpfObjGetInfoByFD  = 15
	bpfProgQuery       = 16
	bpfCgroupDevice    = 6
	bpfQueryEffective  = 1
	bpfInstructionSize = 8
)

// devicePrograms reads the BPF programs by which cgroup v2 keeps the rules, those of its parents included. It needs CAP_SYS_ADMIN.
func devicePrograms(dir string) (programs []program, err error) {
	folder, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer func() { _ = unix.Close(folder) }()
	ids := make([]uint32, 64)
	query := struct {
		target, attach, flags, attachFlags uint32
		ids                                uint64
		count, _                           uint32
		_                                  [3]uint64
	}{target: uint32(folder), attach: bpfCgroupDevice, flags: bpfQueryEffective, ids: address(&ids[0]), count: uint32(len(ids))}
	_, err = bpf(bpfProgQuery, unsafe.Pointer(&query), unsafe.Sizeof(query))
	runtime.KeepAlive(ids)
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	for _, id := range ids[:query.count] {
		p, err := readProgram(id)
		if errors.Is(err, unix.ENOENT) {
			continue // replaced since
		}
		if err != nil {
			return nil, fmt.Errorf("program: %w", err)
		}
		programs = append(programs, p)
	}
	return programs, nil
}

func readProgram(id uint32) (program, error) {
	get := struct{ id, next, flags uint32 }{id: id}
	fd, err := bpf(bpfProgGetFDByID, unsafe.Pointer(&get), unsafe.Sizeof(get))
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	code := make([]byte, 64<<10)
	// The first fields of bpf_prog_info.
	info := struct {
		kind, id                 uint32
		tag                      [8]byte
		jitedLength, length      uint32
		jited, instructionsArray uint64
	}{length: uint32(len(code)), instructionsArray: address(&code[0])}
	about := struct {
		fd, length uint32
		info       uint64
	}{uint32(fd), uint32(unsafe.Sizeof(info)), address(&info)}
	_, err = bpf(bpfObjGetInfoByFD, unsafe.Pointer(&about), unsafe.Sizeof(about))
	runtime.KeepAlive(code)
	runtime.KeepAlive(&info)
	switch {
	case err != nil:
		return nil, err
	case info.instructionsArray == 0 || info.length == 0 || int(info.length) > len(code):
		return nil, errors.New("the kernel does not show its instructions")
	}
	return code[:info.length], nil
}

func address[T any](p *T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

func bpf(command uintptr, attributes unsafe.Pointer, size uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attributes), size)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// program is a BPF program of the kind that runc, crun and systemd make: loads from its context, arithmetic, jumps (linux/bpf.h,
// Documentation/bpf/standardization/instruction-set.rst). Maps and helpers are no part of it.
type program []byte

// run answers as the kernel does for a character device that is opened to be read and written.
func (p program) run(major, minor uint32) (bool, error) {
	const character, readAndWrite = 2, 2 | 4 // BPF_DEVCG_DEV_CHAR, BPF_DEVCG_ACC_READ and _WRITE
	var context [16]byte
	binary.NativeEndian.PutUint32(context[0:], readAndWrite<<16|character)
	binary.NativeEndian.PutUint32(context[4:], major)
	binary.NativeEndian.PutUint32(context[8:], minor)
	m := machine{context: context[:12]}
	for pc, steps := 0, 0; steps < 100_000; steps++ {
		if pc < 0 || (pc+1)*bpfInstructionSize > len(p) {
			break
		}
		i := p[pc*bpfInstructionSize:]
		in := instruction{
			code: i[0], dst: i[1] & 15, src: i[1] >> 4,
			offset: int16(binary.NativeEndian.Uint16(i[2:])), constant: int32(binary.NativeEndian.Uint32(i[4:])),
		}
		if in.code == 0x95 { // BPF_JMP | BPF_EXIT
			return m.registers[0]&1 != 0, nil
		}
		jump, err := m.step(in)
		if err != nil {
			return false, err
		}
		pc += 1 + jump
	}
	return false, errors.New("its device program does not end")
}
