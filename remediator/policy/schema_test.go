package policy

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const schemaFile = "../../manifests/policy.schema.json"

type schema struct {
	Type                 string
	Const                string
	Properties           map[string]schema
	Items                *schema
	AdditionalProperties json.RawMessage
}

// The shipped schema, which editors check a policy with, knows the fields of the Go types, and no others.
func TestTheSchemaHasTheFieldsOfThePolicy(t *testing.T) {
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var root schema
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	if root.Properties["apiVersion"].Const != APIVersion || root.Properties["kind"].Const != Kind {
		t.Errorf("schema of %s %s", root.Properties["apiVersion"].Const, root.Properties["kind"].Const)
	}
	compare(t, "policy", root, reflect.TypeFor[document]())
}

func compare(t *testing.T, path string, s schema, of reflect.Type) {
	t.Helper()
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	want := map[reflect.Kind]string{
		reflect.String: "string", reflect.Int: "integer", reflect.Bool: "boolean", reflect.Slice: "array", reflect.Map: "object", reflect.Struct: "object",
	}[of.Kind()]
	if s.Const == "" && s.Type != want {
		t.Errorf("%s: type %q, want %q", path, s.Type, want)
	}
	switch of.Kind() {
	case reflect.Slice:
		compare(t, path+"[]", *s.Items, of.Elem())
	case reflect.Map:
		var values schema
		if of.Elem().Kind() != reflect.Interface {
			if err := json.Unmarshal(s.AdditionalProperties, &values); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			compare(t, path+"[]", values, of.Elem())
		}
	case reflect.Struct:
		if string(s.AdditionalProperties) != "false" {
			t.Errorf("%s: takes unknown fields", path)
		}
		var fields []string
		for field := range of.Fields() {
			name := field.Tag.Get("yaml")
			fields = append(fields, name)
			compare(t, path+"."+name, s.Properties[name], field.Type)
		}
		slices.Sort(fields)
		if diff := cmp.Diff(fields, slices.Sorted(maps.Keys(s.Properties))); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}
