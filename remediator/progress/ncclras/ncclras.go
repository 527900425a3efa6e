// Package ncclras asks a training process what NCCL knows of its communicators: which ranks are behind, and which do not answer.
//
// Since 2.24 each process that uses NCCL has a RAS server with a text protocol, see src/ras/client.cc (the client ncclras) and
// src/ras/client_support.cc (the server) of github.com/NVIDIA/nccl: the client names its protocol, the server its own, the client may set a
// timeout, which the server confirms, and asks for the status. The server answers and closes. A server of another protocol version answers, too.
//
// Who answers is a program of a tenant, at an address that a kubelet has reported. So an address that is not that of a pod is refused, what is
// sent is a fixed text, the answer is bounded in size and time, and nothing is kept of what is no answer of RAS.
package ncclras

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	// limit is how long all of it may take. The server waits for its peers for the timeout that it is sent and 5 s more.
	limit = 8 * time.Second
	// maxAnswer is how much of the answer is kept, maxLine how long the lines before it may be.
	maxAnswer, maxLine = 64 << 10, 256
	// maxAsked is how many processes are asked side by side. Each of them holds up one worker.
	maxAsked = 4
)

// Asker asks. Make it with [New].
type Asker struct {
	limit time.Duration
	slots chan struct{}
}

// New makes an asker.
func New() *Asker { return &Asker{limit, make(chan struct{}, maxAsked)} }

// Address is where the RAS server of a pod listens on a port. An error says why that is not asked.
func Address(pod *corev1.Pod, port uint16) (at netip.AddrPort, err error) {
	switch {
	case port < conditions.MinNCCLRASPort:
		return at, fmt.Errorf("port %d is below %d", port, conditions.MinNCCLRASPort)
	case pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil:
		return at, errors.New("the pod does not run")
	case pod.Spec.HostNetwork:
		return at, errors.New("the pod has the network of its node, where the port may be that of another program")
	}
	ip, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		return at, errors.New("the pod has no address")
	}
	ip = ip.Unmap()
	// A global unicast address is none of loopback, link-local, multicast, broadcast and unspecified ones.
	if !ip.IsGlobalUnicast() || ip.Zone() != "" {
		return at, errors.New("the address of the pod is not one that a pod can have")
	}
	for _, host := range append([]corev1.HostIP{{IP: pod.Status.HostIP}}, pod.Status.HostIPs...) {
		if node, err := netip.ParseAddr(host.IP); err == nil && node.Unmap() == ip {
			return at, errors.New("the pod has the address of its node")
		}
	}
	return netip.AddrPortFrom(ip, port), nil
}

// Ask returns the answer of a RAS server. An error has nothing of what was answered. Part of an answer is one, with a last line of our own.
func (a *Asker) Ask(ctx context.Context, at netip.AddrPort) (answer string, err error) {
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	default:
		return "", fmt.Errorf("it was not asked, because %d others were being asked", maxAsked)
	}
	ctx, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return "", errors.New("it cannot be connected to")
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { connection.Close() })() // ends what is being read or written
	answered := bufio.NewReaderSize(connection, maxLine)
	if line, err := say(connection, answered, "CLIENT PROTOCOL 2\n"); err != nil || !strings.HasPrefix(line, "SERVER PROTOCOL ") {
		return "", errors.New("what listens there is no NCCL RAS")
	}
	// 1 s is the shortest. 0 would be to wait for ever.
	if line, err := say(connection, answered, "TIMEOUT 1\n"); err != nil || line != "OK\n" {
		return "", errors.New("NCCL RAS refuses a timeout")
	}
	if _, err := io.WriteString(connection, "VERBOSE STATUS\n"); err != nil {
		return "", errors.New("NCCL RAS has closed the connection")
	}
	text, err := io.ReadAll(io.LimitReader(answered, maxAnswer+1))
	if len(text) == 0 {
		return "", errors.New("NCCL RAS has not answered in time")
	}
	answer = printable(text[:min(len(text), maxAnswer)])
	switch {
	case len(text) > maxAnswer:
		answer += fmt.Sprintf("\n[cut by Pitcrew after %d KiB]\n", maxAnswer>>10)
	case err != nil:
		answer += "\n[cut by Pitcrew: the rest did not come in time]\n"
	}
	return answer, nil
}

// say sends a line and returns the line that follows.
func say(w io.Writer, r *bufio.Reader, line string) (string, error) {
	if _, err := io.WriteString(w, line); err != nil {
		return "", err //nolint:wrapcheck // it is not shown
	}
	answer, err := r.ReadSlice('\n') // an error if the line is longer than the buffer
	return string(answer), err       //nolint:wrapcheck // it is not shown
}

// printable replaces what is no text, and what a terminal would obey.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(string(text), "?"))
}
