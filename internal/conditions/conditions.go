// Package conditions is the one vocabulary that the node side and the cluster side share: NodeCondition types,
// repair classes, the message grammar (format and parse) and the keys of labels, taints and annotations.
// It has no dependencies, so that a plugin stays small.
package conditions

import "slices"

// Condition ties a NodeCondition type to the plugin that answers for it.
type Condition struct {
	// Type is the NodeCondition type; status True means a problem.
	Type string
	// Plugin is the binary.
	Plugin string
	// Source is the `source` of its Events, unique because NPD limits the rate of Events per source; empty: Plugin.
	Source string
	// Healthy and Problem are the condition's reasons for status False and True. Healthy is a neutral word: NPD keeps it
	// while the status is Unknown (node-problem-detector pkg/custompluginmonitor, generateStatus).
	Healthy, Problem string
	// Summary is what it means when it is True, as the end of a sentence that begins with the node.
	Summary string
	// Latches is true if the plugin keeps what it has seen until the next boot or until it is run with -clear. The
	// condition of another plugin follows the hardware from look to look, and the plugin refuses -clear.
	Latches bool
	// Codes is true if each text of its messages names one fault of its subject, as an Xid does. The text of another plugin is the
	// state of the subject, and changes while the fault lasts.
	Codes bool
	// Witness is the part of the node that the plugin asks.
	Witness Witness
}

// Witness is the part of a node that tells of its faults. Conditions of the same part can be wrong together: one bad GPU driver makes
// many of them. Only different parts confirm that a node has failed. The empty one confirms nothing.
type Witness string

// The witnesses. Beside them there is the node itself, which answers or does not.
const (
	// GPUDriver is the driver of the GPUs.
	GPUDriver Witness = "GPU driver"
	// FabricPorts are the adapters of the fabric, with their own driver and the switch at the other end.
	FabricPorts Witness = "fabric ports"
)

// WitnessOf is the witness of a NodeCondition type; empty for that of another component.
func WitnessOf(conditionType string) Witness {
	i := slices.IndexFunc(All, hasType(conditionType))
	if i < 0 {
		return ""
	}
	return All[i].Witness
}

// GPUXidError is the NodeCondition of what the NVIDIA driver wrote into the kernel log.
const GPUXidError = "GPUXidError"

// KernelHardwareError is the NodeCondition of what other parts of the kernel wrote about failing hardware.
const KernelHardwareError = "KernelHardwareError"

// HCAPortDown is the NodeCondition of the ports of InfiniBand, RoCE and EFA adapters.
const HCAPortDown = "HCAPortDown"

// GPUMemoryError is the NodeCondition of the GPUs' memory and of the recovery that their driver asks for.
const GPUMemoryError = "GPUMemoryError"

// GPUCountMismatch is the NodeCondition of missing and extra GPUs.
const GPUCountMismatch = "GPUCountMismatch"

// GPUOverheated is the NodeCondition of the GPUs' heat and of what slows them down.
const GPUOverheated = "GPUOverheated"

// NVLinkDown is the NodeCondition of the links between GPUs.
const NVLinkDown = "NVLinkDown"

// GPUStalled is the NodeCondition of GPUs that are in use and stand still.
const GPUStalled = "GPUStalled"

// WorkloadGPUError is the NodeCondition of what the node's pods wrote about its GPUs into their logs.
const WorkloadGPUError = "WorkloadGPUError"

// ClockSkewed is the NodeCondition of the node's clock.
const ClockSkewed = "ClockSkewed"

// DCGMDiagFailed is the NodeCondition of the last run of DCGM's diagnostics.
const DCGMDiagFailed = "DCGMDiagFailed"

// NodeValidationFailed is the NodeCondition of what other tools that validate nodes have said of the node.
const NodeValidationFailed = "NodeValidationFailed"

// NodeServiceDown is the NodeCondition of the systemd units that a GPU node needs.
const NodeServiceDown = "NodeServiceDown"

// MountReadOnly is the NodeCondition of the filesystems that the node must be able to write to.
const MountReadOnly = "MountReadOnly"

// NodeIOHung is the NodeCondition of network mounts whose server does not answer, and of services that sleep in the kernel.
const NodeIOHung = "NodeIOHung"

// ContainersBroken is the NodeCondition of containers that lost their GPUs while they run, and of those that cannot end.
const ContainersBroken = "ContainersBroken"

// FabricDegraded is the NodeCondition of what makes the traffic between GPUs and adapters slow or wrong while all ports are up.
const FabricDegraded = "FabricDegraded"

// MetaXGPUUnhealthy is the NodeCondition of MetaX GPUs.
const MetaXGPUUnhealthy = "MetaXGPUUnhealthy"

// AscendNPUUnhealthy is the NodeCondition of Huawei Ascend NPUs.
const AscendNPUUnhealthy = "AscendNPUUnhealthy"

// All lists the conditions that plugins of this repository answer for.
var All = []Condition{
	{Type: GPUXidError, Plugin: "xid", Witness: GPUDriver, Latches: true, Codes: true,
		Healthy: "GPUKernelLogChecked", Problem: "GPUXidSeen", Summary: "the kernel log shows an Xid or a lost GPU"},
	{Type: KernelHardwareError, Plugin: "xid", Latches: true, Codes: true, Source: "xid-hardware",
		Healthy: "KernelHardwareChecked", Problem: "KernelHardwareFault", Summary: "the kernel reports failing hardware"},
	{Type: GPUMemoryError, Plugin: "ecc", Witness: GPUDriver,
		Healthy: "GPUMemoryChecked", Problem: "GPUMemoryFault", Summary: "GPU memory is failing"},
	{Type: GPUCountMismatch, Plugin: "gpucount", Witness: GPUDriver, Latches: true,
		Healthy: "GPUCountChecked", Problem: "GPUMissingOrExtra", Summary: "GPUs are missing or unexpected"},
	{Type: GPUOverheated, Plugin: "thermal", Witness: GPUDriver,
		Healthy: "GPUThermalsChecked", Problem: "GPUThermalFault", Summary: "a GPU is too hot or slowed down"},
	{Type: NVLinkDown, Plugin: "nvlink", Witness: GPUDriver, Healthy: "NVLinkChecked", Problem: "NVLinkFault", Summary: "an NVLink is down"},
	{Type: GPUStalled, Plugin: "stall", Witness: GPUDriver,
		Healthy: "GPUWorkChecked", Problem: "GPUWorkStalled", Summary: "a GPU that is in use stands still"},
	{Type: DCGMDiagFailed, Plugin: "dcgm", Witness: GPUDriver, Codes: true,
		Healthy: "DCGMDiagChecked", Problem: "DCGMDiagFault", Summary: "a diagnostic of DCGM failed"},
	{Type: NodeValidationFailed, Plugin: "validation", Healthy: "NodeValidationChecked", Problem: "NodeValidationFault",
		Summary: "a validation by another tool failed"},
	{Type: HCAPortDown, Plugin: "hca", Witness: FabricPorts, Latches: true,
		Healthy: "HCAPortsChecked", Problem: "HCAPortFault", Summary: "a fabric port is down"},
	{Type: WorkloadGPUError, Plugin: "podlog", Latches: true, Codes: true,
		Healthy: "WorkloadLogsChecked", Problem: "WorkloadGPUFault", Summary: "pods report a GPU error in their logs"},
	{Type: ClockSkewed, Plugin: "ntp", Latches: true, Healthy: "ClockChecked", Problem: "ClockFault", Summary: "the clock is off"},
	{Type: NodeServiceDown, Plugin: "units",
		Healthy: "NodeServicesChecked", Problem: "NodeServiceFault", Summary: "a service that the node needs is down"},
	{Type: MountReadOnly, Plugin: "mounts", Healthy: "MountsChecked", Problem: "MountFault", Summary: "a filesystem cannot be written to"},
	{Type: NodeIOHung, Plugin: "hung", Healthy: "NodeIOChecked", Problem: "NodeIOFault",
		Summary: "the server of a mount does not answer, or a service sleeps in the kernel"},
	{Type: ContainersBroken, Plugin: "containers", Healthy: "ContainersChecked", Problem: "ContainerFault",
		Summary: "a container lost its GPUs or cannot end"},
	{Type: FabricDegraded, Plugin: "fabric", Healthy: "FabricChecked", Problem: "FabricFault",
		Summary: "the way between GPUs and adapters is degraded"},
	{Type: MetaXGPUUnhealthy, Plugin: "metax", Witness: GPUDriver, Latches: true,
		Healthy: "MetaXGPUChecked", Problem: "MetaXGPUFault", Summary: "a MetaX GPU is unhealthy"},
	{Type: AscendNPUUnhealthy, Plugin: "ascend", Witness: GPUDriver, Latches: true,
		Healthy: "AscendNPUChecked", Problem: "AscendNPUFault", Summary: "an Ascend NPU is unhealthy"},
}

// PreflightFailed is the NodeCondition of a local check that failed before a job started.
const PreflightFailed = "PreflightFailed"

// SlowNode is the NodeCondition of a node that slows down its peers.
const SlowNode = "SlowNode"

// GPUPodsRejected is the NodeCondition of a node whose kubelet rejects the GPU pods that the scheduler sends there.
const GPUPodsRejected = "GPUPodsRejected"

// Verdicts lists the conditions that the remediator writes itself. Their heartbeat is the time of the verdict.
var Verdicts = []Condition{
	{Type: PreflightFailed, Healthy: "PreflightPassed", Problem: "PreflightCheckFailed", Summary: "a preflight check failed"},
	{Type: SlowNode, Healthy: "NodeKeepsUp", Problem: "NodeIsSlow", Summary: "it is slower than its peers"},
	{Type: GPUPodsRejected, Healthy: "GPUPodsAdmitted", Problem: "GPUPodsNotAdmitted", Summary: "its kubelet rejects GPU pods"},
}

// Ours reports whether the NodeCondition type is written by a plugin of this repository or by the remediator. Only then
// does its message follow the grammar of [ParseMessage].
func Ours(conditionType string) bool {
	return slices.ContainsFunc(All, hasType(conditionType)) || IsVerdict(conditionType)
}

// Verdict returns the entry of [Verdicts] of a type, which must be one of them.
func Verdict(conditionType string) Condition {
	return Verdicts[slices.IndexFunc(Verdicts, hasType(conditionType))]
}

// IsVerdict reports whether the remediator itself writes the NodeCondition type, see [Verdicts]. The heartbeat of such a
// condition is the time of the verdict: nothing renews it, so its age does not show that a detector has stopped.
func IsVerdict(conditionType string) bool {
	return slices.ContainsFunc(Verdicts, hasType(conditionType))
}

// HasCodes reports whether another text of the same subject is another fault, see [Condition.Codes].
func HasCodes(conditionType string) bool {
	i := slices.IndexFunc(All, hasType(conditionType))
	return i >= 0 && All[i].Codes
}

func hasType(conditionType string) func(Condition) bool {
	return func(c Condition) bool { return c.Type == conditionType }
}
