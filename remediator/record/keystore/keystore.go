// Package keystore keeps texts in keys of ConfigMaps that only the leader writes.
package keystore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// Deadline bounds a request. An API server that works answers within milliseconds.
const Deadline = 5 * time.Second

// Key is a key of a ConfigMap. Other keys of the ConfigMap are left as they are.
type Key struct {
	Client client.Client
	// Reader asks the API server: the cache of the manager does not hold the ConfigMap.
	Reader    client.Reader
	ConfigMap client.ObjectKey
	Name      string
	// Deadline bounds a request, [Deadline] unless set.
	Deadline time.Duration
}

// Read returns the text of the key; empty: there is none.
func (k Key) Read(ctx context.Context) (string, error) {
	all, err := k.ReadAll(ctx)
	return all[k.Name], err
}

// ReadAll returns the texts of all keys of the ConfigMap.
func (k Key) ReadAll(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(k.Deadline, Deadline))
	defer cancel()
	var stored corev1.ConfigMap
	if err := k.Reader.Get(ctx, k.ConfigMap, &stored); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", k.ConfigMap, err)
	}
	return stored.Data, nil
}

// Write stores the text of the key, and creates the ConfigMap if there is none.
func (k Key) Write(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(k.Deadline, Deadline))
	defer cancel()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: k.ConfigMap.Namespace, Name: k.ConfigMap.Name}}
	before := object.DeepCopy()
	object.Data = map[string]string{k.Name: text}
	err := k.Client.Patch(ctx, object.DeepCopy(), client.MergeFrom(before), client.FieldOwner(quarantine.ControllerName))
	if apierrors.IsNotFound(err) {
		err = k.Client.Create(ctx, object, client.FieldOwner(quarantine.ControllerName))
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", k.ConfigMap, err)
	}
	return nil
}
