package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/rest"
)

// StartAlertmanager runs Debian's Alertmanager, which make bin/debian unpacks, with a configuration and returns its URL.
func (c *Cluster) StartAlertmanager(ctx context.Context, config []byte) (string, error) {
	// Debian's build reads a template below /usr/share that only an installation puts there, so it gets a /usr/share of its
	// own.
	const overlay = `mount -t overlay overlay -o "lowerdir=$0/usr/share:/usr/share" /usr/share && exec "$@"`
	debian := filepath.Join(c.Root, "bin", "debian")
	return c.startMonitoring(ctx, "prometheus-alertmanager", config, func(path, data, address string) []string {
		return []string{
			"unshare", "--map-root-user", "--mount", "bash", "-c", overlay, debian,
			filepath.Join(debian, "usr", "bin", "prometheus-alertmanager"),
			"--config.file=" + path, "--storage.path=" + data, "--web.listen-address=" + address, "--cluster.listen-address=",
		}
	})
}

// StartPrometheus runs Debian's Prometheus, which make bin/debian unpacks, with a configuration and returns its URL.
func (c *Cluster) StartPrometheus(ctx context.Context, config []byte) (string, error) {
	return c.startMonitoring(ctx, "prometheus", config, func(path, data, address string) []string {
		return []string{
			filepath.Join(c.Root, "bin", "debian", "usr", "bin", "prometheus"),
			"--config.file=" + path, "--storage.tsdb.path=" + data, "--web.listen-address=" + address,
		}
	})
}

func (c *Cluster) startMonitoring(ctx context.Context, name string, config []byte, command func(path, data, address string) []string) (string, error) {
	dir, err := os.MkdirTemp(c.Dir, name+"-")
	if err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	path := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(path, config, 0o644); err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	var url string
	err = c.onFreePort(ctx, func(port int) (*Process, func(context.Context) error, error) {
		address := net.JoinHostPort(loopback, strconv.Itoa(port))
		url = "http://" + address
		args := command(path, filepath.Join(dir, "data"), address)
		p, err := c.run(name, args[0], nil, args[1:]...)
		return p, func(ctx context.Context) error { return serves(ctx, &rest.Config{Host: url}, "/-/ready") }, err
	})
	if err != nil {
		return "", fmt.Errorf("start %s: %w", name, err)
	}
	return url, nil
}
