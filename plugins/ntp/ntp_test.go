package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

const (
	fine   = "exit 0\nclock is synchronised\n"
	unsync = "exit 1\nInspect clock: chronyd is not synchronised\n"
	skewed = "exit 1\nInspect clock: offset of more than 10ms by chronyd\n"
)

func TestASynchronisedClock(t *testing.T) {
	n := newNode(t)
	n.server()
	n.client("0.0")
	n.until(fine)
	// The UDP port serves those who may not write beside the socket.
	n.want(fine, "-chrony", n.path("nothing")+",127.0.0.1:323")
	n.want("exit 0\nchronyd answers\n", "-service-only")
	n.want("exit 1\nInspect clock: ntpd does not answer\n", "-daemon", "ntpd")
	n.want("exit 2\nunknown: no time daemon \"sundial\"\n", "-daemon", "sundial")
	if left, err := filepath.Glob(n.path("client/pitcrew*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// silence is a command socket at which nobody answers.
func silence(t *testing.T, n *node) string {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.path("silence.sock"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return n.path("silence.sock")
}

func TestASilentCommandSocketHidesNoOther(t *testing.T) {
	n := newNode(t)
	n.server()
	n.client("0.025")
	silent := silence(t, n)
	n.until(skewed)
	n.want(skewed, "-chrony", silent+","+n.path("client/chronyd.sock"))
	n.want("exit 1\nInspect clock: chronyd does not answer any more\n", "-chrony", silent)
	n.want("exit 1\nInspect clock: chronyd does not answer\n", "-chrony", silent, "-daemon", "chronyd")
}

func TestAClockThatIsOff(t *testing.T) {
	tests := map[string]struct {
		offset string
		args   []string
		want   string
	}{
		"slow by 25 ms":                {"0.025", nil, skewed},
		"fast by 150 ms":               {"-0.150", nil, skewed},
		"allowed to be off":            {"0.025", []string{"-max-offset", "30ms"}, fine},
		"allowed, but with this error": {"-0.150", []string{"-max-offset", "1s"}, "exit 1\nInspect clock: may be wrong by more than 100ms by chronyd\n"},
		"service only":                 {"-0.150", []string{"-service-only"}, "exit 0\nchronyd answers\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.server()
			n.client(test.offset)
			n.until(test.want, test.args...)
		})
	}
}

func TestAClockThatWasNeverSynchronised(t *testing.T) {
	n := newNode(t)
	n.client("0.0")
	n.until(unsync)
	n.want("exit 2\nunknown: clock: chronyd is not synchronised, but the node has only just booted\n", "-grace", "8760h")
}

// TestADeadServer is about stale data: without its server chronyd keeps reporting Normal and the last offset.
func TestADeadServer(t *testing.T) {
	n := newNode(t)
	stop := n.server()
	n.client("0.0")
	n.until(fine)
	stop()
	n.want(fine) // for a quarter of an hour
	n.until("exit 1\nInspect clock: chronyd has had no update from a server for too long\n", "-max-age", "1s")
}

func TestADeadDaemon(t *testing.T) {
	n := newNode(t)
	n.server()
	stop := n.client("0.0")
	n.until(fine)
	stop()
	n.want("exit 1\nInspect clock: chronyd does not answer any more\n")
	n.want("exit 0\ncleared chronyd\n", "-clear")
}

func TestADaemonThatIsMissing(t *testing.T) {
	n := newNode(t)
	n.want("exit 1\nInspect clock: chronyd does not answer\n", "-daemon", "chronyd")
	n.want("exit 2\nunknown: clock: chronyd does not answer, but the node has only just booted\n", "-daemon", "chronyd", "-grace", "8760h")
}

func TestALocalReferenceIsNoReference(t *testing.T) {
	n := newNode(t)
	n.chronyd("client", "local stratum 5\nport 0")
	n.until("exit 1\nInspect clock: chronyd takes the node's own clock for its reference\n")
}

// TestNTPd asks a real ntpsec, whose server is in another network, because two ntpd cannot share port 123.
func TestNTPd(t *testing.T) {
	n := newNode(t)
	chronyd := n.write("chronyd.conf", "local stratum 2\nallow\ncmdport 0\nbindcmdaddress /\npidfile "+n.path("server.pid"))
	n.start("sh", "-c", `
		unshare --net sh -c "echo \$\$ >`+n.path("pid")+`
			until ip link set vs up 2>&-; do sleep 0.05; done
			ip addr add 10.99.0.1/24 dev vs
			exec `+debian(t, "usr/sbin/chronyd")+` -x -d -u root -f `+chronyd+`" &
		until [ -s `+n.path("pid")+` ]; do sleep 0.05; done
		ip link add vc type veth peer name vs netns $(cat `+n.path("pid")+`)
		ip addr add 10.99.0.2/24 dev vc && ip link set vc up && wait`)
	conf := n.write("ntp.conf", "restrict default\nrestrict 127.0.0.1\nserver 10.99.0.1 iburst minpoll 3 maxpoll 3\n")
	stop := n.start(debian(t, "usr/sbin/ntpd"), "-n", "-c", conf)
	n.until("exit 1\nInspect clock: ntpd is not synchronised\n")
	n.until(fine, "-max-error", "1s")
	stop()
	n.want("exit 1\nInspect clock: ntpd does not answer any more\n")
}

// TestTimesyncd asks the real systemd-timesyncd over a bus of its own.
func TestTimesyncd(t *testing.T) {
	n := newNode(t)
	n.server()
	bus := n.write("bus.conf", `<busconfig><listen>unix:path=`+n.path("bus")+`</listen><auth>EXTERNAL</auth><policy context="default">
		<allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`)
	n.start("dbus-daemon", "--nofork", "--nopidfile", "--config-file", bus)
	n.until("exit 1\nInspect clock: timesyncd does not answer\n", "-daemon", "timesyncd")
	n.start("sh", "-c", `mkdir -p /run/systemd/timesyncd.conf.d /run/systemd/netif
		echo OPER_STATE=routable >/run/systemd/netif/state
		printf '[Time]\nNTP=127.0.0.2\n' >/run/systemd/timesyncd.conf.d/test.conf
		until [ -S `+n.path("bus")+` ]; do sleep 0.05; done
		DBUS_SYSTEM_BUS_ADDRESS=unix:path=`+n.path("bus")+` exec /lib/systemd/systemd-timesyncd`)
	n.until(fine)
	n.want(fine, "-chrony", silence(t, n))
}

func TestTimestamps(t *testing.T) {
	tests := map[string]struct {
		text string
		want time.Time
	}{
		"era 0": {"0xe6a1c2b4.80000000", time.Date(2022, 8, 13, 6, 27, 0, 5e8, time.UTC)},
		"era 1": {"0x00000001.00000000", time.Date(2036, 2, 7, 6, 28, 17, 0, time.UTC)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := parseTimestamp(test.text); err != nil || !got.Equal(test.want) {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func FuzzParseTimestamp(f *testing.F) {
	f.Add("0xe6a1c2b4.80000000")
	f.Add("0x.")
	f.Fuzz(func(t *testing.T, s string) {
		if at, err := parseTimestamp(s); err == nil && (at.Year() < 1968 || at.Year() > 2104) {
			t.Errorf("%v from %q", at, s)
		}
	})
}

func FuzzParseVariables(f *testing.F) {
	f.Add("leap=0 stratum=3 offset=0.5 rootdelay=1 rootdisp=2 tc=6 refid=10.0.0.1 reftime=0xe6a1c2b4.80000000")
	f.Add("leap=11 stratum=16 offset=NaN rootdelay=-1 rootdisp=1e300 tc=99 reftime=0x0.0")
	f.Fuzz(func(t *testing.T, s string) {
		vars := map[string]string{}
		for field := range strings.FieldsSeq(s) {
			name, value, _ := strings.Cut(field, "=")
			vars[name] = value
		}
		c, err := parseVariables(vars)
		if err == nil && (c.Leap < 0 || c.Leap > 3 || c.Offset < 0 || c.RootDelay < 0 || c.RootDispersion < 0 || c.Poll < 0) {
			t.Errorf("%+v from %q", c, s)
		}
	})
}
