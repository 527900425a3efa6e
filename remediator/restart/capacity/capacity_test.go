package capacity

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// host is a Ready node of pool a with 8 GPUs and room for 10 pods.
func host(name string, change ...func(*corev1.Node)) corev1.Node {
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "a"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("10")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, f := range change {
		f(&node)
	}
	return node
}

// holder is a pod on a node that asks for so many GPUs, and for nodes of pool a.
func holder(name, node, gpus string, change ...func(*corev1.Pod)) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: node, NodeSelector: map[string]string{"pool": "a"}, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)}},
		}}},
	}
	for _, f := range change {
		f(&pod)
	}
	return pod
}

func podNames(pods []corev1.Pod) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}

func TestPodsToMove(t *testing.T) {
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "example.com/t", Effect: effect}} }
	}
	state := func(s corev1.ConditionStatus) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Status.Conditions[0].Status = s }
	}
	nodes := []corev1.Node{
		host("good"), host("noschedule", taint(corev1.TaintEffectNoSchedule)), host("noexecute", taint(corev1.TaintEffectNoExecute)),
		host("prefernot", taint(corev1.TaintEffectPreferNoSchedule)), host("cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		host("notready", state(corev1.ConditionFalse)), host("lost", state(corev1.ConditionUnknown)),
		host("silent", func(n *corev1.Node) { n.Status.Conditions = nil }), host("otherpool", func(n *corev1.Node) { n.Labels["pool"] = "b" }),
	}
	tolerant := func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }
	picky := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"a"}}}}},
		}}}
	}
	pods := []corev1.Pod{holder("pending", "", "8"), holder("deleted node", "gone", "8"), holder("picky", "good", "8", picky), holder("tolerant", "noschedule", "8", tolerant)}
	for _, n := range nodes {
		pods = append(pods, holder("on "+n.Name, n.Name, "8"))
	}
	want := []string{"pending", "deleted node", "picky", "on noschedule", "on noexecute", "on cordoned", "on notready", "on lost", "on silent", "on otherpool"}
	if diff := cmp.Diff(want, podNames((&Search{nodes: nodes}).podsToMove(pods))); diff != "" {
		t.Error(diff)
	}
}

func TestPlace(t *testing.T) {
	prio := func(priority int32, preemption corev1.PreemptionPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Priority, p.Spec.PreemptionPolicy = ptr.To(priority), &preemption }
	}
	two := []corev1.Pod{holder("w1", "", "4"), holder("w2", "", "4")}
	byClaim := func(p *corev1.Pod) {
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{RequestMappings: []corev1.ContainerExtendedResourceRequest{{ResourceName: "nvidia.com/gpu"}}}
	}
	claimed := []corev1.Pod{holder("w1", "", "4", byClaim), holder("w2", "", "4", byClaim)}
	onlyByClaims := func(n *corev1.Node) { delete(n.Status.Allocatable, "nvidia.com/gpu") }
	tests := map[string]struct {
		wanted []corev1.Pod
		others int
		there  []corev1.Pod
		change func(*corev1.Node)
		left   []string
		still  int // of the others
	}{
		"an empty node has room for both":       {wanted: two},
		"half a node has room for one":          {wanted: two, there: []corev1.Pod{holder("x", "n", "4")}, left: []string{"w2"}},
		"room for one, and one of another job":  {wanted: two[:1], others: 1},
		"first one's own, then that of others":  {wanted: two, others: 1, left: nil, still: 1},
		"others only":                           {others: 3, still: 1},
		"as many others as somebody may invent": {others: 1 << 60, still: 1<<60 - 2},
		"a full node has none":                  {wanted: two, there: []corev1.Pod{holder("x", "n", "8")}, left: []string{"w1", "w2"}},
		"what has ended takes no room": {wanted: two, there: []corev1.Pod{
			holder("x", "n", "8", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), holder("y", "n", "8", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}},
		"a large rank does not keep a small one out": {wanted: []corev1.Pod{holder("w1", "", "6"), holder("w2", "", "2")}, there: []corev1.Pod{holder("x", "n", "4")}, left: []string{"w1"}},
		"the node's number of pods counts":           {wanted: two, change: func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }, left: []string{"w2"}},
		"a resource that the node has not": {wanted: []corev1.Pod{holder("w1", "", "1", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["rdma/hca"] = resource.MustParse("1")
		})}, left: []string{"w1"}},
		"what the node has only by resource claims is no objection": {wanted: claimed, others: 1, change: onlyByClaims, there: []corev1.Pod{holder("x", "n", "8")}},
		"but the rest of what a rank needs is": {wanted: []corev1.Pod{holder("w1", "", "1", byClaim, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests["rdma/hca"] = resource.MustParse("1")
		})}, change: onlyByClaims, left: []string{"w1"}},
		"what it has without is one":                    {wanted: claimed, there: []corev1.Pod{holder("x", "n", "8")}, left: []string{"w1", "w2"}},
		"a node of another pool":                        {wanted: two, change: func(n *corev1.Node) { n.Labels["pool"] = "b" }, left: []string{"w1", "w2"}},
		"lesser pods give way":                          {wanted: []corev1.Pod{holder("w1", "", "8", prio(10, corev1.PreemptLowerPriority))}, there: []corev1.Pod{holder("x", "n", "8", prio(9, ""))}},
		"equal pods do not":                             {wanted: []corev1.Pod{holder("w1", "", "8", prio(10, corev1.PreemptLowerPriority))}, there: []corev1.Pod{holder("x", "n", "8", prio(10, ""))}, left: []string{"w1"}},
		"nor lesser ones to a rank that never preempts": {wanted: []corev1.Pod{holder("w1", "", "8", prio(10, corev1.PreemptNever))}, there: []corev1.Pod{holder("x", "n", "8", prio(9, ""))}, left: []string{"w1"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := host("n")
			if test.change != nil {
				test.change(&node)
			}
			before := node.DeepCopy()
			like := &two[0]
			if len(test.wanted) > 0 {
				like = &test.wanted[0]
			}
			left, still := new(Search).place(test.wanted, like, []Claim{{test.others, like}}, &node, test.there)
			if diff := cmp.Diff(test.left, podNames(left)); diff != "" || count(still) != test.still {
				t.Errorf("of others %d, want %d; %s", count(still), test.still, diff)
			}
			if diff := cmp.Diff(before, &node); diff != "" {
				t.Errorf("the cached node was changed: %s", diff)
			}
		})
	}
}

// What a cache shows of the node may be older than its taint. A failed pod taints none.
func TestANodeThatIsQuarantinedTakesNoRank(t *testing.T) {
	nodes := []corev1.Node{host("bad"), host("good")}
	for kind, want := range map[restart.TriggerKind][]string{restart.NodeQuarantined: {"good"}, restart.PodFailed: nil} {
		search := New(restart.Trigger{Kind: kind, Node: "bad"}, []corev1.Pod{holder("rank", "bad", "8")}, nodes, nil, noon)
		var searched []string
		for node := range search.Nodes() {
			searched = append(searched, node.Name)
			search.Place(node, []corev1.Pod{holder("other", node.Name, "8")})
		}
		if diff := cmp.Diff(want, searched); diff != "" || search.Moving != len(want) || search.found() != (want == nil) {
			t.Errorf("%s: %d ranks move, found %t; %s", kind, search.Moving, search.found(), diff)
		}
	}
}

// Whether another device of its node is free for a rank is not known, and no objection.
func TestAnIsolatedDeviceMovesNoRank(t *testing.T) {
	q := restart.Trigger{Kind: restart.NodeQuarantined, Node: "a", Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy"}, Devices: []devices.Device{{Name: "gpu-0"}}}
	search := New(q, []corev1.Pod{holder("rank", "a", "8")}, []corev1.Node{host("a")}, nil, noon)
	if search.Moving != 0 || !search.Result().Passed {
		t.Errorf("%+v", search)
	}
}

// A tenant with a hundred small pods on a node that fails claimed a hundred nodes by them, until its restart ended.
func TestSmallRanksOfOthersClaimLittle(t *testing.T) {
	small := holder("small", "bad", "0", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1m")}
	})
	var ranks []corev1.Pod
	for i := range 100 {
		ranks = append(ranks, *small.DeepCopy())
		ranks[i].Name = fmt.Sprint("small-", i)
	}
	big := func(n *corev1.Node) {
		n.Status.Allocatable["cpu"], n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("8"), resource.MustParse("110")
	}
	nodes := []corev1.Node{host("bad", big), host("good", big)}
	elsewhere := holder("elsewhere", "bad", "8", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "b"} })
	quarantined := restart.Trigger{Kind: restart.NodeQuarantined, Node: "bad"}
	claims := New(quarantined, append(ranks, holder("large", "bad", "8")), nodes, nil, noon).Claims()
	if len(claims) != 2 || claims[0].Ranks != 100 || claims[1].Ranks != 1 {
		t.Fatalf("%+v", claims)
	}
	for name, test := range map[string]struct {
		others []Claim
		passes bool
		says   string
	}{
		"nothing":                       {nil, true, ""},
		"small ranks":                   {claims[:1], true, ""},
		"a large one beside":            {claims, false, "need room for 101 and found it for 100"},
		"one of which no need is known": {[]Claim{{Ranks: 1}}, false, "need room for 1 and found it for 0"},
		"one for another pool":          {[]Claim{{1, &elsewhere}}, true, ""},
	} {
		search := New(quarantined, []corev1.Pod{holder("rank", "bad", "8")}, nodes, test.others, noon)
		for node := range search.Nodes() {
			search.Place(node, nil)
		}
		if got := search.Result(); got.Passed != test.passes || !strings.Contains(got.Text, test.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestWhatIsToldApartOfTheRanksOfAJobIsBounded(t *testing.T) {
	var ranks []corev1.Pod
	for i := range 100 {
		ranks = append(ranks, holder(fmt.Sprint("r", i), "bad", fmt.Sprint(i)))
	}
	claims := New(restart.Trigger{Kind: restart.NodeQuarantined, Node: "bad"}, ranks, []corev1.Node{host("bad")}, nil, noon).Claims()
	if len(claims) != maxClaims || count(claims) != 100 {
		t.Errorf("%d claims of %d ranks", len(claims), count(claims))
	}
}

// Whoever may create pods, and names their node, has as many ranks that have to move as a bad node and others hold, each with as many
// requirements as a pod has room for. Were all compared with all nodes, one search took minutes, and the restarts of others waited.
func TestWhatASearchCostsIsBounded(t *testing.T) {
	dense := func(p *corev1.Pod) {
		p.Spec.Tolerations = make([]corev1.Toleration, 4000) // quickly compared: a test has no time for as many terms
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"none", "other"}}},
				MatchFields:      []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"none"}}},
			}}},
		}}
		if got, want := requirements(p), 1+1+4000+1+3+2; got != want { // holder names a pool
			t.Fatalf("%d requirements, want %d", got, want)
		}
	}
	var nodes []corev1.Node
	for i := range 1000 {
		nodes = append(nodes, host(fmt.Sprint("n", i)))
	}
	q := restart.Trigger{Kind: restart.NodeQuarantined, Node: "n0"}
	var hostile []corev1.Pod
	for at, begins := range map[string]int{"n0": 0, "n1": 90 * 4000} { // on a bad node, and where their own requirements keep them out
		hostile = nil
		for i := range 90 {
			hostile = append(hostile, holder(fmt.Sprint("r", i), at, "8", dense))
		}
		search := New(q, hostile, nodes, nil, noon)
		if search.cost < begins {
			t.Errorf("on %s a search begins with cost %d", at, search.cost)
		}
		for node := range search.Nodes() {
			search.Place(node, nil)
		}
		if got := search.Result(); got.Passed || search.cost > maxCost+requirements(&hostile[0]) || !strings.Contains(got.Text, "require too much") {
			t.Errorf("on %s a search of cost %d: %+v", at, search.cost, got)
		}
	}
	for name, others := range map[string][]Claim{
		"alone":                         nil,
		"beside the claim of a hostile": {{Ranks: 1, Like: &hostile[0]}},
	} {
		search := New(q, []corev1.Pod{holder("rank", "n0", "8")}, nodes, others, noon)
		for node := range search.Nodes() {
			search.Place(node, nil)
		}
		if got := search.Result(); !got.Passed || search.cost > 10*len(nodes) || search.claimed != len(others) {
			t.Errorf("%s: a search of cost %d with %d claims: %+v", name, search.cost, search.claimed, got)
		}
	}
}

// BenchmarkSearch searches room for one rank of 512 among 10,000 nodes, the first of which has it.
func BenchmarkSearch(b *testing.B) {
	nodes := make([]corev1.Node, 10000)
	for i := range nodes {
		nodes[i] = host(fmt.Sprint("n", i))
	}
	ranks := make([]corev1.Pod, 512)
	for i := range ranks {
		ranks[i] = holder(fmt.Sprint("rank-", i), nodes[i].Name, "8")
	}
	q := restart.Trigger{Kind: restart.NodeQuarantined, Node: "n0", Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy"}}
	b.ReportAllocs()
	for b.Loop() {
		search := New(q, ranks, nodes, nil, noon)
		for node := range search.Nodes() {
			search.Place(node, nil)
		}
		if search.Moving != 1 || !search.found() {
			b.Fatal(search.Result())
		}
	}
}
