package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/facebook/time/ntp/chrony"

	"github.com/pitcrew-dev/pitcrew/internal/bounded"
)

// askChronyd asks for the tracking report, at the first command socket that answers. One that says nothing, such as a socket beside which
// chronyd may not reach ours, leaves the others their share of the time.
func (r *reader) askChronyd(ctx context.Context) (clock, error) {
	if len(r.chrony) == 0 {
		return clock{}, errors.New("-chrony names no command socket of chronyd")
	}
	var errs []error
	for i, address := range r.chrony {
		c, err := trackingWithin(ctx, len(r.chrony)-i, address)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return clock{}, errors.Join(errs...)
}

// trackingWithin is tracking within a share of the time that ctx has left.
func trackingWithin(ctx context.Context, shares int, address string) (clock, error) {
	ctx, cancel := bounded.Share(ctx, shares)
	defer cancel()
	return tracking(ctx, address)
}

func tracking(ctx context.Context, address string) (clock, error) {
	conn, err := dialChronyd(ctx, address)
	if err != nil {
		return clock{}, err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return clock{}, err
		}
	}
	client := chrony.Client{Connection: conn, Sequence: 1}
	packet, err := client.Communicate(chrony.NewTrackingPacket())
	if err != nil {
		return clock{}, fmt.Errorf("chronyd at %s: %w", address, err)
	}
	reply, ok := packet.(*chrony.ReplyTracking)
	if !ok {
		return clock{}, fmt.Errorf("chronyd at %s answered with %T", address, packet)
	}
	t := reply.Tracking
	return clock{
		Leap: int(t.LeapStatus), Stratum: int(t.Stratum), Reference: t.RefTime,
		// 127.127.x.x is the local reference (chrony.conf(5), local).
		Local: t.RefID>>16 == 0x7f7f,
		Poll:  seconds(t.LastUpdateInterval),
		// The correction shrinks while chronyd slews, so the offset of the last update counts too.
		Offset:    max(seconds(t.CurrentCorrection).Abs(), seconds(t.LastOffset).Abs()),
		RootDelay: seconds(t.RootDelay), RootDispersion: seconds(t.RootDispersion),
	}, nil
}

// dialChronyd connects to a unix socket or, if the address is no path, to a UDP port.
func dialChronyd(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	if !strings.HasPrefix(address, "/") {
		return dialer.DialContext(ctx, "udp", address)
	}
	if _, err := os.Stat(address); err != nil {
		return nil, err
	}
	// chronyd answers to the client's own socket, which must be where chronyd may reach it, and open to its user.
	own := filepath.Join(filepath.Dir(address), fmt.Sprintf("pitcrew.%d.%d.sock", os.Getpid(), time.Now().UnixNano()))
	dialer.LocalAddr = &net.UnixAddr{Name: own, Net: "unixgram"}
	conn, err := dialer.DialContext(ctx, "unixgram", address)
	if err != nil {
		// A failed connect leaves the bound socket behind.
		return nil, errors.Join(err, removeIfThere(own))
	}
	if err := os.Chmod(own, 0o666); err != nil {
		return nil, errors.Join(err, conn.Close(), removeIfThere(own))
	}
	return unixConn{conn, own}, nil
}

// unixConn removes the client's own socket.
type unixConn struct {
	net.Conn
	own string
}

func (c unixConn) Close() error { return errors.Join(c.Conn.Close(), removeIfThere(c.own)) }

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
