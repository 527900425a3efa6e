package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	// NodesPerRack is how many nodes have the same rack, and the ranks of one job.
	NodesPerRack = 32
	// Namespace has the training jobs.
	Namespace = "train"

	nodesPerZone = 64 * NodesPerRack
)

// ofKubelet are the conditions that a kubelet and the network's agent report.
var ofKubelet = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable,
}

// ofDetector are the conditions that the Node Problem Detector reports: ours and its own.
func ofDetector() []corev1.NodeConditionType {
	types := []corev1.NodeConditionType{"KernelDeadlock", "ReadonlyFilesystem", "FrequentKubeletRestart", "FrequentContainerdRestart", "CorruptDockerOverlay2", "XfsShutdown"}
	for _, c := range conditions.All {
		types = append(types, corev1.NodeConditionType(c.Type))
	}
	return types
}

// node is number i, with the labels of node-feature-discovery and gpu-feature-discovery, 50 images and the managed fields of three
// writers: about 27 KB as the API server sends it.
func node(i int, now time.Time) *corev1.Node {
	name, at := Name(i), metav1.NewTime(now.Truncate(time.Second))
	begun := metav1.NewTime(at.Add(-24 * time.Hour))
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: uuid.NewUUID(), CreationTimestamp: begun,
			Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
				corev1.LabelInstanceTypeStable: "gpu-h100-8", corev1.LabelTopologyRegion: "region-a",
				corev1.LabelTopologyZone:          fmt.Sprintf("zone-%d", i/nodesPerZone),
				"topology.kubernetes.io/rack":     fmt.Sprintf("rack-%d", i/NodesPerRack),
				"node.kubernetes.io/gpu-pool":     "training",
				"nvidia.com/gpu.product":          "NVIDIA-H100-80GB-HBM3",
				"nvidia.com/gpu.count":            "8",
				"nvidia.com/cuda.driver-version":  "580.82.07",
				"nvidia.com/gpu.deploy.driver":    "true",
				"nvidia.com/gpu.deploy.dcgm":      "true",
				"nvidia.com/mig.capable":          "true",
				"nvidia.com/gpu.compute.major":    "9",
				"nvidia.com/gpu.machine":          "Example-Server-XE9680",
				"nvidia.com/gpu.sharing-strategy": "none",
			},
			Annotations: map[string]string{
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
				"csi.volume.kubernetes.io/nodeid":                        fmt.Sprintf(`{"fs.csi.example.com":"%s","block.csi.example.com":"i-%017x"}`, name, i),
				"nfd.node.kubernetes.io/feature-labels":                  strings.Repeat("cpu-cpuid.FEATURE,", 60),
				"projectcalico.org/IPv4Address":                          fmt.Sprintf("10.%d.%d.%d/16", i>>16, i>>8&255, i&255),
			},
		},
		Spec: corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255), ProviderID: fmt.Sprintf("example:///%s", name)},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)}, {Type: corev1.NodeHostName, Address: name}},
			NodeInfo: corev1.NodeSystemInfo{
				BootID: string(uuid.NewUUID()), MachineID: string(uuid.NewUUID()), SystemUUID: string(uuid.NewUUID()), KernelVersion: "6.8.0-1021-generic",
				OSImage: "Ubuntu 24.04.3 LTS", ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: "v1.37.1", OperatingSystem: "linux", Architecture: "amd64",
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		},
	}
	for k := len(n.Labels); k < 90; k++ {
		n.Labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.FEATURE%02d", k)] = "true"
	}
	n.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("192"), corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourceEphemeralStorage: resource.MustParse("7Ti"),
		corev1.ResourcePods: resource.MustParse("110"), "hugepages-1Gi": resource.MustParse("0"), "hugepages-2Mi": resource.MustParse("0"),
		"nvidia.com/gpu": resource.MustParse("8"), "rdma/hca_shared": resource.MustParse("1k"),
	}
	n.Status.Allocatable = n.Status.Capacity
	for _, c := range append(ofKubelet, ofDetector()...) {
		status := corev1.ConditionFalse
		if c == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: c, Status: status, Reason: "Healthy" + string(c), Message: "no fault was found, as of the last look at the node", LastHeartbeatTime: at, LastTransitionTime: begun,
		})
	}
	for k := range 50 {
		image := fmt.Sprintf("registry.example.com/training/team-%02d/pytorch-cuda-runtime", k)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("%s@sha256:%064x", image, k), image + ":25.09-py3-release"}, SizeBytes: 9_500_000_000,
		})
	}
	n.ManagedFields = managedFields(n, begun)
	return n
}

// managedFields are as the API server writes them: each label and each condition by name.
func managedFields(n *corev1.Node, at metav1.Time) []metav1.ManagedFieldsEntry {
	labels, states := map[string]any{}, map[string]any{}
	for key := range n.Labels {
		labels["f:"+key] = map[string]any{}
	}
	for _, c := range n.Status.Conditions {
		states[fmt.Sprintf(`k:{"type":"%s"}`, c.Type)] = map[string]any{
			".": map[string]any{}, "f:lastHeartbeatTime": map[string]any{}, "f:lastTransitionTime": map[string]any{},
			"f:message": map[string]any{}, "f:reason": map[string]any{}, "f:status": map[string]any{}, "f:type": map[string]any{},
		}
	}
	var entries []metav1.ManagedFieldsEntry
	for _, by := range []struct {
		manager, subresource string
		fields               any
	}{
		{"nfd-master", "", map[string]any{"f:metadata": map[string]any{"f:labels": labels}}},
		{"kubelet", "status", map[string]any{"f:status": map[string]any{"f:images": map[string]any{}, "f:nodeInfo": map[string]any{}}}},
		{"node-problem-detector", "status", map[string]any{"f:status": map[string]any{"f:conditions": states}}},
	} {
		raw, err := json.Marshal(by.fields)
		if err != nil {
			panic(err) // maps of strings
		}
		entries = append(entries, metav1.ManagedFieldsEntry{
			Manager: by.manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &at, FieldsType: "FieldsV1",
			FieldsV1: &metav1.FieldsV1{Raw: raw}, Subresource: by.subresource,
		})
	}
	return entries
}

// pod is number k of a node: of ten, eight are of DaemonSets and two are ranks of a job.
func pod(i, k int, job *batchv1.Job, now time.Time) *corev1.Pod {
	at := metav1.NewTime(now.Truncate(time.Second))
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("agent-%d-%s", k, Name(i)), Namespace: metav1.NamespaceSystem, UID: uuid.NewUUID(), CreationTimestamp: at,
			Labels: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("agent-%d", k), "controller-revision-hash": "7d4f8c9b6d", "pod-template-generation": "3"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "DaemonSet", Name: fmt.Sprintf("agent-%d", k), UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", k)),
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: Name(i), ServiceAccountName: "default", RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
			SchedulerName: corev1.DefaultSchedulerName, SecurityContext: &corev1.PodSecurityContext{}, EnableServiceLinks: ptr.To(true),
			TerminationGracePeriodSeconds: ptr.To[int64](30),
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/infra/agent:v1.2.3", ImagePullPolicy: corev1.PullIfNotPresent,
				TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, HostIP: "10.0.0.1", PodIP: "10.1.0.1", StartTime: &at, QOSClass: corev1.PodQOSBestEffort,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true, Started: ptr.To(true), Image: "registry.example.com/infra/agent:v1.2.3", ImageID: "sha256:0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}}},
		},
	}
	for e := range 20 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("NCCL_SETTING_%02d", e), Value: "some-value-of-usual-length"})
	}
	if k%5 == 4 { // a rank
		p.Name, p.Namespace = fmt.Sprintf("%s-%d-%d", job.Name, i%NodesPerRack, k), Namespace
		p.Labels = map[string]string{batchv1.JobNameLabel: job.Name, batchv1.ControllerUidLabel: string(job.UID)}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	return p
}

// job trains on one rack. It has not opted in: bench/restart and e2e/chaos restart jobs.
func job(rack int, now time.Time) *batchv1.Job {
	uid := uuid.NewUUID()
	labels := map[string]string{batchv1.ControllerUidLabel: string(uid)}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("train-%d", rack), Namespace: Namespace, UID: uid, CreationTimestamp: metav1.NewTime(now.Truncate(time.Second))},
		Spec: batchv1.JobSpec{
			Parallelism: ptr.To[int32](2 * NodesPerRack), Completions: ptr.To[int32](2 * NodesPerRack), BackoffLimit: ptr.To[int32](6), Suspend: ptr.To(false),
			CompletionMode: ptr.To(batchv1.NonIndexedCompletion), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/training"}}},
			},
		},
		Status: batchv1.JobStatus{Active: 2 * NodesPerRack},
	}
}
