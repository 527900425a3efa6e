package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// hostile is in every string of every object. A line that begins with MARGIN is one that it has begun.
const hostile = "evil\x1b[2J\x1b]52;c;cm0gLXJm\a\u009b31m\b\r\u202eb\u2067\u200e\u200b\u2060\ufeff\u00ad\u3164\U000e0041\ufe0f\u2028\u0085\x7f\v\nMARGIN"

var hostileTime = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// fill fills each string of a value, and gives each list and map a member and each pointer something to point at.
func fill(v reflect.Value, depth int) {
	if depth > 12 || !v.CanSet() {
		return
	}
	switch value := v.Addr().Interface().(type) {
	case *metav1.Time:
		*value = metav1.NewTime(hostileTime)
		return
	case *time.Time:
		*value = hostileTime
		return
	case *resource.Quantity:
		*value = resource.MustParse("8")
		return
	case *intstr.IntOrString:
		*value = intstr.FromString(hostile)
		return
	case *conditions.Repair:
		*value = conditions.Reboot
		return
	case *metav1.FieldsV1, *runtime.RawExtension, *metav1.MicroTime:
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.SetMapIndex(key, value)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}

func filled[T any]() *T {
	var value T
	fill(reflect.ValueOf(&value).Elem(), 0)
	return &value
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// hostileRecords are the annotations of Pitcrew.
func hostileRecords(t *testing.T) map[string]string {
	q, visits, job := filled[causes.Record](), filled[visit.Record](), filled[restart.Record]()
	q.V, q.NodeUID, q.Phase = 1, "uid", causes.Quarantined
	q.HandOff, q.Isolation = nil, nil
	q.Taint.Key, q.Taint.Value, q.Taint.Effect = conditions.TaintUnhealthy, "GPUXidError", corev1.TaintEffectNoSchedule
	q.Causes[0].Condition, q.Causes[0].Due, q.ManualReleaseOnly = conditions.GPUXidError, true, false
	q.Last = nil
	q.ID, q.Domain.Value = "q1", hostile[len(hostile)-63:] // no value of a label is longer
	visits.V, visits.NodeUID = 1, "uid"
	visits.Current.ID, visits.Current.Kind, visits.Current.Phase = "v1", visit.Repair, visit.Emptying
	visits.Current.Then, visits.Current.Group, visits.Last = "", nil, nil
	visits.Current.Quarantine, visits.Advice.Quarantine, visits.Request.Quarantine = q.ID, q.ID, q.ID
	job.V, job.JobUID = 1, "uid"
	job.Current.ID, job.Current.Phase, job.Current.LaterPhase = "abcd2345", restart.Stopping, ""
	job.Current.Quarantines[0].Taint.Effect = corev1.TaintEffectNoSchedule
	if _, err := causes.ParseRecord(asJSON(t, q)); err != nil {
		t.Fatalf("the record of the quarantine shows nothing: %v", err)
	}
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "uid", Annotations: map[string]string{conditions.AnnotationRepair: asJSON(t, visits)}}}
	if _, err := visit.RecordOf(&n); err != nil {
		t.Fatalf("the record of the visits shows nothing: %v", err)
	}
	if _, err := restart.ReadRecord(&metav1.ObjectMeta{UID: "uid", Annotations: map[string]string{conditions.AnnotationRestart: asJSON(t, job)}}); err != nil {
		t.Fatalf("the record of the restart shows nothing: %v", err)
	}
	return map[string]string{
		conditions.AnnotationQuarantine: asJSON(t, q), conditions.AnnotationRepair: asJSON(t, visits), conditions.AnnotationRestart: asJSON(t, job),
		conditions.AnnotationProgress: hostile, conditions.AnnotationNode: hostile, conditions.AnnotationPreflightVerdict: "refused: " + hostile,
	}
}

// hostileObject is the object of a kind, with names as the API server admits them.
func hostileObject(t *testing.T, records map[string]string, kind schema.GroupVersionKind, namespace, name string) anyObject {
	object, err := scheme.Scheme.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	fill(reflect.ValueOf(object).Elem(), 0)
	o := object.(anyObject)
	o.GetObjectKind().SetGroupVersionKind(kind)
	o.SetName(name)
	o.SetNamespace(namespace)
	o.SetUID("uid")
	o.SetResourceVersion("1")
	o.SetDeletionTimestamp(nil)
	o.SetAnnotations(maps.Clone(records))
	o.SetOwnerReferences(nil)
	switch o := object.(type) {
	case *corev1.Node:
		for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, conditions.GPUXidError, conditions.HCAPortDown} {
			c := *filled[corev1.NodeCondition]()
			c.Type, c.Status = kind, corev1.ConditionTrue
			o.Status.Conditions = append(o.Status.Conditions, c)
		}
		o.Labels[conditions.LabelStatus], o.Spec.Unschedulable = conditions.StatusQuarantined, true
		o.Spec.Taints = append(o.Spec.Taints, corev1.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule})
	case *corev1.Pod:
		o.Spec.NodeName, o.Status.Phase = "n", corev1.PodRunning
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "j", UID: "uid", Controller: new(bool)}}
		*o.OwnerReferences[0].Controller = true
	case *batchv1.Job:
		o.Labels = map[string]string{conditions.LabelRestartOnNodeFault: "true", "x": hostile}
		o.Spec.Suspend, o.Status.CompletionTime = new(bool), nil
		o.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"job": "j"}}
	case *corev1.ConfigMap:
		delete(o.Annotations, conditions.AnnotationPreflightVerdict)
		r := report.Report{Node: "n", RunID: "r1", Workload: hostile, Size: 1, IP: netip.MustParseAddr("10.0.0.1")}
		o.Data = map[string]string{
			"report.json": asJSON(t, &r), "policy.yaml": clitest.JobPolicy, "reason": hostile, "by": hostile, "breaker.json": `{"openedAt":"2026-11-20T12:00:00Z"}`, hostile: hostile,
		}
	}
	return o
}

type anyObject interface {
	metav1.Object
	runtime.Object
}

// hostileServer answers every read with an object that has hostile text wherever it may.
func hostileServer(t *testing.T) *httptest.Server {
	records := hostileRecords(t)
	kinds := map[string]map[string]schema.GroupVersionKind{}
	for kind := range scheme.Scheme.AllKnownTypes() {
		api := "/apis/" + kind.GroupVersion().String()
		if kind.Group == "" {
			api = "/api/" + kind.Version
		}
		plural := strings.ToLower(kind.Kind) + "s"
		if kinds[api] == nil {
			kinds[api] = map[string]schema.GroupVersionKind{}
		}
		kinds[api][plural] = kind
	}
	reply := func(w http.ResponseWriter, value any) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, asJSON(t, value))
	}
	discover := func(w http.ResponseWriter, path string) bool {
		switch {
		case path == "/api":
			reply(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		case path == "/apis":
			list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
			for _, group := range []string{"batch", "apps", "events.k8s.io", "coordination.k8s.io", "authorization.k8s.io", "authentication.k8s.io", "admissionregistration.k8s.io", "resource.k8s.io"} {
				v := metav1.GroupVersionForDiscovery{GroupVersion: group + "/v1", Version: "v1"}
				list.Groups = append(list.Groups, metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v})
			}
			reply(w, list)
		case path == "/version":
			reply(w, map[string]string{"major": hostile, "minor": hostile, "gitVersion": hostile})
		case kinds[path] != nil:
			list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: strings.TrimPrefix(strings.TrimPrefix(path, "/apis/"), "/api/")}
			for plural, kind := range kinds[path] {
				cluster := slices.Contains([]string{"Node", "Namespace", "SelfSubjectReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview", "ValidatingAdmissionPolicy", "ResourceSlice", "DeviceTaintRule"}, kind.Kind)
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: plural, SingularName: strings.ToLower(kind.Kind), Kind: kind.Kind, Namespaced: !cluster, Verbs: metav1.Verbs{"get", "list", "watch"}})
			}
			reply(w, list)
		default:
			return false
		}
		return true
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if discover(w, r.URL.Path) {
			return
		}
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
		api, parts := "/"+strings.Join(parts[:min(2, len(parts))], "/"), parts[min(2, len(parts)):]
		if strings.HasPrefix(api, "/apis/") && len(parts) > 0 {
			api, parts = api+"/"+parts[0], parts[1:]
		}
		namespace := ""
		if len(parts) > 2 && parts[0] == "namespaces" {
			namespace, parts = parts[1], parts[2:]
		}
		kind, known := schema.GroupVersionKind{}, false
		if len(parts) > 0 {
			kind, known = kinds[api][strings.ReplaceAll(parts[0], "policies", "policys")]
		}
		switch {
		case !known:
			w.WriteHeader(http.StatusNotFound)
			reply(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Message: hostile, Reason: metav1.StatusReasonNotFound, Code: 404})
		case r.Method == http.MethodPost: // a question about rights
			reply(w, map[string]any{"kind": kind.Kind, "apiVersion": kind.GroupVersion().String(), "status": map[string]any{
				"allowed": true, "reason": hostile, "userInfo": map[string]string{"username": hostile},
			}})
		case len(parts) > 1:
			reply(w, hostileObject(t, records, kind, namespace, parts[1]))
		default:
			name := map[string]string{"nodes": "n", "jobs": "j"}[parts[0]]
			if name == "" {
				name = "x"
			}
			item := hostileObject(t, records, kind, map[bool]string{true: "", false: "team"}[parts[0] == "nodes" || parts[0] == "namespaces"], name)
			reply(w, map[string]any{"kind": kind.Kind + "List", "apiVersion": kind.GroupVersion().String(), "metadata": map[string]string{"resourceVersion": "1"}, "items": []any{item}})
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// Whoever may write a Node, Job, Pod, Event or ConfigMap writes into any of its strings. No command prints such a string as it is.
func TestNoStringOfTheClusterSteersATerminal(t *testing.T) {
	log.SetLogger(logr.Discard())
	server := hostileServer(t)
	config := filepath.Join(t.TempDir(), "config")
	kubeconfig := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
		clusters: [{name: c, cluster: {server: %q}}], users: [{name: u, user: {}}]}`, server.URL)
	if err := os.WriteFile(config, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	policy := clitest.PolicyFile(t, clitest.RepairPolicy)
	var shown atomic.Int32
	commands := []string{
		"status", "status -o wide --all", "status -o json --all", "status -o yaml --all", "status --pool-label x", "status -f " + policy,
		"describe n", "describe n -f " + policy, "describe jobs.v1.batch/j -n team", "describe pod/x -n team", "describe jobs.v1.batch/j -n team -f " + policy,
		"doctor", "doctor -o json", "doctor -o yaml", "repair n", "repair n -f " + policy, "repair n --approve --dry-run", "repair n --stop --dry-run",
		"check n --dry-run", "check n --dry-run -f " + policy, "quarantine n --dry-run", "release n --dry-run", "release n --dry-run --without-validation",
		"clear n GPUXidError --dry-run", "abort jobs.v1.batch/j -n team --dry-run", "pause --dry-run", "resume --dry-run", "reset --dry-run", "uninstall --dry-run",
		"version", "version -o json", "version -o yaml", "preflight r1", "preflight r1 -o json", "preflight r1 -o html", "policy test -f " + policy,
		"policy validate " + policy, "collect n --dry-run", "explain xid 79", "options", "__complete describe n", "__complete clear n ", "__complete repair ",
	}
	for _, name := range runnable(newCommand(), "") {
		if !slices.ContainsFunc(commands, func(command string) bool { return command == name || strings.HasPrefix(command, name+" ") }) {
			t.Errorf("nothing is known of what %s prints", name)
		}
	}
	t.Run("all", func(t *testing.T) {
		for _, command := range commands {
			t.Run(command, func(t *testing.T) {
				t.Parallel()
				out := outputOf(t, command, config)
				if strings.Contains(out, "evil") {
					shown.Add(1)
				}
				for line := range strings.Lines(out) {
					if strings.HasPrefix(line, "MARGIN") {
						t.Errorf("a line begins where one of ours would: %q", line)
					}
					for _, r := range strings.TrimSuffix(line, "\n") {
						if r != ' ' && (!unicode.IsGraphic(r) || unicode.IsSpace(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)) {
							t.Errorf("%U in %q", r, line)
							break
						}
					}
				}
			})
		}
	})
	if n := shown.Load(); n < 20 {
		t.Errorf("%d commands show text of others: the test proves little", n)
	}
}

// runnable are the names of the commands that do something, below one.
func runnable(c *cobra.Command, prefix string) (names []string) {
	for _, sub := range c.Commands() {
		name := prefix + sub.Name()
		if sub.Runnable() && sub.Name() != "help" && sub.Name() != "completion" {
			names = append(names, name)
		}
		names = append(names, runnable(sub, name+" ")...)
	}
	return names
}

// outputOf is all that a command prints.
func outputOf(t *testing.T, command, config string) string {
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetIn(strings.NewReader("n\n"))
	args := append(strings.Fields(command), "--kubeconfig="+config)
	if completed, found := strings.CutPrefix(command, "__complete "); found {
		args = append([]string{"__complete", "--kubeconfig=" + config}, strings.Split(completed, " ")...)
	}
	cmd.SetArgs(args)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		cli.PrintError(&out, err)
	}
	return out.String()
}
