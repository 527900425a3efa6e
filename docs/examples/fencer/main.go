// Fencer is an example of a receiver of Pitcrew's webhooks. It asks the provider of a machine whether a quarantined node that is not Ready
// runs, and tells Kubernetes what the answer proves: the Node of a terminated machine is deleted, that of a stopped one gets the taint
// node.kubernetes.io/out-of-service. Both end the wait of the jobs with pods there.
//
//	fencer -secret /etc/fencer/secret -cert /etc/fencer/tls.crt -key /etc/fencer/tls.key -command /usr/local/bin/machine-state
//
// The command gets the node's spec.providerID as its only argument and prints one word: terminated, stopped, or any other for a machine
// that may still run. It must print terminated and stopped only when the machine cannot run again by itself.
//
// A delivery only makes the fencer look at the Nodes at once; what it does depends on them and on the provider alone. So a forged, a
// repeated or a lost delivery does no harm. It needs to get, list, patch and delete Nodes.
package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
)

const (
	// every is how often the Nodes are looked at without a delivery, since a machine may stop later.
	every = 15 * time.Second
	// maxBody bounds what is read of a delivery, in bytes.
	maxBody = 64 << 10
	// maxAge is how old a delivery may be, so that it cannot be sent again later.
	maxAge = 5 * time.Minute
	// commandTimeout bounds one question to the provider.
	commandTimeout = 30 * time.Second
)

// fenced is the taint that the fencer sets, and takes back from a node that is Ready again. The value tells it from a person's.
var fenced = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "fencer", Effect: corev1.TaintEffectNoExecute}

func main() {
	listen := flag.String("listen", ":8443", "address of the webhook")
	secret := flag.String("secret", "", "file with the webhook's secret, as in the policy's secretFile")
	cert := flag.String("cert", "", "file with the certificate of the webhook")
	key := flag.String("key", "", "file with its private key")
	command := flag.String("command", "", "program that prints the state of the machine whose provider id is its argument")
	flag.Parse()
	if err := run(*listen, *secret, *cert, *key, *command); err != nil {
		slog.Error("The fencer ended", "error", err)
		os.Exit(1)
	}
}

func run(listen, secret, cert, key, command string) error {
	signing, err := readKey(secret)
	if err != nil {
		return err
	}
	cfg, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("configure the client: %w", err)
	}
	api, err := client.New(cfg, client.Options{})
	if err != nil {
		return fmt.Errorf("make the client: %w", err)
	}
	f := &fencer{client: api, secret: signing, wake: make(chan struct{}, 1), now: time.Now, state: func(ctx context.Context, providerID string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		out, err := exec.CommandContext(ctx, command, providerID).Output()
		return strings.TrimSpace(string(out)), err
	}}
	go f.loop(context.Background())
	server := &http.Server{Addr: listen, Handler: f, ReadTimeout: 10 * time.Second}
	return server.ListenAndServeTLS(cert, key)
}

// readKey reads the secret of Standard Webhooks: base64 after whsec_, or else the bytes themselves.
func readKey(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the secret: %w", err)
	}
	text = bytes.TrimSpace(text)
	key := text
	if encoded, ok := bytes.CutPrefix(text, []byte("whsec_")); ok {
		if key, err = base64.StdEncoding.DecodeString(string(encoded)); err != nil {
			return nil, fmt.Errorf("read the secret: %s has no base64 after whsec_", path)
		}
	}
	if len(key) < 16 {
		return nil, fmt.Errorf("read the secret: %s has %d bytes, want 16 or more", path, len(key))
	}
	return key, nil
}

type fencer struct {
	client client.Client
	secret []byte
	wake   chan struct{}
	now    func() time.Time
	// state asks the provider for the state of a machine.
	state func(ctx context.Context, providerID string) (string, error)
}

// ServeHTTP takes a delivery. It answers before anything is done, because the loop does it anyway.
func (f *fencer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = f.verify(r.Header, body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	select {
	case f.wake <- struct{}{}:
	default: // it is awake
	}
	w.WriteHeader(http.StatusNoContent)
}

// verify checks the signature of a delivery, as Standard Webhooks define it, and its age.
func (f *fencer) verify(header http.Header, body []byte) error {
	id, at := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return errors.New("header webhook-timestamp is no number")
	}
	if age := f.now().Sub(time.Unix(seconds, 0)); age.Abs() > maxAge {
		return fmt.Errorf("the delivery is %s old", age)
	}
	mac := hmac.New(sha256.New, f.secret)
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	// There are several while a secret is changed.
	for got := range strings.FieldsSeq(header.Get("webhook-signature")) {
		if hmac.Equal([]byte(got), []byte(want)) {
			return nil
		}
	}
	return errors.New("no signature of the delivery is right")
}

// loop looks at the Nodes when it is woken, and from time to time.
func (f *fencer) loop(ctx context.Context) {
	for {
		if err := f.fence(ctx); err != nil {
			slog.Error("Fence nodes", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-time.After(every):
		}
	}
}

// fence looks at every quarantined node.
func (f *fencer) fence(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := f.client.List(ctx, &nodes, client.MatchingLabels{"pitcrew.dev/status": "quarantined"}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		err := f.settle(ctx, &nodes.Items[i])
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // it changed meanwhile: it is looked at again
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// settle writes what is known of the machine of one node. The write fails if the node has changed since it was read: its kubelet may be back.
func (f *fencer) settle(ctx context.Context, node *corev1.Node) error {
	ready, known := readiness(node)
	ours := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&fenced) && t.Value == fenced.Value })
	switch {
	case !known, node.Spec.ProviderID == "":
		return nil
	case ready && ours:
		return f.taint(ctx, node, slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.MatchTaint(&fenced) }))
	case ready:
		return nil
	}
	state, err := f.state(ctx, node.Spec.ProviderID)
	if err != nil {
		return fmt.Errorf("ask for the state of %s: %w", node.Spec.ProviderID, err)
	}
	switch state {
	case "terminated":
		slog.Info("Delete the Node of a terminated machine", "node", node.Name, "machine", node.Spec.ProviderID)
		return f.client.Delete(ctx, node, client.Preconditions{UID: &node.UID, ResourceVersion: &node.ResourceVersion})
	case "stopped":
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == fenced.Key }) {
			return nil
		}
		slog.Info("Taint the node of a stopped machine", "node", node.Name, "machine", node.Spec.ProviderID)
		return f.taint(ctx, node, append(slices.Clone(node.Spec.Taints), fenced))
	}
	return nil
}

func (f *fencer) taint(ctx context.Context, node *corev1.Node, taints []corev1.Taint) error {
	before := node.DeepCopy()
	node.Spec.Taints = taints
	return f.client.Patch(ctx, node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// readiness reports whether a node is Ready, if its kubelet has ever reported.
func readiness(node *corev1.Node) (ready, known bool) {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, true
		}
	}
	return false, false
}
