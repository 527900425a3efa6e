package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/schedule"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

// The ranks meet at rank 0 (ADR 10): every rank, 0 included, keeps one connection to it. Rank 0 creates the run id, orders
// the tests and receives the results. Messages are JSON values, one after the other.

// hello is the first message of a rank.
type hello struct {
	Rank int
	Node string
	Leaf string
	// Bad: a local check has failed, so the rank takes part in no test.
	Bad bool
	// Port is where it accepts pair tests.
	Port int
	// Leader is the UID of the pod of rank 0 for which this hello is; empty: not known.
	Leader types.UID
}

// order is a message of rank 0.
type order struct {
	// Run is the run id, in the first order.
	Run string
	// Test orders a pair test in a round.
	Test  bool
	Round int
	Peer  netip.AddrPort
	// Serve: the peer connects to this rank.
	Serve bool
	// Done ends the run. Slow is the verdict of rank 0 about this node.
	Done, Slow bool
}

// result answers an order to test.
type result struct {
	Status    report.Status
	Bandwidth float64
}

// member is a rank that has connected to rank 0.
type member struct {
	hello
	conn net.Conn
	in   *json.Decoder
	addr netip.Addr
	lost bool
}

func (m *member) send(o order) {
	if m.lost {
		return
	}
	if err := json.NewEncoder(m.conn).Encode(o); err != nil {
		m.markLost(err)
	}
}

func (m *member) markLost(err error) {
	m.lost = true
	slog.Warn("Lost the connection to a rank", "rank", m.Rank, "node", m.Node, "err", err)
}

// lead is what rank 0 does in addition to [follow]: it waits for the ranks and runs the rounds. Ranks that do not connect are
// left out. The remediator reports them as missing.
func lead(ctx context.Context, l net.Listener, o options) error {
	members, err := gather(ctx, l, o)
	if err != nil {
		return err
	}
	var id [8]byte
	if _, err := rand.Read(id[:]); err != nil {
		return fmt.Errorf("create a run id: %w", err)
	}
	run := hex.EncodeToString(id[:])
	var reports []report.Report
	var leaf []string
	leafOf := map[string]string{}
	for _, m := range members {
		defer m.conn.Close()
		m.send(order{Run: run})
		r := report.Report{Size: o.group.size, Rank: m.Rank, Node: m.Node, IP: m.addr, Threshold: o.threshold}
		if m.Bad {
			r.GPU = report.Failed
		}
		reports, leaf = append(reports, r), append(leaf, m.Leaf)
		leafOf[m.Node] = m.Leaf
	}
	if slices.Contains(leaf, "") {
		leaf = nil
	}
	slog.Info("The ranks are connected", "run", run, "ranks", len(members), "of", o.group.size)
	rounds := schedule.Rounds(len(members), o.rounds, binary.BigEndian.Uint64(id[:]), leaf)
	for round, pairs := range rounds {
		test(members, reports, round, pairs, o)
	}
	for extra := range o.adaptive {
		var pairs [][2]int
		for _, p := range verdict.Next(reports) {
			pairs = append(pairs, [2]int{byNode(members, p[0]), byNode(members, p[1])})
		}
		if len(pairs) == 0 {
			break
		}
		test(members, reports, len(rounds)+extra, pairs, o)
	}
	v := verdict.Judge(run, reports, verdict.Options{Leaf: leafOf})
	for _, m := range members {
		slow := slices.ContainsFunc(v.Slow, func(s verdict.Slow) bool { return s.Node == m.Node })
		m.send(order{Done: true, Slow: slow})
	}
	slog.Info("The run has ended", "run", run, "slow", v.Slow, "fabric", v.Fabric)
	return nil
}

func byNode(members []*member, node string) int {
	return slices.IndexFunc(members, func(m *member) bool { return m.Node == node })
}

// gather waits until all ranks have connected, at most for the meet timeout.
func gather(ctx context.Context, l net.Listener, o options) ([]*member, error) {
	defer l.Close()
	ctx, cancel := context.WithTimeout(ctx, o.meetTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	arrived := make(chan *member)
	go func() {
		defer close(arrived)
		var reading sync.WaitGroup
		for {
			conn, err := l.Accept()
			if err != nil { // closed
				reading.Wait()
				return
			}
			reading.Go(func() {
				if m := readHello(conn, o); m != nil {
					select {
					case arrived <- m:
					case <-ctx.Done():
						conn.Close()
					}
				}
			})
		}
	}()
	byRank := map[int]*member{}
	for len(byRank) < o.group.size {
		m, ok := <-arrived
		if !ok {
			break
		}
		if before := byRank[m.Rank]; before != nil { // its container has restarted
			before.conn.Close()
		}
		byRank[m.Rank] = m
	}
	if len(byRank) == 0 {
		return nil, fmt.Errorf("no rank connected within %s: %w", o.meetTimeout, context.Cause(ctx))
	}
	var members []*member
	for _, m := range byRank {
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b *member) int { return a.Rank - b.Rank })
	return members, nil
}

// readHello reads the hello of a rank; nil when the connection is not from a rank of this run.
func readHello(conn net.Conn, o options) *member {
	m := &member{conn: conn, in: json.NewDecoder(conn)}
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err == nil {
		err = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	}
	if err == nil {
		err = m.in.Decode(&m.hello)
	}
	if err == nil && (m.Rank < 0 || m.Rank >= o.group.size || m.Port < 1 || m.Port > 65535) {
		err = fmt.Errorf("rank %d, port %d", m.Rank, m.Port)
	}
	// On a host network the rank 0 that it looks for may be of another job with the same port; and an earlier pod may have had this address.
	if err == nil && m.Leader != "" && o.pod != "" && m.Leader != o.pod {
		err = fmt.Errorf("rank %d of another job, on node %s: it is looking for the pod with UID %s", m.Rank, m.Node, m.Leader)
	}
	if err != nil {
		slog.Warn("Closed a connection that is not from a rank of this run", "from", conn.RemoteAddr(), "err", err)
		conn.Close()
		return nil
	}
	m.addr = remote.Addr().Unmap()
	return m
}

// resultGrace is how long rank 0 waits for a result after the time limit of its test.
const resultGrace = 15 * time.Second

// test runs one round and adds its results to the reports. Pairs are indices of members.
func test(members []*member, reports []report.Report, round int, pairs [][2]int, o options) {
	var done sync.WaitGroup
	for _, p := range pairs {
		a, b := members[p[0]], members[p[1]]
		if a.Bad || b.Bad || a.lost || b.lost {
			continue
		}
		a.send(order{Test: true, Round: round, Peer: netip.AddrPortFrom(b.addr, uint16(b.Port)), Serve: true})
		b.send(order{Test: true, Round: round, Peer: netip.AddrPortFrom(a.addr, uint16(a.Port))})
		for _, i := range p {
			done.Go(func() {
				m := members[i]
				var r result
				err := m.conn.SetReadDeadline(time.Now().Add(o.pair.timeout + resultGrace))
				if err == nil {
					err = m.in.Decode(&r)
				}
				if err != nil {
					m.markLost(err)
					return
				}
				reports[i].Batches = append(reports[i].Batches, batch(round, m.addr, a.addr, b.addr, r))
			})
		}
	}
	done.Wait()
}

func batch(round int, self, a, b netip.Addr, r result) report.Batch {
	if b.Less(a) {
		a, b = b, a
	}
	return report.Batch{Index: round, Pair: [2]netip.Addr{a, b}, Self: self, Status: r.Status, Bandwidth: r.Bandwidth}
}

// follow is what every rank does: it connects to rank 0, runs the ordered tests and fills its report.
func follow(ctx context.Context, o options, leader func(context.Context) (rank0, error), r *report.Report) (slow bool, err error) {
	served, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":0")
	if err != nil {
		return false, fmt.Errorf("listen for pair tests: %w", err)
	}
	defer served.Close()
	conn, pod, err := dial(ctx, leader, o.meetTimeout)
	if err != nil {
		return false, fmt.Errorf("connect to rank 0: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	local, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return false, fmt.Errorf("connect to rank 0: %w", err)
	}
	r.IP = local.Addr().Unmap()
	out, in := json.NewEncoder(conn), json.NewDecoder(conn)
	if err := out.Encode(hello{o.group.rank, o.node, o.leaf, r.FailFast(), served.Addr().(*net.TCPAddr).Port, pod}); err != nil {
		return false, fmt.Errorf("connect to rank 0: %w", err)
	}
	for {
		// Other ranks may be testing between two orders, so there is no deadline. The connection is closed when rank 0 ends.
		var next order
		if err := in.Decode(&next); err != nil {
			return false, fmt.Errorf("wait for an order of rank 0: %w", err)
		}
		switch {
		case next.Run != "":
			r.RunID = next.Run
		case next.Done:
			return next.Slow, nil
		case next.Test:
			got := o.pair.test(ctx, served, r.IP, next)
			r.Batches = append(r.Batches, batch(next.Round, r.IP, r.IP, next.Peer.Addr(), got))
			if err := out.Encode(got); err != nil {
				return false, fmt.Errorf("send a result to rank 0: %w", err)
			}
		}
	}
}

// rank0 is where rank 0 listens, as host:port, and the UID of its pod; empty: not known.
type rank0 struct {
	address string
	pod     types.UID
}

// at is an address that does not change, for [dial].
func at(address string) func(context.Context) (rank0, error) {
	return func(context.Context) (rank0, error) { return rank0{address: address}, nil }
}

// dial tries until it has a connection to rank 0, or until waiting does not help: the pods of a job do not start at the same time, and DNS
// names resolve late. It returns the UID of the pod of rank 0, too.
func dial(ctx context.Context, find func(context.Context) (rank0, error), limit time.Duration) (net.Conn, types.UID, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	retry := time.NewTicker(200 * time.Millisecond)
	defer retry.Stop()
	for {
		var conn net.Conn
		leader, err := find(ctx)
		if err == nil {
			conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", leader.address)
		}
		if err == nil || isFinal(err) {
			return conn, leader.pod, err
		}
		select {
		case <-ctx.Done():
			return nil, "", err
		case <-retry.C:
		}
	}
}
