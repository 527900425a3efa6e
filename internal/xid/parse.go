package xid

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

// Kind is the kind of driver line that an event came from.
type Kind string

// The kinds of driver lines.
const (
	// KindXid is `NVRM: Xid (PCI:...): N, ...`.
	KindXid Kind = "xid"
	// KindLost is a "fallen off the bus" line without an Xid number; for one GPU it is the same event as Xid 79.
	KindLost Kind = "lost"
	// KindInit is a failed RmInitAdapter: the driver could not bring the GPU up.
	KindInit Kind = "init"
	// KindSXid is `nvidia-nvswitch0: SXid (PCI:...): N, ...`: an NVSwitch error.
	KindSXid Kind = "sxid"
	// KindPeermem is nvidia-peermem's "invalid context".
	KindPeermem Kind = "peermem"
	// KindUncoded is a line of the driver about a fault, without an Xid, see driver.csv.
	KindUncoded Kind = "uncoded"
	// KindHardware is a line of another part of the kernel that reports failing hardware, see hardware.go.
	KindHardware Kind = "hardware"
	// KindDriver is a driver load; it clears what a reset clears, on all GPUs and switches.
	KindDriver Kind = "driver"
	// KindUnload is a driver unload.
	KindUnload Kind = "unload"
)

// Event is one line of the driver, or a burst of equal ones.
type Event struct {
	Kind Kind `json:"kind"`
	// Code is the Xid or SXid number; 0 for other kinds.
	Code int `json:"code"`
	// Device is the PCI address without the function, lower case, e.g. 0000:4e:00; for hardware lines whatever the line
	// names.
	Device string `json:"device"`
	// Repair is the class that the judge gives to this event alone; it is filled in for a dump.
	Repair conditions.Repair `json:"repair,omitempty"`
	// Cause is N of "caused by previous Xid N".
	Cause int `json:"cause"`
	// MIG is the instance that the line names, e.g. "GPU-I:05"; empty for the whole GPU.
	MIG string `json:"mig"`
	// Text is the driver's text after the number, without process and pid.
	Text string `json:"text"`
	Detail

	// At and Last are the kernel's monotonic clock at the first and the last line of a burst of Count lines.
	At    time.Duration `json:"at"`
	Last  time.Duration `json:"last"`
	Count int           `json:"count"`
	// Rate is that of a hardware line.
	Rate Rate `json:"rate,omitzero"`
	// Seen and SeenLast are CLOCK_MONOTONIC when the first and the last line were read; 0 if not recorded. The
	// kernel stamps its records with a clock of its own that drifts from it by seconds in a month.
	Seen     time.Duration `json:"seen,omitempty"`
	SeenLast time.Duration `json:"seenLast,omitempty"`
	// Time is At as wall clock time, for people.
	Time time.Time `json:"time,omitzero"`
	// Injected marks a record that user space wrote.
	Injected bool `json:"injected,omitempty"`
}

// Detail is what decides the class of some events. It is comparable: two lines with equal details say the same thing.
type Detail struct {
	// Process is the process name that the line gives; empty when the driver did not know it.
	Process string `json:"process,omitempty"`
	// Action is the new recovery action of an Xid 154.
	Action Action `json:"action,omitzero"`
	// Unit is where an Xid 13 happened, e.g. "GPC 10, TPC 1", the unit of an NVLink5 error, e.g. "RLW_RXPIPE", and the driver's number of the
	// GPU in a line without an address.
	Unit string `json:"unit,omitempty"`
	// Severity is the word in the line, for NVLink5 errors and SXids: "Fatal", "Non-fatal", ...
	Severity string `json:"severity,omitempty"`
	// Link is the NVLink that the line names, e.g. "14"; "-1" is what the driver prints for none in particular.
	Link string `json:"link,omitempty"`
	// Registers are the words in parentheses of an Xid 74 and the first two of an NVLink5 error.
	Registers [7]uint32 `json:"registers,omitzero"`
	// Registered counts the Registers that the line has.
	Registered int `json:"registered,omitempty"`
}

// Action is a recovery action as Xid 154 prints it: 0x4 (Drain and Reset).
type Action struct {
	// Value is NVML's nvmlDeviceGpuRecoveryAction number; -1 if the line has none that can be read.
	Value int `json:"value"`
	// Name is the line's; empty for an event without an action.
	Name string `json:"name"`
}

// The line formats are those of the driver's own source; the same numbers are used in docs and tests:
//
//	1  NVRM: Xid (PCI:0000:4e:00): 31, pid=1942, name=python3, Ch 00000008 ...
//	2  NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.     (or pid='<unknown>', name=<unknown>)
//	3  NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, ...
//	4  NVRM: Xid (0000:03:00): 14, Channel 00000001
//	5  ... caused by previous Xid 149
//	7  NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.
//	8  NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\nNVRM: fallen off the bus ...
//	9  NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)
//	10 NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)
//	11 ... 94, Contained: CE User Channel (0x9). RST: No, D-RST: No
//	12 nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
//	13 nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing
var (
	xidLine = lazy(`^NVRM: Xid \((?:PCI:)?(` + bdf + `)(?:\.[0-9a-fA-F])?((?: GPU-C?I:[0-9]+)*)\): ([0-9]{1,9})(?:[, ]\s*(.*))?$`)
	process = lazy(`^(?:pid=('?<?[^',]*>?'?))?(?:, )?(?:name=(.*?))?(?:, |$)`)
	caused  = lazy(`caused by previous Xid ([0-9]+)`)
	action  = lazy(`recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x([0-9a-fA-F]+) \(([^)]*)\)`)
	unit    = lazy(`\(GPC [0-9]+, TPC [0-9]+`)
	lost    = lazy(`^NVRM: GPU (?:at )?(?:PCI:)?(` + bdf + `)(?:\.[0-9a-fA-F])?(?:: GPU)? has fallen off the bus`)
	probe   = lazy(`^NVRM: The NVIDIA GPU (` + bdf + `)(?:\.[0-9a-fA-F])? (?:\(PCI ID: [0-9a-fA-F:]{1,9}\) )?` +
		`installed in this system has fallen off the bus`)
	initial = lazy(`^NVRM: GPU (?:at PCI:)?(` + bdf + `)(?:\.[0-9a-fA-F])?: RmInitAdapter failed!\s*(.*)$`)
	peermem = lazy(`^nvidia-peermem [0-9A-Za-z_]+:[0-9]+ (?:ERROR )?detected invalid context`)
	driver  = lazy(`^NVRM: loading NVIDIA UNIX (.*)$`)

	identity = lazy(`^NVRM: GPU at PCI:(` + bdf + `): (GPU-[0-9a-fA-F-]{36})`)
)

// lazy compiles an expression when it is first needed: most runs of a plugin see no line of the driver, and a plugin
// starts thousands of times a day.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

const bdf = `[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}`

// Parse reads the body of one kernel log record. ok is false for a line that is not about the health of hardware.
// The driver's text must start the body, and what identifies it must be longer than [kmsg.MaxName]: an audit line that quotes it,
// or a process of that name, is not the driver.
func Parse(body string) (e Event, ok bool) {
	switch {
	case kmsg.StartsWithFile(body):
		return Event{}, false
	case strings.HasPrefix(body, "NVRM: "):
		return parseDriver(body)
	case strings.HasPrefix(body, "nvidia-nvswitch"):
		return parseSXid(firstLine(body))
	case strings.HasPrefix(body, "nvidia-nvlink: Unregistered Nvlink Core"):
		return Event{Kind: KindUnload, Text: "driver unloaded"}, true
	case strings.HasPrefix(body, "nvidia-peermem ") && peermem().MatchString(body):
		return Event{Kind: KindPeermem, Text: "invalid context"}, true
	}
	return parseHardware(firstLine(body))
}

func firstLine(body string) string {
	line, _, _ := strings.Cut(body, "\n")
	return line
}

func parseDriver(body string) (Event, bool) {
	// One record may hold several lines, each with the driver's name before it (format 8).
	line := firstLine(strings.ReplaceAll(body, "\nNVRM: ", " "))
	if m := xidLine().FindStringSubmatch(line); m != nil {
		return parseXid(m[1], m[2], m[3], m[4])
	}
	if m := lost().FindStringSubmatch(line); m != nil {
		return Event{Kind: KindLost, Device: Device(m[1]), Text: "GPU has fallen off the bus"}, true
	}
	if m := probe().FindStringSubmatch(line); m != nil {
		return Event{Kind: KindLost, Device: Device(m[1]), Text: "GPU has fallen off the bus"}, true
	}
	if m := initial().FindStringSubmatch(line); m != nil {
		return Event{Kind: KindInit, Device: Device(m[1]), Text: strings.TrimSpace("RmInitAdapter failed " + m[2])}, true
	}
	if m := driver().FindStringSubmatch(line); m != nil {
		return Event{Kind: KindDriver, Text: m[1]}, true
	}
	return parseUncoded(line)
}

// ParseIdentity reads `NVRM: GPU at PCI:0000:4e:00: GPU-<uuid>`, which the driver prints once per GPU before its first
// Xid.
func ParseIdentity(body string) (gpu, uuid string, ok bool) {
	if m := identity().FindStringSubmatch(body); m != nil && !kmsg.StartsWithFile(body) {
		return Device(m[1]), m[2], true
	}
	return "", "", false
}

func parseXid(address, mig, code, text string) (Event, bool) {
	n, err := strconv.Atoi(code)
	if err != nil {
		return Event{}, false
	}
	e := Event{Kind: KindXid, Code: n, Device: Device(address), MIG: strings.TrimSpace(mig)}
	if m := process().FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		if name := strings.Trim(m[2], "'"); name != "" && name != "<unknown>" && name != "unknown" {
			e.Process = name
		}
	}
	e.Text = strings.TrimSpace(text)
	if m := caused().FindStringSubmatch(text); m != nil {
		// A number too large for an int stays 0, which is "no cause named".
		e.Cause, _ = strconv.Atoi(m[1])
	}
	switch entry, _ := Lookup(n); entry.Rule {
	case "episodes":
		e.Unit = strings.TrimPrefix(unit().FindString(text), "(")
	case "text":
		if m := action().FindStringSubmatch(text); m != nil {
			e.Action = Action{Value: -1, Name: m[2]}
			if v, err := strconv.ParseInt(m[1], 16, 32); err == nil {
				e.Action.Value = int(v)
			}
		}
	case "registers":
		e.parseRegisters()
	case "nvlink5":
		e.parseNVLink5()
	}
	return e, true
}

// Device normalises a PCI address: lower case, a domain of four digits, as the kernel prints it, and no function. NVML
// prints eight digits of domain.
func Device(address string) string {
	domain, rest, _ := strings.Cut(strings.ToLower(address), ":")
	if len(domain) > 4 {
		domain = strings.TrimLeft(domain[:len(domain)-4], "0") + domain[len(domain)-4:]
	}
	rest, _, _ = strings.Cut(rest, ".")
	return domain + ":" + rest
}
