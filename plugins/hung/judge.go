package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

type limits struct{ mount, service time.Duration }

// slow is how long a server may take to answer without being called slow: less is load.
const slow = 30 * time.Second

// lost are the errors with which a client gives up a server, or a filesystem that its server no longer has.
var lost = []syscall.Errno{
	syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.ESHUTDOWN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
	syscall.ECONNREFUSED, syscall.ECONNABORTED, syscall.EREMOTEIO, syscall.ENXIO, syscall.ENODEV,
}

func (l *limits) judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "the servers of all mounts answer"}
	if len(s.Mounts) == 0 {
		result.Healthy = "no mount of a server"
	}
	for _, m := range s.Mounts {
		l.ask(s, m, &result)
	}
	if s.Left > 0 {
		result.Found(conditions.Monitor, "mounts", fmt.Sprintf("not all were asked, only the first %d filesystems", len(s.Mounts)))
	}
	if s.Unknown > 0 {
		result.Found(conditions.Monitor, "mount table", "not all lines were understood")
	}
	seen := map[string]bool{}
	for _, t := range s.Asleep {
		result.Unconfirmed = true
		if seen[t.Service] || s.Boot.Uptime-t.Since < l.service {
			continue
		}
		seen[t.Service] = true
		in := ""
		if t.In != "" {
			in = " in " + t.In
		}
		text := fmt.Sprintf("a thread has slept%s for more than %s without a break (state D)", in, l.service)
		result.Found(conditions.Inspect, "service "+t.Service, text)
	}
	if s.Unread != "" {
		result.NotRead("services", s.Unread)
	}
	result.Unshared(s.Unkept)
	return result
}

func (l *limits) ask(s snapshot, m mount, result *npd.Result) {
	subject, server := "mount "+m.Point, fmt.Sprintf("%s (%s)", m.Source, m.Type)
	waits := s.Boot.Uptime - m.Since
	switch {
	case m.Unasked != "":
		result.NotRead(subject, m.Unasked)
	case m.Since > 0 && waits >= l.mount:
		result.Found(conditions.Inspect, subject, fmt.Sprintf("%s has not answered for more than %s", server, l.mount))
	case m.Since > 0 && waits >= slow:
		result.NotRead(subject, fmt.Sprintf("%s has not answered for more than %s", server, slow))
		result.Unconfirmed = true
	case m.Since > 0:
		result.Unconfirmed = true
	case slices.Contains(lost, m.Errno) && strings.HasPrefix(m.Point, s.Kubelet+"/pods/"):
		// The pod has the error already, and ends with its volume.
		result.Found(conditions.Monitor, subject, server+": "+m.Errno.Error())
	case slices.Contains(lost, m.Errno):
		result.Found(conditions.Inspect, subject, server+": "+m.Errno.Error())
	case m.Errno == syscall.ENOENT, m.Errno == syscall.ENOTDIR, m.Errno == 0: // unmounted since
	default:
		result.Found(conditions.Monitor, subject, server+" could not be asked: "+m.Errno.Error())
	}
}
