package kinds

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
)

func TestOwnerResolver(t *testing.T) {
	object := func(apiVersion, kind, name, owner, spec string) string {
		text := "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: team, uid: " + name + "-uid"
		if owner != "" {
			apiVersion, kind, _ := strings.Cut(owner, " ")
			kind, name, _ := strings.Cut(kind, " ")
			text += ", ownerReferences: [{apiVersion: " + apiVersion + ", kind: " + kind + ", name: " + name + ", uid: " + name + "-uid, controller: true}]"
		}
		return text + "}\nspec: {" + spec + "}\n---\n"
	}
	app := "selector: {matchLabels: {a: b}}"
	job := object("batch/v1", "Job", "train-0", "example.com/v1 Gang train", app+", template: {spec: {nodeName: bad}}")
	groups := object("apps/v1", "StatefulSet", "train-0", "v1 Pod train-0", app) +
		object("v1", "Pod", "train-0", "apps/v1 StatefulSet train", "") +
		object("apps/v1", "StatefulSet", "train", "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet train", app)
	tests := map[string]struct {
		from    string // apiVersion, kind and name of the pod's owner
		objects string
		// job or unsupported is what is found, kind and name; neither: nothing.
		job, unsupported string
		templates        int
	}{
		"the owner itself":              {"apps/v1 StatefulSet serve", object("apps/v1", "StatefulSet", "serve", "", app), "StatefulSet serve", "", 1},
		"a Deployment above":            {"apps/v1 ReplicaSet serve-1", object("apps/v1", "ReplicaSet", "serve-1", "apps/v1 Deployment serve", app) + object("apps/v1", "Deployment", "serve", "", app), "Deployment serve", "", 1},
		"a LeaderWorkerSet of a worker": {"apps/v1 StatefulSet train-0", groups + object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "train", "", ""), "LeaderWorkerSet train", "", 2},
		"a configured kind above a Job": {"batch/v1 Job train-0", job + object("example.com/v1", "Gang", "train", "", ""), "Gang train", "", 1},
		"an unknown kind above a Job":   {"batch/v1 Job train-0", strings.Replace(job, "Gang", "Band", 1), "Job train-0", "Band train", 1},
		"an unknown kind":               {"example.com/v1 Band train", object("v1", "Pod", "p", "", ""), "", "Band train", 0},
		"a DaemonSet":                   {"apps/v1 DaemonSet agent", object("v1", "Pod", "p", "", ""), "", "", 0},
		"owners in a circle":            {"apps/v1 StatefulSet a", object("apps/v1", "StatefulSet", "a", "apps/v1 StatefulSet b", app) + object("apps/v1", "StatefulSet", "b", "apps/v1 StatefulSet a", app), "StatefulSet b", "StatefulSet a", 1},
		"an owner that is gone":         {"batch/v1 Job train-0", object("v1", "Pod", "p", "", ""), "", "", 0},
		// Whoever may create pods may write these, and the client refuses to ask for them.
		"an owner with a name of two":  {"batch/v1 Job a/b", object("v1", "Pod", "p", "", ""), "", "", 0},
		"an owner named like a folder": {"v1 Pod ..", object("v1", "Pod", "p", "", ""), "", "", 0},
		"another owner of the name":    {"batch/v1 Job train-0", strings.Replace(job, "train-0-uid", "other-uid", 1), "", "", 0},
		"another leader of the name":   {"apps/v1 StatefulSet train-0", strings.Replace(groups, "kind: Pod\nmetadata: {name: train-0, namespace: team, uid: train-0-uid", "kind: Pod\nmetadata: {name: train-0, namespace: team, uid: other-uid", 1), "", "", 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			reader, _ := readerOf(t, strings.TrimSuffix(test.objects, "---\n"))
			apiVersion, rest, _ := strings.Cut(test.from, " ")
			kindName, owner, _ := strings.Cut(rest, " ")
			r := NewOwnerResolver(reader, All([]jobkind.Kind{gangKind}))
			top, err := r.OfOwner(t.Context(), "team", metav1.OwnerReference{APIVersion: apiVersion, Kind: kindName, Name: owner, UID: types.UID(owner + "-uid")})
			if err != nil {
				t.Fatal(err)
			}
			job, unsupported, templates := "", "", 0
			if top.Job != nil {
				job, templates = top.Job.GVK.Kind+" "+top.Job.Object.GetName(), len(top.Job.Templates)
			}
			if top.Unsupported != nil {
				unsupported = top.Unsupported.Kind + " " + top.Unsupported.Name
			}
			if job != test.job || unsupported != test.unsupported || templates != test.templates {
				t.Errorf("job %q, unsupported %q, %d templates, want %q, %q, %d", job, unsupported, templates, test.job, test.unsupported, test.templates)
			}
			if n := len(top.Owners); n > 0 && (top.Owners[0].Name != owner || top.Job != nil && unsupported == "" && top.Owners[n-1].Name != top.Job.Object.GetName()) {
				t.Errorf("owners %v", top.Owners)
			}
		})
	}
}

// Pods of other namespaces come first in the list of a node, and may name the UID of any owner.
func TestAPodCannotHideTheOwnerOfAnotherNamespace(t *testing.T) {
	reader, _ := readerOf(t, "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: serve, namespace: team, uid: serve-uid}\nspec: {selector: {matchLabels: {a: b}}}\n")
	r := NewOwnerResolver(reader, BuiltIn())
	ref := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "serve", UID: "serve-uid"}
	for namespace, want := range map[string]types.UID{"others": "", "team": "serve-uid"} {
		for range 2 { // and remembered
			if top, err := r.OfOwner(t.Context(), namespace, ref); err != nil || top.UID() != want {
				t.Errorf("%s: found %q: %v", namespace, top.UID(), err)
			}
		}
	}
}
