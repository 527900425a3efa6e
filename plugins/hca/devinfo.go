package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// devinfo is the output of ibv_devinfo.
type devinfo struct {
	Ports []devinfoPort `json:"ports"`
	Err   string        `json:"err,omitempty"`
}

type devinfoPort struct {
	Device string `json:"device"`
	// Port is 0 for an adapter that shows no port.
	Port int `json:"port"`
	// State is the word, e.g. PORT_ACTIVE; "" if there is none.
	State string `json:"state"`
}

// stateLine is the value of `state:`, "PORT_ACTIVE (4)".
var stateLine = regexp.MustCompile(`^(PORT_[A-Z_]+) \(\d+\)$`)

// parseDevinfo reads the output of ibv_devinfo. The state of a port belongs to the port before it, that one to the
// adapter before it.
func parseDevinfo(out string) devinfo {
	d := devinfo{Ports: []devinfoPort{}}
	for line := range strings.Lines(out) {
		key, value, found := strings.Cut(line, ":")
		if !found {
			continue
		}
		value = strings.TrimSpace(value)
		last := len(d.Ports) - 1
		switch strings.TrimSpace(key) {
		case "hca_id":
			d.Ports = append(d.Ports, devinfoPort{Device: value})
		case "port":
			number, err := strconv.Atoi(value)
			if err != nil || last < 0 {
				continue
			}
			if d.Ports[last].Port == 0 {
				d.Ports[last].Port = number
			} else {
				d.Ports = append(d.Ports, devinfoPort{Device: d.Ports[last].Device, Port: number})
			}
		case "state":
			if m := stateLine.FindStringSubmatch(value); m != nil && last >= 0 && d.Ports[last].State == "" {
				d.Ports[last].State = m[1]
			}
		}
	}
	return d
}

// noAdapter is the line of a node without RDMA.
const noAdapter = "no InfiniBand, RoCE or EFA adapter here"

func (v *verdict) tool(d devinfo) {
	v.result.Healthy = "ports are as expected"
	if len(d.Ports) == 0 {
		v.result.Healthy = noAdapter
	}
	if d.Err != "" {
		v.result.NotRead("ibv_devinfo", d.Err)
	}
	for _, p := range d.Ports {
		subject := subject(p.Device, p.Port)
		switch {
		case len(v.Names) > 0 && !v.Names.has(p.Device, p.Port):
		case p.State == "":
			v.result.NotRead(subject, "ibv_devinfo shows no state")
		case p.State != "PORT_ACTIVE":
			v.absent(subject, fmt.Sprintf("state %s, expected PORT_ACTIVE", p.State))
		}
	}
	for _, name := range v.Names {
		if !slices.ContainsFunc(d.Ports, func(p devinfoPort) bool { return names{name}.has(p.Device, p.Port) }) {
			v.absent("hca "+name, "not there")
		}
	}
}
