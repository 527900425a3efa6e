package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

const schemaFile = "../../manifests/policy.schema.json"

// object is a JSON object that keeps the order of its members.
type object []member

type member struct {
	key   string
	value any
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, m := range o {
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s%q:%s", map[bool]string{true: "{", false: ","}[i == 0], m.key, value)
	}
	return append(b.Bytes(), '}'), nil
}

const (
	durationPattern = `([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+`
	namePattern     = `^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
)

// policySchema is manifests/policy.schema.json.
func policySchema(t *testing.T) string {
	t.Helper()
	root := schemaOf(reference(t))
	text, err := json.MarshalIndent(append(object{
		{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", Kind}, {"description", "What the remediator does about NodeConditions."},
	}, root...), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// schemaOf is the schema of a part, without its description.
func schemaOf(of *entry) object {
	var properties object
	var required []string
	for _, e := range of.fields {
		about := e.doc
		if e.unset != "" {
			about += " Default: " + e.unset + "."
		}
		properties = append(properties, member{e.name, append(object{{"description", strings.ReplaceAll(about, "`", "")}}, schemaOfField(e)...)})
		if e.required() {
			required = append(required, e.name)
		}
	}
	s := object{{"type", "object"}, {"additionalProperties", false}, {"properties", properties}}
	if required != nil {
		s = append(s, member{"required", required})
	}
	switch either := func(a, b string) []object { return []object{{{"required", []string{a}}}, {{"required", []string{b}}}} }; of.path {
	case "spec.budget":
		s = append(s, member{"anyOf", either("maxNodes", "maxPercent")})
	case "spec.jobKinds[]":
		s = append(s, member{"oneOf", either("suspendPath", "activePath")})
	}
	return s
}

func schemaOfField(e *entry) object {
	s := schemaOfValue(e)
	if isNamed(e.field.Type) {
		return object{{"type", "object"}, {"propertyNames", object{{"pattern", namePattern}, {"maxLength", 63}}}, {"additionalProperties", s}}
	}
	if e.field.Type.Kind() == reflect.Slice {
		list := object{{"type", "array"}, {"items", s}}
		if e.required() {
			list = append(list, member{"minItems", 1})
		}
		if _, single := e.field.Tag.Lookup("single"); single {
			return object{{"oneOf", []object{s, append(list, member{"minItems", 1})}}}
		}
		return list
	}
	return s
}

func schemaOfValue(e *entry) object {
	switch {
	case e.of.Kind() == reflect.Struct && e.fields != nil:
		return schemaOf(e)
	case e.path == "apiVersion":
		return object{{"const", APIVersion}}
	case e.path == "kind":
		return object{{"const", Kind}}
	case slices.Contains(strict.Values(e.field), strict.Off):
		// Helm, which reads YAML 1.1, takes off for false.
		values := []any{false}
		for _, value := range strict.Values(e.field) {
			values = append(values, value)
		}
		return object{{"enum", values}}
	case strict.Values(e.field) != nil:
		return object{{"type", "string"}, {"enum", strict.Values(e.field)}}
	case e.of == reflect.TypeFor[time.Duration]():
		pattern := "^" + durationPattern + "$"
		if _, ok := e.field.Tag.Lookup("never"); ok {
			pattern = "^(never|" + durationPattern + ")$"
		}
		return object{{"type", "string"}, {"pattern", pattern}}
	case e.of == reflect.TypeFor[*regexp.Regexp]():
		return object{{"type", "string"}}
	case e.of == reflect.TypeFor[map[string]string](), e.of == reflect.TypeFor[labels.Selector]():
		return object{{"type", "object"}, {"additionalProperties", object{{"type", "string"}}}}
	case e.name == "suspendPath" || e.name == "activePath":
		return object{{"type", "string"}, {"pattern", `^spec\.`}}
	}
	s := object{{"type", map[reflect.Kind]string{
		reflect.String: "string", reflect.Int: "integer", reflect.Bool: "boolean", reflect.Map: "object",
	}[e.of.Kind()]}}
	for _, tag := range []struct{ name, word string }{{"min", "minimum"}, {"max", "maximum"}} {
		if bound, err := strconv.Atoi(e.field.Tag.Get(tag.name)); err == nil {
			s = append(s, member{tag.word, bound})
		}
	}
	return s
}

func TestSchemaOfThePageIsUpToDate(t *testing.T) {
	upToDate(t, schemaFile, policySchema(t))
}

type schema struct {
	Type                 string
	Const                string
	Properties           map[string]schema
	Items                *schema
	AdditionalProperties json.RawMessage
	OneOf                []schema
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
	compare(t, "policy", root, &entry{of: reflect.TypeFor[document](), field: reflect.StructField{Type: reflect.TypeFor[document]()}, fields: reference(t).fields})
}

func compare(t *testing.T, path string, s schema, e *entry) {
	t.Helper()
	want := map[reflect.Kind]string{
		reflect.String: "string", reflect.Int: "integer", reflect.Bool: "boolean", reflect.Map: "object", reflect.Struct: "object",
		reflect.Interface: "object", reflect.Pointer: "string", reflect.Int64: "string", // selector, pattern, duration
	}[e.of.Kind()]
	switch values := strict.Values(e.field); {
	case slices.Contains(values, strict.Off):
		want = ""
	case values != nil:
		want = "string"
	}
	if s.Const == "" && s.Type != want {
		t.Errorf("%s: type %q, want %q", path, s.Type, want)
	}
	switch {
	case e.of == reflect.TypeFor[map[string]string]() || e.of == reflect.TypeFor[labels.Selector]():
		var values schema
		if err := json.Unmarshal(s.AdditionalProperties, &values); err != nil || values.Type != "string" {
			t.Errorf("%s: %v, values of type %q", path, err, values.Type)
		}
	case e.fields != nil:
		if string(s.AdditionalProperties) != "false" {
			t.Errorf("%s: takes unknown fields", path)
		}
		var fields []string
		for _, f := range e.fields {
			fields = append(fields, f.name)
			below, at := s.Properties[f.name], path+"."+f.name
			if f.field.Type.Kind() == reflect.Slice {
				if isNamed(f.field.Type) {
					var values schema
					if err := json.Unmarshal(below.AdditionalProperties, &values); err != nil || below.Type != "object" {
						t.Fatalf("%s: type %q, %v", at, below.Type, err)
					}
					below = values
				} else {
					if _, single := f.field.Tag.Lookup("single"); single {
						if len(below.OneOf) != 2 {
							t.Fatalf("%s: one of %+v", at, below.OneOf)
						}
						compare(t, at, below.OneOf[0], f)
						below = below.OneOf[1]
					}
					if below.Type != "array" || below.Items == nil {
						t.Fatalf("%s: type %q", at, below.Type)
					}
					below = *below.Items
				}
				at += "[]"
			}
			compare(t, at, below, f)
		}
		slices.Sort(fields)
		if diff := cmp.Diff(fields, slices.Sorted(maps.Keys(s.Properties))); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}
