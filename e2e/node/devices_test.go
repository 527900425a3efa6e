package node

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
)

// deviceValues are the chart's values for a node whose GPUs are isolated one by one. There is no other node with room.
const deviceValues = `
image: {tag: ` + tag + `, pullPolicy: Never}
npd: {heartbeatPeriod: 1s}
remediator: {replicas: 1, tolerations: [{operator: Exists}]}
policy:
  restart: {checkCapacity: false, backOff: {first: 1s, max: 1s}}
  rules: {gpu-xid: {mode: enforce, clearAfter: 1s, isolate: device}}
pools:
- name: gpu
  nodeSelector: {kubernetes.io/hostname: machine}
  checks: {GPUXidError: {}}
`

const (
	deviceNamespace = "devices"
	deviceDriver    = "gpu.example.com"
	gpus            = 8
)

// deviceClass is what the jobs ask for.
const deviceClass = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.example.com}
spec: {selectors: [{cel: {expression: device.driver == "gpu.example.com"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu, namespace: devices}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}}
`

// deviceJob has one GPU. Its container is restarted after a boot.
const deviceJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: $NAME, namespace: devices, labels: {` + conditions.LabelRestartOnNodeFault + `: "true"}}
spec:
  template:
    spec:
      restartPolicy: OnFailure
      nodeSelector: {kubernetes.io/hostname: machine}
      terminationGracePeriodSeconds: 1
      resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
      containers:
      - name: rank
        image: ghcr.io/pitcrew-dev/preflight:` + tag + `
        imagePullPolicy: Never
        command: [/bin/busybox, sleep, "3600"]
        resources: {claims: [{name: gpu}]}
`

// deviceCase is a node with eight GPUs of a DRA driver.
type deviceCase struct {
	*testing.T
	m      *host
	driver *machine.Program
}

func startDeviceCase(t *testing.T) *deviceCase {
	t.Helper()
	d := &deviceCase{T: t, m: theMachine(t)}
	d.m.helm(t, deviceValues, "--wait", "--timeout", patience.String())
	d.m.pod(t, "gpu", nil)
	d.m.healthy(t)
	if err := d.m.AddNamespace(t.Context(), deviceNamespace, nil); err != nil {
		t.Fatal(err)
	}
	d.startDriver(0)
	t.Cleanup(d.cleanUp)
	if err := d.m.Apply(t.Context(), []byte(deviceClass)); err != nil {
		t.Fatal(err)
	}
	return d
}

// startDriver starts the driver in a boot in which that card is gpu-0, and waits until its devices are published.
func (d *deviceCase) startDriver(first int) {
	d.Helper()
	identity, err := d.m.Config("system:node:"+machine.NodeName, "system:nodes")
	if err != nil {
		d.Fatal(err)
	}
	kubeconfig, err := d.m.WriteKubeconfig("dra-example-driver", identity)
	if err != nil {
		d.Fatal(err)
	}
	// When a kubelet starts it deletes the slices of its node, before any pod of a driver can run. A driver that updates one just then may
	// never learn of that (k8s.io/dynamic-resource-allocation v0.37.2: the update comes into its cache after the deletion, and only what it
	// created is looked at again).
	clustertest.Until(d, patience, "the kubelet has deleted the devices of the boot before", func() error {
		list, err := d.slices()
		if n := len(list); n > 0 {
			return fmt.Errorf("%d slices", n)
		}
		return err
	})
	d.Setenv("FIRST_CARD", strconv.Itoa(first))
	d.driver = d.m.Start(d.T, components.DRAExampleDriver.Path(d.m.Root), "--node-name", machine.NodeName, "--kubeconfig", kubeconfig,
		"--num-devices", strconv.Itoa(gpus), "--cdi-root", "/run/cdi", "--kubelet-plugins-directory-path", filepath.Join(d.m.KubeletDir(), "plugins"),
		"--kubelet-registrar-directory-path", filepath.Join(d.m.KubeletDir(), "plugins_registry"))
	clustertest.Until(d, patience, "the devices are published", func() error {
		list, err := d.slices()
		if err != nil {
			return err
		}
		for _, s := range list {
			for _, device := range s.Spec.Devices {
				address := device.Attributes["resource.kubernetes.io/pciBusID"].StringValue
				if device.Name == "gpu-0" && ptr.Deref(address, "") == card(first)+".0" && len(s.Spec.Devices) == gpus {
					return nil
				}
			}
		}
		return fmt.Errorf("%d slices\n%s", len(list), d.m.Logs("dra-example-driver"))
	})
}

func (d *deviceCase) slices() ([]resourceapi.ResourceSlice, error) {
	var list resourceapi.ResourceSliceList
	err := d.m.Client.List(d.Context(), &list)
	return list.Items, err
}

// card is the address of a card as the kernel's log has it.
func card(n int) string { return fmt.Sprintf("0000:%02x:00", 0x1a+n) }

func (d *deviceCase) stopDriver() {
	_ = syscall.Kill(d.driver.PID, syscall.SIGKILL) // it may have ended
	<-d.driver.Ended
}

// cleanUp leaves a node without devices. The kubelet ends no pod with a claim when the driver has gone.
func (d *deviceCase) cleanUp() {
	ctx := context.Background()
	if d.Failed() {
		d.Log(d.m.Logs("dra-example-driver"))
	}
	_, err := d.m.Kubectl(ctx, "delete", "--ignore-not-found", "--timeout", patience.String(), "namespace/"+deviceNamespace, "deviceclass/"+deviceDriver)
	if err != nil {
		d.Error(err)
	}
	d.stopDriver()
	if err := d.m.Client.DeleteAllOf(ctx, &resourceapi.ResourceSlice{}); err != nil {
		d.Error(err)
	}
}

func (d *deviceCase) addJob(name string) {
	d.Helper()
	if err := d.m.Apply(d.Context(), []byte(strings.Replace(deviceJob, "$NAME", name, 1))); err != nil {
		d.Fatal(err)
	}
}

// fails writes a fault of a card that needs a reset into the kernel's log.
func (d *deviceCase) fails(n int) {
	d.Helper()
	d.m.kernel(d.T, "NVRM: Xid (PCI:"+card(n)+"): 119, Timeout after 6s of waiting for RPC response from GPU0 GSP!")
}

// holders are the jobs that run, by the device that they hold, and the UIDs of their pods.
func (d *deviceCase) holders() (byDevice, uids map[string]string) {
	d.Helper()
	var pods corev1.PodList
	if err := d.m.Client.List(d.Context(), &pods, client.InNamespace(deviceNamespace)); err != nil {
		d.Fatal(err)
	}
	byDevice, uids = map[string]string{}, map[string]string{}
	for _, p := range pods.Items {
		if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil || p.DeletionTimestamp != nil {
			continue
		}
		var claim resourceapi.ResourceClaim
		err := d.m.Client.Get(d.Context(), client.ObjectKey{Namespace: deviceNamespace, Name: *p.Status.ResourceClaimStatuses[0].ResourceClaimName}, &claim)
		if err != nil || claim.Status.Allocation == nil {
			continue
		}
		job := p.Labels[batchv1.JobNameLabel]
		byDevice[claim.Status.Allocation.Devices.Results[0].Device], uids[job] = job, string(p.UID)
	}
	return byDevice, uids
}

// runsOn waits until that job holds that device, and others hold n-1.
func (d *deviceCase) runsOn(job, device string, n int) {
	d.Helper()
	clustertest.Until(d, patience, job+" runs on "+device, func() error {
		if held, _ := d.holders(); held[device] != job || len(held) != n {
			return fmt.Errorf("devices are held by %v", held)
		}
		return nil
	})
}

// isolated waits until these devices are tainted, and checks that the node is not.
func (d *deviceCase) isolated(want ...string) {
	d.Helper()
	clustertest.Until(d, patience, fmt.Sprintf("rules for %q", want), func() error {
		var list resourceapi.DeviceTaintRuleList
		if err := d.m.Client.List(d.Context(), &list); err != nil {
			return err
		}
		var tainted []string
		for _, r := range list.Items {
			tainted = append(tainted, fmt.Sprint(devices.Of(&r), r.Spec.Taint.Effect))
		}
		slices.Sort(tainted)
		node, err := d.m.Node(d.T)
		if err != nil {
			return err
		}
		status := node.Labels[conditions.LabelStatus]
		if !slices.EqualFunc(tainted, want, func(got, name string) bool {
			return got == fmt.Sprint(devices.Device{Driver: deviceDriver, Pool: machine.NodeName, Name: name}, corev1.TaintEffectNoSchedule)
		}) || (status == conditions.StatusIsolated) != (len(want) > 0) || len(node.Spec.Taints) > 0 {
			return fmt.Errorf("rules for %q, status %q, taints %v, record %s, conditions %+v", tainted, status, node.Spec.Taints,
				node.Annotations[conditions.AnnotationQuarantine], node.Status.Conditions)
		}
		return nil
	})
}

// noneLeft waits until the scheduler finds no device for a job.
func (d *deviceCase) noneLeft(job string) {
	d.Helper()
	clustertest.Until(d, patience, "there is no device for "+job, func() error {
		var pods corev1.PodList
		if err := d.m.Client.List(d.Context(), &pods, client.InNamespace(deviceNamespace), client.MatchingLabels{batchv1.JobNameLabel: job}); err != nil {
			return err
		}
		for _, p := range pods.Items {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "cannot allocate all claims") {
					return nil
				}
			}
		}
		return fmt.Errorf("%+v", pods.Items)
	})
}

// A record in the kernel's log names one of eight GPUs. NPD, the remediator, the scheduler, the kubelet and the driver are real, the GPUs
// are not.
func TestOneOfEightGPUsIsIsolatedUntilItIsRepaired(t *testing.T) {
	d := startDeviceCase(t)
	for i := range gpus - 1 {
		d.addJob(fmt.Sprintf("job-%d", i))
	}
	clustertest.Until(t, patience, "all jobs run", func() error {
		if held, _ := d.holders(); len(held) != gpus-1 {
			return fmt.Errorf("devices are held by %v", held)
		}
		return nil
	})
	const bad, badName = 1, "gpu-1"
	held, before := d.holders()
	victim, free := held[badName], 0
	for ; held[name(free)] != ""; free++ {
	}
	if victim == "" { // the scheduler takes them in order
		t.Fatalf("devices are held by %v", held)
	}
	d.fails(bad)
	d.isolated(badName)
	d.runsOn(victim, name(free), gpus-1)
	d.restarted(before, victim)
	d.addJob("one-more")
	d.noneLeft("one-more")
	if _, err := d.m.Kubectl(t.Context(), "delete", "job", "one-more", "--namespace", deviceNamespace); err != nil {
		t.Fatal(err)
	}

	// After the boot each claim has another card: that with the fault has the name of the device that the same job came to. The fault is
	// there again.
	_, before = d.holders()
	d.m.PowerOff(t)
	d.stopDriver()
	boot := d.m.PowerOn(t)
	d.fails(bad)
	d.startDriver((bad - free + gpus) % gpus)
	d.m.UntilBoot(t, boot)
	d.isolated(name(free))
	d.runsOn(victim, badName, gpus-1)
	d.restarted(before, victim)
	d.addJob("one-more")
	d.noneLeft("one-more")

	d.m.clear(t)
	d.isolated()
	d.runsOn("one-more", name(free), gpus)
	d.restarted(before, victim, "one-more")
}

// name is that of a device.
func name(n int) string { return fmt.Sprintf("gpu-%d", n) }

// restarted checks that the pods of all jobs but these are as before.
func (d *deviceCase) restarted(before map[string]string, jobs ...string) {
	d.Helper()
	_, after := d.holders()
	for job, uid := range after {
		if (before[job] != uid) != slices.Contains(jobs, job) {
			d.Errorf("%s: pod %s was %s; %q had to be restarted", job, uid, before[job], jobs)
		}
	}
}
