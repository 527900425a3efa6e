// Command demo shows the whole path on real components and this machine: an Xid in the kernel log becomes a
// NodeCondition, an Event, a taint and a restarted training job, and after the repair the node is released.
//
// It needs Go. As root it uses the real kernel log. It exits with 1 if an expected step does not happen.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/kernellog"
	"github.com/pitcrew-dev/pitcrew/e2e/timeline"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	machine   = "this-machine"
	namespace = "train"
	ranks     = 4
	gpu       = "0000:4e:00"
	xid       = "NVRM: Xid (PCI:" + gpu + "): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
)

var jobSetKind = schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}

//go:embed jobset.yaml
var jobSet []byte

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	result, err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Println("demo: FAIL:", err)
		os.Exit(1)
	}
	fmt.Println("demo: PASS", result)
}

func run(ctx context.Context, out io.Writer) (result string, err error) {
	root, err := components.Root()
	if err != nil {
		return "", err
	}
	fmt.Fprintln(out, "== Fetching or building what is missing: etcd, Kubernetes, KWOK, JobSet, NPD and Pitcrew")
	real := []components.Component{components.Kube, components.KWOK, components.JobSet, components.NodeProblemDetector}
	if err := components.BuildWith(ctx, out, root, real, []string{"./plugins/xid", "./remediator"}); err != nil {
		return "", err
	}

	fmt.Fprintln(out, "\n== Starting a control plane, KWOK, JobSet, the remediator and a node-problem-detector, all real, on loopback")
	c, err := cluster.Start(ctx, cluster.Options{JobSet: true, Progress: out})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ctx, cancel := c.With(ctx)
	defer cancel(nil)
	d := &demo{Cluster: c, out: out}
	if result, err = d.run(ctx); err != nil {
		d.logs()
	}
	return result, err
}

// demo is one run.
type demo struct {
	*cluster.Cluster
	out      io.Writer
	timeline *timeline.Timeline
	log      *kernellog.Log
	// xidArgs are the arguments of the xid plugin, under NPD and in this program.
	xidArgs         []string
	npd, remediator *cluster.Process
}

func (d *demo) run(ctx context.Context) (result string, err error) {
	if d.log, err = kernellog.Open(d.Dir); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.log.Close()) }()
	d.xidArgs = append(slices.Clone(d.log.Args), "-state-dir", filepath.Join(d.Dir, "state"))
	if err := d.prepare(ctx); err != nil {
		return "", err
	}
	condition, taint, running, err := d.fault(ctx)
	if err != nil {
		return "", err
	}
	if err := d.show(ctx); err != nil {
		return "", err
	}
	if err := d.repair(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("condition=%d taint=%d job-running=%d",
		condition.Milliseconds(), taint.Milliseconds(), running.Milliseconds()), nil
}

// prepare brings up a healthy node with a rank of a running job on it.
func (d *demo) prepare(ctx context.Context) error {
	begun := time.Now()
	if err := d.AddThisMachine(ctx, machine); err != nil {
		return err
	}
	if _, err := d.AddNodes(ctx, "kwok", ranks-1, nil); err != nil {
		return err
	}
	if err := d.AddNamespace(ctx, namespace, nil); err != nil {
		return err
	}
	if err := d.Apply(ctx, jobSet); err != nil {
		return err
	}
	policy, err := d.ShippedPolicy(time.Second)
	if err != nil {
		return err
	}
	if d.remediator, err = d.StartRemediator(ctx, "-policy", policy); err != nil {
		return err
	}
	// The kernel log of this boot may hold the faults of earlier demos.
	if err := d.clear(ctx); err != nil {
		return err
	}
	monitor := cluster.Monitor{File: filepath.Join(d.Root, "monitors", conditions.GPUXidError+".json"), Args: d.xidArgs}
	if d.npd, err = d.StartNPD(ctx, cluster.NPD{Node: machine, Monitors: []cluster.Monitor{monitor}}); err != nil {
		return err
	}
	jobSets := &unstructured.UnstructuredList{}
	jobSets.SetGroupVersionKind(jobSetKind)
	if d.timeline, err = timeline.New(ctx, d.Client,
		timeline.Source{List: &corev1.NodeList{}},
		timeline.Source{List: jobSets},
		timeline.Source{List: &corev1.PodList{}, Opts: []client.ListOption{client.InNamespace(namespace)}},
		timeline.Source{List: &corev1.EventList{}},
	); err != nil {
		return err
	}
	if err := d.follow(ctx, begun,
		[]*timeline.Step{ranksRun("all ranks run, one of them on "+machine, nil, true)},
		[]*timeline.Step{timeline.ConditionIs(machine, conditions.GPUXidError, corev1.ConditionFalse, "")},
	); err != nil {
		return err
	}
	// The job fills all nodes so far. It needs a spare one to move to.
	_, err = d.AddNodes(ctx, "spare", 1, nil)
	return err
}

// patience is how long a chain of steps may take. Usually it takes about three seconds.
const patience = time.Minute

func (d *demo) follow(ctx context.Context, begun time.Time, chains ...[]*timeline.Step) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	return d.timeline.Follow(ctx, d.out, begun, chains...)
}

// fault writes the Xid and follows its consequences.
func (d *demo) fault(ctx context.Context) (condition, taint, running time.Duration, err error) {
	fmt.Fprintf(d.out, "\n== The fault: %s\n", d.log.How)
	old := slices.Collect(maps.Keys(d.timeline.Pods))
	begun, err := d.log.Write(ctx, xid)
	if err != nil {
		return 0, 0, 0, err
	}
	fmt.Fprintf(d.out, "%+7d ms  written: %s\n", 0, xid)
	isTrue := timeline.ConditionIs(machine, conditions.GPUXidError, corev1.ConditionTrue, "Reboot gpu "+gpu+": Xid 79 ")
	tainted := timeline.Tainted(machine)
	restarted := ranksRun("all ranks run on other nodes", old, false)
	err = d.follow(ctx, begun,
		[]*timeline.Step{timeline.EventIs("Node", machine, "GPUXidSeen", "")},
		[]*timeline.Step{timeline.EventIs("Node", machine, "NodeQuarantined", "")},
		[]*timeline.Step{isTrue, tainted, suspended(true), gone(old), suspended(false), restarted},
		[]*timeline.Step{timeline.EventIs("JobSet", "llama", "JobRestarting", ""), timeline.EventIs("JobSet", "llama", "JobRestarted", "")},
	)
	return isTrue.After, tainted.After, restarted.After, err
}

// show prints the output of kubectl.
func (d *demo) show(ctx context.Context) error {
	described, err := d.Kubectl(ctx, "describe", "node", machine)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n$ kubectl describe node %s    (in part)\n%s", machine, sections(described, "Name", "Labels", "Taints", "Unschedulable", "Conditions"))
	// kubectl describe selects Events by UID, which NPD v1.36 does not set.
	events, err := d.Kubectl(ctx, "events", "--for=node/"+machine)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n$ kubectl events --for=node/%s\n%s", machine, events)
	pods, err := d.Kubectl(ctx, "get", "pods", "-n", namespace, "-o", "wide")
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n$ kubectl get pods -n %s -o wide\n%s", namespace, pods)
	return nil
}

// repair simulates the reboot that the fault needs and follows the release.
func (d *demo) repair(ctx context.Context) error {
	fmt.Fprintln(d.out, "\n== The repair: the node reports a new boot id, as a kubelet does after a reboot, and the stored fault is cleared")
	begun := time.Now()
	bootID := string(uuid.NewUUID())
	node := &corev1.Node{}
	node.Name = machine
	patch := fmt.Sprintf(`{"status":{"nodeInfo":{"bootID":%q}}}`, bootID)
	if err := d.Client.Status().Patch(ctx, node, client.RawPatch(types.StrategicMergePatchType, []byte(patch))); err != nil {
		return fmt.Errorf("set the boot id: %w", err)
	}
	if err := d.follow(ctx, begun, []*timeline.Step{{Expected: "new boot id", Seen: func(s *timeline.Scene) (string, bool) {
		got := s.Nodes[machine].Status.NodeInfo.BootID
		return got, got == bootID
	}}}); err != nil {
		return err
	}
	if err := d.clear(ctx); err != nil {
		return err
	}
	return d.follow(ctx, begun,
		[]*timeline.Step{timeline.ConditionIs(machine, conditions.GPUXidError, corev1.ConditionFalse, ""), timeline.Released(machine)},
		[]*timeline.Step{timeline.EventIs("Node", machine, "NodeReleased", "")},
	)
}

// logs prints the logs of NPD and the remediator, because the cluster's folder is removed at the end.
func (d *demo) logs() {
	for _, p := range []*cluster.Process{d.npd, d.remediator} {
		if p != nil {
			fmt.Fprintf(d.out, "\n-- log of %s\n%s", p.Name, p.Log())
		}
	}
}

// clear makes the plugin forget the faults of this boot, as an administrator does after a repair.
func (d *demo) clear(ctx context.Context) error {
	args := append(slices.Clone(d.xidArgs), "-clear")
	answer, err := d.RunPlugin(ctx, "xid", args...)
	if err != nil {
		return fmt.Errorf("clear the faults of this boot: %w", err)
	}
	fmt.Fprintf(d.out, "$ bin/xid %s\n%s", strings.Join(args, " "), answer)
	return nil
}

// sections picks sections of kubectl's describe by their titles.
func sections(described string, titles ...string) string {
	var picked strings.Builder
	wanted := false
	for line := range strings.Lines(described) {
		if !strings.HasPrefix(line, " ") {
			title, _, _ := strings.Cut(line, ":")
			wanted = slices.Contains(titles, title)
		}
		if wanted {
			picked.WriteString(line)
		}
	}
	return picked.String()
}
