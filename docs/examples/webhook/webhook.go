// Package webhook receives Pitcrew's webhooks for the examples beside it. A delivery only wakes the program: what it does depends on
// the cluster alone. So a forged, a repeated or a lost delivery does no harm.
package webhook

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
	"strconv"
	"strings"
	"time"
)

const (
	// maxBody bounds what is read of a delivery, in bytes.
	maxBody = 64 << 10
	// maxAge is how old a delivery may be, so that it cannot be sent again later.
	maxAge = 5 * time.Minute
)

// Flags are those of the webhook. Use [Register].
type Flags struct{ listen, secret, cert, key string }

// Register adds the flags of the webhook to a program's.
func Register(f *flag.FlagSet) *Flags {
	var o Flags
	f.StringVar(&o.listen, "listen", ":8443", "address of the webhook")
	f.StringVar(&o.secret, "secret", "", "file with the webhook's secret, as in the policy's secretFile")
	f.StringVar(&o.cert, "cert", "", "file with the certificate of the webhook")
	f.StringVar(&o.key, "key", "", "file with its private key")
	return &o
}

// Serve looks at the cluster after each delivery, and from time to time, until the server fails.
func (o *Flags) Serve(every time.Duration, look func(context.Context) error) error {
	r, err := New(o.secret)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go r.Loop(ctx, every, look)
	server := &http.Server{Addr: o.listen, Handler: r, ReadTimeout: 10 * time.Second}
	return server.ListenAndServeTLS(o.cert, o.key)
}

// Receiver takes the deliveries of a webhook. Use [New].
type Receiver struct {
	// woken gets a value after a delivery.
	woken  chan struct{}
	secret []byte
	now    func() time.Time
}

// New makes a receiver with the secret in a file, as in the policy's secretFile.
func New(secretFile string) (*Receiver, error) {
	secret, err := readKey(secretFile)
	if err != nil {
		return nil, err
	}
	return &Receiver{woken: make(chan struct{}, 1), secret: secret, now: time.Now}, nil
}

// Loop looks at the cluster at once, after each delivery, and from time to time, until the context ends.
func (r *Receiver) Loop(ctx context.Context, every time.Duration, look func(context.Context) error) {
	for {
		if err := look(ctx); err != nil {
			slog.Error("Look at the cluster", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.woken:
		case <-time.After(every):
		}
	}
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

// ServeHTTP takes a delivery. It answers before anything is done, because the program does it anyway.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBody))
	if err == nil {
		err = r.verify(request.Header, body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	select {
	case r.woken <- struct{}{}:
	default: // it is awake
	}
	w.WriteHeader(http.StatusNoContent)
}

// verify checks the signature of a delivery, as Standard Webhooks define it, and its age.
func (r *Receiver) verify(header http.Header, body []byte) error {
	id, at := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return errors.New("header webhook-timestamp is no number")
	}
	if age := r.now().Sub(time.Unix(seconds, 0)); age.Abs() > maxAge {
		return fmt.Errorf("the delivery is %s old", age)
	}
	mac := hmac.New(sha256.New, r.secret)
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
