package conditions

import (
	"fmt"
	"regexp"
	"strings"
)

// Repair is the repair class of a finding: what the hardware needs, not what is done about it. Policy decides that.
// Larger is worse; the zero value means no class.
type Repair int

// The repair classes, weakest first.
const (
	// Monitor needs nothing; it is worth knowing.
	Monitor Repair = iota + 1
	// RestartApp needs the workload to be restarted; the hardware is fine.
	RestartApp
	// Inspect needs an inspection by an administrator or the vendor.
	Inspect
	// ResetGPU needs a GPU reset or a driver reload.
	ResetGPU
	// Reboot needs the node to be rebooted.
	Reboot
	// Replace needs hardware to be replaced.
	Replace
)

var repairNames = [...]string{"", "Monitor", "RestartApp", "Inspect", "ResetGPU", "Reboot", "Replace"}

// String returns the class as it stands in messages, labels and policies.
func (r Repair) String() string {
	if r < 0 || int(r) >= len(repairNames) {
		return fmt.Sprintf("Repair(%d)", int(r))
	}
	return repairNames[r]
}

// ParseRepair returns the class with the given name. The names are case-sensitive.
func ParseRepair(name string) (Repair, error) {
	for i, n := range repairNames {
		if i > 0 && n == name {
			return Repair(i), nil
		}
	}
	return 0, fmt.Errorf("%q is no repair class (Monitor, RestartApp, Inspect, ResetGPU, Reboot, Replace)", name)
}

// MarshalText writes the class by name, for JSON and YAML.
func (r Repair) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the class by name. An empty text is the zero value.
func (r *Repair) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*r = 0
		return nil
	}
	parsed, err := ParseRepair(string(text))
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}

// repairField begins a class in the JSON of a record. In a text of others its quotes would be escaped.
const repairField = `"repair":"`

// laterRepair is what a class of a later version may be called.
var laterRepair = regexp.MustCompile(`^[A-Z][A-Za-z]{2,31}$`)

// KnownRepairs returns the JSON of a record in which each class of a later version is Inspect: what it needs is not known, and a record
// that could not be read would keep its node out of service permanently.
func KnownRepairs(text string) string {
	parts := strings.Split(text, repairField)
	for i, part := range parts[1:] {
		name, rest, ended := strings.Cut(part, `"`)
		if _, err := ParseRepair(name); err != nil && ended && laterRepair.MatchString(name) {
			parts[i+1] = Inspect.String() + `"` + rest
		}
	}
	return strings.Join(parts, repairField)
}
