package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/facebook/time/ntp/control"
)

// askNTPd reads the system variables with NTP's control protocol (RFC 9327), which ntpd and ntpsec answer to the
// local host.
func (r *reader) askNTPd(ctx context.Context) (clock, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", r.ntpd)
	if err != nil {
		return clock{}, err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return clock{}, err
		}
	}
	client := control.NTPClient{Sequence: 1, Connection: conn}
	msg, err := client.Communicate(&control.NTPControlMsgHead{VnMode: control.MakeVnMode(2, control.Mode), REMOp: control.OpReadVariables})
	if err != nil {
		return clock{}, fmt.Errorf("ntpd at %s: %w", r.ntpd, err)
	}
	if !msg.IsResponse() || msg.HasError() || msg.GetOperation() != control.OpReadVariables {
		return clock{}, fmt.Errorf("ntpd at %s refuses to be read", r.ntpd)
	}
	vars, err := control.NormalizeData(msg.Data)
	if err != nil {
		return clock{}, fmt.Errorf("ntpd at %s: %w", r.ntpd, err)
	}
	c, err := parseVariables(vars)
	if err != nil {
		return clock{}, fmt.Errorf("ntpd at %s: %w", r.ntpd, err)
	}
	return c, nil
}

// parseVariables reads ntpd's system variables: offset, rootdelay and rootdisp in milliseconds, tc as the binary
// logarithm of the poll interval in seconds, reftime as an NTP timestamp.
func parseVariables(vars map[string]string) (c clock, err error) {
	number := func(name string, low, high float64) float64 {
		value, parseErr := strconv.ParseFloat(vars[name], 64)
		if parseErr != nil || !(value >= low && value <= high) {
			err = fmt.Errorf("variable %s is %.40q", name, vars[name])
		}
		return value
	}
	const day = 86400e3
	c.Leap = int(number("leap", 0, 3))
	// ntpsec writes the two bits of the leap indicator.
	switch vars["leap"] {
	case "00", "01", "10", "11":
		bits, _ := strconv.ParseUint(vars["leap"], 2, 2)
		c.Leap, err = int(bits), nil
	}
	c.Stratum = int(number("stratum", 0, 255))
	c.Offset = seconds(number("offset", -day, day) / 1e3).Abs()
	c.RootDelay = seconds(number("rootdelay", 0, day) / 1e3)
	c.RootDispersion = seconds(number("rootdisp", 0, day) / 1e3)
	c.Poll = seconds(float64(uint64(1) << uint(number("tc", 0, 32))))
	c.Local = strings.HasPrefix(vars["refid"], "127.127.") || vars["refid"] == "LOCL" || vars["refid"] == "LOCAL(0)"
	if err != nil {
		return clock{}, err
	}
	if c.Reference, err = parseTimestamp(vars["reftime"]); err != nil {
		return clock{}, fmt.Errorf("variable reftime: %w", err)
	}
	return c, nil
}

// parseTimestamp reads an NTP timestamp, 0x and 8 digits of seconds since 1900, a point and 8 digits of fraction.
func parseTimestamp(s string) (time.Time, error) {
	whole, fraction, found := strings.Cut(strings.TrimPrefix(s, "0x"), ".")
	sec, err := strconv.ParseUint(whole, 16, 32)
	if err != nil || !found {
		return time.Time{}, fmt.Errorf("%.40q is no timestamp", s)
	}
	frac, err := strconv.ParseUint(fraction, 16, 32)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.40q is no timestamp", s)
	}
	// Era 1 begins in 2036: what lies before 1968 is of that era (RFC 4330, 3).
	const from1900to1970, era = 2208988800, 1 << 32
	unix := int64(sec) - from1900to1970
	if sec < era/2 {
		unix += era
	}
	return time.Unix(unix, int64(frac*1e9>>32)).UTC(), nil
}
