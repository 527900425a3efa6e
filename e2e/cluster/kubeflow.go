package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// StartTrainingOperator starts kubeflow's training-operator with its validating webhooks. Its v1 MPIJob and the
// v2beta1 one of [Cluster.StartMPIOperator] are the same CRD, so a cluster has one or the other.
func (c *Cluster) StartTrainingOperator(ctx context.Context) error {
	_, err := c.startKubeflow(ctx, kubeflow{
		operator:  components.TrainingOperator,
		manifests: "manifests/base",
		namespace: "kubeflow",
		// The operator's own limit of 20 requests per second would slow down a job of hundreds of ranks. The template is that of the init
		// container that waits for the master; a missing file means the built-in one.
		args: []string{"--kube-api-qps=500", "--kube-api-burst=1000", "--metrics-bind-address=0", "--pytorch-init-container-template-file=none"},
		paths: []string{"/validate-kubeflow-org-v1-jaxjob", "/validate-kubeflow-org-v1-pytorchjob", "/validate-kubeflow-org-v1-tfjob",
			"/validate-kubeflow-org-v1-xgboostjob", "/validate-kubeflow-org-v1-paddlejob"},
		secret:   "training-operator-webhook-cert",
		webhooks: "validator.training-operator.kubeflow.org",
	})
	return err
}

// StartTrainer starts kubeflow's trainer, the controller of TrainJobs, with its validating webhooks and the runtime
// torch-distributed. It makes JobSets: the cluster must have been started with [Options.JobSet].
func (c *Cluster) StartTrainer(ctx context.Context) error {
	module, err := c.startKubeflow(ctx, kubeflow{
		operator:  components.Trainer,
		manifests: "manifests/base",
		namespace: "kubeflow-system",
		config:    trainerConfig,
		paths: []string{"/mutate-trainer-kubeflow-org-v1alpha1-trainjob", "/validate-trainer-kubeflow-org-v1alpha1-trainjob",
			"/validate-trainer-kubeflow-org-v1alpha1-clustertrainingruntime"},
	})
	if err != nil {
		return err
	}
	runtime, err := os.ReadFile(filepath.Join(module, "manifests", "base", "runtimes", "torch_distributed.yaml"))
	if err != nil {
		return fmt.Errorf("install the training runtime: %w", err)
	}
	return c.Apply(ctx, runtime)
}

// trainerConfig is a configuration with our own certificate, and no server but the webhooks'.
const trainerConfig = `apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
health: {healthProbeBindAddress: "0"}
metrics: {bindAddress: "0"}
webhook: {host: %s, port: %d}
leaderElection: {leaderElect: false}
certManagement: {enable: false}
`

// kubeflow describes an operator that wants the certificate of its webhooks in a folder that cannot be chosen.
type kubeflow struct {
	operator  components.Component
	manifests string
	namespace string
	// config is its configuration, with the address to fill in; empty: it has flags instead, and makes its own certificate
	// and keeps it in a Secret, which a kubelet would mount.
	config   string
	args     []string
	paths    []string
	secret   string
	webhooks string
}

func (c *Cluster) startKubeflow(ctx context.Context, k kubeflow) (module string, err error) {
	module, kubeconfig, err := c.prepare(ctx, k.operator, filepath.Join(k.manifests, "crds"))
	if err != nil {
		return "", err
	}
	if err := c.AddNamespace(ctx, k.namespace, nil); err != nil {
		return "", err
	}
	if k.config == "" {
		// The operator writes its certificate into these and continues after that. It still serves our certificate, so
		// the webhooks themselves go into a configuration of another name.
		if err := c.Apply(ctx, fmt.Appendf(nil, `apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: %s}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: %s}
webhooks: []
`, k.secret, k.namespace, k.webhooks)); err != nil {
			return "", fmt.Errorf("start %s: %w", k.operator.Name, err)
		}
	}
	host, err := c.startWebhooks(ctx, func(port int) (*Process, error) {
		args := append([]string{"--webhook-server-port=" + strconv.Itoa(port), "--health-probe-bind-address=0"}, k.args...)
		if k.config != "" {
			file := k.operator.Name + ".yaml"
			if err := c.write(file, fmt.Appendf(nil, k.config, loopback, port)); err != nil {
				return nil, err
			}
			args = []string{"--config=" + file}
		}
		return c.runWithCertificate("/tmp/k8s-webhook-server/serving-certs", k.operator.Name, k.operator.Path(c.Root),
			[]string{"KUBECONFIG=" + kubeconfig}, args...)
	}, k.paths...)
	if err != nil {
		return "", err
	}
	manifests, err := c.kustomize(ctx, filepath.Join(module, k.manifests, "webhook"))
	if err != nil {
		return "", err
	}
	if err := c.installWebhooks(ctx, manifests, "e2e.", host); err != nil {
		return "", fmt.Errorf("install the webhooks of %s: %w", k.operator.Name, err)
	}
	return module, nil
}

// StartMPIOperator starts kubeflow's mpi-operator, the controller of v2beta1 MPIJobs. It serves its health on port 8080
// of every address, which cannot be configured, so a machine runs one at a time.
func (c *Cluster) StartMPIOperator(ctx context.Context) error {
	_, kubeconfig, err := c.prepare(ctx, components.MPIOperator, "manifests/base")
	if err != nil {
		return err
	}
	const namespace = "mpi-operator" // of its Lease
	if err := c.AddNamespace(ctx, namespace, nil); err != nil {
		return err
	}
	p, err := c.run("mpi-operator", components.MPIOperator.Path(c.Root), nil, "--kubeConfig="+kubeconfig,
		"--lock-namespace="+namespace, "--kube-api-qps=200", "--kube-api-burst=400")
	if err != nil {
		return err
	}
	c.need(p)
	return nil
}
