package main

import (
	"bufio"
	"encoding/binary"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

// listed is one row of ListUnitsByNames.
type listed struct {
	Name, Description, Load, Active, Sub, Followed string
	Path                                           dbus.ObjectPath
	Job                                            uint32
	JobType                                        string
	JobPath                                        dbus.ObjectPath
}

// silent is a systemd that answers to a list and to nothing else, or, without one, to nothing at all.
func silent(t *testing.T, units []listed) (socket string) {
	socket = filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			if units != nil {
				go answerLists(conn, units)
			}
		}
	}()
	return socket
}

// answerLists speaks the server's side of the D-Bus protocol.
func answerLists(conn net.Conn, units []listed) {
	in := bufio.NewReader(conn)
	for line := ""; line != "BEGIN\r\n"; {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return
		}
		switch {
		case strings.Contains(line, "AUTH EXTERNAL"):
			conn.Write([]byte("OK 0123456789abcdef0123456789abcdef\r\n"))
		case strings.Contains(line, "AUTH"):
			conn.Write([]byte("REJECTED EXTERNAL\r\n"))
		case line != "BEGIN\r\n":
			conn.Write([]byte("ERROR\r\n"))
		}
	}
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		reply := dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldReplySerial: dbus.MakeVariant(call.Serial())}}
		switch call.Headers[dbus.FieldMember].Value() {
		case "AddMatch": // of the client's own start
		case "ListUnitsByNames":
			reply.Body = []any{units}
			reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(units))
		default:
			continue
		}
		reply.EncodeTo(conn, binary.LittleEndian)
	}
}

func TestASystemdThatStopsToAnswerHidesNothingItHasSaid(t *testing.T) {
	binary := npdtest.Build(t)
	socket := silent(t, nil)
	want := "exit 2\nunknown: systemd at " + socket + ": did not answer in time\n"
	if got := npdtest.Run(t, binary, "-systemd", socket, "-state-dir", t.TempDir(), "-timeout", "4s"); got != want {
		t.Errorf("no answer: got %swant %s", got, want)
	}
	socket = silent(t, []listed{
		{Name: "kubelet.service", Load: "loaded", Active: "active", Path: "/a", JobPath: "/"},
		{Name: "containerd.service", Load: "loaded", Active: "failed", Path: "/b", JobPath: "/"},
	})
	want = "exit 1\nInspect unit containerd.service: failed; unit containerd.service: not read: did not answer in time; " +
		"unit kubelet.service: not read: did not answer in time\n"
	if got := npdtest.Run(t, binary, "-systemd", socket, "-state-dir", t.TempDir(), "-timeout", "4s"); got != want {
		t.Errorf("only a list: got %swant %s", got, want)
	}
}

// A log that is a pipe without a writer makes the message shorter, and hides neither the failure nor the other units.
func TestALogThatHangsHidesNothing(t *testing.T) {
	n := newNode(t, map[string]string{"nvidia-fabricmanager.service": fails, "kubelet.service": fails},
		"nvidia-fabricmanager.service", "kubelet.service")
	n.Write("sys/bus/pci/devices/0000:07:00.0/vendor", "0x10de")
	n.Write("sys/bus/pci/devices/0000:07:00.0/device", "0x1af1")
	n.Write("sys/bus/pci/devices/0000:07:00.0/class", "0x068000")
	log := filepath.Join(n.Dir, "pipe")
	if err := syscall.Mkfifo(log, 0o600); err != nil {
		t.Fatal(err)
	}
	n.until("exit 1\nInspect unit kubelet.service: failed (Result: exit-code, status=1); "+
		"unit nvidia-fabricmanager.service: failed (Result: exit-code, status=1)\n", "-fabric-manager-log", log, "-timeout", "4s")
}
