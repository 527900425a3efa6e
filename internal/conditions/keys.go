package conditions

import "time"

// Domain prefixes every label, annotation and taint key of Pitcrew.
const Domain = "pitcrew.dev"

// MaxClockSkew is how far a time that another machine wrote may be ahead of the reader's clock. One that is further ahead is
// from a clock that is wrong, or forged.
const MaxClockSkew = 2 * time.Minute

// Keys on Nodes.
const (
	// TaintUnhealthy marks a quarantined node; its value is the NodeCondition that caused it.
	TaintUnhealthy = Domain + "/unhealthy"
	// TaintMaintenance marks a node that a sweep, a repair or an upgrade owns; our conditions are ignored meanwhile.
	TaintMaintenance = Domain + "/maintenance"
	// MaintenanceValidation is the value of TaintMaintenance while a quarantined node is checked under load before it returns.
	MaintenanceValidation = "validation"
	// MaintenanceRepair is the value of TaintMaintenance while a node is repaired.
	MaintenanceRepair = "repair"
	// ReasonRepair is the reason by which condition MaintenanceInProgress is the remediator's own.
	ReasonRepair = "RepairByPitcrew"
	// TaintUnchecked is what the kubelet registers a node with until its first check has passed.
	TaintUnchecked = Domain + "/unchecked"
	// AnnotationQuarantine holds the quarantine record, JSON.
	AnnotationQuarantine = Domain + "/quarantine"
	// AnnotationRepair holds the record of sweeps, repairs and validations, JSON.
	AnnotationRepair = Domain + "/repair"
	// AnnotationRequest holds what a person orders about the node, and the remediator's answer, JSON.
	AnnotationRequest = Domain + "/request"
	// LabelStatus is one of the statuses below.
	LabelStatus = Domain + "/status"
	// LabelRepair is the repair class of the worst cause.
	LabelRepair = Domain + "/repair"
	// AnnotationGPUs is what an admin knows of the node's GPUs, JSON, e.g. their serial numbers and slots by PCI address. It is
	// only ever copied into the evidence.
	AnnotationGPUs = Domain + "/gpus"
	// LabelSkip set to "true" makes the remediator leave the node alone.
	LabelSkip = Domain + "/skip"
)

// The values of [LabelStatus].
const (
	StatusHealthy     = "healthy"
	StatusSuspect     = "suspect"
	StatusQuarantined = "quarantined"
	// StatusIsolated is a node in service of which single GPUs are kept from new pods.
	StatusIsolated = "isolated"
	// StatusRepairing is a quarantined node on which a repair or an upgrade is under way.
	StatusRepairing = "repairing"
	// StatusValidating is a quarantined node that is checked under load before it returns.
	StatusValidating = "validating"
)

// OutOfService reports whether a value of [LabelStatus] means that the node is quarantined.
func OutOfService(status string) bool {
	return status == StatusQuarantined || status == StatusRepairing || status == StatusValidating
}

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
	// AnnotationAbortRestart, with any value, aborts the restart that is under way and starts the job as it was before.
	AnnotationAbortRestart = Domain + "/abort-restart"
	// AnnotationCheckpointBy is the time at which the job will be stopped, RFC 3339. AnnotationCheckpointed, set by the job to the same
	// value, confirms that it has saved its state.
	AnnotationCheckpointBy = Domain + "/checkpoint-by"
	AnnotationCheckpointed = Domain + "/checkpointed"
	// AnnotationProgress is an expression (RE2) for the lines by which a rank shows progress, with a group step for the number of the step.
	// AnnotationProgressPause is one for lines after which silence does not count until the next step. AnnotationStalledAfter is how long no
	// rank may make progress, a duration, and AnnotationStartupGrace the same until the first step. All are on the job or its namespace.
	AnnotationProgress      = Domain + "/progress"
	AnnotationProgressPause = Domain + "/progress-pause"
	AnnotationStalledAfter  = Domain + "/stalled-after"
	AnnotationStartupGrace  = Domain + "/startup-grace"
	// AnnotationRestartStep is on the object that stops and starts a job when it is not the job itself, such as the
	// Workload of Kueue: for which step of which restart it was written last.
	AnnotationRestartStep = Domain + "/restart-step"
)

// RemovedAnnotations were beside [AnnotationProgress] in earlier versions. They are ignored, which the job's Events say for one release
// (ADR 47 and 48).
var RemovedAnnotations = []string{Domain + "/nccl-ras-port", Domain + "/slow-after"}

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
	// AnnotationPreflightVerdict describes the verdict for users. No program reads it.
	AnnotationPreflightVerdict = Domain + "/preflight-verdict"
)

// PauseConfigMap, in Pitcrew's namespace, is the global pause; its key "reason" is shown to users.
const PauseConfigMap = "pitcrew-pause"

// EvidenceNamespace holds a ConfigMap for each node that was quarantined, of the node's name, with its conditions at that time.
// The namespace holds nothing else, so that a writer of evidence needs no permission to write anything else.
const EvidenceNamespace = "pitcrew-evidence"

// RepairNamespace holds the PodTemplates and the Jobs of sweeps, repairs and validations, and nothing else.
const RepairNamespace = "pitcrew-repair"

// Keys on such a Job.
const (
	// LabelTemplate is the PodTemplate that it is made from.
	LabelTemplate = Domain + "/template"
	// LabelVisit is the id of the visit.
	LabelVisit = Domain + "/visit"
	// AnnotationNode is the node. A DeviceTaintRule has it, too.
	AnnotationNode = Domain + "/node"
)

// AnnotationVerdict, on a PodTemplate there, lists the conditions by which plugins report what the Job found, with commas.
const AnnotationVerdict = Domain + "/verdict"

// AnnotationPauses, on a PodTemplate there, names whose pods must let go of the accelerators before the Job begins: [PausesGPUOperator].
const AnnotationPauses = Domain + "/pauses"

// PausesGPUOperator has the GPU operator's exporter, device plugin and other clients of the GPUs leave the node, by its own labels.
const PausesGPUOperator = "gpu-operator"

// AnnotationEvidenceAt, on such a ConfigMap, is the time of the newest evidence in it (RFC 3339).
const AnnotationEvidenceAt = Domain + "/evidence-at"

// BreakerConfigMap, in Pitcrew's namespace, is the breaker: its key "state" is empty while new quarantines may begin. Its key
// "starts" remembers when nodes were quarantined, and "repairs" which repairs did not help, beyond the lives of the nodes.
const BreakerConfigMap = "pitcrew-breaker"

// KnownConfigMap, in Pitcrew's namespace, has what quarantines by the policies so far may have put on nodes. Its key [AppliedKey] has
// what the leading remediator applies now, and its key "repairs" the last starts of repairs.
const KnownConfigMap = "pitcrew-known"

// AppliedKey is the key of [KnownConfigMap] with an [Applied], JSON.
const AppliedKey = "applied"

// Applied is what the leading remediator applies, for `kubectl pitcrew`. No program decides by it.
type Applied struct {
	// Version is the remediator's.
	Version string `json:"version"`
	// Policy is the hash of the policy file in force; empty: no valid policy was read yet.
	Policy string `json:"policy,omitempty"`
	// Invalid is why the present policy file is refused; empty: it is in force.
	Invalid string `json:"invalid,omitempty"`
}
