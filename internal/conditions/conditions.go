// Package conditions is the one vocabulary that the node side and the cluster side share: NodeCondition types,
// repair classes, the message grammar (format and parse) and the keys of labels, taints and annotations.
// It has no dependencies, so that a plugin stays small.
package conditions

import "slices"

// Domain prefixes every label, annotation and taint key of Pitcrew.
const Domain = "pitcrew.dev"

// Keys on Nodes.
const (
	// TaintUnhealthy marks a quarantined node; its value is the NodeCondition that caused it.
	TaintUnhealthy = Domain + "/unhealthy"
	// TaintMaintenance marks a node that a sweep, a repair or an upgrade owns; our conditions are ignored meanwhile.
	TaintMaintenance = Domain + "/maintenance"
	// AnnotationQuarantine holds the quarantine record, JSON.
	AnnotationQuarantine = Domain + "/quarantine"
	// LabelStatus is healthy, suspect, quarantined or repairing.
	LabelStatus = Domain + "/status"
	// LabelRepair is the repair class of the worst cause.
	LabelRepair = Domain + "/repair"
	// AnnotationGPUs is what an admin knows of the node's GPUs, JSON, e.g. their serial numbers and slots by PCI address. It is
	// only ever copied into the evidence.
	AnnotationGPUs = Domain + "/gpus"
	// LabelSkip set to "true" means hands off this node.
	LabelSkip = Domain + "/skip"
)

// Keys on training jobs and their namespaces.
const (
	// LabelRestartOnNodeFault opts a job or a namespace in ("true") or out ("false") of job restart.
	LabelRestartOnNodeFault = Domain + "/restart-on-node-fault"
	// LabelKcoverRecovery set to "true" is kcover's own opt-in and is honoured as ours.
	LabelKcoverRecovery = "kcover.io/cascading-recovery"
	// LabelRestarting marks a job whose restart is under way, so that it is found again after a crash.
	LabelRestarting = Domain + "/restarting"
	// AnnotationRestart holds the record of the restart under way and of the last five, JSON.
	AnnotationRestart = Domain + "/restart"
	// AnnotationAbortRestart, whatever its value, asks to put the job back as it was before the restart that is under way.
	AnnotationAbortRestart = Domain + "/abort-restart"
	// AnnotationCheckpointBy tells a job when it is stopped, RFC 3339. AnnotationCheckpointed, set by the job to the same
	// value, says that it has saved its state.
	AnnotationCheckpointBy = Domain + "/checkpoint-by"
	AnnotationCheckpointed = Domain + "/checkpointed"
	// AnnotationRestartStep is on the object that stops and starts a job when it is not the job itself, such as the
	// Workload of Kueue: for which step of which restart it was written last.
	AnnotationRestartStep = Domain + "/restart-step"
)

// Keys on preflight report ConfigMaps.
const (
	// LabelPreflight is "report".
	LabelPreflight = Domain + "/preflight"
	// LabelPreflightRun names the attempt of the run, minted when its ranks met.
	LabelPreflightRun = Domain + "/preflight-run"
	// AnnotationPreflightNode is the node that reports, as in the report: admission policies cannot read that.
	AnnotationPreflightNode = Domain + "/preflight-node"
	// AnnotationPreflightPod and AnnotationPreflightPodUID are the pod that reports.
	AnnotationPreflightPod    = Domain + "/preflight-pod"
	AnnotationPreflightPodUID = Domain + "/preflight-pod-uid"
	// AnnotationPreflightVerdict says what was decided, in words. It is never read.
	AnnotationPreflightVerdict = Domain + "/preflight-verdict"
)

// PauseConfigMap, in Pitcrew's namespace, is the global pause; its key "reason" says why.
const PauseConfigMap = "pitcrew-pause"

// EvidenceNamespace holds a ConfigMap for each node that was quarantined, of the node's name, with what its conditions were.
// Nothing else is there, so that whoever writes evidence needs no right to write anything else.
const EvidenceNamespace = "pitcrew-evidence"

// AnnotationEvidenceAt, on such a ConfigMap, is the time of the newest evidence in it (RFC 3339).
const AnnotationEvidenceAt = Domain + "/evidence-at"

// BreakerConfigMap, in Pitcrew's namespace, is the breaker: its key "state" is empty while new quarantines may begin.
const BreakerConfigMap = "pitcrew-breaker"

// Condition ties a NodeCondition type to the plugin that answers for it.
type Condition struct {
	// Type is the NodeCondition type; status True means a problem.
	Type string
	// Plugin is the binary.
	Plugin string
	// Source is the `source` of its Events, unique because NPD limits the rate of Events per source; empty: Plugin.
	Source string
	// Healthy and Problem are the condition's reasons. Healthy is a neutral word: NPD keeps it while the status is
	// Unknown (node-problem-detector pkg/custompluginmonitor, generateStatus).
	Healthy, Problem string
	// Says is what it says about the node when it is True, as the end of a sentence that begins with the node.
	Says string
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

// WorkloadGPUError is the NodeCondition of what the node's pods wrote about its GPUs into their logs.
const WorkloadGPUError = "WorkloadGPUError"

// ClockSkewed is the NodeCondition of the node's clock.
const ClockSkewed = "ClockSkewed"

// DCGMDiagFailed is the NodeCondition of the last run of DCGM's diagnostics.
const DCGMDiagFailed = "DCGMDiagFailed"

// NodeServiceDown is the NodeCondition of the systemd units that a GPU node lives on.
const NodeServiceDown = "NodeServiceDown"

// MountReadOnly is the NodeCondition of the filesystems that the node must be able to write to.
const MountReadOnly = "MountReadOnly"

// MetaXGPUUnhealthy is the NodeCondition of MetaX GPUs.
const MetaXGPUUnhealthy = "MetaXGPUUnhealthy"

// AscendNPUUnhealthy is the NodeCondition of Huawei Ascend NPUs.
const AscendNPUUnhealthy = "AscendNPUUnhealthy"

// All lists the conditions that plugins of this repository answer for.
var All = []Condition{
	{Type: GPUXidError, Plugin: "xid", Healthy: "GPUKernelLogChecked", Problem: "GPUXidSeen", Says: "the kernel log shows an Xid or a lost GPU"},
	{Type: KernelHardwareError, Plugin: "xid", Source: "xid-hardware", Healthy: "KernelHardwareChecked", Problem: "KernelHardwareFault", Says: "the kernel reports failing hardware"},
	{Type: GPUMemoryError, Plugin: "ecc", Healthy: "GPUMemoryChecked", Problem: "GPUMemoryFault", Says: "GPU memory is failing"},
	{Type: GPUCountMismatch, Plugin: "gpucount", Healthy: "GPUCountChecked", Problem: "GPUMissingOrExtra", Says: "it has not the GPUs that it should have"},
	{Type: GPUOverheated, Plugin: "thermal", Healthy: "GPUThermalsChecked", Problem: "GPUThermalFault", Says: "a GPU is too hot or slowed down"},
	{Type: NVLinkDown, Plugin: "nvlink", Healthy: "NVLinkChecked", Problem: "NVLinkFault", Says: "an NVLink is down"},
	{Type: DCGMDiagFailed, Plugin: "dcgm", Healthy: "DCGMDiagChecked", Problem: "DCGMDiagFault", Says: "a diagnostic of DCGM failed"},
	{Type: HCAPortDown, Plugin: "hca", Healthy: "HCAPortsChecked", Problem: "HCAPortFault", Says: "a fabric port is down"},
	{Type: WorkloadGPUError, Plugin: "podlog", Healthy: "WorkloadLogsChecked", Problem: "WorkloadGPUFault", Says: "pods report a GPU error in their logs"},
	{Type: ClockSkewed, Plugin: "ntp", Healthy: "ClockChecked", Problem: "ClockFault", Says: "the clock is off"},
	{Type: NodeServiceDown, Plugin: "units", Healthy: "NodeServicesChecked", Problem: "NodeServiceFault", Says: "a service that it lives on is down"},
	{Type: MountReadOnly, Plugin: "mounts", Healthy: "MountsChecked", Problem: "MountFault", Says: "a filesystem cannot be written to"},
	{Type: MetaXGPUUnhealthy, Plugin: "metax", Healthy: "MetaXGPUChecked", Problem: "MetaXGPUFault", Says: "a MetaX GPU is unhealthy"},
	{Type: AscendNPUUnhealthy, Plugin: "ascend", Healthy: "AscendNPUChecked", Problem: "AscendNPUFault", Says: "an Ascend NPU is unhealthy"},
}

// PreflightFailed is the NodeCondition of a local check that failed before a job started.
const PreflightFailed = "PreflightFailed"

// SlowNode is the NodeCondition of a node that slows down the nodes that it works with.
const SlowNode = "SlowNode"

// Verdicts lists the conditions that the remediator writes itself. Their heartbeat is the time of the verdict.
var Verdicts = []Condition{
	{Type: PreflightFailed, Healthy: "PreflightPassed", Problem: "PreflightCheckFailed", Says: "a preflight check failed"},
	{Type: SlowNode, Healthy: "NodeKeepsUp", Problem: "NodeIsSlow", Says: "it is slower than its peers"},
}

// Ours tells whether the NodeCondition type is written by a plugin of this repository or by the remediator. Only then
// does its message follow the grammar of [ParseMessage].
func Ours(conditionType string) bool {
	return slices.ContainsFunc(All, hasType(conditionType)) || IsVerdict(conditionType)
}

// IsVerdict tells whether the remediator itself writes the NodeCondition type, see [Verdicts]. The heartbeat of such a
// condition is the time of the verdict: nothing renews it, so its age does not show that a detector has stopped.
func IsVerdict(conditionType string) bool {
	return slices.ContainsFunc(Verdicts, hasType(conditionType))
}

func hasType(conditionType string) func(Condition) bool {
	return func(c Condition) bool { return c.Type == conditionType }
}
