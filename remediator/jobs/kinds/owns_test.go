package kinds

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
)

// ownerOf is the reference of an object of a test, which has the UID KIND-NAME.
func ownerOf(apiVersion, kind, name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(kind + "-" + name), Controller: ptr.To(true)}
}

// made is an object with an owner, written apiVersion, kind and name.
func made(apiVersion, kind, name, labels, owner, spec string) string {
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: team, uid: %[2]s-%[3]s, labels: {%[4]s}", apiVersion, kind, name, labels)
	if owner != "" {
		of := strings.Split(owner, " ")
		text += fmt.Sprintf(", ownerReferences: [{apiVersion: %s, kind: %s, name: %s, uid: %[2]s-%[3]s, controller: true}]", of[0], of[1], of[2])
	}
	return text + "}\nspec: {" + spec + "}\n---\n"
}

// Whoever may create pods, or Jobs, can name the job of others as their owner and give them its labels.
func TestOnlyPodsThatAJobMadeAreItsOwn(t *testing.T) {
	const (
		jobSetAPI = "jobset.x-k8s.io/v1alpha2"
		lwsAPI    = "leaderworkerset.x-k8s.io/v1"
		torchAPI  = "kubeflow.org/v1"
	)
	uidSelector := func(name string) string {
		return "selector: {matchLabels: {batch.kubernetes.io/controller-uid: " + name + "-uid}}"
	}
	childOf := func(name, rj string) string {
		return made("batch/v1", "Job", name, "jobset.sigs.k8s.io/jobset-name: set, jobset.sigs.k8s.io/replicatedjob-name: "+rj, jobSetAPI+" JobSet set", uidSelector(name))
	}
	objects := made("batch/v1", "Job", "train", "", "", uidSelector("train")) +
		made(jobSetAPI, "JobSet", "set", "", "", "replicatedJobs: [{name: w, replicas: 1}]") + childOf("set-w-0", "w") + childOf("set-w-1", "w") + childOf("evil", "w") +
		made(torchAPI, "PyTorchJob", "torch", "", "", "") +
		made("kubeflow.org/v2beta1", "MPIJob", "mpi", "", "", "") +
		made("batch/v1", "Job", "mpi-launcher", "", "kubeflow.org/v2beta1 MPIJob mpi", uidSelector("mpi-launcher")) +
		made("batch/v1", "Job", "mpi-evil", "", "kubeflow.org/v2beta1 MPIJob mpi", uidSelector("mpi-evil")) +
		made("apps/v1", "Deployment", "serve", "", "", "selector: {matchLabels: {app: serve}}") +
		made("apps/v1", "ReplicaSet", "serve-1", "app: serve", "apps/v1 Deployment serve", "selector: {matchLabels: {app: serve, hash: one}}") +
		made(lwsAPI, "LeaderWorkerSet", "groups", "", "", "") +
		made("apps/v1", "StatefulSet", "groups", "", lwsAPI+" LeaderWorkerSet groups", "selector: {matchLabels: {leaderworkerset.sigs.k8s.io/name: groups, worker: none}}") +
		made("v1", "Pod", "groups-0", "", "apps/v1 StatefulSet groups", "") +
		made("apps/v1", "StatefulSet", "groups-0", "", "v1 Pod groups-0", "selector: {matchLabels: {leaderworkerset.sigs.k8s.io/name: groups, group: zero}}") +
		made("apps/v1", "StatefulSet", "groups-evil", "", "v1 Pod groups-0", "selector: {matchLabels: {leaderworkerset.sigs.k8s.io/name: groups, group: zero}}") +
		made("apps/v1", "StatefulSet", "evil", "", lwsAPI+" LeaderWorkerSet groups", "selector: {matchLabels: {leaderworkerset.sigs.k8s.io/name: groups}}") +
		made("ray.io/v1", "RayJob", "ray", "", "", "") +
		made("ray.io/v1", "RayCluster", "ray-x", "ray.io/originated-from-cr-name: ray, ray.io/originated-from-crd: RayJob", "ray.io/v1 RayJob ray", "") +
		made("batch/v1", "Job", "ray", "", "ray.io/v1 RayJob ray", "selector: {matchLabels: {submits: ray}}") +
		made("example.com/v1", "Gang", "gang", "", "", "") +
		made("batch/v1", "Job", "gang-0", "", "example.com/v1 Gang gang", uidSelector("gang-0"))
	of := func(name string) map[string]string {
		return map[string]string{"batch.kubernetes.io/controller-uid": name + "-uid"}
	}
	torchLabels := map[string]string{kubeflowJobNameLabel: "torch", kubeflowOperatorLabel: "pytorchjob-controller"}
	tests := map[string]struct {
		owner  metav1.OwnerReference
		labels map[string]string
		job    string // that is found, whether it owns the pod or not
		want   bool
	}{
		"a Job's":                                  {ownerOf("batch/v1", "Job", "train"), of("train"), "train", true},
		"a Job's, without its labels":              {ownerOf("batch/v1", "Job", "train"), map[string]string{"app": "x"}, "train", false},
		"a JobSet's":                               {ownerOf("batch/v1", "Job", "set-w-0"), of("set-w-0"), "set", true},
		"a JobSet's, without its labels":           {ownerOf("batch/v1", "Job", "set-w-0"), nil, "set", false},
		"a JobSet's own":                           {ownerOf(jobSetAPI, "JobSet", "set"), map[string]string{jobSetNameLabel: "set"}, "set", false},
		"of a Job with a JobSet above":             {ownerOf("batch/v1", "Job", "evil"), of("evil"), "set", false},
		"of a Job beyond the replicas of a JobSet": {ownerOf("batch/v1", "Job", "set-w-1"), of("set-w-1"), "set", false},
		"a PyTorchJob's":                           {ownerOf(torchAPI, "PyTorchJob", "torch"), torchLabels, "torch", true},
		"a PyTorchJob's, of another job's labels":  {ownerOf(torchAPI, "PyTorchJob", "torch"), map[string]string{kubeflowJobNameLabel: "other", kubeflowOperatorLabel: "pytorchjob-controller"}, "torch", false},
		"an MPIJob's launcher":                     {ownerOf("batch/v1", "Job", "mpi-launcher"), of("mpi-launcher"), "mpi", true},
		"of another Job with an MPIJob above":      {ownerOf("batch/v1", "Job", "mpi-evil"), of("mpi-evil"), "mpi", false},
		"a Deployment's":                           {ownerOf("apps/v1", "ReplicaSet", "serve-1"), map[string]string{"app": "serve", "hash": "one"}, "serve", true},
		"a Deployment's, without its labels":       {ownerOf("apps/v1", "ReplicaSet", "serve-1"), nil, "serve", false},
		"a leader":                                 {ownerOf("apps/v1", "StatefulSet", "groups"), map[string]string{lwsNameLabel: "groups", "worker": "none"}, "groups", true},
		"a worker of a group":                      {ownerOf("apps/v1", "StatefulSet", "groups-0"), map[string]string{lwsNameLabel: "groups", "group": "zero"}, "groups", true},
		"a worker without the labels":              {ownerOf("apps/v1", "StatefulSet", "groups-0"), map[string]string{lwsNameLabel: "groups"}, "groups", false},
		"of another StatefulSet of a leader":       {ownerOf("apps/v1", "StatefulSet", "groups-evil"), map[string]string{lwsNameLabel: "groups", "group": "zero"}, "groups", false},
		"of another StatefulSet":                   {ownerOf("apps/v1", "StatefulSet", "evil"), map[string]string{lwsNameLabel: "groups"}, "groups", false},
		"a RayJob's":                               {ownerOf("ray.io/v1", "RayCluster", "ray-x"), map[string]string{rayClusterLabel: "ray-x"}, "ray", true},
		"a RayJob's submitter":                     {ownerOf("batch/v1", "Job", "ray"), map[string]string{"submits": "ray"}, "ray", true},
		"a RayJob's, without its labels":           {ownerOf("ray.io/v1", "RayCluster", "ray-x"), nil, "ray", false},
		"a configured kind's":                      {ownerOf("example.com/v1", "Gang", "gang"), map[string]string{gangKind.PodLabel: "gang"}, "gang", true},
		"a configured kind's, without its label":   {ownerOf("example.com/v1", "Gang", "gang"), nil, "gang", false},
		"of a Job of a configured kind":            {ownerOf("batch/v1", "Job", "gang-0"), map[string]string{gangKind.PodLabel: "gang", "batch.kubernetes.io/controller-uid": "gang-0-uid"}, "gang", true},
		"of a Job of a configured kind, without":   {ownerOf("batch/v1", "Job", "gang-0"), map[string]string{gangKind.PodLabel: "gang"}, "gang", false},
	}
	reader, _ := readerOf(t, strings.TrimSuffix(objects, "---\n"))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Labels: test.labels, OwnerReferences: []metav1.OwnerReference{test.owner}}}
			r := NewOwnerResolver(reader, All([]jobkind.Kind{gangKind}))
			w, err := r.OfPod(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			if w.Job == nil || w.Job.Object.GetName() != test.job {
				t.Fatalf("found %+v, want %s", w.Job, test.job)
			}
			if got := w.Owns(pod); got != test.want {
				t.Errorf("owns it: %t", got)
			}
			if got, err := r.Owns(t.Context(), *w.Job, pod); got != test.want || err != nil {
				t.Errorf("owns it, by the resolver: %t, %v", got, err)
			}
			pod.OwnerReferences = nil
			if got, err := r.Owns(t.Context(), *w.Job, pod); got || err != nil {
				t.Errorf("owns it by its labels alone: %t, %v", got, err)
			}
			if w.Job.Owns(pod) {
				t.Error("the job owns it by its labels alone")
			}
		})
	}
}

// A reference with the UID of a job and another name leads nowhere, and must not hide the job from its own pods.
func TestAForgedReferenceHidesNoJob(t *testing.T) {
	reader, _ := readerOf(t, strings.TrimSuffix(made("batch/v1", "Job", "train", "", "", "selector: {matchLabels: {a: b}}"), "---\n"))
	r := NewOwnerResolver(reader, BuiltIn())
	own := ownerOf("batch/v1", "Job", "train")
	forged := own
	forged.Name = "other"
	if w, err := r.OfOwner(t.Context(), "team", forged); err != nil || w.Job != nil {
		t.Fatalf("found %+v, %v", w.Job, err)
	}
	if w, err := r.OfOwner(t.Context(), "team", own); err != nil || w.Job == nil {
		t.Errorf("the job is hidden: %v", err)
	}
}
