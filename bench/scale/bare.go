package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// watchNodes caches the nodes of a cluster, without images and managed fields, until ctx ends: what any controller of nodes costs, before it
// does anything.
func watchNodes(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.DisableCompression = true // as the remediator
	nodes, err := cache.New(config, cache.Options{Scheme: scheme.Scheme, ByObject: map[client.Object]cache.ByObject{
		&corev1.Node{}: {Transform: func(object any) (any, error) {
			if n, ok := object.(*corev1.Node); ok {
				n.Status.Images, n.ManagedFields = nil, nil
			}
			return object, nil
		}},
	}})
	if err != nil {
		return err
	}
	if _, err := nodes.GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false)); err != nil {
		return err
	}
	go func() {
		if nodes.WaitForCacheSync(ctx) {
			fmt.Println(synced)
		}
	}()
	return nodes.Start(ctx)
}

const synced = "synced"

// bareCache starts this program as a cache of nodes, and returns when it is filled.
func (b *bench) bareCache(ctx context.Context) (*exec.Cmd, error) {
	kubeconfig, err := b.WriteKubeconfig("bare", b.Admin)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, "-watch", kubeconfig)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := fmt.Fscan(out, new(string)); err != nil {
		return nil, fmt.Errorf("wait for the bare cache: %w", err)
	}
	return cmd, nil
}
