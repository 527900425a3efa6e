package node

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/asshipped/pages"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// hostEngine is a stand-in for nv-hostengine: who connects gets its answers, in the words of the stand-in for libdcgm. Real are the network
// and the sockets between the pod of a check and the node; NVIDIA's protocol is not.
type hostEngine struct{ answers atomic.Pointer[string] }

func (e *hostEngine) answer(lines ...string) {
	text := strings.Join(lines, "\n")
	e.answers.Store(&text)
}

// listen serves until the end of the test or until stop.
func (e *hostEngine) listen(t *testing.T, network, address string) (stop func()) {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // it is closed
			}
			if _, err := io.WriteString(conn, *e.answers.Load()); err != nil {
				t.Log(err)
			}
			if err := conn.Close(); err != nil {
				t.Log(err)
			}
		}
	}()
	stop = func() { _ = listener.Close() } // a second time, it is closed already
	t.Cleanup(stop)
	return stop
}

// engineValues are those of docs/dcgm.md for a host engine, and its addresses there: that of a Service, the node's, and a socket.
func engineValues(t *testing.T, root string) (shown string, addresses []string) {
	t.Helper()
	shows := pages.Of(t, root, "dcgm.md")
	name := regexp.MustCompile(`(?m)^  dcgm: \{.*hostengine: "([^"]*)"`)
	i := slices.IndexFunc(shows, func(s pages.Shown) bool { return name.MatchString(s.Text) })
	page, err := os.ReadFile(filepath.Join(root, "docs", "dcgm.md"))
	if err != nil || i < 0 {
		t.Fatal("docs/dcgm.md shows no values for a host engine", err)
	}
	others := []string{"$(NODE_IP):5555", "/host/run/nv-hostengine.sock"}
	for _, address := range others {
		if !strings.Contains(string(page), "`"+address+"`") {
			t.Errorf("docs/dcgm.md does not name %s", address)
		}
	}
	return shows[i].Text, append([]string{name.FindStringSubmatch(shows[i].Text)[1]}, others...)
}

// The third way of docs/dcgm.md: the node's host engine does the diagnostic. The check has only a library, from the page's image.
func TestTheLoopWithAHostEngine(t *testing.T) {
	m := theMachine(t)
	r := &repairCase{T: t, m: m, hardware: m.addHardware(t)}
	m.answer(t, "gpus 1\n")
	m.clock(t, "0")
	t.Cleanup(func() {
		m.answer(t, sickGPU)
		m.clock(t, "0.3")
	})
	shown, addresses := engineValues(t, m.Root)
	hide(t, "usr/lib64/libdcgmmodulediag.so.4", "usr/libexec/datacenter-gpu-manager-4/nvvs") // the image has none either
	m.withDCGM(t, "usr/lib64/libdcgm.so.4")
	r.diagnosis(t, "dial\n")
	t.Cleanup(func() { r.diagnosis(t, diagPassed) })
	host, _, err := net.SplitHostPort(addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	// What DNS and a Service of internalTrafficPolicy Local do, and what the driver writes.
	hosts := m.Write(t, "engine.hosts", "127.0.0.1 localhost\n"+machine.NodeIP+" "+host+"\n")
	m.Write(t, "procdriver/nvidia/gpus/0000:10:00.0/information", "GPU UUID: \t GPU-1a\n")
	m.InContainers(t, m.pciBus(t)+fmt.Sprintf(
		"[ ! -f ./etc/hosts ] || mount --bind %s ./etc/hosts\nmount --bind %s ./proc/driver\n", hosts, filepath.Join(m.Dir, "procdriver")))
	t.Cleanup(func() { m.InContainers(t, m.pciBus(t)) })

	e := &hostEngine{}
	e.answer("uuid GPU-1a", diagPassed)
	stop := e.listen(t, "tcp", ":5555")
	for i, address := range slices.Backward(addresses) { // that of the page's values stays
		m.helm(t, pages.Values(t, m.Root, pages.Loop, strings.Replace(shown, addresses[0], address, 1), loopValues), "--force-conflicts")
		if strings.HasPrefix(address, "/") {
			e.listen(t, "unix", strings.TrimPrefix(address, "/host"))
		}
		output, code := m.run(t, fmt.Sprint("engine-", i), r.notIdle())
		if code != 0 || !strings.Contains(output, `{"result":"healthy"`) {
			t.Errorf("%s: exit code %d, %s", address, code, output)
		}
	}
	r.label(present + "=true")
	r.label("pool=gpu")
	if err := m.ForgetLimits(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.addGPUs()
	r.clean()
	r.shipped()
	r.inService()
	e.answer("uuid GPU-2b", diagReplace)
	const foreign = "which is not one of the 1 of this node: it must be this node's (see docs/dcgm.md)"
	if output, code := m.run(t, "engine-foreign", r.notIdle()); code != 1 || !strings.Contains(output, foreign) {
		t.Errorf("exit code %d, %s", code, output)
	}
	stop()
	m.pitcrew(t, "check", machine.NodeName, "-y")
	r.event("NodeChecked", "could not run: the diagnostic gave no result: DCGM: no connection to the host engine at "+addresses[0]+": ")
	r.inService()
	m.until(t, conditions.DCGMDiagFailed, corev1.ConditionFalse, "")
	e.answer("uuid GPU-1a", diagReplace)
	e.listen(t, "tcp", ":5555")
	m.pitcrew(t, "check", machine.NodeName, "-y")
	m.until(t, conditions.DCGMDiagFailed, corev1.ConditionTrue, "Replace dcgm gpu 0: ")
	r.visit(visit.Sweep, visit.Failed)
	clustertest.Until(t, patience, "the node is quarantined", func() error {
		if labels := r.node().Labels; labels[conditions.LabelStatus] != conditions.StatusQuarantined {
			return fmt.Errorf("labels %v", labels)
		}
		return nil
	})
	r.waitsForAPerson()
	e.answer("uuid GPU-1a", diagPassed)
	if output, code := m.run(t, "engine-again", r.notIdle()); code != 0 {
		t.Errorf("exit code %d, %s", code, output)
	}
	m.until(t, conditions.DCGMDiagFailed, corev1.ConditionFalse, "")
	m.pitcrew(t, "release", machine.NodeName, "-y", "-f", filepath.Join(m.Dir, policyFile))
	r.inService()
}

// notIdle has the template check not wait until the GPUs are idle for half a minute, and returns its pod.
func (r *repairCase) notIdle() corev1.PodSpec {
	r.Helper()
	key := client.ObjectKey{Namespace: conditions.RepairNamespace, Name: "check"}
	var template corev1.PodTemplate
	if err := r.m.Client.Get(r.Context(), key, &template); err != nil {
		r.Fatal(err)
	}
	pod := &template.Template.Spec
	if args := &pod.Containers[0].Args; !slices.Contains(*args, "--") {
		*args = append(*args, "--", "-idle-for=0s")
		if err := r.m.Client.Update(r.Context(), &template); err != nil {
			r.Fatal(err)
		}
	}
	pod.ServiceAccountName, pod.DeprecatedServiceAccount = "", "" // they are of another namespace
	return *pod
}
