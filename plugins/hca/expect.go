package main

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	_ "embed"

	"github.com/pitcrew-dev/pitcrew/internal/instances"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/table"
)

//go:embed data/profiles.csv
var profilesCSV []byte

// unset is the value of a number that was not given. 0 means none.
const unset = -1

// profile is one row of data/profiles.csv.
type profile struct {
	Name  string
	Ports int
	// EFA is the number of EFA devices of an instance type.
	EFA int
	// Rate is in Gb/s.
	Rate float64
}

// MarshalText returns the profile's name.
func (p profile) MarshalText() ([]byte, error) { return []byte(p.Name), nil }

// UnmarshalText finds the profile of a name, which may be an instance type.
func (p *profile) UnmarshalText(name []byte) error {
	if i, found, err := instances.Find(instances.Builtin, string(name)); err != nil || found {
		*p = profile{Name: string(name), EFA: i.EFA}
		return err
	}
	all, err := profiles()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(p profile) bool { return p.Name == string(name) })
	if i < 0 {
		return fmt.Errorf("no profile %q", name)
	}
	*p = all[i]
	return nil
}

func profiles() ([]profile, error) {
	rows, err := table.Rows(profilesCSV, "profile", "ports", "rate")
	if err != nil {
		return nil, err
	}
	var all []profile
	for _, row := range rows {
		p := profile{Name: row[0]}
		var errPorts, errRate error
		p.Ports, errPorts = strconv.Atoi(row[1])
		p.Rate, errRate = strconv.ParseFloat(row[2], 64)
		for _, err := range []error{errPorts, errRate} {
			if err != nil {
				return nil, fmt.Errorf("profile %s: %w", p.Name, err)
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// names are adapters (mlx5_0) or ports (mlx5_0:1).
type names []string

// has reports whether the port is in the list, by itself or through its adapter.
func (n names) has(device string, port int) bool {
	return slices.Contains(n, device) || slices.Contains(n, fmt.Sprintf("%s:%d", device, port))
}

// expectation is what is asked of the node.
type expectation struct {
	plugin *npd.Plugin

	Names     names
	Count     int
	Rate      float64
	Link      string
	EFA       int
	Profile   profile
	DropAfter time.Duration
	// Flaps is how many losses of the link are too many.
	Flaps int
	// SymbolErrors is the most symbol errors per hour.
	SymbolErrors uint64
}
