// Package chart_test compares the Helm chart with the files that it copies, the plugins whose flags it sets, and a real API
// server.
package chart_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

var update = flag.Bool("update", false, "write the chart's copies, its schema and what is rendered from it")

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{}) }

// root is the root of the repository.
const root = "../.."

// namespace is where the tests install the chart.
const namespace = "pitcrew"

// helm runs helm and returns its stdout; an error quotes its stderr.
func helm(ctx context.Context, args ...string) (string, error) {
	if err := errors.Join(components.Build(ctx, os.Stderr, root, components.Helm), notice(".")); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, components.Helm.Path(root), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("helm %q: %w: %s", args, err, stderr.String())
	}
	return string(out), nil
}

// notice stats every file below a folder. `go test` notices only files that the test itself opens: it would answer from its cache after
// a change of what only helm or kubectl reads.
func notice(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			_, err = os.Stat(path)
		}
		return err
	})
}

// render renders the chart, without its hooks, with the values of a YAML text.
func render(t *testing.T, values string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return helm(t.Context(), append([]string{"template", "pitcrew", ".", "--namespace", namespace, "--values", file}, args...)...)
}

func mustRender(t *testing.T, values string, args ...string) []*unstructured.Unstructured {
	t.Helper()
	out, err := render(t, values, args...)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, out)
}

// decode splits a YAML stream into its objects.
func decode(t *testing.T, text string) (objects []*unstructured.Unstructured) {
	t.Helper()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader([]byte(text))))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if object.Object != nil {
			objects = append(objects, object)
		}
	}
}

// find returns the object of a kind and name as its own type, or fails.
func find[T any](t *testing.T, objects []*unstructured.Unstructured, kind, name string) (typed T) {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() != kind || o.GetName() != name {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &typed, true); err != nil {
			t.Fatalf("%s %s: %v", kind, name, err)
		}
		return typed
	}
	t.Fatalf("no %s %s", kind, name)
	return typed
}
