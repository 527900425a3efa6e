package cluster

import (
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// stages end a pod like a kubelet does. KWOK's own pod-delete lets the object vanish while still Running, after which
// a Job with a podFailurePolicy waits endlessly for a terminal phase; KWOK's own pod-complete ends every Job pod immediately.
//
//go:embed stages.yaml
var stages []byte

// kwokAdmission keeps KWOK from deleting the successor of a pod.
//
//go:embed admission.yaml
var kwokAdmission []byte

func (c *Cluster) start(ctx context.Context, opts Options) error {
	begun := time.Now()
	if err := c.startAPI(ctx, opts); err != nil {
		return err
	}
	if opts.APIOnly {
		return nil
	}
	controllers := func(context.Context) error { return c.startControllers(opts) }
	leaseSeconds := 40 // as that of a kubelet
	if opts.NodeGrace > 0 {
		leaseSeconds = oftenSeconds
	}
	kubelets := func(ctx context.Context) error { return c.startKWOK(ctx, leaseSeconds) }
	parts := []func(context.Context) error{controllers, kubelets, c.runPod}
	if opts.JobSet {
		parts = append(parts, c.startJobSet)
	}
	if err := parallel(ctx, parts...); err != nil {
		return err
	}
	fmt.Fprintf(c.progress, "cluster ready after %s at %s, logs in %s\n",
		time.Since(begun).Round(10*time.Millisecond), c.Admin.Host, c.Dir)
	return nil
}

// startAPI starts etcd and the API server.
func (c *Cluster) startAPI(ctx context.Context, opts Options) error {
	if err := c.write("audit.yaml", auditPolicy); err != nil {
		return err
	}
	if err := c.makeCredentials(); err != nil {
		return err
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	var err error
	if err := c.onFreePort(ctx, func(port int) (*Process, func(context.Context) error, error) {
		base := &rest.Config{Host: hostURL(port), TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.PEM}, QPS: -1}
		if c.Admin, err = c.authenticate(base, "admin", "system:masters"); err != nil {
			return nil, nil, err
		}
		c.apiServerArgs = []string{
			"kube-apiserver",
			"--etcd-servers=unix://" + etcdSocket,
			"--bind-address=" + loopback, "--secure-port=" + strconv.Itoa(port), "--advertise-address=" + loopback,
			"--endpoint-reconciler-type=none", // no program uses the API server's own Service
			"--service-cluster-ip-range=10.0.0.0/24",
			// e2e/node has a real kubelet, whose name DNS cannot resolve.
			"--kubelet-preferred-address-types=InternalIP",
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", // as kubeadm has them
			"--allow-privileged=true", // as kubeadm has it; our Node Problem Detector reads /dev/kmsg
			"--client-ca-file=ca.crt", "--tls-cert-file=tls.crt", "--tls-private-key-file=tls.key", "--cert-dir=certs",
			"--service-account-issuer=https://kubernetes.default.svc",
			"--service-account-key-file=sa.pub", "--service-account-signing-key-file=sa.key",
		}
		if opts.Audit {
			c.apiServerArgs = append(c.apiServerArgs, "--audit-policy-file=audit.yaml", "--audit-log-path=audit.log", "--audit-log-mode=blocking")
		}
		if opts.FeatureGates != "" {
			c.apiServerArgs = append(c.apiServerArgs, "--feature-gates="+opts.FeatureGates)
		}
		c.apiServerArgs = append(c.apiServerArgs, opts.APIServerFlags...)
		c.apiServer, err = c.run("kube-apiserver", components.Kube.Path(c.Root), nil, c.apiServerArgs...)
		return c.apiServer, c.apiServerReady, err
	}); err != nil {
		return err
	}
	if c.Kubeconfig, err = c.WriteKubeconfig("admin", c.Admin); err != nil {
		return err
	}
	// Without a logger the client prints a warning on stderr after 30 s.
	if c.Client, err = client.NewWithWatch(c.Admin, client.Options{Log: logr.New(log.NullLogSink{})}); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return nil
}

// startEtcd starts etcd over its folder, and waits until it listens.
func (c *Cluster) startEtcd(ctx context.Context) (err error) {
	// Unix sockets in c.Dir, where both programs run. etcd requires the form host:port.
	const clients, peers = etcdSocket, "etcd:2"
	c.etcd, err = c.run("etcd", components.Kube.Path(c.Root), nil, "etcd", "--name=e2e", "--data-dir="+etcdData,
		"--listen-client-urls=unix://"+clients, "--advertise-client-urls=unix://"+clients,
		"--listen-peer-urls=unix://"+peers, "--initial-advertise-peer-urls=unix://"+peers,
		"--initial-cluster=e2e=unix://"+peers, "--unsafe-no-fsync", "--quota-backend-bytes=8589934592", // 8 GiB, for bench/scale
		"--snapshot-count=1000", "--snapshot-catchup-entries=100") // it keeps so many writes in memory, and attacks write megabytes
	if err != nil {
		return err
	}
	c.need(c.etcd)
	return c.etcd.ready(ctx, func(context.Context) error {
		_, err := os.Stat(filepath.Join(c.Dir, clients))
		return err
	})
}

// StopAPIServer stops the API server: connections break and new ones are refused.
func (c *Cluster) StopAPIServer() {
	c.wasDown.Store(true)
	c.apiServer.Kill()
}

// StartAPIServer starts a stopped API server again, at the same address, and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	var err error
	if c.apiServer, err = c.run("kube-apiserver", components.Kube.Path(c.Root), nil, c.apiServerArgs...); err != nil {
		return err
	}
	c.need(c.apiServer)
	return c.apiServer.ready(ctx, c.apiServerReady)
}

func (c *Cluster) apiServerReady(ctx context.Context) error {
	return serves(ctx, c.Admin, "/readyz")
}

// serves checks that the server of cfg, proven by its certificate, answers 200 at path.
func serves(ctx context.Context, cfg *rest.Config, path string) error {
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, cfg.Host+path, nil)
	if err != nil {
		return err
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", path, response.Status)
	}
	return nil
}

// makeCredentials makes the authority and the files that the servers need.
func (c *Cluster) makeCredentials() error {
	var err error
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	serving, err := c.ca.server()
	if err != nil {
		return err
	}
	private, public, err := signingKey()
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt": c.ca.PEM, "tls.crt": serving.cert, "tls.key": serving.key, "sa.key": private, "sa.pub": public,
	} {
		if err := c.write(name, content); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) write(name string, content []byte) error {
	return os.WriteFile(filepath.Join(c.Dir, name), content, 0o600)
}

const controllerManager = "kube-controller-manager"

// startControllers starts the controller manager and the scheduler. They serve nothing: that saves two ports, and
// whether they work shows in the API, see [Cluster.runPod].
func (c *Cluster) startControllers(opts Options) error {
	var nodes []string
	if grace := opts.NodeGrace; grace > 0 {
		nodes = []string{"--node-monitor-grace-period=" + grace.String(), "--node-monitor-period=" + (grace / 4).String()}
	}
	controllers := "--controllers=*"
	if opts.WithoutJobs {
		controllers += ",-job-controller"
	}
	if opts.WithoutPodGC {
		controllers += ",-pod-garbage-collector-controller"
	}
	nodes = append(nodes, controllers)
	if opts.NodeEvictionRate > 0 {
		nodes = append(nodes, "--node-eviction-rate="+strconv.Itoa(opts.NodeEvictionRate))
	}
	for name, args := range map[string][]string{
		controllerManager: append(nodes,
			"--use-service-account-credentials", "--service-account-private-key-file=sa.key", "--root-ca-file=ca.crt"),
		"kube-scheduler": nil,
	} {
		kubeconfig, err := c.kubeconfigFor("system:" + name)
		if err != nil {
			return err
		}
		// At the default of 20 requests per second and controller 1000 nodes keep their not-ready taint for minutes.
		args = append([]string{name, "--kubeconfig=" + kubeconfig, "--secure-port=0", "--leader-elect=false",
			"--kube-api-qps=1000", "--kube-api-burst=2000"}, args...)
		if opts.FeatureGates != "" {
			args = append(args, "--feature-gates="+opts.FeatureGates)
		}
		if err := c.keep(func() (*Process, error) {
			p, err := c.run(name, components.Kube.Path(c.Root), nil, args...)
			if err == nil && name == controllerManager {
				c.controllers.Store(p)
			}
			return p, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// RestartControllers has the controller manager start again, if the API server was stopped before. Each of its watches waits for up to a
// minute before it is begun anew, as client-go's reflector does whose watch has failed several times (30 s times 1 to 2; two quiet minutes
// make it forget). What needs two of them, as the pods of a Job, has been seen to take 86 s.
func (c *Cluster) RestartControllers() {
	if controllers := c.controllers.Load(); controllers != nil && c.wasDown.Load() {
		controllers.signal(syscall.SIGKILL) // see [Cluster.keep]
	}
}

// startKWOK starts KWOK for the nodes that [Cluster.AddNodes] makes.
func (c *Cluster) startKWOK(ctx context.Context, leaseSeconds int) error {
	if err := c.write("stages.yaml", stages); err != nil {
		return err
	}
	if err := c.Apply(ctx, kwokAdmission); err != nil {
		return err
	}
	c.kubelets = &Kubelets{cluster: c, name: "kwok", group: "fake", leaseSeconds: leaseSeconds}
	if err := c.kubelets.start(ctx); err != nil {
		return err
	}
	c.need(c.kubelets.process)
	return nil
}

// runKWOK runs a KWOK for the nodes with its annotation, whose leases last that long and are renewed four times in that time.
func (c *Cluster) runKWOK(ctx context.Context, name, annotation string, leaseSeconds int) (*Process, error) {
	module, err := components.KWOK.ModuleDir(ctx, c.Root)
	if err != nil {
		return nil, err
	}
	args := []string{"--config=stages.yaml"}
	for _, stage := range []string{"node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml"} {
		args = append(args, "--config="+filepath.Join(module, "kustomize", "stage", stage))
	}
	kubeconfig, err := c.kubeconfigFor("kwok", "system:masters") // one user for all: kwokAdmission knows it by name
	if err != nil {
		return nil, err
	}
	return c.run(name, components.KWOK.Path(c.Root), nil, append(args, "--kubeconfig="+kubeconfig,
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector="+kwokAnnotation+"="+annotation,
		fmt.Sprintf("--node-lease-duration-seconds=%d", leaseSeconds), "--cidr=10.128.0.0/10", "--server-address=")...)
}

func (c *Cluster) kubeconfigFor(user string, groups ...string) (string, error) {
	cfg, err := c.Config(user, groups...)
	if err != nil {
		return "", err
	}
	return c.WriteKubeconfig(user, cfg)
}

// runPod proves that the parts work together: the controller manager makes the service account, KWOK makes a node
// ready, the scheduler places a pod on it and KWOK runs the pod.
func (c *Cluster) runPod(ctx context.Context) error {
	nodes, err := c.AddNodes(ctx, "e2e-probe", 1, nil)
	if err != nil {
		return err
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "e2e-probe"},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{LabelPool: "e2e-probe"},
			Containers:   []corev1.Container{{Name: "probe", Image: "none"}},
		},
	}
	if err := c.waitForServiceAccount(ctx, pod.Namespace); err != nil {
		return err
	}
	if err := c.Client.Create(ctx, pod); err != nil {
		return fmt.Errorf("create the probe pod: %w", err)
	}
	if err := Poll(ctx, func(ctx context.Context) error {
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("the probe pod does not run: %w", err)
	}
	if err := c.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		return fmt.Errorf("delete the probe pod: %w", err)
	}
	return c.DeleteNodes(ctx, nodes...)
}

const loopback = "127.0.0.1"

// onFreePort starts a server on a free port and waits until it is ready. Another program can take the port between
// the choice and the server's bind; then onFreePort tries another port.
func (c *Cluster) onFreePort(ctx context.Context, start func(port int) (*Process, func(context.Context) error, error)) error {
	for attempt := 1; ; attempt++ {
		port, err := c.freePort()
		if err != nil {
			return err
		}
		p, check, err := start(port)
		if err != nil {
			return err
		}
		err = p.ready(ctx, check)
		if err == nil {
			c.need(p)
			return nil
		}
		taken := !p.running() && strings.Contains(p.Log(), syscall.EADDRINUSE.Error())
		if !taken || attempt == 5 {
			return err
		}
	}
}

func hostURL(port int) string { return "https://" + net.JoinHostPort(loopback, strconv.Itoa(port)) }

// The ports of our servers lie below those that Linux gives to clients. A client that asks for a server which is not there may get the
// server's own port for its end of the connection; then the server could not come back.
const firstPort, ports = 20000, 10000

// freePort is a port on which nothing listens.
func freePort() (port int, err error) {
	for range 100 {
		port = firstPort + rand.IntN(ports)
		var listener net.Listener
		if listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(loopback, strconv.Itoa(port))); err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

// FreeAddress is a host:port on which nothing listens, for a program that must be told where to serve.
func FreeAddress() (string, error) {
	port, err := freePort()
	return net.JoinHostPort(loopback, strconv.Itoa(port)), err
}
