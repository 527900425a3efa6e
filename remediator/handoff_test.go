package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestKonduktorsTaintIsSetAndRemoved(t *testing.T) {
	tm := newTeam(t, "konduktor", 1, nil)
	name := tm.nodes[0]
	tm.start(tm.policy(1, "clearAfter: 1s", `taint: {key: trainy.konduktor.ai/faulty, value: "true"}`), alone)
	tm.report(name, "True", ecc)
	n, _ := tm.becomes(name, causes.Quarantined)
	if got := taints(n); got != "trainy.konduktor.ai/faulty=true:NoSchedule" {
		t.Errorf("taints %q", got)
	}
	tm.report(name, "False", "")
	if n, _ = tm.becomes(name, causes.Released); taints(n) != "" {
		t.Errorf("after the release taints are %q", taints(n))
	}
}

func TestTheHandOffIsWrittenWithTheTaintAndRemoved(t *testing.T) {
	tm := newTeam(t, "handoff", 1, func(n *corev1.Node) {
		n.Annotations["karpenter.sh/do-not-disrupt"] = "theirs"
		// This value is longer than the remediator's cache keeps.
		n.Annotations["example.com/long"] = strings.Repeat("x", 4000)
	})
	name := tm.nodes[0]
	tm.start(tm.policy(1, "clearAfter: 1s", `handOff: {labels: {example.com/repair: now, example.com/kept: mine}, taints: [{key: example.com/repair}]}`), alone)
	before := tm.get(name)

	// The taint and the hand-off are one write, so every reader sees both.
	watch, err := client.NewWithWatch(tm.Admin, client.Options{Scheme: tm.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events, err := watch.Watch(ctx, &corev1.NodeList{}, client.MatchingFields{"metadata.name": name})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	tm.report(name, "True", ecc)
	seen := false
	for e := range events.ResultChan() {
		n, ok := e.Object.(*corev1.Node)
		if !ok || !strings.Contains(taints(n), ourTaint) {
			continue
		}
		if n.Labels["example.com/repair"] != "now" || !strings.Contains(taints(n), "example.com/repair:NoSchedule") ||
			n.Annotations["cluster-autoscaler.kubernetes.io/scale-down-disabled"] != "true" || n.Annotations[conditions.AnnotationQuarantine] == "" {
			t.Errorf("tainted %q with labels %v and annotations %v", taints(n), n.Labels, slices.Sorted(maps.Keys(n.Annotations)))
		}
		seen = true
		break
	}
	if !seen {
		t.Error("the watch of the node has ended before its taint")
	}

	tm.patch(name, `{"metadata":{"labels":{"example.com/kept":"yours"}}}`)
	tm.report(name, "False", "")
	n, _ := tm.becomes(name, causes.Released)
	want := maps.Clone(before.Annotations)
	want[conditions.AnnotationQuarantine] = n.Annotations[conditions.AnnotationQuarantine]
	if !maps.Equal(n.Annotations, want) || taints(n) != "" || n.Labels["example.com/repair"] != "" || n.Labels["example.com/kept"] != "yours" {
		t.Errorf("after the release taints %q, labels %v, annotations %v", taints(n), n.Labels, slices.Sorted(maps.Keys(n.Annotations)))
	}
}

func TestTheStateIsShownAsTheAWSSuiteShowsIt(t *testing.T) {
	const domain = "gpu-healthcheck.aws-samples.io/"
	tm := newTeam(t, "aws", 1, nil)
	name := tm.nodes[0]
	policy := tm.policy(1, "clearAfter: 1s")
	tm.rewrite(policy, "  rules:", "  output: {aws: true}\n  rules:")
	tm.start(policy, alone)
	shows := func(status, severity string) {
		t.Helper()
		tm.until("the node shows "+status, func() error {
			n := tm.get(name)
			var results struct {
				Status, Severity string
				Checks           []struct{ Check, Status, Severity string }
			}
			err := json.Unmarshal([]byte(n.Annotations[domain+"results"]), &results)
			if err != nil || n.Labels[domain+"status"] != status || n.Labels[domain+"severity"] != severity || results.Status != status || results.Checks[0].Check != "GPUXidError" {
				return fmt.Errorf("%w: labels %v, results %+v", errors.Join(errStill, err), n.Labels, results)
			}
			return nil
		})
	}
	tm.report(name, "False", "fine")
	shows("pass", "PASS")
	tm.report(name, "True", lost)
	shows("fail", "REBOOT")
	tm.rewrite(policy, "  output: {aws: true}\n", "")
	tm.until("nothing is shown", func() error {
		for key := range tm.get(name).Labels {
			if strings.HasPrefix(key, domain) {
				return errStill
			}
		}
		return nil
	})
}

// receiver is a webhook's server. While it is down it answers with an error.
type receiver struct {
	*httptest.Server
	down  atomic.Bool
	calls atomic.Int32
	got   chan delivery
}

type delivery struct {
	id   string
	Type string
	Data struct{ Node, Quarantine, Repair, Message string }
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{got: make(chan delivery, 20)}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		r.calls.Add(1)
		if r.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		body, err := io.ReadAll(in.Body)
		d := delivery{id: in.Header.Get("webhook-id")}
		if err := errors.Join(err, json.Unmarshal(body, &d)); err != nil || !strings.HasPrefix(in.Header.Get("webhook-signature"), "v1,") {
			t.Errorf("%v: %v %s", err, in.Header, body)
		}
		r.got <- d
	}))
	t.Cleanup(r.Close)
	return r
}

// hook puts a webhook that leads to the receiver into a policy.
func (r *receiver) hook(tm team, policy string) {
	tm.Helper()
	dir := tm.TempDir()
	for name, text := range map[string][]byte{
		"secret": []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
		"ca.pem": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			tm.Fatal(err)
		}
	}
	tm.rewrite(policy, "  rules:", fmt.Sprintf("  webhooks: {pager: {url: %s, secretFile: %s/secret, caFile: %s/ca.pem}}\n  rules:", r.URL, dir, dir))
}

func (r *receiver) next(t *testing.T) delivery {
	t.Helper()
	select {
	case d := <-r.got:
		return d
	case <-time.After(patience):
		t.Fatal("nothing is delivered")
		return delivery{}
	}
}

func TestAWebhookThatIsDownDelaysNoTaintAndIsNotifiedAfterACrash(t *testing.T) {
	tm := newTeam(t, "webhook", 2, nil)
	name := tm.nodes[0]
	server := newReceiver(t)
	server.down.Store(true)
	policy := tm.policy(2, "clearAfter: 1s")
	server.hook(tm, policy)
	killed := tm.start(policy, alone)
	tm.report(name, "True", ecc)
	_, r := tm.becomes(name, causes.Quarantined)
	tm.until("the webhook was tried", func() error {
		if server.calls.Load() == 0 {
			return errStill
		}
		return nil
	})
	tm.report(tm.nodes[1], "True", ecc)
	tm.becomes(tm.nodes[1], causes.Quarantined)
	killed.Kill()
	if len(server.got) > 0 {
		t.Fatal("a server that is down got something")
	}

	server.down.Store(false)
	running := tm.start(policy, alone)
	ids := map[string]bool{}
	for len(ids) < 2 { // what could not be noted as delivered is delivered again, under its id
		d := server.next(t)
		ids[d.id] = true
		if d.Type != causes.NodeQuarantined || d.Data.Repair != "ResetGPU" || d.Data.Message != ecc {
			t.Errorf("delivered %+v", d)
		}
		if d.Data.Node == name && (d.Data.Quarantine != r.ID || d.id != r.Notices[0].ID) {
			t.Errorf("delivered %+v, the record had %+v", d, r.Notices)
		}
	}
	tm.until("no notice is left", func() error {
		if _, r := tm.becomes(name, causes.Quarantined); len(r.Notices) > 0 {
			return errStill
		}
		return nil
	})
	// A manual release is delivered too, although the remediator did not make it.
	tm.until("the release is written", func() error { // others write the node too
		released, err := quarantine.ReleaseManually(tm.get(name), quarantine.Manual{}, nil, time.Now().UTC())
		if err != nil {
			t.Fatal(err)
		}
		return tm.Client.Update(t.Context(), released)
	})
	d := server.next(t)
	for ids[d.id] {
		d = server.next(t)
	}
	if d.Type != causes.ReleaseByHand || d.Data.Node != name {
		t.Errorf("delivered %+v", d)
	}
	if log := running.Log() + killed.Log(); strings.Contains(log, server.URL) || strings.Contains(log, "MfKQ9r8GKYq") {
		t.Errorf("the URL or the secret is in the log:\n%s", log)
	}
}

func (tm team) evidence(name string) map[string]string {
	tm.Helper()
	var kept corev1.ConfigMap
	if err := tm.Client.Get(tm.Context(), client.ObjectKey{Namespace: conditions.EvidenceNamespace, Name: name}, &kept); client.IgnoreNotFound(err) != nil {
		tm.Fatal(err)
	}
	return kept.Data
}

func TestEvidenceOutlivesACrashABootAndTheNode(t *testing.T) {
	tm := newTeam(t, "evidence", 1, func(n *corev1.Node) {
		n.Annotations[conditions.AnnotationGPUs] = `{"0000:4e:00": {"serial": "1652823055642", "slot": "GPU5"}}`
	})
	name := tm.nodes[0]
	policy := tm.policy(1, "clearAfter: 1s")
	first := tm.start(policy, alone)
	tm.report(name, "True", lost)
	tm.becomes(name, causes.Quarantined)
	tm.until("the evidence is stored", func() error {
		if len(tm.evidence(name)) == 0 {
			return errStill
		}
		return nil
	})
	first.Kill()
	// The same state as after a kill between the taint and the evidence.
	if err := tm.Client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.EvidenceNamespace, Name: name}}); err != nil {
		t.Fatal(err)
	}
	forgotten := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: conditions.EvidenceNamespace, Name: "long-gone", Labels: map[string]string{"app.kubernetes.io/managed-by": quarantine.ControllerName},
		Annotations: map[string]string{conditions.AnnotationEvidenceAt: "2020-01-01T00:00:00Z"},
	}}
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.EvidenceNamespace, Name: "theirs", Annotations: forgotten.Annotations}}
	for _, object := range []client.Object{forgotten, theirs} {
		if err := tm.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	tm.start(policy, alone)
	tm.until("expired evidence is deleted", func() error {
		err := tm.Client.Get(t.Context(), client.ObjectKeyFromObject(forgotten), forgotten)
		if err == nil {
			return errStill
		}
		return client.IgnoreNotFound(err)
	})
	if err := tm.Client.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil {
		t.Error(err)
	}
	var text string
	tm.until("the evidence is stored again", func() error {
		for _, text = range tm.evidence(name) {
			return nil
		}
		return errStill
	})
	for _, want := range []string{lost, `"pci": "0000:4e:00"`, "1652823055642", tm.get(name).Status.NodeInfo.BootID} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if err := tm.DeleteNodes(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if len(tm.evidence(name)) != 1 {
		t.Error("the evidence is gone with its node")
	}
}
