// Package upgrade_test replaces an earlier commit by this one and back, on a real control plane: the remediator in the middle of what it does,
// and the chart.
package upgrade_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// earlier is the commit whose records remediator/testdata keeps, too. A clone without its history has to fetch it.
const earlier = "19f658c"

const (
	namespace = "pitcrew"
	patience  = 5 * time.Minute
)

// world is a cluster with remediators of two versions, one at a time.
type world struct {
	*testing.T
	*cluster.Cluster
	// tree has the files of the earlier commit, and its remediator in bin.
	tree string
}

func newWorld(t *testing.T, opts cluster.Options) *world {
	t.Helper()
	opts.Progress = os.Stderr
	c, err := cluster.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	w := &world{T: t, Cluster: c}
	if w.tree, err = unpack(t.Context(), c.Root, earlier); err == nil {
		err = buildEarlier(t.Context(), w.tree)
	}
	if err == nil {
		err = components.BuildOurs(t.Context(), c.Root, "./remediator")
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// unpacking is held while files of an earlier commit are made: the tests run side by side.
var unpacking sync.Mutex

// unpack makes a folder with the files of a commit from the history of this clone, once.
func unpack(ctx context.Context, root, commit string) (tree string, err error) {
	unpacking.Lock()
	defer unpacking.Unlock()
	tree = filepath.Join(root, "bin", "earlier-"+commit)
	if _, err := os.Stat(filepath.Join(tree, "go.mod")); err == nil {
		return tree, nil
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return "", err
	}
	text, err := exec.CommandContext(ctx, "git", "-C", root, "archive", commit).Output()
	if err != nil {
		return "", fmt.Errorf("git archive %s: %w; a shallow clone needs: git fetch --unshallow", commit, err)
	}
	tar := exec.CommandContext(ctx, "tar", "x", "-C", tree)
	tar.Stdin = bytes.NewReader(text)
	if out, err := tar.CombinedOutput(); err != nil {
		return "", fmt.Errorf("tar: %w\n%s", err, out)
	}
	return tree, nil
}

// buildEarlier builds the remediator of the earlier commit.
func buildEarlier(ctx context.Context, tree string) error {
	unpacking.Lock()
	defer unpacking.Unlock()
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", "bin/remediator", "./remediator")
	build.Dir, build.Env = tree, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the remediator in %s: %w\n%s", tree, err, out)
	}
	return nil
}

func (w *world) Context() context.Context { return w.T.Context() }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// get reads an object of the namespace of Pitcrew.
func (w *world) get(name string, o client.Object) {
	w.Helper()
	w.must(w.Client.Get(w.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o))
}

// runs has the remediator of a tree lead, until the returned function ends it as a kubelet does.
func (w *world) runs(tree string, args ...string) (end func()) {
	w.Helper()
	kubeconfig, err := w.RemediatorKubeconfig(w.Context(), "upgrade", nil)
	w.must(err)
	var log bytes.Buffer
	p := exec.CommandContext(context.WithoutCancel(w.Context()), filepath.Join(tree, "bin", "remediator"), append(args,
		"-kubeconfig="+kubeconfig, "-metrics-bind-address=0", "-health-probe-bind-address=0", "-lease-duration=15s")...)
	p.Stderr = &log
	w.must(p.Start())
	end = sync.OnceFunc(func() {
		_ = p.Process.Signal(os.Interrupt) // it runs; Wait says how it ended
		if err := p.Wait(); err != nil {
			w.Errorf("the remediator of %s ended: %v", tree, err)
		}
		if w.Failed() {
			w.Logf("the remediator of %s:\n%s", tree, log.String())
		}
	})
	w.Cleanup(end)
	return end
}

// leads has the remediator of a tree lead with the arguments and the policy of the chart that is installed.
func (w *world) leads(tree string) (end func()) {
	w.Helper()
	var d appsv1.Deployment
	w.get("pitcrew-remediator", &d)
	var m corev1.ConfigMap
	w.get("pitcrew-policy", &m)
	file := filepath.Join(w.TempDir(), "policy.yaml")
	w.must(os.WriteFile(file, []byte(m.Data["policy.yaml"]), 0o600))
	var args []string
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		if strings.HasPrefix(arg, "-policy=") {
			arg = "-policy=" + file
		}
		args = append(args, arg)
	}
	return w.runs(tree, args...)
}

// helm runs helm on the cluster.
func (w *world) helm(args ...string) (string, error) {
	w.Helper()
	w.must(components.Build(w.Context(), os.Stderr, w.Root, components.Helm))
	p := exec.CommandContext(w.Context(), components.Helm.Path(w.Root), append(args, "--kubeconfig="+w.Kubeconfig, "--namespace="+namespace)...)
	out, err := p.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("helm %q: %w\n%s", args, err, out)
	}
	return string(out), nil
}

func (w *world) mustHelm(args ...string) {
	w.Helper()
	_, err := w.helm(args...)
	w.must(err)
}

// valuesFile returns a file with values for helm.
func (w *world) valuesFile(values string) string {
	w.Helper()
	file := filepath.Join(w.TempDir(), "values.yaml")
	w.must(os.WriteFile(file, []byte(values), 0o600))
	return file
}

// reports has a node report a condition; a node that does not exist is made.
func (w *world) reports(name string, kind corev1.NodeConditionType, status corev1.ConditionStatus, message string) {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.must(client.IgnoreAlreadyExists(w.Client.Create(w.Context(), n)))
	now := metav1.Now().UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{
		"type":%q,"status":%q,"reason":"x","message":%q,"lastHeartbeatTime":%q,"lastTransitionTime":%[4]q}]}}`,
		kind, status, message, now)
	w.must(w.Client.Status().Patch(w.Context(), n, client.RawPatch(types.StrategicMergePatchType, patch)))
}

// record is one of the JSON records of Pitcrew. It is read by the names that the earlier commit knows, not by the code of this one.
type record map[string]any

// recordOf returns the record in an annotation, nil if there is none.
func recordOf(o client.Object, annotation string) (record, error) {
	var r record
	text, found := o.GetAnnotations()[annotation]
	if !found {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", annotation, err, text)
	}
	return r, nil
}

// at returns what the record has below names, "" if it has none.
func (r record) at(names ...string) string {
	var v any = map[string]any(r)
	for _, name := range names {
		switch is := v.(type) {
		case map[string]any:
			v = is[name]
		case []any:
			if len(is) == 0 {
				return ""
			}
			v = is[0].(map[string]any)[name]
		}
	}
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// names are those of all values of the record; elements of lists have one name together.
func (r record) names() []string {
	found := map[string]bool{}
	var add func(at string, v any)
	add = func(at string, v any) {
		switch is := v.(type) {
		case map[string]any:
			for name, below := range is {
				found[at+"."+name] = true
				add(at+"."+name, below)
			}
		case []any:
			for _, below := range is {
				add(at+"[]", below)
			}
		}
	}
	add("", map[string]any(r))
	var all []string
	for name := range found {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// lacks reports the names that the earlier version has written in the same situation, and this one has not.
func lacks(theirs, ours record) (all []string) {
	for _, name := range theirs.names() {
		if !slices.Contains(ours.names(), name) {
			all = append(all, name)
		}
	}
	return all
}

// quarantine waits until a node has a record in a phase, and returns it.
func (w *world) quarantine(name, phase string) record {
	w.Helper()
	var r record
	clustertest.Until(w, patience, fmt.Sprintf("node %s is %s", name, phase), func() error {
		var n corev1.Node
		err := w.Client.Get(w.Context(), client.ObjectKey{Name: name}, &n)
		if err == nil {
			r, err = recordOf(&n, conditions.AnnotationQuarantine)
		}
		isolated := r.at("isolation") != ""
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy })
		if err == nil && (r.at("phase") != phase || tainted != (phase == "quarantined" && !isolated)) {
			err = fmt.Errorf("record %v, tainted: %t", r, tainted)
		}
		return err
	})
	return r
}

// differs reports a difference between what was written and what there is.
func (w *world) differs(what string, want, got any) {
	w.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		w.Errorf("%s (- before, + now):\n%s", what, diff)
	}
}

var errStill = errors.New("not yet")
