// Command ntp answers for the NodeCondition ClockSkewed: whether the clock is synchronised, and how well.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("ntp", "checks the clock through chronyd, ntpd or systemd-timesyncd, with the kernel as witness")
	r := &reader{plugin: p, chrony: []string{"/run/chrony/chronyd.sock", "127.0.0.1:323"}}
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem, for boot id and uptime")
	p.StringVar(&r.daemon, "daemon", auto, "`name` of the daemon that must answer: chronyd, ntpd, timesyncd, or auto for the first that does")
	flags.List(p.FlagSet, &r.chrony, "chrony",
		"`list` of command sockets of chronyd; a unix socket needs root and a writable folder, UDP the host's network", nil)
	p.StringVar(&r.ntpd, "ntpd", "127.0.0.1:123", "`address` of ntpd or ntpsec")
	p.StringVar(&r.bus, "dbus", "/run/dbus/system_bus_socket", "`path` of the system bus, for systemd-timesyncd")

	l := &limits{plugin: p}
	p.BoolVar(&l.ServiceOnly, "service-only", false, "judge only whether the daemon answers")
	p.DurationVar(&l.Offset, "max-offset", 10*time.Millisecond, "largest offset from NTP time", 100*time.Nanosecond, time.Hour)
	p.DurationVar(&l.Error, "max-error", 100*time.Millisecond, "largest possible error: offset + root delay/2 + root dispersion",
		100*time.Nanosecond, time.Hour)
	p.DurationVar(&l.Age, "max-age", 15*time.Minute, "oldest update from a server; 4 poll intervals if that is more",
		time.Second, flags.Year)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge, Clear: r.clear})
}
