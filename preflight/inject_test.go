package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/gang"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/preflighttest"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
)

// inject applies the shipped manifests for one namespace, with other expressions for variables of the policy, and waits until the policy is
// in force.
func inject(t *testing.T, namespace string, labels map[string]string, variables map[string]string) *cluster.Cluster {
	t.Helper()
	c := clustertest.Get(t)
	if err := c.AddNamespace(t.Context(), namespace, labels); err != nil {
		t.Fatal(err)
	}
	manifests := c.Root + "/manifests/preflight"
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := c.Kubectl(t.Context(), args...)
		if err != nil {
			t.Fatalf("kubectl %s: %v\n%s", args, err, out)
		}
		return out
	}
	kubectl("apply", "-k", manifests)
	kubectl("apply", "-n", namespace, "-k", manifests+"/inject/namespace")
	policy := kubectl("kustomize", manifests+"/inject")
	policy = strings.NewReplacer("name: pitcrew-preflight-inject", "name: "+namespace, "policyName: pitcrew-preflight-inject", "policyName: "+namespace, "team-a", namespace).Replace(policy)
	for name, expression := range variables {
		before, after, ok := strings.Cut(policy, "    name: "+name+"\n")
		i := strings.LastIndex(before, "  - expression: ")
		if !ok || i < 0 {
			t.Fatalf("the policy has no variable %s:\n%s", name, policy)
		}
		policy = before[:i] + "  - expression: " + expression + "\n    name: " + name + "\n" + after
	}
	if err := c.Apply(t.Context(), []byte(policy)); err != nil {
		t.Fatal(err)
	}
	return c
}

// admitted is a pod as the API server would store it.
func admitted(t *testing.T, c *cluster.Cluster, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pod = pod.DeepCopy()
	if err := c.Client.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	return pod
}

// aPod is a pod that opts in and has one container.
func aPod(namespace string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rank", Labels: map[string]string{conditions.LabelPreflight: "true"}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "train", Image: "train"}},
		},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func gpus(c *corev1.Container) {
	c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), "rdma/hca": resource.MustParse("1")}
}

// Whatever else is in the pod: the container is first, and the rest of the pod is as its owner wrote it.
func TestThePreflightIsPutFirstIntoThePod(t *testing.T) {
	c := inject(t, "inject", map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}, nil)
	waitFor(t, c, "inject")
	for name, change := range map[string]func(*corev1.Pod){
		"one container": nil,
		"init containers and sidecars": func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "proxy", Image: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}, {Name: "init", Image: "init"}}
		},
		"root": func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)} },
		"accelerators of the second container": func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "gpus", Image: "train", Env: []corev1.EnvVar{{Name: "RANK", Value: "3"}, {Name: "SECRET", Value: "x"}}})
			gpus(&p.Spec.Containers[1])
		},
		"devices of a claim": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("gpu")}}
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "gpus", Image: "train", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}})
		},
		"a large environment": func(p *corev1.Pod) {
			for i := range 2000 {
				p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", i), Value: strings.Repeat("x", 100)})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := aPod("inject", change)
			got := admitted(t, c, pod)
			if len(got.Spec.InitContainers) == 0 || got.Spec.InitContainers[0].Name != gang.Container {
				t.Fatalf("init containers %+v", got.Spec.InitContainers)
			}
			first := got.Spec.InitContainers[0]
			if diff := cmp.Diff(got.Spec.Containers[len(got.Spec.Containers)-1].Resources, first.Resources); diff != "" {
				t.Error(diff)
			}
			if s := first.SecurityContext; *s.RunAsUser == 0 || !*s.RunAsNonRoot || *s.AllowPrivilegeEscalation {
				t.Errorf("security context %+v", s)
			}
			var copied []string
			for _, e := range first.Env[3:] {
				copied = append(copied, e.Name+"="+e.Value)
			}
			if want := map[bool][]string{true: {"RANK=3"}}[strings.HasPrefix(name, "accel")]; !slices.Equal(copied, want) {
				t.Errorf("copied %s, want %s", copied, want)
			}
			again := got.DeepCopy()
			again.ObjectMeta = pod.ObjectMeta
			if diff := cmp.Diff(got.Spec, admitted(t, c, again).Spec); diff != "" {
				t.Error("a second pass:", diff)
			}
			got.Spec.InitContainers = slices.Delete(got.Spec.InitContainers, 0, 1)
			if len(got.Spec.InitContainers) == 0 {
				got.Spec.InitContainers = nil
			}
			pod.Labels = map[string]string{conditions.LabelPreflight: "false"}
			if diff := cmp.Diff(admitted(t, c, pod).Spec, got.Spec); diff != "" {
				t.Error("the rest of the pod:", diff)
			}
		})
	}
}

// Its token is that of the pod, which the API server mounts as into the other containers.
func TestTheInjectedContainerHasThePodsToken(t *testing.T) {
	c := inject(t, "inject-token", nil, nil)
	waitFor(t, c, "inject-token")
	pod := admitted(t, c, aPod("inject-token", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil }))
	if diff := cmp.Diff(pod.Spec.Containers[0].VolumeMounts, pod.Spec.InitContainers[0].VolumeMounts); diff != "" || len(pod.Spec.Containers[0].VolumeMounts) == 0 {
		t.Error(diff)
	}
}

func TestPodsThatDoNotOptInAreLeftAlone(t *testing.T) {
	c := inject(t, "inject-not", nil, nil)
	waitFor(t, c, "inject-not")
	if err := c.AddNamespace(t.Context(), "inject-elsewhere", nil); err != nil {
		t.Fatal(err)
	}
	for name, pod := range map[string]*corev1.Pod{
		"no label":           aPod("inject-not", func(p *corev1.Pod) { p.Labels = nil }),
		"the label of false": aPod("inject-not", func(p *corev1.Pod) { p.Labels[conditions.LabelPreflight] = "false" }),
		"another namespace":  aPod("inject-elsewhere", nil),
		"a preflight of its own": aPod("inject-not", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "proxy", Image: "proxy"}, {Name: gang.Container, Image: "own"}}
		}),
		"Windows":                       aPod("inject-not", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }),
		"another container of its name": aPod("inject-not", func(p *corev1.Pod) { p.Spec.Containers[0].Name = gang.Container }),
	} {
		before := len(pod.Spec.InitContainers)
		if after := admitted(t, c, pod).Spec.InitContainers; len(after) != before {
			t.Errorf("%s: init containers %+v", name, after)
		}
	}
}

// The API server takes the container also where pods are restricted.
func TestARestrictedPodStaysRestricted(t *testing.T) {
	c := inject(t, "inject-restricted", map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}, nil)
	restricted := func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	}
	clustertest.Until(t, time.Minute, "wait for the policy", func() error {
		if pod := admitted(t, c, aPod("inject-restricted", restricted)); len(pod.Spec.InitContainers) != 1 {
			return fmt.Errorf("init containers %+v", pod.Spec.InitContainers)
		}
		return nil
	})
}

// An expression that fails keeps no pod from being created.
func TestAPolicyThatFailsBlocksNoPod(t *testing.T) {
	c := inject(t, "inject-broken", nil, map[string]string{"args": `"[string(1 / (object.metadata.name == 'broken' ? 0 : 1))]"`})
	waitFor(t, c, "inject-broken")
	pod := admitted(t, c, aPod("inject-broken", func(p *corev1.Pod) { p.Name = "broken" }))
	if len(pod.Spec.InitContainers) > 0 {
		t.Errorf("init containers %+v", pod.Spec.InitContainers)
	}
}

// waitFor waits until the policy for a namespace is in force.
func waitFor(t *testing.T, c *cluster.Cluster, namespace string) {
	t.Helper()
	clustertest.Until(t, time.Minute, "wait for the policy", func() error {
		if pod := admitted(t, c, aPod(namespace, nil)); len(pod.Spec.InitContainers) != 1 {
			return fmt.Errorf("init containers %+v", pod.Spec.InitContainers)
		}
		return nil
	})
}

// The policy copies every variable that the program reads.
func TestThePolicyCopiesWhatTheProgramReads(t *testing.T) {
	c := inject(t, "inject-variables", nil, nil)
	waitFor(t, c, "inject-variables")
	names := append(gang.Variables(), "VC_RANK_NUM")
	pod := admitted(t, c, aPod("inject-variables", func(p *corev1.Pod) {
		for _, name := range append(names, "SECRET", "VC_RANK_HOSTS", "MY_RANK") {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: "x"})
		}
	}))
	var got []string
	for _, e := range pod.Spec.InitContainers[0].Env[3:] {
		got = append(got, e.Name)
	}
	if diff := cmp.Diff(names, got); diff != "" {
		t.Error(diff)
	}
}

// A Job of 64 pods whose manifest has only the label: the API server puts the program into each, each finds its rank, they test each other,
// and each writes its report with the token of its pod. Only the kubelets are missing: the test binds the pods, gives them an address, and
// runs the program in the environment that the policy gave it.
func TestAGangOf64RunsWhatWasInjected(t *testing.T) {
	const n = 64
	port := clustertest.FreeAddress(t)
	port = port[strings.LastIndex(port, ":")+1:]
	c := inject(t, "inject-gang", nil, map[string]string{"args": `"['-port=` + port + `', '-command=echo Avg bus bandwidth : 40', '-check=true']"`})
	waitFor(t, c, "inject-gang")
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "inject-gang", Name: "train"},
		Spec: batchv1.JobSpec{
			Completions: ptr.To[int32](n), Parallelism: ptr.To[int32](n), CompletionMode: ptr.To(batchv1.IndexedCompletion),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{conditions.LabelPreflight: "true"}},
				Spec: corev1.PodSpec{
					SchedulerName: "none", RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "train", Image: "train"}},
				},
			},
		},
	}
	if err := c.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	clustertest.Until(t, 2*time.Minute, "wait for the pods", func() error {
		if err := c.Client.List(t.Context(), &pods, client.InNamespace("inject-gang")); err != nil || len(pods.Items) < n {
			return fmt.Errorf("%d pods, %w", len(pods.Items), err)
		}
		return nil
	})
	codes := make([]int, n)
	var running sync.WaitGroup
	for i := range pods.Items {
		pod := &pods.Items[i]
		running.Go(func() { codes[i] = runInjected(t, c, pod, fmt.Sprintf("inject-%d", i)) })
	}
	running.Wait()
	if bad := slices.IndexFunc(codes, func(code int) bool { return code != exitOK }); bad >= 0 {
		t.Errorf("exit codes %v", codes)
	}
	var list corev1.ConfigMapList
	if err := c.Client.List(t.Context(), &list, client.InNamespace("inject-gang"), client.MatchingLabels{conditions.LabelPreflight: "report"}); err != nil {
		t.Fatal(err)
	}
	index := map[string]string{}
	for _, pod := range pods.Items {
		index[pod.Name] = pod.Labels[batchv1.JobCompletionIndexAnnotation]
	}
	var reports []report.Report
	ranks := map[int]bool{}
	for _, cm := range list.Items {
		r, err := report.Parse([]byte(cm.Data["report.json"]))
		if err != nil {
			t.Fatal(err)
		}
		if cm.Labels[conditions.LabelPreflightRun] != list.Items[0].Labels[conditions.LabelPreflightRun] || r.Size != n || r.GPU != report.Passed || len(r.Batches) == 0 {
			t.Errorf("run %s, report %+v", cm.Labels[conditions.LabelPreflightRun], r)
		}
		if want := index[cm.Annotations[conditions.AnnotationPreflightPod]]; fmt.Sprint(r.Rank) != want {
			t.Errorf("pod %s is rank %d", want, r.Rank)
		}
		ranks[r.Rank] = true
		reports = append(reports, r)
	}
	if v := verdict.Judge(list.Items[0].Labels[conditions.LabelPreflightRun], reports, verdict.Options{}); !v.Complete || len(v.Slow) > 0 || len(ranks) != n {
		t.Errorf("%d reports of %d ranks: %+v", len(reports), len(ranks), v)
	}

	// A pod that comes back later finds that the others run.
	rank0 := &pods.Items[slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Labels[batchv1.JobCompletionIndexAnnotation] == "0" })]
	before := client.MergeFrom(rank0.DeepCopy())
	rank0.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: gang.Container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	if err := c.Client.Status().Patch(t.Context(), rank0, before); err != nil {
		t.Fatal(err)
	}
	late := &pods.Items[slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.Labels[batchv1.JobCompletionIndexAnnotation] == "5" })]
	container := late.Spec.InitContainers[0]
	o, err := parse(container.Args, preflighttest.Environment(t, c.Client, late, container))
	if err != nil {
		t.Fatal(err)
	}
	o.connect = func() (kubernetes.Interface, error) { return asPod(t.Context(), c, late) }
	if code, err := run(t.Context(), o); !errors.Is(err, errEnded) || o.exitCode(code) != exitOK {
		t.Errorf("exit %d, %v", code, err)
	}
	// Nor does the job wait for what its account may not ask.
	config, err := c.Config("nobody")
	if err != nil {
		t.Fatal(err)
	}
	o.connect = func() (kubernetes.Interface, error) { return kubernetes.NewForConfig(config) }
	if code, err := run(t.Context(), o); !apierrors.IsForbidden(err) || o.exitCode(code) != exitOK {
		t.Errorf("exit %d, %v", code, err)
	}
}

// runInjected does what a kubelet on the node would do with a pod's first init container, and returns its exit code.
func runInjected(t *testing.T, c *cluster.Cluster, pod *corev1.Pod, node string) int {
	ctx := t.Context()
	if err := c.Client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
		t.Error(err)
		return -1
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	if err := c.Client.SubResource("binding").Create(ctx, pod, binding); err != nil {
		t.Error(err)
		return -1
	}
	if err := c.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Error(err)
		return -1
	}
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.PodIP, pod.Status.PodIPs = "127.0.0.1", []corev1.PodIP{{IP: "127.0.0.1"}}
	if err := c.Client.Status().Patch(ctx, pod, before); err != nil {
		t.Error(err)
		return -1
	}
	container := pod.Spec.InitContainers[0]
	o, err := parse(container.Args, preflighttest.Environment(t, c.Client, pod, container))
	if err != nil {
		t.Error(err)
		return -1
	}
	o.connect = func() (kubernetes.Interface, error) { return asPod(ctx, c, pod) }
	code, err := run(ctx, o)
	if err != nil {
		slog.Error("Preflight ended early", "pod", pod.Name, "err", err)
	}
	return code
}

// asPod is a client with the token that the kubelet mounts into the pod.
func asPod(ctx context.Context, c *cluster.Cluster, pod *corev1.Pod) (kubernetes.Interface, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}}
	if err := c.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, err
	}
	config := rest.AnonymousClientConfig(c.Admin)
	config.BearerToken = request.Status.Token
	return kubernetes.NewForConfig(config)
}

// Of several pods with its labels rank 0 is the one that lives: those of an earlier attempt stay listed.
func TestRank0IsThePodThatLives(t *testing.T) {
	c := clustertest.Get(t)
	if err := c.AddNamespace(t.Context(), "rank0", nil); err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(c.Admin)
	if err != nil {
		t.Fatal(err)
	}
	o, err := parse([]string{"-from-pod", "-node", "n"}, func(name string) string { return map[string]string{"POD_NAMESPACE": "rank0"}[name] })
	if err != nil {
		t.Fatal(err)
	}
	byLabel := gang.Place{Leader: metav1.ListOptions{LabelSelector: "rank=0"}}
	finds := func(p gang.Place, want, wrong string) {
		t.Helper()
		// It asks the API server's cache, which may not show the last write yet.
		clustertest.Until(t, 10*time.Second, "rank 0 is found as it is now", func() error {
			got, err := o.findLeader(t.Context(), clients, aPod("rank0", nil), p)
			if got.address != want || (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
				return fmt.Errorf("%q, %w, want %q and an error with %q", got, err, want, wrong)
			}
			return nil
		})
	}
	add := func(name, ip string, phase corev1.PodPhase) *corev1.Pod {
		pod := aPod("rank0", func(p *corev1.Pod) {
			p.Name, p.Labels, p.Finalizers = name, map[string]string{"rank": "0"}, []string{"pitcrew.dev/test"}
			p.Spec.SchedulerName = "none"
		})
		if err := c.Client.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = phase, ip, nil
		if ip != "" {
			pod.Status.PodIPs = []corev1.PodIP{{IP: ip}}
		}
		if err := c.Client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		return pod
	}
	finds(byLabel, "", "no pod of rank 0")
	finds(gang.Place{Leader: metav1.ListOptions{FieldSelector: "metadata.name=train-0"}, Host: "train-0.train"}, "train-0.train:29400", "")
	finds(gang.Place{Host: "fd00::1"}, "[fd00::1]:29400", "")
	add("a-failed", "10.0.0.1", corev1.PodFailed)
	if err := c.Client.Delete(t.Context(), add("b-ends", "10.0.0.2", corev1.PodRunning)); err != nil {
		t.Fatal(err)
	}
	finds(byLabel, "", "no pod of rank 0")
	lives := add("c-lives", "", corev1.PodPending)
	finds(byLabel, "", "pod c-lives of rank 0 has no address")
	lives.Status.PodIP, lives.Status.PodIPs = "10.0.0.3", []corev1.PodIP{{IP: "10.0.0.3"}}
	if err := c.Client.Status().Update(t.Context(), lives); err != nil {
		t.Fatal(err)
	}
	finds(byLabel, "10.0.0.3:29400", "")
}
