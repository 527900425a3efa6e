package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

// gpu is one GPU as mx-smi lists it. What a command did not give is nil.
type gpu struct {
	Index   string `json:"index"`
	Model   string `json:"model"`
	Address string `json:"address"`
	// State is Available, or why not.
	State string `json:"state"`
	// Hotspot is in degrees C, RetiredPages those with a double-bit ECC error.
	Hotspot      *float64 `json:"hotspot,omitempty"`
	RetiredPages *uint64  `json:"retiredPages,omitempty"`
	// Errs say what could not be read.
	Errs []string `json:"errs,omitempty"`
}

// available is the state of a GPU that works.
const available = "Available"

// lost reports whether the driver has lost the GPU. Another state than this and available is not known.
func (g gpu) lost() bool {
	return strings.HasPrefix(g.State, "Not Available") || g.State == "Unavailable"
}

// errNotMetaX: another vendor's tool (MOFFETT's) has the same name.
var errNotMetaX = errors.New("this is not MetaX's mx-smi")

// listed is a line of `mx-smi -L`, "GPU#0  MXC500  0000:08:00.0  Available (UUID: ...)" or, of a GPU that the driver
// has lost, "GPU#1  MXC550  bus  Not Available(MetaX Sysfs File Unaccessible)". A model may have two words, as "MetaX C550".
var listed = regexp.MustCompile(`^GPU#(\d+)\s+(\S.*?)\s+([0-9a-fA-F:]+:[0-9a-fA-F]+\.[0-7]|bus)\s+(\S.*)$`)

// parseList reads the output of `mx-smi -L`.
func parseList(out string) ([]gpu, error) {
	var gpus []gpu
	version := false
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		version = version || strings.HasPrefix(line, "mx-smi") && strings.Contains(line, "version:")
		if !strings.HasPrefix(line, "GPU#") {
			continue
		}
		m := listed.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("mx-smi -L: %.80q is not understood", line)
		}
		state, _, _ := strings.Cut(m[4], " (UUID:")
		gpus = append(gpus, gpu{Index: m[1], Model: m[2], Address: m[3], State: strings.TrimSpace(state)})
	}
	if !version {
		return nil, errNotMetaX
	}
	return gpus, nil
}

// section opens the part of one GPU in the other outputs.
var section = regexp.MustCompile(`^GPU#(\d+)\s+\S.*\s\S+$`)

// parseValues reads the first value per GPU whose key matches, in an output like that of `mx-smi --show-temperature`.
// The number of GPUs in it must be what its head says.
func parseValues(out string, key *regexp.Regexp) (map[string]string, error) {
	values := map[string]string{}
	banner, attached, gpus, current := false, -1, 0, ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := section.FindStringSubmatch(line); m != nil {
			current = m[1]
			gpus++
			continue
		}
		name, value, found := strings.Cut(line, " : ")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case strings.Contains(line, "MetaX System Management Interface"):
			banner = true
		case found && name == "Attached GPUs":
			n, err := strconv.Atoi(value)
			if err != nil {
				return nil, fmt.Errorf("attached GPUs: %w", err)
			}
			attached = n
		case found && current != "" && key.MatchString(name):
			if _, again := values[current]; !again {
				values[current] = value
			}
		}
	}
	switch {
	case !banner:
		return nil, errNotMetaX
	case gpus != attached:
		return nil, fmt.Errorf("%d of %d attached GPUs in the output", gpus, attached)
	}
	return values, nil
}

// The keys of the values. The sensor's number differs from GPU to GPU.
var (
	hotspotKey = regexp.MustCompile(`^hotspot\(`)
	pagesKey   = regexp.MustCompile(`^Double Bit ECC$`)
)

// parseHotspot reads a temperature, "39.00 C".
func parseHotspot(s string) (float64, error) {
	t, err := strconv.ParseFloat(strings.TrimSuffix(s, " C"), 64)
	if err != nil || !(t > -100 && t < 1000) {
		return 0, fmt.Errorf("hotspot is %.40q", s)
	}
	return t, nil
}

// fault is what the driver wrote into the kernel log about a GPU.
type fault struct {
	// Address is the PCI address of the function.
	Address  string `json:"address"`
	Text     string `json:"text"`
	Injected bool   `json:"injected,omitempty"`
}

// kernelLine is a line of the driver: `METAX.B10200.ATU.ERROR EID (dddd:bb:dd.f): 0x2101, <description>, ...`; older
// drivers leave the EID part out. After B stands the address in hex, domain<<16 | bus<<8 | device<<3 | function
// (vendor documents 346, 448, 866; MetaX-MACA/mxExporter). It must start the record.
var kernelLine = regexp.MustCompile(
	`^((?:METAX|MXGVM|MXCD)\.B([0-9a-fA-F]{1,8})\.(?:D\d+\.)?(?:V\d+\.)?(\w+)\.(EMERG|ALERT|CRIT|ERROR))\b` +
		`(?: EID \([^)]*\): (0x[0-9a-fA-F]+),? *([^,]*))?`)

// parseKernel reads a record of the kernel log. What names GPU and level must be longer than the name of a process, which may start
// a record too: that of a GPU on any bus but the first is.
func parseKernel(body string) (fault, bool) {
	m := kernelLine.FindStringSubmatch(body)
	if m == nil || len(m[1]) <= kmsg.MaxName || kmsg.StartsWithFile(body) {
		return fault{}, false
	}
	m = m[1:]
	bdf, err := strconv.ParseUint(m[1], 16, 32)
	if err != nil {
		return fault{}, false
	}
	f := fault{Address: fmt.Sprintf("%04x:%02x:%02x.%x", bdf>>16, bdf>>8&0xff, bdf>>3&0x1f, bdf&7)}
	f.Text = m[2] + " " + m[3]
	if m[4] != "" {
		f.Text = strings.TrimSpace(fmt.Sprintf("%s EID %s %.80s", f.Text, m[4], m[5]))
	}
	return f, true
}
