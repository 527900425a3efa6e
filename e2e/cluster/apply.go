package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Apply applies the objects of a YAML stream on the server side, in their order, as admin.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	objects, err := decode(manifests)
	if err != nil {
		return err
	}
	return c.applyObjects(ctx, objects)
}

// ApplyShipped applies objects of manifests/install.yaml, each named by its kind and name: "ClusterRole pitcrew-view".
func (c *Cluster) ApplyShipped(ctx context.Context, names ...string) error {
	text, err := os.ReadFile(filepath.Join(c.Root, "manifests", "install.yaml"))
	if err != nil {
		return fmt.Errorf("read what is shipped: %w", err)
	}
	objects, err := decode(text)
	if err != nil {
		return err
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return !slices.Contains(names, o.GetKind()+" "+o.GetName())
	})
	if len(objects) < len(names) {
		return fmt.Errorf("of %q there are only %d in install.yaml", names, len(objects))
	}
	return c.applyObjects(ctx, objects)
}

func (c *Cluster) applyObjects(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		err := c.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("e2e"), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

func decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		if object.Object != nil {
			objects = append(objects, object)
		}
	}
}
