package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// volcanoSchedulerConfig is upstream's default without preemption.
const volcanoSchedulerConfig = `actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
`

// StartVolcano starts Volcano's webhooks, controllers and scheduler and waits for its default queue.
func (c *Cluster) StartVolcano(ctx context.Context) error {
	module, kubeconfig, err := c.prepare(ctx, components.VolcanoWebhooks, "config/crd/volcano/bases", "config/crd/jobflow/bases")
	if err != nil {
		return err
	}
	if err := components.Build(ctx, c.progress, c.Root, components.VolcanoControllers, components.VolcanoScheduler); err != nil {
		return err
	}
	if err := c.startVolcanoWebhooks(ctx, module, kubeconfig); err != nil {
		return err
	}
	if err := c.write("volcano-scheduler.yaml", []byte(volcanoSchedulerConfig)); err != nil {
		return err
	}
	for _, program := range []struct {
		components.Component
		args []string
	}{
		{components.VolcanoControllers, []string{"--kube-api-qps=500", "--kube-api-burst=1000"}},
		{components.VolcanoScheduler, []string{"--scheduler-conf=volcano-scheduler.yaml", "--schedule-period=200ms", "--cache-dumper=false"}},
	} {
		p, err := c.run(program.Name, program.Path(c.Root), []string{"DEBUG_SOCKET_DIR=" + program.Name},
			append([]string{"--kubeconfig=" + kubeconfig, "--leader-elect=false"}, program.args...)...)
		if err != nil {
			return err
		}
		c.need(p)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	queue := &unstructured.Unstructured{}
	queue.SetGroupVersionKind(schema.GroupVersionKind{Group: "scheduling.volcano.sh", Version: "v1beta1", Kind: "Queue"})
	if err := Poll(ctx, func(ctx context.Context) error {
		if err := c.Client.Get(ctx, client.ObjectKey{Name: "default"}, queue); err != nil {
			return err
		}
		if state, _, _ := unstructured.NestedString(queue.Object, "status", "state"); state != "Open" {
			return errors.New("it is not open")
		}
		return nil
	}); err != nil {
		return fmt.Errorf("wait for Volcano's default queue: %w", err)
	}
	return nil
}

// startVolcanoWebhooks installs the webhooks and starts their server, in this order: it waits for configurations of
// these names before it serves anything.
func (c *Cluster) startVolcanoWebhooks(ctx context.Context, module, kubeconfig string) error {
	manifests, err := os.ReadFile(filepath.Join(module, "installer", "volcano-development.yaml"))
	if err != nil {
		return fmt.Errorf("install the webhooks of Volcano: %w", err)
	}
	paths := []string{"/jobs/mutate", "/jobs/validate", "/podgroups/validate", "/queues/mutate", "/queues/validate", "/hypernodes/validate", "/cronjobs/validate"}
	_, err = c.startWebhooks(ctx, func(port int) (*Process, error) {
		if err := c.installWebhooks(ctx, manifests, "", hostURL(port)); err != nil {
			return nil, fmt.Errorf("install the webhooks of Volcano: %w", err)
		}
		return c.run(components.VolcanoWebhooks.Name, components.VolcanoWebhooks.Path(c.Root), nil, "--kubeconfig="+kubeconfig,
			"--webhook-url="+hostURL(port), "--enabled-admission="+strings.Join(paths, ","),
			"--listen-address="+loopback, "--port="+strconv.Itoa(port),
			"--tls-cert-file=tls.crt", "--tls-private-key-file=tls.key", "--ca-cert-file=ca.crt")
	}, paths...)
	return err
}
