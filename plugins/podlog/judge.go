package main

import (
	"fmt"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// judge finds nothing worse than Inspect, because a tenant can write any line into a log. NVML, the PCI bus and the kernel
// log, which a tenant cannot write, have their own checks.
func judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "no GPU fault in the logs of the watched namespaces"}
	if len(s.Namespaces) == 0 {
		result.Healthy = "no namespace is watched"
	}
	c := newClassifier(s.Patterns, s.Window)
	for _, e := range s.Episodes {
		if f, ok := c.judge(e, s.Episodes); ok {
			result.Found(f.Repair, f.Subject, f.Text)
		}
	}
	if s.Lost > 0 {
		result.Found(conditions.Monitor, allLogs, "some were gone before they were read to their end")
	}
	if s.Malformed > 0 {
		result.Found(conditions.Monitor, allLogs, "lines that are not of the CRI's form were passed over")
	}
	result.Unshared(s.Unshared)
	for _, u := range s.Unread {
		result.NotRead(u.Subject, u.Why)
	}
	return result
}

// classifier gives an episode its class.
type classifier struct {
	patterns map[string]pattern
	window   time.Duration
}

func newClassifier(patterns []pattern, window time.Duration) classifier {
	c := classifier{make(map[string]pattern, len(patterns)), window}
	for _, p := range patterns {
		c.patterns[p.Name] = p
	}
	return c
}

// judge returns the finding of an episode among all of this node; ok is false while it has too few lines.
//
// Who logged first: of the processes of a failed job only one names its own fault, and the others name each other. One
// node cannot see what the others logged, so "first" here means what this node can know. A device's fault counts
// fully unless
//   - the line came from another process, perhaps on another node (see [relayedLine]), or
//   - a pod of the same namespace on this node logged the fault of a peer within the window before it: then this node was
//     a victim first.
//
// The times are those that the container runtime of this node put before the lines, so they compare.
func (c classifier) judge(e episode, all episodes) (f conditions.Finding, ok bool) {
	p, known := c.patterns[e.Pattern]
	if !known || e.Count < p.Count {
		return f, false
	}
	f = conditions.Finding{Repair: p.Repair, Subject: e.subject(), Text: p.Text}
	if p.Role == xidText {
		entry, _ := xid.Lookup(e.Xid)
		f.Repair = min(f.Repair, entry.Repair)
		f.Text = fmt.Sprintf("Xid %d %s", e.Xid, entry.Text)
	}
	switch {
	case e.Relayed:
		f.Repair, f.Text = conditions.Monitor, f.Text+", relayed from another process"
	case (p.Role == hardware || p.Role == xidText) && c.victim(e, all):
		f.Repair, f.Text = conditions.Monitor, f.Text+", after the fault of a peer"
	}
	return f, true
}

func (c classifier) victim(e episode, all episodes) bool {
	for _, o := range all {
		if o.Namespace != e.Namespace || !o.First.Before(e.First) || o.Last.Before(e.First.Add(-c.window)) {
			continue
		}
		if p := c.patterns[o.Pattern]; p.Role == peer && o.Count >= p.Count {
			return true
		}
	}
	return false
}
