// Package cluster runs a real Kubernetes control plane on loopback for tests and demo: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, KWOK in place of the kubelets and, on request, the JobSet controller,
// the node-problem-detector, the remediator and other job operators. Only the containers are simulated, and their
// answers to the ray-operator.
//
// It needs Go, but neither root nor a container runtime. Three operators, [Cluster.StartTrainingOperator],
// [Cluster.StartTrainer] and [Cluster.StartKueue], need a mount namespace. Every cluster has its own temporary folder, certificate
// authority and ports; etcd listens on unix sockets inside that folder, so that no other cluster can reach it and it
// can reach no other cluster.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// Options configure a cluster.
type Options struct {
	// JobSet adds the JobSet controller, its CRD and its webhooks.
	JobSet bool
	// HandOff lets the remediator write the condition for soperator and that of its repairs, as the chart does for a policy with
	// output.soperator and output.maintenance.
	HandOff bool
	// NodeGrace is how long a node may be silent before the controller manager sets its condition Ready to Unknown; zero: the
	// default of Kubernetes, 50 s. If it is set, all simulated kubelets renew their leases once a second, which is often enough
	// for 3 s.
	NodeGrace time.Duration
	// NodeEvictionRate is on how many nodes in a second the controller manager starts the eviction of pods after they became
	// unreachable; zero: the default of Kubernetes, one in 10 s, which delays the eviction if many nodes die together.
	NodeEvictionRate int
	// Audit has the API server write changes of Nodes, Pods and Jobs, the lists of Pods, and all requests of the remediator to
	// [Cluster.AuditLog].
	Audit bool
	// WithoutJobs runs no job controller: a test plays the Jobs.
	WithoutJobs bool
	// WithoutPodGC runs no pod garbage collector, which every 20 s deletes the pods of nodes that are gone or out of service: a test shows who
	// else deletes them, and deletes what it leaves itself.
	WithoutPodGC bool
	// APIOnly runs etcd and the API server alone: the caller plays all controllers and kubelets. For worlds of thousands of nodes, see
	// [Cluster.Store].
	APIOnly bool
	// FeatureGates are those of the API server, the controller manager and the scheduler, as in GenericWorkload=true.
	FeatureGates string
	// APIServerFlags are further flags of the API server.
	APIServerFlags []string
	// Progress receives lines about what is being built and started; nil discards them.
	Progress io.Writer

	freePort func() (int, error) // a test can make it choose a taken one
}

// Cluster is a running cluster.
type Cluster struct {
	// Dir is the cluster's temporary folder, with one log file per program.
	Dir string
	// Root is the root of this repository.
	Root string
	// Admin authenticates as system:masters. Neither it nor what is derived from it has a client-side rate limit.
	Admin *rest.Config
	// Kubeconfig is a file with Admin in it.
	Kubeconfig string
	// Client uses Admin. It has types for the built-in kinds; other kinds are unstructured objects.
	Client client.WithWatch

	progress io.Writer
	handOff  bool
	freePort func() (int, error)
	ca       *authority

	etcd, apiServer *Process
	apiServerArgs   []string
	wasDown         atomic.Bool // the API server was stopped
	controllers     atomic.Pointer[Process]
	kubelets        *Kubelets

	ctx  context.Context
	fail context.CancelCauseFunc

	mu        sync.Mutex
	processes []*Process
	closed    bool
}

// startTimeout is far above the 5 s that a start takes on two idle cores.
const startTimeout = 5 * time.Minute

// Start builds what is missing and starts a cluster. It is ready when a pod runs in it. The caller must call
// [Cluster.Close]. When Start fails nothing is left running.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	if opts.Progress == nil {
		opts.Progress = io.Discard
	}
	root, err := components.Root()
	if err != nil {
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	wanted := []components.Component{components.Kube}
	if !opts.APIOnly {
		wanted = append(wanted, components.KWOK)
	}
	if opts.JobSet {
		wanted = append(wanted, components.JobSet)
	}
	if err := components.Build(ctx, opts.Progress, root, wanted...); err != nil {
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	dir, err := os.MkdirTemp("", "pitcrew-e2e-")
	if err != nil {
		return nil, fmt.Errorf("start a cluster: %w", err)
	}
	c := &Cluster{Dir: dir, Root: root, progress: opts.Progress, handOff: opts.HandOff, freePort: freePort}
	if opts.freePort != nil {
		c.freePort = opts.freePort
	}
	c.ctx, c.fail = context.WithCancelCause(context.Background())
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stop := context.AfterFunc(c.ctx, cancel) // if a program ends during the start, the start fails
	defer stop()
	if err := c.start(starting, opts); err != nil {
		if cause := context.Cause(c.ctx); cause != nil {
			err = cause
		}
		return nil, errors.Join(fmt.Errorf("start a cluster: %w", err), c.Close())
	}
	return c, nil
}

// Context ends when a program of the cluster ends without being stopped. Its cause quotes the program's log.
func (c *Cluster) Context() context.Context { return c.ctx }

// With returns a context that ends with another, and when that of the cluster ends, with its cause.
func (c *Cluster) With(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	return ctx, cancel
}

// Close kills every program of the cluster and removes its folder. Calling it again does nothing.
func (c *Cluster) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	processes := c.processes
	c.mu.Unlock()
	if closed {
		return nil
	}
	for _, p := range processes {
		p.stopped.Store(true)
	}
	// Later programs depend on earlier ones. None has state that needs a graceful end.
	for i := len(processes) - 1; i >= 0; i-- {
		processes[i].Kill()
	}
	c.fail(errors.New("the cluster is closed"))
	if err := os.RemoveAll(c.Dir); err != nil {
		return fmt.Errorf("close the cluster: %w", err)
	}
	return nil
}

// Config returns a client configuration that authenticates as user in groups with a client certificate.
func (c *Cluster) Config(user string, groups ...string) (*rest.Config, error) {
	return c.authenticate(c.Admin, user, groups...)
}

func (c *Cluster) authenticate(base *rest.Config, user string, groups ...string) (*rest.Config, error) {
	pair, err := c.ca.client(user, groups...)
	if err != nil {
		return nil, err
	}
	cfg := rest.AnonymousClientConfig(base)
	cfg.CertData, cfg.KeyData = pair.cert, pair.key
	return cfg, nil
}

// ServiceAccountConfig returns a client configuration with a token of the service account, so that it may only do what
// the account's roles allow.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 60 * 60)},
	}
	if err := c.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, fmt.Errorf("request a token for service account %s/%s: %w", namespace, name, err)
	}
	cfg := rest.AnonymousClientConfig(c.Admin)
	cfg.BearerToken = request.Status.Token
	return cfg, nil
}

// WriteKubeconfig writes cfg as a kubeconfig file called name into the cluster's folder and returns its path. It replaces
// an earlier file as a whole: a component that was started a moment ago may be reading it.
func (c *Cluster) WriteKubeconfig(name string, cfg *rest.Config) (string, error) {
	path := filepath.Join(c.Dir, name+".kubeconfig")
	part := fmt.Sprintf("%s.%08x", path, rand.Uint32())
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"e2e": {Server: cfg.Host, CertificateAuthorityData: cfg.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{
			"e2e": {ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken},
		},
		Contexts:       map[string]*clientcmdapi.Context{"e2e": {Cluster: "e2e", AuthInfo: "e2e"}},
		CurrentContext: "e2e",
	}, part)
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return "", fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	return path, nil
}

// Kubectl runs the real kubectl as admin and returns what it printed.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	args = append([]string{"kubectl", "--kubeconfig=" + c.Kubeconfig, "--cache-dir=" + filepath.Join(c.Dir, "kubectl-cache")}, args...)
	out, err := exec.CommandContext(ctx, components.Kube.Path(c.Root), args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %v: %w\n%s", args[3:], err, out)
	}
	return string(out), nil
}
