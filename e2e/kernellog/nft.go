package kernellog

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// MaxLine is the longest line in bytes: a log prefix of nftables (NF_LOG_PREFIXLEN) less its end and a space.
const MaxLine = 126

// allNamespaces lets log statements outside the first network namespace write into the kernel log.
const allNamespaces = "/proc/sys/net/netfilter/nf_log_all_netns"

// OpenNFT makes the kernel itself write records, by a log statement of nftables in a network namespace of its own,
// in which the packet that triggers it is the only one. Their facility is 0 like the driver's; after the line comes
// a description of that packet. It needs root and the program nft (Debian package nftables).
func OpenNFT() (*Log, error) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		// The sbin folders are not in every user's PATH.
		if nft, err = exec.LookPath("/usr/sbin/nft"); err != nil {
			return nil, fmt.Errorf("nftables: %w", err)
		}
	}
	type rule struct {
		ctx  context.Context
		text string
	}
	rules := make(chan rule)
	installed := make(chan error)
	var conn net.PacketConn
	ready := make(chan error)
	go func() {
		// The namespace belongs to the thread and ends with it: it is never unlocked.
		runtime.LockOSThread()
		ready <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return os.NewSyscallError("unshare", err)
			}
			if err := loopbackUp(); err != nil {
				return err
			}
			// Not connected: a connected socket would report that no program listens.
			conn, err = (&net.ListenConfig{}).ListenPacket(context.Background(), "udp4", "127.0.0.1:0")
			return err
		}()
		for rule := range rules {
			installed <- run(rule.ctx, nft, rule.text)
		}
	}()
	if err := <-ready; err != nil {
		close(rules)
		return nil, fmt.Errorf("nftables: %w", err)
	}
	l := &Log{
		How:    "a record written by the kernel itself (nftables log)",
		Kernel: true,
		write: func(ctx context.Context, line string) (time.Time, error) {
			if strings.ContainsAny(line, "\"\n") {
				return time.Time{}, errors.New("nftables logs no double quote and no newline")
			}
			rules <- rule{ctx, fmt.Sprintf(ruleset, line)}
			if err := <-installed; err != nil {
				return time.Time{}, err
			}
			return trigger(conn)
		},
		close: func() error {
			close(rules)
			return conn.Close()
		},
	}
	return l, nil
}

// loopbackUp brings up lo in the namespace of this thread.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	lo, err := unix.NewIfreq("lo")
	if err == nil {
		lo.SetUint16(unix.IFF_UP)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
	}
	return os.NewSyscallError("bring up lo", errors.Join(err, unix.Close(fd)))
}

// ruleset makes a packet to the discard port log a line, in the place of the line before.
const ruleset = `table inet pitcrew
delete table inet pitcrew
table inet pitcrew {
	chain output {
		type filter hook output priority 0
		udp dport 9 log prefix "%s " level err
	}
}
`

func run(ctx context.Context, nft, rules string) error {
	cmd := exec.CommandContext(ctx, nft, "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w\n%s", err, out)
	}
	return nil
}

// discard is a port on which no program listens.
var discard = &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}

// trigger sends the packet. The output hook runs inside the send, so that the record is there when it returns and
// the setting can be restored immediately. The setting exists only in the first network namespace, where this runs.
func trigger(conn net.PacketConn) (at time.Time, err error) {
	unlock, err := lockSetting()
	if err != nil {
		return at, err
	}
	defer unlock()
	before, err := os.ReadFile(allNamespaces)
	if err != nil {
		return at, err
	}
	if err := os.WriteFile(allNamespaces, []byte("1\n"), 0); err != nil {
		return at, err
	}
	at = time.Now()
	_, err = conn.WriteTo([]byte("x"), discard)
	return at, errors.Join(err, os.WriteFile(allNamespaces, before, 0))
}

// lockSetting keeps every other program that uses this package from the setting.
func lockSetting() (unlock func(), err error) {
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "pitcrew-nf_log.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		lock.Close()
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return func() { lock.Close() }, nil
}
