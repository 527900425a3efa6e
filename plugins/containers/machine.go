package main

import (
	"encoding/binary"
	"fmt"
)

type instruction struct {
	code, dst, src byte
	offset         int16
	constant       int32
}

// machine has the registers of a program. The context is at address 0 of its own space, and register 1 begins there.
type machine struct {
	registers [16]uint64
	context   []byte
}

// Classes of instructions, the lowest three bits of the code.
const (
	classLoad   = 1
	classALU    = 4
	classJump   = 5
	classJump32 = 6
	classALU64  = 7
)

func (in instruction) unknown() error {
	return fmt.Errorf("its device program has the instruction %#02x, which is not known here", in.code)
}

// step runs one instruction and returns how many of the next ones are left out.
func (m *machine) step(in instruction) (jump int, err error) {
	class := in.code & 7
	a, b := m.registers[in.dst], uint64(int64(in.constant))
	if in.code&8 != 0 { // BPF_X
		b = m.registers[in.src]
	}
	if class == classALU || class == classJump32 {
		a, b = uint64(uint32(a)), uint64(uint32(b))
	}
	switch class {
	case classLoad:
		m.registers[in.dst], err = m.load(in)
	case classALU, classALU64:
		value, ok := arithmetic(in.code>>4, a, b)
		if class == classALU {
			value = uint64(uint32(value))
		}
		if m.registers[in.dst] = value; !ok {
			err = in.unknown()
		}
	case classJump, classJump32:
		if in.code == 0x06 { // a long jump
			return int(in.constant), nil
		}
		taken, ok := compare(in.code>>4, a, b)
		if !ok {
			return 0, in.unknown()
		}
		if taken {
			jump = int(in.offset)
		}
	default:
		err = in.unknown()
	}
	return jump, err
}

// load reads from the context.
func (m *machine) load(in instruction) (uint64, error) {
	at := m.registers[in.src] + uint64(int64(in.offset))
	size := map[byte]uint64{0x61: 4, 0x69: 2, 0x71: 1, 0x79: 8}[in.code]
	if size == 0 || at > uint64(len(m.context)) || at+size > uint64(len(m.context)) {
		return 0, in.unknown()
	}
	switch data := m.context[at:]; size {
	case 1:
		return uint64(data[0]), nil
	case 2:
		return uint64(binary.NativeEndian.Uint16(data)), nil
	case 4:
		return uint64(binary.NativeEndian.Uint32(data)), nil
	default:
		return binary.NativeEndian.Uint64(data), nil
	}
}

func arithmetic(op byte, a, b uint64) (value uint64, ok bool) {
	switch op {
	case 0x0:
		return a + b, true
	case 0x1:
		return a - b, true
	case 0x4:
		return a | b, true
	case 0x5:
		return a & b, true
	case 0x6:
		return a << (b & 63), true
	case 0x7:
		return a >> (b & 63), true
	case 0xa:
		return a ^ b, true
	case 0xb:
		return b, true
	}
	return 0, false
}

func compare(op byte, a, b uint64) (taken, ok bool) {
	switch op {
	case 0x0:
		return true, true
	case 0x1:
		return a == b, true
	case 0x2:
		return a > b, true
	case 0x3:
		return a >= b, true
	case 0x4:
		return a&b != 0, true
	case 0x5:
		return a != b, true
	case 0xa:
		return a < b, true
	case 0xb:
		return a <= b, true
	}
	return false, false
}
