package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// ntpMessage is the property NTPMessage of org.freedesktop.timesync1.Manager: the last answer of the server. Times
// are microseconds since 1970 (systemd src/timesync/timesyncd-bus.c, property_get_ntp_message).
type ntpMessage struct {
	Leap, Version, Mode, Stratum           uint32
	Precision                              int32
	RootDelay, RootDispersion              uint64
	Reference                              []byte
	Origin, Receive, Transmit, Destination uint64
	Ignored                                bool
	Packets, Jitter                        uint64
}

// askTimesyncd asks systemd-timesyncd, and does not start it.
func (r *reader) askTimesyncd(ctx context.Context) (clock, error) {
	conn, err := dbus.Connect("unix:path="+r.bus, dbus.WithContext(ctx))
	if err != nil {
		return clock{}, fmt.Errorf("system bus %s: %w", r.bus, err)
	}
	defer func() { _ = conn.Close() }()
	var properties map[string]dbus.Variant
	manager := conn.Object("org.freedesktop.timesync1", "/org/freedesktop/timesync1")
	err = manager.CallWithContext(ctx,
		"org.freedesktop.DBus.Properties.GetAll", dbus.FlagNoAutoStart, "org.freedesktop.timesync1.Manager").Store(&properties)
	if err != nil {
		return clock{}, fmt.Errorf("systemd-timesyncd: %w", err)
	}
	var message ntpMessage
	if err := property(properties, "NTPMessage", &message); err != nil {
		return clock{}, err
	}
	var poll uint64
	if err := property(properties, "PollIntervalUSec", &poll); err != nil {
		return clock{}, err
	}
	return message.clock(microseconds(poll)), nil
}

func property(properties map[string]dbus.Variant, name string, to any) error {
	value, found := properties[name]
	if !found {
		return errors.New("systemd-timesyncd has no property " + name)
	}
	if err := dbus.Store([]any{value}, to); err != nil {
		return fmt.Errorf("systemd-timesyncd: property %s: %w", name, err)
	}
	return nil
}

// clock turns the message of the server into what is known of this clock.
func (m ntpMessage) clock(poll time.Duration) clock {
	if m.Packets == 0 {
		return clock{Leap: 3, Poll: poll}
	}
	at := func(us uint64) time.Time { return time.UnixMicro(int64(us)) }
	origin, receive, transmit, destination := at(m.Origin), at(m.Receive), at(m.Transmit), at(m.Destination)
	return clock{
		Leap: int(m.Leap), Stratum: int(m.Stratum) + 1, Reference: destination, Poll: poll,
		Offset:         ((receive.Sub(origin) + transmit.Sub(destination)) / 2).Abs(),
		RootDelay:      microseconds(m.RootDelay) + destination.Sub(origin) - transmit.Sub(receive),
		RootDispersion: microseconds(m.RootDispersion),
	}
}

func microseconds(us uint64) time.Duration { return time.Duration(us) * time.Microsecond }
