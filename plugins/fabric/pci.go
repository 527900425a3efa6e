package main

import (
	"encoding/binary"
	"errors"
)

// Numbers of linux/pci_regs.h.
const (
	capabilities  = 0x34
	capExpress    = 0x10
	downstream    = 6 // PCI_EXP_TYPE_DOWNSTREAM
	extended      = 0x100
	extendedACS   = 0x0d
	acsControl    = 6
	acsRedirects  = 0x04 | 0x08 // PCI_ACS_RR, PCI_ACS_CR
	acsTranslated = 0x40        // PCI_ACS_DT
)

// redirectsPeers reports whether a PCIe port is one of a switch and sends the requests of its device for another one through the root
// complex. With direct translated requests, as a GPU with ATS makes them, it does not.
func redirectsPeers(config []byte) (bool, error) {
	if len(config) < 64 || binary.LittleEndian.Uint16(config) == 0xffff {
		return false, errors.New("its configuration space does not answer")
	}
	if express := capability(config, capExpress); express == 0 || config[express+2]>>4 != downstream {
		return false, nil
	}
	if len(config) < 4096 {
		return false, errors.New("the kernel shows only a part of its configuration space: CAP_SYS_ADMIN is missing")
	}
	for at, seen := extended, 0; at >= extended && at+8 <= len(config) && seen < 64; seen++ {
		header := binary.LittleEndian.Uint32(config[at:])
		if header&0xffff == extendedACS {
			control := binary.LittleEndian.Uint16(config[at+acsControl:])
			return control&acsRedirects != 0 && control&acsTranslated == 0, nil
		}
		at = int(header >> 20 &^ 3)
	}
	return false, nil
}

// capability returns where a capability lies, 0 if it is not there.
func capability(config []byte, id byte) int {
	for at, seen := int(config[capabilities]&^3), 0; at >= 64 && at+4 <= min(len(config), 256) && seen < 48; seen++ {
		if config[at] == id {
			return at
		}
		at = int(config[at+1] &^ 3)
	}
	return 0
}
