// Package nvmltest builds a node for the tests of the GPU checks: a sysfs tree with GPUs on the PCI bus and a stand-in
// for the driver's library, driven by a text file. Its formats are synthetic; see testdata/libnvidia-ml.c.
package nvmltest

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

//go:embed testdata/libnvidia-ml.c
var source string

const library = "libnvidia-ml.so.1"

// Node is a node that the plugin in the current folder runs on.
type Node struct {
	t                  *testing.T
	binary, dir, state string
}

// New returns a healthy node with eight H100s, their driver loaded, and the plugin in the current folder.
func New(t *testing.T) *Node { return NewFor(t, ".") }

// NewFor is [New] for the plugin in a folder.
func NewFor(t *testing.T, folder string) *Node {
	t.Helper()
	// The built plugin loads the stand-in instead of a library of the machine.
	n := &Node{t: t, binary: npdtest.BuildIn(t, folder), dir: t.TempDir(), state: t.TempDir()}
	n.standIn("")
	n.Module("580.95.05")
	for gpu := range 8 {
		n.Plug(gpu, "nvidia")
	}
	n.Say("")
	return n
}

// Library compiles a stand-in for one of the driver's libraries against the headers that a Go module has in a folder.
func (n *Node) Library(name, source, module, folder string) {
	n.t.Helper()
	npdtest.Library(n.t, n.Path("driver/usr/lib64/"+name), source, module, folder)
}

func (n *Node) standIn(defines string) {
	n.t.Helper()
	n.Library(library, defines+source, "github.com/NVIDIA/go-nvml", "pkg/nvml")
}

// Before450 makes the stand-in a library of a driver before 450, which lacks functions that later ones have.
func (n *Node) Before450() {
	n.t.Helper()
	n.standIn("#define BEFORE_450\n")
	n.Module("440.118.02")
}

// DriverRoot is where the stand-in lies.
func (n *Node) DriverRoot() string { return n.Path("driver") }

// State is the state directory.
func (n *Node) State() string { return n.state }

// Say sets what the stand-in answers from now on.
func (n *Node) Say(lines ...string) {
	n.t.Helper()
	n.Write("standin", strings.Join(lines, "\n")+"\n")
}

// Module loads the kernel driver of that version, or unloads it if the version is "".
func (n *Node) Module(version string) {
	n.t.Helper()
	if version == "" {
		n.remove("sys/module/nvidia")
		return
	}
	n.Write("sys/module/nvidia/initstate", "live\n")
	n.Write("sys/module/nvidia/version", version+"\n")
}

// Plug puts a GPU on the PCI bus, bound to a kernel driver, "" for none.
func (n *Node) Plug(gpu int, driver string) {
	n.t.Helper()
	dir := device(gpu)
	n.Write(dir+"/vendor", "0x10de\n")
	n.Write(dir+"/class", "0x030200\n")
	n.Write(dir+"/current_link_width", "16\n")
	n.Write(dir+"/max_link_width", "16\n")
	link := filepath.Join(n.dir, dir, "driver")
	n.unbind(gpu)
	if driver == "" {
		return
	}
	n.Write("sys/bus/pci/drivers/"+driver+"/bind", "")
	n.Write("sys/bus/pci/drivers/"+driver+"/"+filepath.Base(dir), "")
	if err := os.Symlink(filepath.Join("../../drivers", driver), link); err != nil {
		n.t.Fatal(err)
	}
}

// Unplug takes a GPU from the PCI bus.
func (n *Node) Unplug(gpu int) {
	n.unbind(gpu)
	n.remove(device(gpu))
}

func (n *Node) unbind(gpu int) {
	n.t.Helper()
	bound, err := filepath.Glob(n.Path("sys/bus/pci/drivers/*/" + filepath.Base(device(gpu))))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, path := range append(bound, n.Path(device(gpu)+"/driver")) {
		if err := os.RemoveAll(path); err != nil {
			n.t.Fatal(err)
		}
	}
}

// Width sets the number of PCIe lanes that a GPU uses.
func (n *Node) Width(gpu, lanes int) {
	n.t.Helper()
	n.Write(device(gpu)+"/current_link_width", fmt.Sprintln(lanes))
}

func device(gpu int) string { return fmt.Sprintf("sys/bus/pci/devices/0000:1%x:00.0", gpu) }

func (n *Node) remove(name string) {
	n.t.Helper()
	if err := os.RemoveAll(filepath.Join(n.dir, name)); err != nil {
		n.t.Fatal(err)
	}
}

// Path returns the path of a file of the node.
func (n *Node) Path(name string) string { return filepath.Join(n.dir, name) }

// Write writes a file of the node.
func (n *Node) Write(name, content string) {
	n.t.Helper()
	path := n.Path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// Run runs the plugin and returns what NPD would get: "exit N" and stdout.
func (n *Node) Run(args ...string) string {
	n.t.Helper()
	binary, own := n.Command()
	return npdtest.Run(n.t, binary, append(own, args...)...)
}

// Command returns the plugin and the arguments that make it run on the node.
func (n *Node) Command() (binary string, args []string) {
	return n.binary, []string{"-sysfs", n.Path("sys"), "-driver-root", n.DriverRoot(), "-state-dir", n.state, "-grace", "0"}
}

// Want runs the plugin and compares.
func (n *Node) Want(want string, args ...string) {
	n.t.Helper()
	if got := n.Run(args...); got != want+"\n" {
		n.t.Errorf("got\n%swant\n%s", got, want)
	}
}
