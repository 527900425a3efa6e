package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/rest"
)

// FreezeAPIServer stops the API server as a hung machine does, until [Cluster.ThawAPIServer]: connections stay, and nothing is answered.
func (c *Cluster) FreezeAPIServer() {
	c.wasDown.Store(true)
	c.apiServer.Freeze()
}

// ThawAPIServer continues a frozen API server, and waits until it is ready.
func (c *Cluster) ThawAPIServer(ctx context.Context) error {
	c.apiServer.Thaw()
	return c.apiServer.ready(ctx, c.apiServerReady)
}

// SaveEtcd copies what etcd has. The API server and etcd are stopped for that, and run again when it returns.
func (c *Cluster) SaveEtcd(ctx context.Context) error {
	return c.betweenEtcds(ctx, etcdData, etcdSaved)
}

// RestoreEtcd has the API server run again over the etcd of [Cluster.SaveEtcd]. Its versions begin anew from there.
func (c *Cluster) RestoreEtcd(ctx context.Context) error {
	return c.betweenEtcds(ctx, etcdSaved, etcdData)
}

// etcdData and etcdSaved are folders of the cluster's.
const etcdData, etcdSaved = "etcd-data", "etcd-saved"

// betweenEtcds replaces a folder by a copy of another while neither API server nor etcd run.
func (c *Cluster) betweenEtcds(ctx context.Context, from, to string) error {
	c.StopAPIServer()
	c.etcd.Kill()
	to = filepath.Join(c.Dir, to)
	if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(filepath.Join(c.Dir, from)))); err != nil {
		return fmt.Errorf("copy the folder of etcd: %w", err)
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// Wire is a way to the API server that carries bytes, as a load balancer does.
type Wire struct {
	listener net.Listener
	to       string

	mu          sync.Mutex
	connections []*connection
}

// connection is one through a wire.
type connection struct {
	client, server net.Conn
	swallowed      atomic.Bool
}

// StartWire starts a wire. The certificate of the API server is good for it.
func (c *Cluster) StartWire(ctx context.Context) (*Wire, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return nil, fmt.Errorf("start a wire: %w", err)
	}
	w := &Wire{listener: listener, to: c.Admin.Host[len("https://"):]}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go w.carry(ctx, client)
		}
	}()
	return w, nil
}

func (w *Wire) carry(ctx context.Context, client net.Conn) {
	defer client.Close()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.to)
	if err != nil {
		return
	}
	defer server.Close()
	c := &connection{client: client, server: server}
	w.mu.Lock()
	w.connections = append(w.connections, c)
	w.mu.Unlock()
	ended := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(server, client)
		ended <- struct{}{}
	}()
	go func() {
		_, _ = io.Copy(c, server)
		ended <- struct{}{}
	}()
	<-ended
}

// Write sends the client what the server has sent, unless it is swallowed.
func (c *connection) Write(p []byte) (int, error) {
	if c.swallowed.Load() {
		return len(p), nil
	}
	return c.client.Write(p) //nolint:wrapcheck // a writer's error
}

// Swallow has the clients of all present connections get nothing any more, though the connections stay. New ones work.
func (w *Wire) Swallow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.connections {
		c.swallowed.Store(true)
	}
}

// Close ends the wire and all connections through it.
func (w *Wire) Close() {
	_ = w.listener.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.connections {
		_ = c.client.Close()
	}
}

// Redirect has a client go through the wire.
func (w *Wire) Redirect(cfg *rest.Config) { cfg.Host = "https://" + w.listener.Addr().String() }
