// Package preflighttest has the networks on which tests run the program preflight.
package preflighttest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Networks makes n network namespaces on one bridge, 10.77.0.1 and on, in which every node sends at most rate, and
// the slow one less. It needs root, as do the tests of the kernel log.
func Networks(t testing.TB, n, slow int, rate, slowRate string) []string {
	t.Helper()
	prefix := fmt.Sprintf("pf%d", os.Getpid()%100000)
	command := func(ctx context.Context, line string) error {
		words := strings.Fields(line)
		if out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
		return nil
	}
	do := func(format string, args ...any) {
		t.Helper()
		if err := command(t.Context(), fmt.Sprintf(format, args...)); err != nil {
			t.Fatal(err)
		}
	}
	// The switch is a namespace of its own, so that the machine's network stays as it is.
	hub := prefix + "hub"
	names := []string{hub}
	t.Cleanup(func() {
		for _, name := range names {
			//nolint:usetesting // the test's own context has ended by now
			if err := command(context.Background(), "ip netns del "+name); err != nil {
				t.Error(err)
			}
		}
	})
	do("ip netns add %s", hub)
	do("ip -n %s link add br0 type bridge", hub)
	do("ip -n %s link set br0 up", hub)
	for i := range n {
		name := fmt.Sprintf("%sn%d", prefix, i)
		do("ip netns add %s", name)
		names = append(names, name)
		do("ip -n %s link add eth0 type veth peer name port%d netns %s", name, i, hub)
		do("ip -n %s link set port%d master br0 up", hub, i)
		do("ip -n %s addr add 10.77.0.%d/24 dev eth0", name, i+1)
		do("ip -n %s link set lo up", name)
		do("ip -n %s link set eth0 up", name)
		limit := rate
		if i == slow {
			limit = slowRate
		}
		do("ip netns exec %s tc qdisc add dev eth0 root tbf rate %s burst 256kb latency 50ms", name, limit)
	}
	return names[1:]
}
