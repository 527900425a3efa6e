package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	jobsPerNamespace = 50
	ranksPerNode     = 8
)

func namespaces(jobs int) int { return (jobs + jobsPerNamespace - 1) / jobsPerNamespace }

func namespaceName(i int) string { return fmt.Sprintf("team-%d", i) }

// storeAll stores jobs whose ranks have run for an hour, each with a GPU, and their nodes.
func (b *bench) storeAll(ctx context.Context) error {
	for i := range namespaces(b.jobs) {
		namespace := &corev1.Namespace{}
		namespace.Name = namespaceName(i)
		if err := b.Client.Create(ctx, namespace); err != nil {
			return fmt.Errorf("create namespace %s: %w", namespace.Name, err)
		}
	}
	began := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	placed := 0
	for i := range b.jobs {
		job := b.job(i, began)
		batch := []client.Object{job}
		for rank := range b.ranks {
			if placed%ranksPerNode == 0 {
				batch = append(batch, b.node(placed/ranksPerNode, began))
			}
			batch = append(batch, b.pod(job, rank, placed/ranksPerNode, began))
			placed++
		}
		if err := b.Store(ctx, batch...); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) job(i int, began metav1.Time) *batchv1.Job {
	uid, n := uuid.NewUUID(), int32(b.ranks)
	labels := map[string]string{batchv1.ControllerUidLabel: string(uid)}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("train-%d", i), Namespace: namespaceName(i / jobsPerNamespace), UID: uid, CreationTimestamp: began},
		Spec: batchv1.JobSpec{
			Parallelism: &n, Completions: &n, BackoffLimit: ptr.To[int32](6), Suspend: ptr.To(false), CompletionMode: ptr.To(batchv1.IndexedCompletion),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/training"}}},
			},
		},
		Status: batchv1.JobStatus{Active: n, Ready: &n},
	}
}

func (b *bench) pod(job *batchv1.Job, rank, node int, began metav1.Time) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d-abcde", job.Name, rank), Namespace: job.Namespace, UID: uuid.NewUUID(), CreationTimestamp: began,
			Labels: map[string]string{
				batchv1.JobNameLabel: job.Name, batchv1.ControllerUidLabel: string(job.UID), batchv1.JobCompletionIndexAnnotation: strconv.Itoa(rank),
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
		},
		Spec: corev1.PodSpec{
			NodeName: nodeName(node), RestartPolicy: corev1.RestartPolicyNever, DNSPolicy: corev1.DNSClusterFirst,
			SchedulerName: corev1.DefaultSchedulerName, SecurityContext: &corev1.PodSecurityContext{}, TerminationGracePeriodSeconds: ptr.To[int64](30),
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/training", ImagePullPolicy: corev1.PullIfNotPresent,
				TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, HostIP: "127.0.0.1", PodIP: "10.1.0.1", StartTime: &began, QOSClass: corev1.PodQOSBestEffort,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: began}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: began}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true, Started: ptr.To(true), Image: "registry.example.com/training", ImageID: "sha256:0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}}}},
		},
	}
	for e := range 20 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("NCCL_SETTING_%02d", e), Value: "some-value-of-usual-length"})
	}
	return p
}

func nodeName(i int) string { return fmt.Sprintf("gpu-%05d", i) }

// node is a node whose kubelet is this program.
func (b *bench) node(i int, began metav1.Time) *corev1.Node {
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("110")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), UID: uuid.NewUUID(), CreationTimestamp: began, Labels: map[string]string{corev1.LabelHostname: nodeName(i), corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Capacity: gpus, Allocatable: gpus,
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: b.kubelets.port}},
			NodeInfo:        corev1.NodeSystemInfo{BootID: string(uuid.NewUUID())},
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: began}},
		},
	}
}

// lineEvery is how often each rank prints a step.
const lineEvery = 2 * time.Second

// kubelets answer for the logs of all pods: each rank prints a step of about a hundred bytes every two seconds.
type kubelets struct {
	*httptest.Server
	port int32
	// stopped is when all ranks have printed their last line, in nanoseconds of Unix time; 0: they go on.
	stopped atomic.Int64
}

func startKubelets() (*kubelets, error) {
	k := &kubelets{}
	k.Server = httptest.NewTLSServer(k)
	_, port, err := net.SplitHostPort(k.Listener.Addr().String())
	if err != nil {
		return k, fmt.Errorf("find the port of the kubelets: %w", err)
	}
	n, err := strconv.ParseInt(port, 10, 32)
	k.port = int32(n)
	return k, err
}

func (k *kubelets) stop() { k.stopped.Store(time.Now().UnixNano()) }

// texts are buffers for answers.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// ServeHTTP answers /containerLogs/NAMESPACE/POD/CONTAINER?tailLines=N&limitBytes=N&timestamps=true.
func (k *kubelets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	tail, err := strconv.ParseInt(query.Get("tailLines"), 10, 64)
	limit, err2 := strconv.Atoi(query.Get("limitBytes"))
	if err != nil || err2 != nil || query.Get("timestamps") != "true" || !strings.HasPrefix(r.URL.Path, "/containerLogs/") {
		http.Error(w, "not asked as the remediator does: "+r.URL.String(), http.StatusBadRequest)
		return
	}
	end := time.Now().UnixNano()
	if at := k.stopped.Load(); at > 0 {
		end = at
	}
	step := end / int64(lineEvery)
	buffer := texts.Get().(*[]byte) //nolint:forcetypeassert // nothing else is in it
	defer texts.Put(buffer)
	text := (*buffer)[:0]
	for i := step - tail + 1; i <= step; i++ {
		text = time.Unix(0, i*int64(lineEvery)).UTC().AppendFormat(text, time.RFC3339Nano)
		text = fmt.Appendf(text, " step %d loss 2.3145 lr 3.00e-04 grad_norm 0.71 tokens_per_second 412345.1 memory 71.2GiB elapsed 0:12:33\n", i)
	}
	*buffer = text
	_, _ = w.Write(text[:min(len(text), limit)]) // the reader may have gone
}
