package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

//go:embed testdata/launch.c
var launcher string

// preset is what the chart runs on a node with NVIDIA's GPUs and RoCE adapters.
const preset = "nvidia-roce"

const (
	gpus  = 8
	ports = 8
	// others is how many other functions the PCI bus has.
	others = 204
)

// node is a node of files: the sysfs that the plugins read, and the stand-in for the driver's library.
type node struct {
	dir string
	// groups is the cgroup below which all programs run.
	groups string
}

func newNode(ctx context.Context, dir string, init time.Duration, reread bool) (*node, error) {
	n := &node{dir: dir}
	files := map[string]string{
		"launch.c": launcher,
		// The GPUs are in use: only then a check for GPUs that stand still judges their counters.
		"standin": fmt.Sprintf("burn %d\n*.processes 1\n*.utilization 100\n", init.Milliseconds()), "driver/usr/lib64/libnvidia-ml.so.1.c": "",
		"sys/module/nvidia/initstate": "live\n", "sys/module/nvidia/version": "580.95.05\n",
		"sys/class/dmi/id/product_name": "none\n",
	}
	pci := func(i int, address, vendor, class, driver string) {
		device := filepath.Join("sys/bus/pci/devices", address)
		for name, text := range map[string]string{
			"vendor": vendor, "class": class, "device": "0x2330", "current_link_width": "16", "max_link_width": "16", "driver/bind": driver,
		} {
			files[filepath.Join(device, name)] = text + "\n"
		}
		files[filepath.Join("dev", fmt.Sprintf("nvidia%d", i))] = ""
	}
	for i := range gpus {
		pci(i, fmt.Sprintf("0000:1%d:00.0", i), "0x10de", "0x030200", "nvidia")
	}
	for i := range others {
		pci(0, fmt.Sprintf("0001:%02x:00.0", i), "0x8086", "0x088000", "pcieport")
	}
	for i := range ports {
		address := fmt.Sprintf("0000:2%d:00.0", i)
		pci(0, address, "0x15b3", "0x020700", "mlx5_core")
		adapter := fmt.Sprintf("sys/class/infiniband/mlx5_%d", i)
		for name, text := range map[string]string{
			"board_id": "MT_0000000838", "hca_type": "MT4129", "ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp",
			"ports/1/rate": "400 Gb/sec (4X NDR)", "ports/1/link_layer": "Ethernet",
			"ports/1/gids/0": "fe80:0000:0000:0000:58a2:e103:002a:09b8", "ports/1/gid_attrs/ndevs/0": fmt.Sprintf("eth%d", i),
			"ports/1/counters/link_downed": "0", "ports/1/counters/symbol_error": "0", "ports/1/counters/local_link_integrity_errors": "0",
			"ports/1/counters/excessive_buffer_overrun_errors": "0", "ports/1/hw_counters/rnr_nak_retry_err": "0",
			"ports/1/hw_counters/local_ack_timeout_err": "0", "ports/1/counters/port_xmit_data": "0",
		} {
			files[filepath.Join(adapter, name)] = text + "\n"
		}
		files[fmt.Sprintf("sys/class/net/eth%d/operstate", i)] = "up\n"
	}
	for name, text := range files {
		if err := n.write(name, text); err != nil {
			return nil, err
		}
	}
	for i := range ports {
		link := n.path(fmt.Sprintf("sys/class/infiniband/mlx5_%d/device", i))
		if err := os.Symlink(fmt.Sprintf("../../../bus/pci/devices/0000:2%d:00.0", i), link); err != nil {
			return nil, err
		}
	}
	headers, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		return nil, fmt.Errorf("find go-nvml's headers: %w", err)
	}
	if err := command(ctx, "gcc", "-static", "-Os", "-o", n.path("launch"), n.path("launch.c")); err != nil {
		return nil, err
	}
	compile := []string{"-shared", "-fPIC", "-O1", "-w", "-I", filepath.Join(strings.TrimSpace(string(headers)), "pkg/nvml"),
		"-o", n.path("driver/usr/lib64/libnvidia-ml.so.1"), "internal/nvml/nvmltest/testdata/libnvidia-ml.c"}
	if !reread {
		compile = append(compile, "-DREAD_ONCE")
	}
	if err := command(ctx, "gcc", compile...); err != nil {
		return nil, err
	}
	if err := components.Build(ctx, os.Stderr, ".", components.NodeProblemDetector); err != nil {
		return nil, err
	}
	mount, err := cgroups()
	n.groups = filepath.Join(mount, filepath.Base(dir))
	return n, err
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) write(name, text string) error {
	path := n.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// monitor is what is read of a file in monitors/.
type monitor struct {
	Rules []struct {
		Path string   `json:"path"`
		Args []string `json:"args"`
	} `json:"rules"`
}

// npd makes a node-problem-detector in a folder of the node, with the checks of a checkout and further ones.
func (n *node) npd(ctx context.Context, name, folder, root string, with []string) (*variant, error) {
	checks, err := presetChecks(root)
	if err != nil {
		return nil, err
	}
	checks = append(checks, with...)
	v := &variant{name: name, dir: n.path(folder), group: filepath.Join(n.groups, folder)}
	v.inits = filepath.Join(v.dir, "inits")
	if err := n.write(filepath.Join(folder, "inits"), ""); err != nil {
		return nil, err
	}
	standin, err := os.ReadFile(n.path("standin"))
	if err != nil {
		return nil, err
	}
	v.env = []string{"NVML_STANDIN=" + filepath.Join(v.dir, "standin")}
	if err := n.write(filepath.Join(folder, "standin"), string(standin)+"write "+v.inits+"\n"); err != nil {
		return nil, err
	}
	var files []string
	for _, check := range checks {
		data, err := os.ReadFile(filepath.Join(root, "monitors", check+".json"))
		if err != nil {
			return v, err
		}
		var config map[string]any
		var m monitor
		if err := errors.Join(json.Unmarshal(data, &config), json.Unmarshal(data, &m)); err != nil || len(m.Rules) != 1 {
			return v, fmt.Errorf("%s: %d rules, %w", check, len(m.Rules), err)
		}
		plugin := filepath.Base(m.Rules[0].Path)
		v.plugins = append(v.plugins, plugin)
		if err := v.makeGroup(plugin); err != nil {
			return v, err
		}
		rule := config["rules"].([]any)[0].(map[string]any)
		rule["path"] = n.path("launch")
		rule["args"] = slices.Concat([]string{v.procs(plugin), filepath.Join(v.dir, plugin)}, m.Rules[0].Args, n.args(plugin), []string{"-state-dir", filepath.Join(v.dir, "state")})
		text, err := json.Marshal(config)
		if err != nil {
			return v, err
		}
		if err := n.write(filepath.Join(folder, check+".json"), string(text)); err != nil {
			return v, err
		}
		files = append(files, filepath.Join(v.dir, check+".json"))
	}
	if err := v.makeGroup(detector); err != nil {
		return v, err
	}
	// As `make build` does it.
	for cgo, linked := range map[string]bool{"CGO_ENABLED=0": false, "CGO_ENABLED=1": true} {
		build := []string{cgo, "go", "build", "-C", root, "-trimpath", "-ldflags=-s -w", "-o", v.dir + "/"}
		for _, plugin := range v.plugins {
			if slices.Contains(onNVML, plugin) == linked {
				build = append(build, "./plugins/"+plugin)
			}
		}
		if err := command(ctx, "env", build...); err != nil {
			return v, err
		}
	}
	port, err := freePort(ctx)
	if err != nil {
		return v, err
	}
	program, err := filepath.Abs(components.NodeProblemDetector.Path("."))
	if err != nil {
		return v, err
	}
	v.args = []string{
		n.path("launch"), v.procs(detector), program, "--config.custom-plugin-monitor=" + strings.Join(files, ","),
		"--enable-k8s-exporter=false", "--port=0", "--prometheus-address=127.0.0.1", "--prometheus-port=" + strconv.Itoa(port),
		"-v=2", // the answers that are not healthy
	}
	return v, nil
}

// onNVML are the plugins that load NVML.
var onNVML = []string{"ecc", "gpucount", "nvlink", "stall", "thermal"}

// detector is the row of NPD itself.
const detector = "node-problem-detector"

// args are the paths of the node for a plugin.
func (n *node) args(plugin string) []string {
	switch {
	case slices.Contains(onNVML, plugin):
		args := []string{"-sysfs", n.path("sys"), "-driver-root", n.path("driver")}
		if plugin == "gpucount" {
			args = append(args, "-dev", n.path("dev"), "-expect", strconv.Itoa(gpus))
		}
		return args
	case plugin == "hca" || plugin == "units":
		return []string{"-sysfs", n.path("sys")}
	}
	return nil
}

// presetChecks returns the conditions of the preset in a checkout's chart.
func presetChecks(root string) ([]string, error) {
	path := filepath.Join(root, "manifests/chart/files/checks.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var chart struct {
		Presets map[string]struct {
			Checks []string `json:"checks"`
		} `json:"presets"`
	}
	if err := yaml.Unmarshal(data, &chart); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	checks := chart.Presets[preset].Checks
	if len(checks) == 0 {
		return nil, fmt.Errorf("%s: no preset %s", path, preset)
	}
	return checks, nil
}

// gpud makes a GPUd that reads the same library. It finds the library as the loader does.
func (n *node) gpud(program string) (*variant, error) {
	v := &variant{name: "GPUd", dir: n.path("gpud"), group: filepath.Join(n.groups, "gpud")}
	v.inits = filepath.Join(v.dir, "inits")
	standin, err := os.ReadFile(n.path("standin"))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(n.write("gpud/inits", ""), n.write("gpud/standin", string(standin)+"write "+v.inits+"\n"), v.makeGroup("gpud")); err != nil {
		return v, err
	}
	v.plugins = []string{}
	v.env = []string{"NVML_STANDIN=" + filepath.Join(v.dir, "standin"), "LD_LIBRARY_PATH=" + n.path("driver/usr/lib64")}
	v.args = []string{
		n.path("launch"), v.procs("gpud"), program, "run", "--data-dir", filepath.Join(v.dir, "data"), "--listen-address", "127.0.0.1:15132",
		"--enable-auto-update=false", "--auto-update-exit-code=-1", "--plugin-specs-file", "none",
	}
	return v, nil
}

func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}
