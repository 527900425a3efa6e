package visits

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/preflighttest"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
	"github.com/pitcrew-dev/pitcrew/remediator/preflight"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

const pairsTemplate = `
apiVersion: v1
kind: PodTemplate
metadata: {name: preflight, namespace: %[1]s}
template: {spec: {serviceAccountName: pitcrew-preflight, hostNetwork: true, containers: [{name: preflight, image: preflight,
  args: ["-rank=$(RANK)", "-size=$(SIZE)", "-leader=$(LEADER)", "-rounds=$(ROUNDS)", "-node=$(NODE)", "-meet-timeout=1m", "-tcp-duration=%[2]s"]}]}}
`

// pairsSite is a site of four nodes that a sweep checks together, with a network for each of them. The test is the kubelet: it runs the
// real program for each pod.
type pairsSite struct {
	*site
	folder, binary string
	networks       []string
	running        map[string]*exec.Cmd // by pod
	ended          chan string
	logs           map[string]*output
}

// newPairsSite has nodes of which one is slow; -1: none is. The tests of a pair last for tests in each direction.
func newPairsSite(t *testing.T, name string, slow int, tests time.Duration) *pairsSite {
	t.Helper()
	const n = 4
	s := &pairsSite{site: newSiteOf(t, name, n, "  rules:", fmt.Sprintf(`  sweeps:
    pairs: {every: 20m, idleFor: 1m, template: preflight, timeout: 30m, nodeSelector: {%s: %s}, pairwise: {minNodes: %d}}
  rules:`, cluster.LabelPool, name, n)), folder: t.TempDir(), running: map[string]*exec.Cmd{}, ended: make(chan string, 100), logs: map[string]*output{}}
	for _, args := range [][]string{{"apply", "-k", s.c.Root + "/manifests/preflight"}, {"apply", "-k", s.c.Root + "/manifests/preflight/namespace", "-n", name}} {
		if out, err := s.c.Kubectl(t.Context(), args...); err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	s.must(s.c.Apply(t.Context(), fmt.Appendf(nil, pairsTemplate, name, tests)))
	address := 0
	s.each(func() {
		address++
		s.patchStatus(func(n *corev1.Node) {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}, {Type: corev1.NodeInternalIP, Address: fmt.Sprint("10.77.0.", address)}}
		})
	})
	s.controllers = append(s.controllers, func(ctx context.Context, mgr ctrl.Manager) error {
		return preflight.SetupWithManager(ctx, mgr, prometheus.NewRegistry(), preflight.Options{
			Trusted: []string{name}, Timeout: 10 * time.Minute, TTL: 168 * time.Hour, Recorder: mgr.GetEventRecorder("pitcrew"), Clock: s.clock,
		})
	})
	if tests == 0 {
		return s
	}
	s.networks = preflighttest.Networks(t, n, slow, "400mbit", "200mbit")
	s.must(components.BuildOurs(t.Context(), s.c.Root, "./preflight"))
	s.binary = filepath.Join(s.c.Root, "bin", "preflight")
	t.Cleanup(func() {
		for _, cmd := range s.running {
			_ = cmd.Process.Kill()
		}
		for range s.running {
			<-s.ended
		}
	})
	return s
}

// kubelet runs the programs of the pods, and reports how they ended.
func (s *pairsSite) kubelet() {
	s.Helper()
	pods := map[string]corev1.Pod{}
	for _, pod := range s.pods() {
		pods[pod.Name] = pod
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && s.logs[pod.Name] == nil {
			s.run(pod)
		}
	}
	for name, cmd := range s.running {
		if pod, ok := pods[name]; !ok || pod.DeletionTimestamp != nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	for {
		select {
		case name := <-s.ended:
			code := s.running[name].ProcessState.ExitCode()
			delete(s.running, name)
			if pod, ok := pods[name]; ok && pod.DeletionTimestamp == nil {
				s.submit(pod)
				message, err := os.ReadFile(filepath.Join(s.folder, name+".log"))
				s.must(err)
				s.ends(pod, int32(code), string(message))
			}
		default:
			return
		}
	}
}

func (s *pairsSite) run(pod corev1.Pod) {
	s.Helper()
	log := filepath.Join(s.folder, pod.Name+".log")
	s.must(os.WriteFile(log, nil, 0o600))
	network := s.networks[slices.Index(s.nodes, pod.Spec.NodeName)]
	args := append([]string{"netns", "exec", network, s.binary}, pod.Spec.Containers[0].Args...)
	//nolint:usetesting // the cleanup kills it, and waits for it
	cmd := exec.CommandContext(context.Background(), "ip", append(args, "-out="+s.folder, "-termination-log="+log)...)
	cmd.Env = append(os.Environ(), "POD_NAMESPACE="+pod.Namespace, "WORKLOAD="+pod.Name)
	s.logs[pod.Name] = &output{}
	cmd.Stderr = s.logs[pod.Name]
	s.must(cmd.Start())
	s.running[pod.Name] = cmd
	go func() {
		_ = cmd.Wait() // the exit code is read
		s.ended <- pod.Name
	}()
}

// submit writes the report of a pod as the pod does, if it has left one: the API server is not in its network.
func (s *pairsSite) submit(pod corev1.Pod) {
	s.Helper()
	files, err := filepath.Glob(filepath.Join(s.folder, pod.Namespace, pod.Name+"-*.json"))
	s.must(err)
	if len(files) == 0 {
		return
	}
	data, err := os.ReadFile(files[0])
	s.must(err)
	r, err := report.Parse(data)
	s.must(err)
	cm, err := reportconfigmap.New(&pod, r)
	s.must(err)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}}
	s.must(s.c.Client.SubResource("token").Create(s.Context(), account, request))
	cfg := rest.AnonymousClientConfig(s.c.Admin)
	cfg.BearerToken = request.Status.Token
	own, err := client.New(cfg, client.Options{Scheme: s.c.Client.Scheme(), Mapper: s.c.Client.RESTMapper()})
	s.must(err)
	s.must(own.Create(s.Context(), cm))
}

// current are the phases of the visits under way.
func (s *pairsSite) current() map[repair.Phase]int {
	s.Helper()
	phases := map[repair.Phase]int{}
	s.each(func() {
		if v := s.record().Current; v != nil {
			phases[v.Phase]++
		}
	})
	return phases
}

// pass lets time pass, but for what takes real time: visits that begin or end, and programs that run.
func (s *pairsSite) pass() map[repair.Phase]int {
	s.Helper()
	phases := s.current()
	switch {
	case phases[repair.Emptying] > 0, len(s.running) > 0:
	case len(phases) == 0:
		s.clock.SetTime(s.clock.Now().Add(10 * time.Second))
	default:
		s.clock.SetTime(s.clock.Now().Add(time.Second))
	}
	return phases
}

func (s *pairsSite) slowNode(node string) corev1.ConditionStatus {
	s.Helper()
	var n corev1.Node
	s.must(s.c.Client.Get(s.Context(), client.ObjectKey{Name: node}, &n))
	for _, c := range n.Status.Conditions {
		if c.Type == conditions.SlowNode {
			return c.Status
		}
	}
	return ""
}

func (s *pairsSite) untainted() {
	s.Helper()
	s.each(func() {
		if n := s.read(); hasMaintenance(n) {
			s.Errorf("node %s has taints %v", n.Name, n.Spec.Taints)
		}
	})
}

func TestTheSlowNodeOfAGroupIsFound(t *testing.T) {
	const slow = 2
	s := newPairsSite(t, "pairs", slow, time.Second)
	s.process(interceptor.Funcs{})
	s.drive("all have run", func() error {
		s.kubelet()
		if phases := s.current(); phases[repair.Proving] == len(s.nodes) {
			return nil
		}
		return fmt.Errorf("%v; %s", s.pass(), s.record())
	})
	s.drive("the slow node has its condition", func() error {
		if status := s.slowNode(s.nodes[slow]); status != corev1.ConditionTrue {
			return fmt.Errorf("SlowNode is %q; logs:\n%v", status, s.logs)
		}
		return nil
	})
	s.drive("all visits have ended", func() error {
		if phases := s.current(); len(phases) > 0 {
			s.clock.SetTime(s.clock.Now().Add(time.Second))
			return fmt.Errorf("%v", phases)
		}
		return nil
	})
	s.noJobs()
	s.untainted()
	s.each(func() {
		r := s.record()
		want, status := repair.Passed, corev1.ConditionStatus("")
		if s.node == s.nodes[slow] {
			want, status = repair.Failed, corev1.ConditionTrue
			s.hasEvent(repair.NodeChecked, "SlowNode is a fault")
		} else {
			s.hasEvent(repair.NodeChecked, "sweep has passed")
		}
		if v := r.Last[0]; v.Phase != want || v.Sweep != "pairs" || r.Swept["pairs"].IsZero() || s.slowNode(s.node) != status {
			t.Errorf("node %s: record %s, SlowNode %q", s.node, r, s.slowNode(s.node))
		}
	})
}

// output is what a program has written so far. It may be read while the program runs.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func TestAGroupMakesWayAsAWhole(t *testing.T) {
	s := newPairsSite(t, "pairs-yield", -1, 20*time.Second)
	s.process(interceptor.Funcs{})
	s.drive("the programs test pairs", func() error {
		s.kubelet()
		if len(s.running) == len(s.nodes) && strings.Contains(s.logs[s.podOf(s.nodes[0])].String(), "The ranks are connected") {
			return nil
		}
		return fmt.Errorf("%v; %s", s.pass(), s.record())
	})
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	train := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "train"}, Spec: corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: s.nodes[3]},
		Containers:   []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: gpus, Limits: gpus}}},
	}}
	s.must(s.c.Client.Create(t.Context(), train))
	asked := s.clock.Now()
	s.drive("all end", func() error { // one look is enough, of those that are 5 s apart
		if phases := s.current(); phases[repair.Working] > 0 {
			return fmt.Errorf("%v", phases)
		}
		return nil
	})
	s.clock.SetTime(s.clock.Now().Add(yieldEvery))
	s.drive("all have ended", func() error {
		s.kubelet()
		phases := s.current()
		if len(phases) == 0 {
			return nil
		}
		if after := s.clock.Now().Sub(asked); after < 15*time.Second {
			s.clock.SetTime(s.clock.Now().Add(time.Second))
		}
		return fmt.Errorf("%v", phases)
	})
	s.untainted()
	s.noJobs()
	s.each(func() {
		if r := s.record(); r.Last[0].Phase != repair.Yielded || len(r.Swept) > 0 || s.slowNode(s.node) != "" || r.Last[0].EndedAt.Sub(asked) > 15*time.Second {
			t.Errorf("node %s: record %s, SlowNode %q", s.node, r, s.slowNode(s.node))
		}
	})
	s.until("the pod runs", func() error {
		s.must(s.c.Client.Get(t.Context(), client.ObjectKeyFromObject(train), train))
		if train.Spec.NodeName != s.nodes[3] {
			return errors.New("it has no node")
		}
		return nil
	})
}

func (s *pairsSite) podOf(node string) string {
	s.Helper()
	for _, pod := range s.pods() {
		if pod.Spec.NodeName == node {
			return pod.Name
		}
	}
	return ""
}

// The remediator dies after each of the writes with which a group begins and ends, and another one takes over.
func TestAGroupSurvivesACrashAfterEachWrite(t *testing.T) {
	s := newPairsSite(t, "pairs-crash", -1, 0)
	play := func() map[repair.Phase]int {
		for _, pod := range s.pods() {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				s.ends(pod, 0, `{"result":"healthy","message":"fast"}`)
			}
		}
		phases := s.pass()
		s.clock.SetTime(s.clock.Now().Add(time.Second))
		return phases
	}
	seen := map[repair.Phase]int{}
	for writes := 1; writes <= 13; writes++ {
		m := clustertest.NewMortal(writes, writes%2 == 0)
		stop := s.process(m.Funcs())
		s.drive(fmt.Sprintf("the process dies after write %d", writes), func() error {
			select {
			case <-m.Dead:
				return nil
			default:
				return fmt.Errorf("%v", play())
			}
		})
		stop()
		s.each(func() {
			if v := s.record().Current; v != nil {
				seen[v.Phase]++
			}
		})
		stop = s.process(interceptor.Funcs{})
		s.drive(fmt.Sprintf("no visit hangs after write %d", writes), func() error {
			if phases := s.current(); len(phases) > 0 {
				return fmt.Errorf("%v; %s", play(), s.record())
			}
			return nil
		})
		s.untainted()
		s.noJobs()
		stop()
		s.clock.SetTime(s.clock.Now().Add(20 * time.Minute))
	}
	if seen[repair.Emptying] == 0 || seen[repair.Working] == 0 {
		t.Errorf("no process died while a group began: %v", seen)
	}
}
