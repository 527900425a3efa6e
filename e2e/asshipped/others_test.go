package asshipped_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/asshipped/pages"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/preflighttest"
)

// switchedOn is what the sentences of the pages on devices, progress and preflight tell to set, a time that a test can wait for, and room
// for the quarantines of the other tests.
const switchedOn = `
createNamespace: true
pools: [{name: gpu, preset: nvidia}]
progress: {enabled: true}
preflight: {trustedNamespaces: [health]}
policy:
  mode: enforce
  budget: {maxNodes: 8, maxPercent: 50}
  breaker: {maxNodes: 40}
  restart: {stalls: {mode: observe}}
  rules: {gpu-xid: {clearAfter: 3s}}
`

// helmSets are the values that the pages on preflight have Helm set.
func helmSets(t *testing.T, root string) (args []string) {
	for _, s := range append(pages.Of(t, root, "preflight.md"), pages.Of(t, root, "preflight-inject.md")...) {
		if _, set, found := strings.Cut(s.Text, "--set "); found && strings.HasPrefix(s.Text, "helm ") {
			args = append(args, "--set", strings.Trim(set, "'"))
		}
	}
	return args
}

// TestOtherPagesAsShipped does what the pages on devices, progress and preflight show.
func TestOtherPagesAsShipped(t *testing.T) {
	c := clustertest.Get(t)
	if err := components.BuildOurs(t.Context(), c.Root, "./kubectl-pitcrew", "./preflight"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"team-a", "health"} { // those that the page names
		if err := c.AddNamespace(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
	}
	c = install(t, func(root string) string { return pages.Values(t, root, []string{"devices.md"}, switchedOn) },
		func(root string) []string { return helmSets(t, root) },
		authorizationv1.ResourceAttributes{Verb: "create", Group: resourceapi.GroupName, Resource: "devicetaintrules"},
		authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Subresource: "log", Namespace: "default"},
		authorizationv1.ResourceAttributes{Verb: "watch", Resource: "configmaps", Namespace: "health"})
	for name, test := range map[string]func(*testing.T, *cluster.Cluster){
		"devices": devicesPage, "progress": progressPage, "preflight": preflightPage, "kcover": kcoverPage,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

func devicesPage(t *testing.T, c *cluster.Cluster) {
	s := newSite(t, c, "page-gpu", 1, nil)
	isolates(s, conditions.GPUXidError, "Xid 95 uncontained ECC error", func(node string) {
		says := func(want string) func(string) {
			return func(line string) {
				if out, err := shell(t, c, strings.ReplaceAll(line, "NODE", node)); err != nil || !strings.Contains(out, want) {
					t.Errorf("%s: %v\n%s\nwant %q", line, err, out, want)
				}
			}
		}
		follow(t, c.Root, "devices.md",
			step{"spec:", func(string) {}},                   // these are values of the installation
			step{"kubectl pitcrew release", func(string) {}}, // it is a name: the release follows from the condition here
			step{"kubectl pitcrew describe NODE", says("gpu-")},
			step{"kubectl get devicetaintrules", says("pitcrew")})
	})
}

// progressPage: the remediator reads the log of the job that the page's command annotates. Its pods have a kubelet that serves logs.
func progressPage(t *testing.T, c *cluster.Cluster) {
	var reads atomic.Int32
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/containerLogs/page-progress/train-") {
			reads.Add(1)
		}
		fmt.Fprintln(w, "2026-11-27T12:00:00Z step 1200 loss 2.31")
	}))
	t.Cleanup(kubelet.Close)
	_, portText, err := net.SplitHostPort(kubelet.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(portText, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, c, "page-progress", 1, nil)
	s.until("the node has a kubelet", func() error {
		n := s.node(s.nodes[0])
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
		return c.Client.Status().Update(t.Context(), n)
	})
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "train"}}
	job.Spec.Template.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{"train": s.name}, Containers: []corev1.Container{s.wholeNode()},
	}
	if err := c.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	follow(t, c.Root, "progress.md", step{"kubectl annotate job train", func(line string) {
		if out, err := shell(t, c, line+" -n "+s.name); err != nil {
			t.Fatal(err, out)
		}
	}})
	s.until("its log is read", func() error {
		if reads.Load() == 0 {
			return errors.New("no read")
		}
		return nil
	})
}

// preflightPage: the policy injects, the commands without Helm are valid, and the CronJob's Job runs on idle nodes alone and gives way. Its
// program finds its rank with the account, the role and the environment of the page.
func preflightPage(t *testing.T, c *cluster.Cluster) {
	s := &site{T: t, Cluster: c, name: "page-preflight"}
	if err := c.AddNamespace(t.Context(), s.name, nil); err != nil {
		t.Fatal(err)
	}
	valid := func(line string) {
		if strings.Contains(line, "--server-side") {
			line += " --force-conflicts" // the test has applied them, too
		}
		if out, err := shell(t, c, line+" --dry-run=server"); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	does := func(line string) {
		if out, err := shell(t, c, line); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	byHelm := func(string) {}
	injected := func(text string) {
		s.until("the container is put in", func() error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "rank"}}
			if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
				t.Fatal(err)
			}
			pod.Spec.Containers = []corev1.Container{{Name: "rank", Image: "none"}}
			err := c.Client.Create(t.Context(), pod, client.DryRunAll)
			if err != nil || len(pod.Spec.InitContainers) != 1 || pod.Spec.InitContainers[0].Name != "preflight" {
				return fmt.Errorf("init containers %+v: %w", pod.Spec.InitContainers, err)
			}
			return nil
		})
	}
	follow(t, c.Root, "preflight.md",
		step{"helm upgrade", byHelm},
		step{"kubectl apply --server-side -k manifests/preflight", valid},
		step{"kubectl apply -k manifests/preflight/namespace -n team-a", valid},
		step{"kubectl pitcrew release", func(string) {}},
		step{"kubectl get events -A", does},
		step{"kubectl pitcrew preflight RUN", func(line string) {
			if out, err := shell(t, c, line); err == nil || !strings.Contains(out, "RUN") {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}},
		step{"kubectl pitcrew preflight -f FOLDER", func(line string) {
			does(strings.ReplaceAll(line, "FOLDER", filepath.Join("internal", "preflight", "report", "testdata")))
		}})
	follow(t, c.Root, "preflight-inject.md",
		step{"helm upgrade", byHelm}, step{"metadata: {labels: ", injected},
		step{"kubectl apply -k manifests/preflight/inject", valid},
		step{"kubectl apply -k manifests/preflight/inject/namespace -n team-a", valid})
	follow(t, c.Root, "preflight-idle.md",
		step{"apiVersion: scheduling.k8s.io/v1", func(text string) {
			if err := c.Apply(t.Context(), []byte(text)); err != nil {
				t.Fatal(err)
			}
		}},
		step{"kubectl apply -k manifests/preflight/inject/namespace -n health", does},
		step{"kubectl create rolebinding", does},
		step{"kubectl create job now", func(line string) { idleNodes(s, func() { does(line) }) }})
}

// idleNodes starts the CronJob's Job at once.
func idleNodes(s *site, start func()) {
	s.Helper()
	const ranks = 8
	s.addNodes("page-preflight", ranks+1, nil)
	busy := s.nodes[ranks]
	s.pod("busy", busy)
	start()
	var list corev1.PodList
	s.until("all ranks run", func() error {
		running := 0
		ofJob := client.MatchingLabels{batchv1.JobNameLabel: "now"}
		if err := s.Client.List(s.T.Context(), &list, client.InNamespace("health"), ofJob); err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running != ranks {
			return fmt.Errorf("%d of %d run", running, ranks)
		}
		return nil
	})
	nodes := map[string]bool{}
	for _, p := range list.Items {
		nodes[p.Spec.NodeName] = true
	}
	if len(nodes) != ranks || nodes[busy] {
		s.Errorf("the ranks are on %v; %s is busy", nodes, busy)
	}
	s.findsItsRank(&list.Items[ranks/2])
	// A pod of a job gets the node of a rank.
	taken := list.Items[0].Spec.NodeName
	s.pod("job", taken)
}

// wholeNode is a container that takes all GPUs of a node.
func (s *site) wholeNode() corev1.Container {
	limits := corev1.ResourceList{"nvidia.com/gpu": s.node(s.nodes[0]).Status.Allocatable["nvidia.com/gpu"]}
	return corev1.Container{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Limits: limits}}
}

// pod runs a pod that takes all GPUs of a node by the scheduler.
func (s *site) pod(name, node string) {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}}
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	pod.Spec.Containers = []corev1.Container{s.wholeNode()}
	if err := s.Client.Create(s.T.Context(), pod); err != nil {
		s.Fatal(err)
	}
	s.until("pod "+name+" runs on "+node, func() error {
		if err := s.Client.Get(s.T.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s: %v", pod.Status.Phase, pod.Status.Conditions)
		}
		return nil
	})
}

// findsItsRank runs the program of a pod.
func (s *site) findsItsRank(pod *corev1.Pod) {
	s.Helper()
	out, err := s.preflight(pod, pod.Spec.Containers[0], "", "-meet-timeout=1s")
	want := []string{"Found this pod's rank", "rank=" + pod.Annotations[batchv1.JobCompletionIndexAnnotation], "of=8"}
	if slices.ContainsFunc(want, func(text string) bool { return !strings.Contains(out, text) }) {
		s.Errorf("preflight: %v\n%s\nwant %q", err, out, want)
	}
}

// preflight runs the program of a container of a pod, with its arguments, environment and account, and returns its output. The volume
// is what the container finds where it mounts its only one.
func (s *site) preflight(pod *corev1.Pod, container corev1.Container, volume string, more ...string) (string, error) {
	s.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
		APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
	}}}
	if err := s.Client.SubResource("token").Create(s.T.Context(), account, token); err != nil {
		s.Fatal(err)
	}
	folder := s.TempDir()
	for name, text := range map[string]string{"token": token.Status.Token, "ca.crt": string(s.Admin.CAData), "namespace": pod.Namespace} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			s.Fatal(err)
		}
	}
	const secrets = "/var/run/secrets/kubernetes.io/serviceaccount"
	script := `mount -t tmpfs none /var/run && mkdir -p ` + secrets + ` && cp "$0"/* ` + secrets
	if volume != "" {
		path := container.VolumeMounts[0].MountPath
		script += ` && mount -t tmpfs none /var/lib && mkdir -p ` + path + ` && cp -Rp ` + volume + `/. ` + path
	}
	program := filepath.Join(s.Root, "bin", "preflight")
	args := append([]string{"--map-root-user", "--mount", "sh", "-c", script + ` && exec "$@"`, folder, program}, append(more, container.Args...)...)
	cmd := exec.CommandContext(s.T.Context(), "unshare", args...)
	host, port, err := net.SplitHostPort(strings.TrimPrefix(s.Admin.Host, "https://"))
	if err != nil {
		s.Fatal(err)
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	value := preflighttest.Environment(s.T, s.Client, pod, container)
	for _, e := range container.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+value(e.Name))
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
