package progress

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/progress/ncclras"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

// ownAddress is an address of this machine that a pod may have.
func ownAddress(t *testing.T) net.IP {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return n.IP
		}
	}
	t.Skip("this machine has no address but loopback")
	return nil
}

// serveRAS is a RAS server on an address of this machine. It counts who connects.
func serveRAS(t *testing.T, status string) (ip, port string, connected *atomic.Int32) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(ownAddress(t).String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	connected = &atomic.Int32{}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			connected.Add(1)
			r := bufio.NewReader(c)
			for _, answer := range []string{"SERVER PROTOCOL 2\n", "OK\n", status} {
				if _, err := r.ReadString('\n'); err != nil {
					break
				}
				fmt.Fprint(c, answer)
			}
			c.Close()
		}
	}()
	ip, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return ip, port, connected
}

func TestTheEvidenceHasTheAnswerOfNCCL(t *testing.T) {
	ip, port, _ := serveRAS(t, "Job summary: secret\n")
	annotations := maps.Clone(optIn)
	annotations[conditions.AnnotationNCCLRASPort] = port
	r := newRig(t, "nccl-ras", 2, annotations)
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		var rank0 corev1.Pod
		if err := r.c.Client.Get(t.Context(), client.ObjectKey{Namespace: r.name, Name: r.pods[0]}, &rank0); err != nil {
			return err
		}
		rank0.Status.PodIP, rank0.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
		return r.c.Client.Status().Update(t.Context(), &rank0)
	}); err != nil {
		t.Fatal(err)
	}
	defer r.run()()
	r.all("step 1")
	for minutes := 0; minutes < 20 && len(r.evidence()) == 0; minutes++ {
		r.minute()
	}
	all := r.evidence()
	if len(all) != 1 || all[0].NCCLRAS != "pod "+r.pods[0]+", port "+port+": its answer is the key nccl-ras.txt" {
		t.Fatalf("%+v", all)
	}
	var list corev1.ConfigMapList
	if err := r.c.Client.List(t.Context(), &list, client.InNamespace(r.name), client.MatchingLabels{"app.kubernetes.io/managed-by": quarantine.ControllerName}); err != nil {
		t.Fatal(err)
	}
	if text := list.Items[0].Data["nccl-ras.txt"]; text != "Job summary: secret\n" || strings.Contains(list.Items[0].Data["stall.json"], "secret") {
		t.Errorf("%+v", list.Items[0].Data)
	}
	r.eventually("the Event", func() error {
		if notes := r.notes(eventStalled); len(notes) != 1 || strings.Contains(notes[0], "secret") {
			return fmt.Errorf("%q", notes)
		}
		return nil
	})
}

func TestWhoIsAskedForNCCL(t *testing.T) {
	ip, text, connected := serveRAS(t, "summary\n")
	var port uint16
	if _, err := fmt.Sscan(text, &port); err != nil {
		t.Fatal(err)
	}
	rank := func(name, address string) *corev1.Pod {
		p := pod(name, nil)
		p.Namespace, p.Status.Phase, p.Status.PodIP = "a", corev1.PodRunning, address
		return &p
	}
	replaced := rank("p-0", ip)
	replaced.UID = "another"
	for name, test := range map[string]struct {
		pods    []client.Object
		port    uint16
		dryRun  bool
		outcome string
	}{
		"rank 0":                    {pods: []client.Object{rank("p-0", ip), rank("p-1", "127.0.0.1")}, port: port, outcome: "pod p-0, port " + text + ": its answer"},
		"a rank behind":             {pods: []client.Object{rank("p-0", "127.0.0.1"), rank("p-1", ip)}, port: port, outcome: "pod p-1, port " + text + ": its answer"},
		"rank 0 was replaced":       {pods: []client.Object{replaced, rank("p-1", ip)}, port: port, outcome: "pod p-1, port " + text + ": its answer"},
		"not to be connected to":    {pods: []client.Object{rank("p-0", ip), rank("p-1", "127.0.0.1")}, port: 80, outcome: "pod p-1 was not asked: port 80 is below 1024"},
		"gone":                      {port: port, outcome: "pod p-1 was not asked: it cannot be read now"},
		"no port":                   {pods: []client.Object{rank("p-0", ip)}},
		"nothing is to be done":     {pods: []client.Object{rank("p-0", ip)}, port: port, dryRun: true},
		"rank 1 is not asked again": {pods: []client.Object{rank("p-0", ip), rank("p-1", ip)}, port: port, outcome: "pod p-0, port " + text + ": its answer"},
	} {
		f, _ := newFollower()
		f.apiReader, f.ras, f.DryRun = fake.NewClientBuilder().WithObjects(test.pods...).Build(), ncclras.New(), test.dryRun
		known := &followed{settings: stall.Settings{NCCLRASPort: test.port}}
		known.job.Observe([]stall.Pod{{Name: "p-0", UID: types.UID("p-0")}, {Name: "p-1", UID: types.UID("p-1")}}, true, noon)
		before := connected.Load()
		answer, outcome := f.askNCCL(t.Context(), "a", known, []int{1})
		answers := strings.HasSuffix(test.outcome, "its answer")
		if !strings.HasPrefix(outcome, test.outcome) || test.outcome == "" && outcome != "" || (answer == "summary\n") != answers {
			t.Errorf("%s: %q, %q", name, answer, outcome)
		}
		if n := connected.Load() - before; slices.Index([]bool{false, true}, answers) != int(n) {
			t.Errorf("%s: %d connections", name, n)
		}
	}
}
