package ncclras

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// serve is a RAS server for one connection on a real socket.
func serve(t *testing.T, handle func(net.Conn)) netip.AddrPort {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		defer connection.Close()
		handle(connection)
	}()
	return netip.MustParseAddrPort(listener.Addr().String())
}

// ras answers as NCCL does: at each line it says what follows, and after the status it closes.
func ras(t *testing.T, protocol string, status func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReader(c)
		for _, step := range []struct{ want, answer string }{{"CLIENT PROTOCOL 2\n", protocol}, {"TIMEOUT 1\n", "OK\n"}, {"VERBOSE STATUS\n", ""}} {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if line != step.want {
				t.Errorf("sent %q, want %q", line, step.want)
			}
			fmt.Fprint(c, step.answer)
		}
		status(c)
	}
}

// hang waits until the other side closes.
func hang(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

const summary = "NCCL version 2.24.3\nJob summary\n===========\n"

func TestAnswers(t *testing.T) {
	say := func(text string) func(net.Conn) { return func(c net.Conn) { fmt.Fprint(c, text) } }
	for name, test := range map[string]struct {
		handle func(net.Conn)
		want   string
		wrong  string
	}{
		"an answer":              {handle: ras(t, "SERVER PROTOCOL 2\n", say(summary)), want: summary},
		"an older protocol":      {handle: ras(t, "SERVER PROTOCOL 1\n", say(summary)), want: summary},
		"what a terminal obeys":  {handle: ras(t, "SERVER PROTOCOL 2\n", say("a\tb\x1b[2J\x00\u202e\xff\r\n")), want: "a\tb?[2J????\n"},
		"hangs in the middle":    {handle: ras(t, "SERVER PROTOCOL 2\n", func(c net.Conn) { fmt.Fprint(c, summary); hang(c) }), want: summary + "\n[cut by Pitcrew: the rest did not come in time]\n"},
		"hangs before":           {handle: ras(t, "SERVER PROTOCOL 2\n", hang), wrong: "NCCL RAS has not answered in time"},
		"hangs at once":          {handle: hang, wrong: "what listens there is no NCCL RAS"},
		"says nothing":           {handle: ras(t, "SERVER PROTOCOL 2\n", say("")), wrong: "NCCL RAS has not answered in time"},
		"another program":        {handle: say("HTTP/1.1 400 Bad Request\n\nsecret"), wrong: "what listens there is no NCCL RAS"},
		"a line without an end":  {handle: say("SERVER PROTOCOL " + strings.Repeat("2", 1<<20) + "\n"), wrong: "what listens there is no NCCL RAS"},
		"a timeout it refuses":   {handle: func(c net.Conn) { fmt.Fprint(c, "SERVER PROTOCOL 2\nERROR: secret\nmore\n"); hang(c) }, wrong: "NCCL RAS refuses a timeout"},
		"an end after greetings": {handle: say("SERVER PROTOCOL 2\n"), wrong: "NCCL RAS refuses a timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			a := New()
			a.limit = 300 * time.Millisecond
			answer, err := a.Ask(t.Context(), serve(t, test.handle))
			if test.wrong == "" && (err != nil || answer != test.want) {
				t.Errorf("%q, %v", answer, err)
			}
			if test.wrong != "" && (err == nil || err.Error() != test.wrong || answer != "") {
				t.Errorf("%q, %v", answer, err)
			}
		})
	}
}

func TestAnEndlessAnswerIsCut(t *testing.T) {
	for name, chunk := range map[string]string{"text": strings.Repeat("x", 999), "no text": strings.Repeat("\xff\u20ac", 333)} {
		answer, err := New().Ask(t.Context(), serve(t, ras(t, "SERVER PROTOCOL 2\n", func(c net.Conn) {
			for {
				if _, err := fmt.Fprint(c, chunk); err != nil {
					return
				}
			}
		})))
		kept, cut := strings.CutSuffix(answer, "\n[cut by Pitcrew after 64 KiB]\n")
		if err != nil || !cut || len(kept) > maxAnswer || len(kept) < maxAnswer-utf8.UTFMax || !utf8.ValidString(answer) {
			t.Errorf("%s: %d bytes, %v", name, len(answer), err)
		}
	}
}

func TestAPortThatRefuses(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(listener.Addr().String())
	listener.Close()
	if answer, err := New().Ask(t.Context(), at); err == nil || err.Error() != "it cannot be connected to" || answer != "" {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestSoManyAreAskedSideBySide(t *testing.T) {
	a := New()
	arrived, done := make(chan struct{}), make(chan struct{}, maxAsked)
	release := make(chan struct{})
	for range maxAsked {
		at := serve(t, func(net.Conn) { arrived <- struct{}{}; <-release })
		go func() { _, _ = a.Ask(t.Context(), at); done <- struct{}{} }()
	}
	for range maxAsked {
		<-arrived
	}
	at := serve(t, func(net.Conn) { t.Error("it was connected to") })
	if _, err := a.Ask(t.Context(), at); err == nil || err.Error() != "it was not asked, because 4 others were being asked" {
		t.Errorf("%v", err)
	}
	close(release)
	for range maxAsked {
		<-done
	}
	if answer, err := a.Ask(t.Context(), serve(t, ras(t, "SERVER PROTOCOL 2\n", func(c net.Conn) { fmt.Fprint(c, summary) }))); err != nil || answer != summary {
		t.Errorf("the places are not free again: %q, %v", answer, err)
	}
}

func TestAddress(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		port   uint16
		want   string
	}{
		"a pod":                   {want: "10.1.2.3:28028"},
		"a pod with IPv6":         {change: func(p *corev1.Pod) { p.Status.PodIP = "fd00::3" }, want: "[fd00::3]:28028"},
		"a system port":           {port: 1023},
		"the lowest port":         {port: 1024, want: "10.1.2.3:1024"},
		"pending":                 {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }},
		"being deleted":           {change: func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }},
		"the network of the node": {change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
		"the address of the node": {change: func(p *corev1.Pod) { p.Status.HostIP = "::ffff:10.1.2.3" }},
		"that, mapped":            {change: func(p *corev1.Pod) { p.Status.PodIP = "::ffff:10.0.0.1" }},
		"a second one":            {change: func(p *corev1.Pod) { p.Status.HostIPs = []corev1.HostIP{{IP: "fd00::1"}, {IP: "10.1.2.3"}} }},
		"none":                    {change: func(p *corev1.Pod) { p.Status.PodIP = "" }},
		"a name":                  {change: func(p *corev1.Pod) { p.Status.PodIP = "kubernetes.default" }},
		"loopback":                {change: func(p *corev1.Pod) { p.Status.PodIP = "127.0.0.1" }},
		"mapped loopback":         {change: func(p *corev1.Pod) { p.Status.PodIP = "::ffff:127.0.0.1" }},
		"loopback of IPv6":        {change: func(p *corev1.Pod) { p.Status.PodIP = "::1" }},
		"metadata of a cloud":     {change: func(p *corev1.Pod) { p.Status.PodIP = "169.254.169.254" }},
		"link-local of IPv6":      {change: func(p *corev1.Pod) { p.Status.PodIP = "fe80::1" }},
		"a zone":                  {change: func(p *corev1.Pod) { p.Status.PodIP = "fd00::3%eth0" }},
		"multicast":               {change: func(p *corev1.Pod) { p.Status.PodIP = "224.0.0.1" }},
		"broadcast":               {change: func(p *corev1.Pod) { p.Status.PodIP = "255.255.255.255" }},
		"unspecified":             {change: func(p *corev1.Pod) { p.Status.PodIP = "0.0.0.0" }},
	} {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.1.2.3", HostIP: "10.0.0.1"}}
		if test.change != nil {
			test.change(p)
		}
		if test.port == 0 {
			test.port = 28028
		}
		at, err := Address(p, test.port)
		if test.want == "" && err == nil || test.want != "" && (err != nil || at.String() != test.want) {
			t.Errorf("%s: %s, %v", name, at, err)
		}
	}
}
