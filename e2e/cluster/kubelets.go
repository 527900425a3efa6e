package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Kubelets are the simulated kubelets of a group of nodes that can die or freeze, see [Cluster.StartKubelets].
type Kubelets struct {
	cluster *Cluster
	// name is that of their process, and group is in the annotation of their nodes.
	name, group  string
	leaseSeconds int
	process      *Process
}

// oftenSeconds is the duration of a lease that is renewed once a second.
const oftenSeconds = 4

// StartKubelets starts a second KWOK, for the nodes that [Cluster.AddNodes] makes with [Kubelets.Own]. Unlike those of the other
// nodes, these kubelets can be killed or stopped by a test: then nothing reports the nodes' state any more, and no pod on them
// starts or ends. They renew their leases once a second. A group's name is unique in the cluster.
func (c *Cluster) StartKubelets(ctx context.Context, group string) (*Kubelets, error) {
	k := &Kubelets{cluster: c, name: "kwok-" + group, group: group, leaseSeconds: oftenSeconds}
	return k, k.start(ctx)
}

// Kubelets are those of the nodes that are given to no others.
func (c *Cluster) Kubelets() *Kubelets { return c.kubelets }

func (k *Kubelets) start(ctx context.Context) (err error) {
	if k.process, err = k.cluster.runKWOK(ctx, k.name, k.group, k.leaseSeconds); err != nil {
		return fmt.Errorf("start the kubelets of group %s: %w", k.group, err)
	}
	return nil
}

// Restart kills the kubelets and starts them again. After an outage of the API server those of KWOK 0.8 may renew no lease any more, and
// play no node that is new.
func (k *Kubelets) Restart(ctx context.Context) error {
	k.process.Kill()
	return k.start(ctx)
}

// Own gives a node that is to be created to these kubelets.
func (k *Kubelets) Own(node *corev1.Node) { node.Annotations[kwokAnnotation] = k.group }

// Freeze stops the kubelets, as a hung machine or a cut network does.
func (k *Kubelets) Freeze() { k.process.Freeze() }

// Thaw continues frozen kubelets.
func (k *Kubelets) Thaw() { k.process.Thaw() }

// Kill ends the kubelets for ever, as a power-off does.
func (k *Kubelets) Kill() { k.process.Kill() }
