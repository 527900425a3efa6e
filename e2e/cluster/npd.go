package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// NPD configures a node-problem-detector.
type NPD struct {
	// Node is the name of the node that it reports about.
	Node string
	// Monitors are custom plugin monitors.
	Monitors []Monitor
	// LogMonitors are files for NPD's own system log monitor.
	LogMonitors []string
	// Args are further arguments.
	Args []string
}

// Monitor is a custom plugin monitor.
type Monitor struct {
	// File is the monitor file. Plugins in /opt/pitcrew/bin, where the images have them, are run from this
	// repository's bin.
	File string
	// Args are added to the arguments of every rule.
	Args []string
}

// installedPlugins is where monitors/*.json expect the plugins.
const installedPlugins = "/opt/pitcrew/bin/"

// npdAccount is NPD's own identity. Upstream's deployment binds it to the same built-in role.
const npdAccount = `apiVersion: v1
kind: ServiceAccount
metadata: {namespace: kube-system, name: node-problem-detector}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: node-problem-detector}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-problem-detector}
subjects: [{kind: ServiceAccount, namespace: kube-system, name: node-problem-detector}]
`

// StartNPD builds what is missing and starts the real node-problem-detector under its own service account. It returns
// before the monitors have reported: wait for the condition.
func (c *Cluster) StartNPD(ctx context.Context, npd NPD) (*Process, error) {
	if err := components.Build(ctx, c.progress, c.Root, components.NodeProblemDetector); err != nil {
		return nil, err
	}
	if err := c.Apply(ctx, []byte(npdAccount)); err != nil {
		return nil, fmt.Errorf("start node-problem-detector: %w", err)
	}
	cfg, err := c.ServiceAccountConfig(ctx, "kube-system", "node-problem-detector")
	if err != nil {
		return nil, err
	}
	kubeconfig, err := c.WriteKubeconfig("node-problem-detector", cfg)
	if err != nil {
		return nil, err
	}
	args := []string{
		"--apiserver-override=" + c.Admin.Host + "?inClusterConfig=false&auth=" + kubeconfig,
		"--hostname-override=" + npd.Node, "--port=0", "--prometheus-port=0",
	}
	for _, monitor := range npd.Monitors {
		path, plugins, err := c.render(monitor)
		if err != nil {
			return nil, err
		}
		if err := components.BuildOurs(ctx, c.Root, plugins...); err != nil {
			return nil, err
		}
		args = append(args, "--config.custom-plugin-monitor="+path)
	}
	for _, path := range npd.LogMonitors {
		args = append(args, "--config.system-log-monitor="+path)
	}
	p, err := c.run("node-problem-detector", components.NodeProblemDetector.Path(c.Root), nil, append(args, npd.Args...)...)
	if err != nil {
		return nil, err
	}
	c.need(p)
	return p, nil
}

// RunPlugin runs a plugin of this repository without NPD and returns its output. Any exit status except 0 is an error.
func (c *Cluster) RunPlugin(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Root, "bin", name), args...)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// render writes a copy of the monitor that runs this repository's plugins with the additional arguments, and returns it
// with the packages of those plugins.
func (c *Cluster) render(monitor Monitor) (path string, plugins []string, err error) {
	text, err := os.ReadFile(monitor.File)
	if err != nil {
		return "", nil, fmt.Errorf("render monitor: %w", err)
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return "", nil, fmt.Errorf("render monitor %s: %w", monitor.File, err)
	}
	rules, _ := config["rules"].([]any)
	for _, r := range rules {
		rule, ok := r.(map[string]any)
		if !ok {
			return "", nil, fmt.Errorf("render monitor %s: rule %v is not an object", monitor.File, r)
		}
		installed, _ := rule["path"].(string)
		if plugin, ok := strings.CutPrefix(installed, installedPlugins); ok {
			rule["path"] = filepath.Join(c.Root, "bin", plugin)
			plugins = append(plugins, "./plugins/"+plugin)
		}
		args, _ := rule["args"].([]any)
		for _, arg := range monitor.Args {
			args = append(args, arg)
		}
		rule["args"] = args
	}
	rendered, err := json.MarshalIndent(config, "", "  ")
	if err != nil {
		return "", nil, fmt.Errorf("render monitor %s: %w", monitor.File, err)
	}
	dir, err := os.MkdirTemp(c.Dir, "monitor-")
	if err != nil {
		return "", nil, fmt.Errorf("render monitor %s: %w", monitor.File, err)
	}
	path = filepath.Join(dir, filepath.Base(monitor.File))
	if err := os.WriteFile(path, rendered, 0o644); err != nil {
		return "", nil, fmt.Errorf("render monitor %s: %w", monitor.File, err)
	}
	return path, plugins, nil
}
