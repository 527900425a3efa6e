package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// tester tests a pair: by a command, or over TCP.
type tester struct {
	// command is a shell command whose output has the bandwidth as first group of pattern; scale converts it to GiB/s.
	command string
	pattern *regexp.Regexp
	scale   float64
	// timeout is the time limit of a test. duration is how long the TCP test sends in each direction.
	timeout, duration time.Duration
}

func (t tester) test(ctx context.Context, served net.Listener, self netip.Addr, o order) result {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	r := result{Status: report.OK}
	var err error
	if t.command != "" {
		r.Bandwidth, err = t.run(ctx, self, o)
	} else {
		r.Bandwidth, err = t.tcp(ctx, served, o)
	}
	switch {
	case errors.Is(err, errNoBandwidth), endedByOthers(ctx, err):
		r.Status = report.Skip // the other end measures, or none does
	case err != nil:
		r.Status = report.Fail
	}
	slog.Info("Tested a pair", "round", o.Round, "peer", o.Peer.Addr(), "GiB/s", fmt.Sprintf("%.3f", r.Bandwidth), "err", err)
	return r
}

// endedByOthers reports whether something else than its time limit has ended a test: the pod is being deleted, or the kernel had no memory
// left. That shows nothing about the pair.
func endedByOthers(ctx context.Context, err error) bool {
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(ctx.Err(), context.DeadlineExceeded):
		return false
	case ctx.Err() != nil:
		return true
	case !errors.As(err, &exit):
		return false
	}
	signal := syscall.Signal(exit.ExitCode() - 128) // a shell says so of what it has run
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		signal = status.Signal()
	}
	return signal == syscall.SIGKILL || signal == syscall.SIGTERM
}

// errNoBandwidth: the command succeeded, but its output does not match the pattern.
var errNoBandwidth = errors.New("the command printed no bandwidth")

func (t tester) run(ctx context.Context, self netip.Addr, o order) (float64, error) {
	cmd := shell(ctx, t.command)
	cmd.Env = append(os.Environ(),
		"PREFLIGHT_PEER="+o.Peer.Addr().String(), "PREFLIGHT_SELF="+self.String(),
		"PREFLIGHT_SERVER="+strconv.FormatBool(o.Serve), "PREFLIGHT_ROUND="+strconv.Itoa(o.Round))
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("run the pair command: %w", err)
	}
	return t.read(out)
}

func (t tester) read(out []byte) (float64, error) {
	text, found := number(t.pattern, out)
	if !found {
		return 0, errNoBandwidth
	}
	v, err := strconv.ParseFloat(string(bytes.TrimSpace(text)), 64)
	if err != nil || !(v > 0 && v*t.scale <= 1e5) { // NaN is neither
		return 0, fmt.Errorf("the pair command's bandwidth is %.40q", text)
	}
	return v * t.scale, nil
}

// tcp measures both directions one after the other. Both ends exchange their results and report the smaller one, because a
// node that only sends slowly is slow.
func (t tester) tcp(ctx context.Context, served net.Listener, o order) (float64, error) {
	conn, err := t.connect(ctx, served, o)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return 0, err
	}
	var mine, theirs float64
	steps := []func() error{
		func() error { return latency(conn, o) },
		func() error { return send(conn, t.duration) },
		func() (err error) { mine, err = receive(conn); return err },
		func() error { return binary.Write(conn, binary.BigEndian, mine) },
		func() error { return binary.Read(conn, binary.BigEndian, &theirs) },
	}
	if o.Serve {
		steps[1], steps[2] = steps[2], steps[1]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return 0, fmt.Errorf("test with %s: %w", o.Peer.Addr(), err)
		}
	}
	if low := min(mine, theirs); low > 0 {
		return low, nil
	}
	return 0, errors.New("no data was transferred")
}

// connect returns a connection to the peer. The connecting end sends the round first, so that a connection of an earlier
// test is not mistaken for this one.
func (t tester) connect(ctx context.Context, served net.Listener, o order) (net.Conn, error) {
	round := int64(o.Round)
	if !o.Serve {
		conn, _, err := dial(ctx, at(o.Peer.String()), t.timeout)
		if err != nil {
			return nil, err
		}
		return conn, binary.Write(conn, binary.BigEndian, round)
	}
	deadline, _ := ctx.Deadline()
	if err := served.(*net.TCPListener).SetDeadline(deadline); err != nil {
		return nil, err
	}
	for {
		conn, err := served.Accept()
		if err != nil {
			return nil, fmt.Errorf("wait for %s: %w", o.Peer.Addr(), err)
		}
		var theirs int64
		from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		if err == nil {
			err = conn.SetDeadline(deadline)
		}
		if err == nil && from.Addr().Unmap() == o.Peer.Addr() {
			if err = binary.Read(conn, binary.BigEndian, &theirs); err == nil && theirs == round {
				return conn, nil
			}
		}
		conn.Close()
	}
}

// latency sends a byte back and forth and logs the median round trip.
func latency(conn net.Conn, o order) error {
	var b [1]byte
	var trips []time.Duration
	for range 11 {
		start := time.Now()
		turns := []func([]byte) (int, error){conn.Write, conn.Read}
		if o.Serve {
			slices.Reverse(turns)
		}
		for _, turn := range turns {
			if _, err := turn(b[:]); err != nil {
				return err
			}
		}
		trips = append(trips, time.Since(start))
	}
	slices.Sort(trips)
	if !o.Serve {
		slog.Info("Round trip", "round", o.Round, "peer", o.Peer.Addr(), "median", trips[len(trips)/2])
	}
	return nil
}

// A stream is chunks of [more][payload], ended by [last].
const (
	last, more = 0, 1
	chunk      = 256 << 10
)

func send(w io.Writer, d time.Duration) error {
	buffer := make([]byte, 1+chunk)
	buffer[0] = more
	for end := time.Now().Add(d); time.Now().Before(end); {
		if _, err := w.Write(buffer); err != nil {
			return err
		}
	}
	_, err := w.Write([]byte{last})
	return err
}

// receive reads a stream and returns its bandwidth in GiB/s.
func receive(r io.Reader) (float64, error) {
	buffer := make([]byte, chunk)
	var start time.Time
	total := 0
	for {
		if _, err := io.ReadFull(r, buffer[:1]); err != nil {
			return 0, err
		}
		if start.IsZero() {
			start = time.Now()
		}
		if buffer[0] == last {
			return float64(total) / (1 << 30) / time.Since(start).Seconds(), nil
		}
		n, err := io.ReadFull(r, buffer)
		total += n
		if err != nil {
			return 0, err
		}
	}
}
