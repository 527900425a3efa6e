package policy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

// entry is what the page and the schema contain about one field of the file.
type entry struct {
	path  string // with NAME for a key and without the index of a list: spec.rules[NAME].match
	name  string
	field reflect.StructField
	doc   string // of the field
	typed string // of the type, when that is a part with fields of its own
	of    reflect.Type
	// unset is the default in words. It is empty for a required field and for a part.
	unset  string
	fields []*entry
}

func (e *entry) required() bool {
	_, ok := e.field.Tag.Lookup("required")
	// The taint of the quarantine has a default; a first check needs no Job.
	return (ok || strings.HasSuffix(e.path, "handOff.taints[].key")) && e.path != "spec.firstCheck.template"
}

// part is the type of a field without what is around it: optional, listed, named or written in another form.
func part(t reflect.Type) reflect.Type {
	switch {
	case t == reflect.TypeFor[*regexp.Regexp]():
		return t
	case t == reflect.TypeFor[corev1.Taint]():
		return reflect.TypeFor[strict.Taint]()
	case t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice:
		return part(t.Elem())
	}
	return t
}

func isNamed(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && reflect.PointerTo(t.Elem()).Implements(reflect.TypeFor[strict.Named]())
}

// reference reads the comments of the package, and takes the defaults from the policy that a file with only the required
// fields makes.
func reference(t *testing.T) *entry {
	t.Helper()
	least := parse(t, head+`spec:
  budget: {maxNodes: 1}
  jobKinds: [{apiVersion: example.com/v1, kind: Gang, suspendPath: spec.suspend, podLabel: gang}]
  handOff: {taints: [{key: example.com/broken}]}
  webhooks: {hook: {url: "https://example.com", secretFile: key}}
  repair: {actions: {ResetGPU: [{template: reset}], Reboot: [{template: reboot}]}, validate: {template: check}}
  sweeps: {sweep: {every: 24h, template: check}}
  rules: {rule: {match: {condition: GPUXidError, repair: [Inspect]}}}
`)
	// One of each pair is required, and the other has no default.
	least.Budget.MaxNodes = Unlimited.MaxNodes
	least.JobKinds[0].SuspendPath = ""
	root := &entry{of: reflect.TypeFor[document]()}
	describeFields(t, least, comments(t), root, reflect.ValueOf(&document{Spec: *least}).Elem())
	return root
}

func describeFields(t *testing.T, least *Policy, docs map[string]string, in *entry, values reflect.Value) {
	t.Helper()
	for f := range strict.Fields(in.of) {
		name, declared := f.Tag.Get("yaml"), in.of
		for _, i := range f.Index[:len(f.Index)-1] {
			declared = declared.Field(i).Type
		}
		e := &entry{name: name, path: strings.TrimPrefix(in.path+"."+name, "."), field: f, of: part(f.Type), doc: docs[declared.Name()+"."+f.Name]}
		if !strings.HasPrefix(e.doc, name+" ") {
			t.Errorf("the comment on %s.%s does not start with the field's name in the file, %s", declared.Name(), f.Name, name)
		}
		in.fields = append(in.fields, e)
		value := values.FieldByIndex(f.Index)
		if e.of.Kind() != reflect.Struct {
			e.unset = unset(least, e, value)
			continue
		}
		switch {
		case isNamed(f.Type):
			e.path += "[NAME]"
		case f.Type.Kind() == reflect.Slice:
			e.path += "[]"
		}
		e.typed = docs[e.of.Name()]
		if e.typed == "" {
			t.Errorf("%s has no comment", e.of.Name())
		}
		switch {
		case value.Kind() == reflect.Slice && value.Len() > 0:
			value = value.Index(0)
		case value.Kind() == reflect.Pointer && !value.IsNil():
			value = value.Elem()
		}
		if !value.IsValid() || value.Kind() == reflect.Pointer || value.Kind() == reflect.Slice {
			value = strict.NewPart(e.of)
		}
		describeFields(t, least, docs, e, value)
	}
}

// zeros are what Go writes after a duration in whole minutes or hours: 10m0s, 1h0m0s.
var zeros = regexp.MustCompile(`([hm])(0m)?0s$`)

// unset is what a field is when it is not set.
func unset(least *Policy, e *entry, v reflect.Value) string {
	if e.required() {
		return ""
	}
	switch e.path { // what follows from other fields
	case "spec.rules[NAME].mode":
		return "the mode of the policy"
	case "spec.rules[NAME].taint.value":
		return "the type of the condition"
	case "spec.rules[NAME].handOff.keepNode", "spec.rules[NAME].handOff.cordon":
		return "that of `spec.handOff`"
	case "spec.handOff.keepNode":
		_, kept := least.HandOff.Annotations[slices.Sorted(maps.Keys(KeepNode))[0]]
		return fmt.Sprintf("`%v`", kept)
	case "spec.handOff.cordon":
		return fmt.Sprintf("`%v`", least.HandOff.Cordons())
	}
	switch value := v.Interface().(type) {
	case time.Duration:
		return "`" + zeros.ReplaceAllString(value.String(), "$1") + "`"
	case bool:
		if of := strict.Values(e.field); of != nil {
			return "`" + of[map[bool]int{true: 1}[value]] + "`"
		}
		return fmt.Sprintf("`%v`", value)
	case int:
		if value == math.MaxInt {
			return "no limit"
		}
		return fmt.Sprintf("`%d`", value)
	case []corev1.ConditionStatus:
		return fmt.Sprintf("`%s`", value[0])
	case []string:
		if e.name == "events" && slices.Equal(value, WebhookEvents) {
			return "all of them"
		}
		if len(value) == 1 {
			return "`" + value[0] + "`"
		}
	case labels.Selector:
		if value != nil && !value.Empty() {
			return value.String()
		}
	default:
		if v.Kind() == reflect.String && v.String() != "" {
			return "`" + v.String() + "`"
		}
	}
	return "none"
}

// form is the type of a field's value as a user writes it.
func form(e *entry) string {
	text := map[reflect.Type]string{
		reflect.TypeFor[time.Duration]():     "duration",
		reflect.TypeFor[*regexp.Regexp]():    "regular expression (RE2)",
		reflect.TypeFor[labels.Selector]():   "map of strings",
		reflect.TypeFor[map[string]string](): "map of strings",
		reflect.TypeFor[map[string]any]():    "any mapping",
		reflect.TypeFor[conditions.Repair](): "string",
	}[e.of]
	if text == "" {
		text = map[reflect.Kind]string{reflect.String: "string", reflect.Int: "integer", reflect.Bool: "boolean", reflect.Struct: "mapping"}[e.of.Kind()]
	}
	if strict.Values(e.field) != nil {
		text = "string"
	}
	if unit := e.field.Tag.Get("unit"); unit != "" {
		text += " (" + unit + ")"
	}
	_, single := e.field.Tag.Lookup("single")
	switch {
	case isNamed(e.field.Type):
		text = "mappings by name"
	case single:
		text += ", or list of " + text + "s"
	case e.field.Type.Kind() == reflect.Slice:
		text = "list of " + strings.Replace(strings.Replace(text, "string", "strings", 1), "mapping", "mappings", 1)
	}
	return text
}

// allowed are the values of a field, in words.
func allowed(e *entry) string {
	if of := strict.Values(e.field); of != nil {
		one := "one of `"
		if _, single := e.field.Tag.Lookup("single"); e.field.Type.Kind() == reflect.Slice && !single {
			one = "each one of `"
		}
		return one + strings.Join(of, "`, `") + "`"
	}
	var all []string
	for _, tag := range []struct{ name, words string }{{"above", "longer than "}, {"min", "at least "}, {"max", "at most "}} {
		if bound := e.field.Tag.Get(tag.name); bound != "" {
			all = append(all, tag.words+"`"+bound+"`")
		}
	}
	if _, ok := e.field.Tag.Lookup("never"); ok {
		all = append(all, "or `never`")
	}
	return strings.Join(all, ", ")
}

// comments are the comments on the types of the package and, by Type.Field, on their fields.
func comments(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, folder := range []string{".", "strict", "jobkind", "pool"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				addComments(t, file, all)
			}
		}
	}
	return all
}

func addComments(t *testing.T, file string, all map[string]string) {
	t.Helper()
	source, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, declared := range source.Decls {
		group, ok := declared.(*ast.GenDecl)
		if !ok || group.Tok != token.TYPE {
			continue
		}
		for _, spec := range group.Specs {
			spec := spec.(*ast.TypeSpec)
			all[spec.Name.Name] = group.Doc.Text()
			of, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range of.Fields.List {
				names := f.Names
				if embedded, ok := f.Type.(*ast.Ident); ok && len(names) == 0 {
					names = []*ast.Ident{embedded}
				}
				for _, name := range names {
					first, _, _ := strings.Cut(f.Doc.Text(), "\n\n")
					all[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(first), " ")
				}
			}
		}
	}
}

// A tag and a comment cannot name a constant.
func TestTheLargestValuesAreTheConstants(t *testing.T) {
	for name, test := range map[string]struct {
		of    reflect.Type
		field string
		want  int
	}{
		"flaps":             {reflect.TypeFor[Flaps](), "Max", MaxFlaps},
		"restarts of a day": {reflect.TypeFor[Restart](), "MaxPerDay", MaxPerDayLimit},
		"repairs of a node": {reflect.TypeFor[Lemon](), "Repairs", MaxLemonRepairs},
	} {
		if f, _ := test.of.FieldByName(test.field); f.Tag.Get("max") != fmt.Sprint(test.want) {
			t.Errorf("%s: the tag says %s, the constant %d", name, f.Tag.Get("max"), test.want)
		}
	}
	for name, size := range map[string]int{"HandOff.Annotations": MaxAnnotation, "Check.Args": MaxArgs} {
		if doc := comments(t)[name]; !strings.Contains(doc, fmt.Sprintf("at most %d bytes", size)) {
			t.Errorf("the comment on %s does not name their size: %s", name, doc)
		}
	}
	for name, test := range map[string]struct {
		of    reflect.Type
		field string
		want  []string
	}{
		"modes of a repair": {reflect.TypeFor[Repair](), "Mode", []string{string(RepairOff), string(RepairApprove), string(RepairAuto)}},
		"drains":            {reflect.TypeFor[Drain](), "Mode", []string{string(DrainWait), string(DrainEvict)}},
		"stalls":            {reflect.TypeFor[Stalls](), "Mode", []string{string(StallsOff), string(StallsObserve), string(StallsRestart)}},
		"forced deletions":  {reflect.TypeFor[Restart](), "ForceDelete", []string{string(ForceNever), string(ForceUnreachable), string(ForceQuarantined)}},
		"Events":            {reflect.TypeFor[Webhook](), "Events", WebhookEvents},
		"statuses": {reflect.TypeFor[Match](), "Status",
			[]string{string(corev1.ConditionTrue), string(corev1.ConditionFalse), string(corev1.ConditionUnknown)}},
		"effects": {reflect.TypeFor[strict.Taint](), "Effect",
			[]string{string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule), string(corev1.TaintEffectNoExecute)}},
	} {
		f, _ := test.of.FieldByName(test.field)
		if got := strict.Values(f); !slices.Equal(got, test.want) {
			t.Errorf("%s: the tag says %q, the constants %q", name, got, test.want)
		}
	}
}
