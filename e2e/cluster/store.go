package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// etcdSocket is the file of etcd's socket in the cluster's folder, in the form that etcd requires.
const etcdSocket = "etcd:1"

// Store writes built-in objects straight into etcd, as the API server stores them, and replaces those that exist. That is many times as
// fast as requests to the API server, which sees them as it sees the writes of another API server. Nothing is validated, admitted or given a
// default: an object must be complete, with its UID and its time of creation.
func (c *Cluster) Store(ctx context.Context, objects ...client.Object) error {
	const writers = 16
	etcd := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: writers, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(c.Dir, etcdSocket))
	}}}
	defer etcd.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for _, object := range objects {
		// Not several in one transaction: they would have the same resourceVersion, and a list could separate them.
		group.Go(func() error {
			if err := store(ctx, etcd, object); err != nil {
				return fmt.Errorf("store %s: %w", object.GetName(), err)
			}
			return nil
		})
	}
	return group.Wait()
}

// store writes one object through etcd's gateway for JSON.
func store(ctx context.Context, etcd *http.Client, object client.Object) error {
	key, value, err := stored(object)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string][]byte{"key": []byte(key), "value": value})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd/v3/kv/put", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := etcd.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd answers %s: %s", response.Status, answer)
	}
	return err
}

// stored is an object as the API server stores it.
func stored(object client.Object) (key string, value []byte, err error) {
	gvk, err := apiutil.GVKForObject(object, scheme.Scheme)
	if err != nil {
		return "", nil, err
	}
	encoder := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), gvk.GroupVersion())
	if value, err = runtime.Encode(encoder, object); err != nil {
		return "", nil, err
	}
	resource, _ := meta.UnsafeGuessKindToResource(gvk)
	folder := resource.Resource
	if folder == "nodes" {
		folder = "minions" // their name before Kubernetes 1.0
	}
	return strings.Join(append([]string{"/registry", folder}, strings.Fields(object.GetNamespace()+" "+object.GetName())...), "/"), value, nil
}
