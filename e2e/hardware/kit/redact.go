package main

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
)

// keeper has the outputs that are kept.
type keeper struct {
	names   []string
	content map[string]string
}

// add keeps an output, unless it is empty. One that is there already is replaced.
func (k *keeper) add(name, content string) {
	if content == "" {
		return
	}
	if k.content == nil {
		k.content = map[string]string{}
	}
	if _, there := k.content[name]; !there {
		k.names = append(k.names, name)
	}
	k.content[name] = content
}

func (k *keeper) get(name string) string { return k.content[name] }

// redactor replaces what identifies a machine, the same by the same in all texts.
type redactor struct {
	// paths replaces the kit's own folders, which may name a user.
	paths *strings.Replacer
	// host has the names of this machine, secrets what was found beside a word for a serial number.
	host    []string
	secrets map[string]string
	given   map[string]string
}

func (k *kit) redactor() *redactor {
	r := &redactor{secrets: map[string]string{}, given: map[string]string{}}
	r.paths = strings.NewReplacer(k.programs, "$PROGRAMS", k.work, "$WORK", k.out, "$OUT", k.home, "$KIT")
	for _, name := range []string{hostName(), text("/proc/sys/kernel/hostname")} {
		short, _, _ := strings.Cut(name, ".")
		for _, n := range []string{name, short} {
			// A name of one or two letters is in other words, too; it names no machine.
			if len(n) > 2 && n != "localhost" && !slices.Contains(r.host, n) {
				r.host = append(r.host, n)
			}
		}
	}
	return r
}

func hostName() string {
	name, _ := os.Hostname()
	return name
}

var (
	// serial finds the value of a serial number or of a board's identity in nvidia-smi -q, DCGM's reports and JSON. A part number is that of
	// a model.
	serial = regexp.MustCompile(`(?im)^([ \t"]*(?:[a-z ]*serial[a-z ]*|board id|gpu pdi|chassis[a-z ]*|.*guid)[ \t"]*:[ \t"]*)` +
		`([^\s",]+(?: [^\s",]+)*)`)
	// programName finds the path of a program in nvidia-smi -q.
	programName = regexp.MustCompile(`(?m)^([ \t]+Name[ \t]*: )(\S.*)$`)
	uuid        = regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	// hex32 is a machine id, a container id, or a digest.
	hex32 = regexp.MustCompile(`(?i)\b(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32})\b`)
	// colons are MAC addresses of 6 or 20 bytes, GUIDs of InfiniBand, and IPv6 addresses, among times and addresses of the PCI bus.
	colons = regexp.MustCompile(`(?i)[0-9a-f:]*:[0-9a-f:]*[0-9a-f:.]*`)
	mac    = regexp.MustCompile(`(?i)^[0-9a-f]{2}(?::[0-9a-f]{2}){5,}$`)
	guid   = regexp.MustCompile(`(?i)^[0-9a-f]{4}(?::[0-9a-f]{4}){3}$`)
	// dotted are IPv4 addresses, among versions.
	dotted = regexp.MustCompile(`[0-9]+(?:\.[0-9]+)+`)
)

// learn looks for serial numbers in a text, which may stand in others without a word that says what they are.
func (r *redactor) learn(content string) {
	for _, m := range serial.FindAllStringSubmatch(content, -1) {
		// "N/A", and numbers that are in other places, too.
		if len(m[2]) >= 6 {
			r.secrets[m[2]] = r.placeholder("serial", m[2])
		}
	}
}

// placeholder returns what stands for a value.
func (r *redactor) placeholder(kind, value string) string {
	key := kind + "\x00" + strings.ToLower(value)
	if r.given[key] == "" {
		n := 1
		for other := range r.given {
			if strings.HasPrefix(other, kind+"\x00") {
				n++
			}
		}
		format := map[string]string{
			"uuid": "00000000-0000-0000-0000-%012d", "hex": "%032d", "mac": "00:00:00:00:00:%02x", "guid": "0000:0000:0000:%04x", "ip": "192.0.2.%d",
			"ipv6": "2001:db8::%x", "serial": "SERIAL-%d",
		}[kind]
		r.given[key] = fmt.Sprintf(format, n)
	}
	return r.given[key]
}

// redact returns a text without what identifies a machine.
func (r *redactor) redact(content string) string {
	content = r.paths.Replace(content)
	content = serial.ReplaceAllStringFunc(content, func(found string) string {
		m := serial.FindStringSubmatch(found)
		if strings.EqualFold(m[2], "N/A") {
			return found
		}
		return m[1] + r.placeholder("serial", m[2])
	})
	content = programName.ReplaceAllString(content, "${1}(a program)")
	// The longest first: one may be the begin of another.
	for _, secret := range slices.SortedFunc(maps.Keys(r.secrets), longest) {
		content = strings.ReplaceAll(content, secret, r.secrets[secret])
	}
	content = uuid.ReplaceAllStringFunc(content, func(v string) string { return r.placeholder("uuid", v) })
	content = hex32.ReplaceAllStringFunc(content, func(v string) string { return r.placeholder("hex", v) })
	content = colons.ReplaceAllStringFunc(content, r.colon)
	content = dotted.ReplaceAllStringFunc(content, r.ipv4)
	for _, name := range slices.SortedFunc(slices.Values(r.host), longest) {
		content = regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).ReplaceAllString(content, "this-machine")
	}
	return content
}

func longest(a, b string) int { return len(b) - len(a) }

// colon replaces a MAC address, a GUID or an IPv6 address.
func (r *redactor) colon(v string) string {
	trimmed := strings.Trim(v, ".")
	address, err := netip.ParseAddr(trimmed)
	switch {
	case mac.MatchString(trimmed):
		return strings.Replace(v, trimmed, r.placeholder("mac", trimmed), 1)
	case guid.MatchString(trimmed):
		return strings.Replace(v, trimmed, r.placeholder("guid", trimmed), 1)
	case err == nil && address.Is6() && !address.IsLoopback() && !address.IsUnspecified() && len(trimmed) > 4:
		return strings.Replace(v, trimmed, r.placeholder("ipv6", trimmed), 1)
	}
	return v
}

// ipv4 replaces an IPv4 address that is not of this machine alone. netip refuses most versions: with other than four numbers, a number
// above 255 or a zero before it.
func (r *redactor) ipv4(v string) string {
	address, err := netip.ParseAddr(v)
	if err != nil || address.IsLoopback() || address.IsUnspecified() {
		return v
	}
	return r.placeholder("ip", v)
}
