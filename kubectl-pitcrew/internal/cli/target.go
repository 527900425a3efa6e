package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	LabelName = "app.kubernetes.io/name"
	LabelPool = conditions.Domain + "/pool"
	// OwnNPD is the name of the node-problem-detectors of our chart.
	OwnNPD = "pitcrew-node-problem-detector"
)

// FieldOwner is the manager of our changes in managedFields.
const FieldOwner = "kubectl-pitcrew"

// Target is where the commands work; the flags say which.
type Target struct {
	Rules     *clientcmd.ClientConfigLoadingRules
	Overrides clientcmd.ConfigOverrides
	Namespace string
	// NpdNamespace is the namespace of a node-problem-detector that the chart has not installed.
	NpdNamespace string
	// AnswerWithin is how long an order waits for the remediator.
	AnswerWithin time.Duration
	Now          func() time.Time
}

func (c *Target) Kubeconfig() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.Rules, &c.Overrides)
}

func (c *Target) Config() (*rest.Config, error) {
	config, err := c.Kubeconfig().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("no kubeconfig found (%s): name one with --kubeconfig or KUBECONFIG",
			strings.Join(c.Rules.GetLoadingPrecedence(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("find a cluster: %w", err)
	}
	// As kubectl has them. With client-go's 5 a second, doctor takes 8 s.
	config.QPS, config.Burst = 50, 300
	return config, nil
}

func (c *Target) Client() (client.WithWatch, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	made, err := client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return made, nil
}

// Logs reads the log of a pod.
func (c *Target) Logs(ctx context.Context, namespace, pod string) (io.ReadCloser, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return clients.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{}).Stream(ctx) //nolint:wrapcheck // the caller names the pod
}

// ContextNamespace is the namespace of the kubeconfig's context, in which kubectl works by default.
func (c *Target) ContextNamespace() (string, error) {
	namespace, _, err := c.Kubeconfig().Namespace()
	if err != nil {
		return "", fmt.Errorf("find the namespace of the kubeconfig's context: %w", err)
	}
	return namespace, nil
}

// JobFlags are the namespaces of a command about a job: -n is the job's, as for kubectl.
func (c *Target) JobFlags(cmd *cobra.Command, namespace *string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", "`namespace` of the job (default: that of the kubeconfig's context)")
	cmd.Flags().StringVar(&c.Namespace, "pitcrew-namespace", c.Namespace, "`namespace` that Pitcrew runs in")
}

// Ago is a time and its age.
func (c *Target) Ago(t time.Time) string {
	return fmt.Sprintf("%s, %s ago", t.UTC().Format(time.RFC3339), duration.HumanDuration(c.Now().Sub(t)))
}

// Read gets a ConfigMap of Pitcrew's namespace; nil when there is none.
func (c *Target) Read(ctx context.Context, api client.Client, name string) (*corev1.ConfigMap, error) {
	var object corev1.ConfigMap
	err := api.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, &object)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("get ConfigMap %s: %w", name, err)
	}
	return &object, nil
}
