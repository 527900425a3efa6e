package policy

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// A decoder fills the types of a policy from a YAML tree. It exists beside yaml.v3's own decoder for two reasons. An error
// has a line, a path and a value, and does not end the decoding, so that all errors come at once. And it keeps which fields
// are set, so that a default and the same value in the file can be told apart without a second, optional type for each.
//
// It reads these struct tags, which the generated page and schema read too:
//
//	yaml      the name of the field in the file
//	required  the field must be set; the text says what is missing, and is empty where a check of the value says it
//	min, max  bounds of a number or a duration, inclusive
//	above     bound of a duration, exclusive
//	why       the reason of a bound or of a list of values, for the error
//	never     the text "never" is a value of the duration
//	unit      what a number counts, for the page
type decoder struct {
	lines  map[string]int  // of the fields that are in the file, by path
	set    map[string]bool // the fields that have a value, by path
	bad    map[string]bool // the fields that have an error already, by path
	broken map[string]bool // the fields that are not of the right form, by path: nothing more is said about them
	errs   []lineError
}

type lineError struct {
	line int
	err  error
}

func newDecoder() *decoder {
	return &decoder{lines: map[string]int{}, set: map[string]bool{}, bad: map[string]bool{}, broken: map[string]bool{}}
}

// words are the values that a field of text takes, by its name in the file, which means the same in every part of it. A
// field that is a bool in Go is true for the second.
var words = map[string][]string{
	"mode":        {"enforce", "observe"},
	"status":      {string(corev1.ConditionTrue), string(corev1.ConditionFalse)},
	"effect":      {string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule), string(corev1.TaintEffectNoExecute)},
	"forceDelete": {string(ForceNever), string(ForceUnreachable), string(ForceQuarantined)},
	"events":      WebhookEvents,
	"repair":      repairs(),
}

func repairs() (names []string) {
	for r := conditions.Monitor; r <= conditions.Replace; r++ {
		names = append(names, r.String())
	}
	return names
}

// defaulter is a part of a policy with defaults other than zero. They are set before the part is decoded.
type defaulter interface{ setDefaults() }

// named is a part of a policy whose name is a key of a mapping in the file.
type named interface{ setName(name string) }

// decode fills one value of the field f. A null leaves the value as it is.
func (d *decoder) decode(n *yaml.Node, at *field.Path, f reflect.StructField, out reflect.Value) {
	if n = resolve(n); isNull(n) {
		return
	}
	switch v := out.Addr().Interface().(type) {
	case *time.Duration:
		d.duration(n, at, f, v)
		return
	case **regexp.Regexp:
		var err error
		if text, ok := d.text(n, at); !ok {
		} else if *v, err = regexp.Compile(text); err != nil {
			d.invalid(at, text, err.Error())
		}
		return
	case *conditions.Repair:
		var err error
		if text, ok := d.text(n, at); !ok {
		} else if *v, err = conditions.ParseRepair(text); err != nil {
			d.invalid(at, text, err.Error())
		}
		return
	case *labels.Selector:
		var want map[string]string
		d.decode(n, at, f, reflect.ValueOf(&want).Elem())
		d.labels(at, want)
		*v = labels.SelectorFromSet(want)
		return
	case *corev1.Taint:
		var t taintFields
		d.decode(n, at, f, reflect.ValueOf(&t).Elem())
		*v = corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
		return
	}
	switch out.Kind() {
	case reflect.Pointer:
		v := fresh(out.Type().Elem())
		d.decode(n, at, f, v)
		out.Set(v.Addr())
	case reflect.Struct:
		d.fields(n, at, out)
	case reflect.Slice:
		if reflect.PointerTo(out.Type().Elem()).Implements(reflect.TypeFor[named]()) {
			d.byName(n, at, f, out)
		} else {
			d.items(n, at, f, out)
		}
	default:
		d.plain(n, at, out)
		if allowed := words[f.Tag.Get("yaml")]; allowed != nil && !d.bad[at.String()] {
			d.word(at, f, allowed, n.Value)
		}
	}
}

// fields fills a struct from a mapping, and checks the bounds of its fields.
func (d *decoder) fields(n *yaml.Node, at *field.Path, out reflect.Value) {
	pairs := d.pairs(n, at)
	for f, v := range out.Fields() {
		name := f.Tag.Get("yaml")
		if name == "-" {
			continue
		}
		here := at.Child(name)
		if i := slices.IndexFunc(pairs, func(p pair) bool { return p.key == name }); i >= 0 {
			d.lines[here.String()] = pairs[i].line
			if value := resolve(pairs[i].value); !isUnset(value, f) {
				d.set[here.String()] = true
				if allowed := words[name]; f.Type.Kind() == reflect.Bool && allowed != nil {
					if text, ok := d.text(value, here); ok {
						d.word(here, f, allowed, text)
						v.SetBool(text == allowed[1])
					}
				} else {
					d.decode(value, here, f, v)
				}
			}
		}
		d.bounds(here, f, v)
	}
	for _, p := range pairs {
		if _, known := fieldOf(out.Type(), p.key); !known {
			d.fail(p.line, fmt.Errorf("field %s not found in %s", p.key, describe(at)))
		}
	}
}

// isUnset tells that a field is in the file without a value: an empty text, or a part that is not an optional one and in
// which no field has a value.
func isUnset(n *yaml.Node, f reflect.StructField) bool {
	switch {
	case isNull(n):
		return true
	case n.Kind == yaml.MappingNode && f.Type.Kind() == reflect.Struct:
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := resolve(n.Content[i]).Value
			below, ok := fieldOf(f.Type, key)
			if !ok || seen[key] || !isUnset(resolve(n.Content[i+1]), below) {
				return false
			}
			seen[key] = true
		}
		return true
	case n.Kind != yaml.ScalarNode || n.Value != "":
		return false
	}
	text := f.Type.Kind() == reflect.String || f.Type == reflect.TypeFor[time.Duration]() || f.Type == reflect.TypeFor[*regexp.Regexp]()
	return text || f.Type.Kind() == reflect.Bool && words[f.Tag.Get("yaml")] != nil
}

// fieldOf finds a field of a part by its name in the file.
func fieldOf(part reflect.Type, name string) (reflect.StructField, bool) {
	if part == reflect.TypeFor[corev1.Taint]() {
		part = reflect.TypeFor[taintFields]()
	}
	for f := range part.Fields() {
		if name != "-" && f.Tag.Get("yaml") == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func (d *decoder) byName(n *yaml.Node, at *field.Path, f reflect.StructField, out reflect.Value) {
	pairs := d.pairs(n, at)
	slices.SortFunc(pairs, func(a, b pair) int { return strings.Compare(a.key, b.key) })
	for _, p := range pairs {
		d.lines[at.Key(p.key).String()] = p.line
		v := fresh(out.Type().Elem())
		v.Addr().Interface().(named).setName(p.key)
		d.decode(orEmpty(p.value), at.Key(p.key), f, v)
		out.Set(reflect.Append(out, v))
	}
}

func (d *decoder) items(n *yaml.Node, at *field.Path, f reflect.StructField, out reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.wrong(n, at, "a list")
		return
	}
	for i, item := range n.Content {
		if isNull(resolve(item)) {
			continue // as in yaml.v3
		}
		d.lines[at.Index(i).String()] = item.Line
		v := fresh(out.Type().Elem())
		d.decode(item, at.Index(i), f, v)
		out.Set(reflect.Append(out, v))
	}
}

// plain leaves a scalar or a map of scalars to yaml.v3.
func (d *decoder) plain(n *yaml.Node, at *field.Path, out reflect.Value) {
	if n.Kind == yaml.MappingNode {
		for _, p := range d.pairs(n, at) {
			d.lines[at.Key(p.key).String()] = p.line
		}
		if d.bad[at.String()] {
			return
		}
	}
	err := n.Decode(out.Addr().Interface())
	if err == nil {
		return
	}
	d.bad[at.String()], d.broken[at.String()] = true, true
	wrong := &yaml.TypeError{}
	if !errors.As(err, &wrong) {
		d.fail(n.Line, fmt.Errorf("%w (%s)", err, at))
		return
	}
	for _, text := range wrong.Errors {
		line := n.Line
		if before, after, ok := strings.Cut(strings.TrimPrefix(text, "line "), ": "); ok {
			if number, err := strconv.Atoi(before); err == nil {
				line, text = number, after
			}
		}
		d.fail(line, fmt.Errorf("%s (%s)", text, at))
	}
}

func (d *decoder) text(n *yaml.Node, at *field.Path) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		d.wrong(n, at, "a text")
		return "", false
	}
	return n.Value, true
}

func (d *decoder) duration(n *yaml.Node, at *field.Path, f reflect.StructField, out *time.Duration) {
	text, ok := d.text(n, at)
	if !ok {
		return
	}
	if _, never := f.Tag.Lookup("never"); never && text == "never" {
		*out = Never
		return
	}
	parsed, err := time.ParseDuration(text)
	if err != nil || parsed < 0 {
		d.invalid(at, text, "must be a duration like 30s, 10m or 1h")
		return
	}
	*out = parsed
}

// word checks a text that is one of a few.
func (d *decoder) word(at *field.Path, f reflect.StructField, allowed []string, text string) {
	if slices.Contains(allowed, text) {
		return
	}
	if why := f.Tag.Get("why"); why != "" {
		d.invalid(at, text, "must be "+strings.Join(allowed, " or ")+": "+why)
		return
	}
	d.add(field.NotSupported(at, text, allowed))
}

// bounds checks a field by its tags, whether it is set or has its default.
func (d *decoder) bounds(at *field.Path, f reflect.StructField, v reflect.Value) {
	if d.bad[at.String()] {
		return
	}
	missing := !d.set[at.String()] || v.Kind() == reflect.Slice && v.Len() == 0
	if what := f.Tag.Get("required"); what != "" && missing {
		d.add(field.Required(at, what))
		return
	}
	if f.Type != reflect.TypeFor[time.Duration]() && f.Type.Kind() != reflect.Int {
		return
	}
	value := any(v.Interface())
	if length, ok := value.(time.Duration); ok {
		value = length.String()
	}
	because := ""
	if why := f.Tag.Get("why"); why != "" {
		because = ": " + why
	}
	above, isAbove := bound(f, "above")
	least, isLeast := bound(f, "min")
	most, isMost := bound(f, "max")
	switch got := v.Int(); {
	case isAbove && got <= above:
		d.invalid(at, value, "must be longer than "+f.Tag.Get("above"))
	case isLeast && got < least:
		d.invalid(at, value, "must be at least "+f.Tag.Get("min"))
	case isMost && got > most:
		d.invalid(at, value, "must be at most "+f.Tag.Get("max")+because)
	}
}

// bound is the value of a tag, in the unit of the field.
func bound(f reflect.StructField, tag string) (int64, bool) {
	text, ok := f.Tag.Lookup(tag)
	if !ok {
		return 0, false
	}
	if f.Type == reflect.TypeFor[time.Duration]() {
		length, err := time.ParseDuration(text)
		return int64(length), err == nil
	}
	number, err := strconv.ParseInt(text, 10, 64)
	return number, err == nil
}

type pair struct {
	key   string
	line  int
	value *yaml.Node
}

// pairs are the fields of a mapping. Keys of its own come before those that it merges (`<<`), as in yaml.v3.
func (d *decoder) pairs(n *yaml.Node, at *field.Path) (all []pair) {
	lines := map[string]int{}
	const begun, done = 1, 2
	merged := map[*yaml.Node]int{}
	var add func(n *yaml.Node)
	add = func(n *yaml.Node) {
		n = resolve(n)
		if merged[n] == begun {
			d.fail(n.Line, fmt.Errorf("anchor %q contains itself (%s)", n.Anchor, describe(at)))
		}
		if merged[n] != 0 {
			return // a second time adds nothing
		}
		merged[n] = begun
		defer func() { merged[n] = done }()
		if n.Kind != yaml.MappingNode {
			d.wrong(n, at, "a mapping")
			return
		}
		own := map[string]int{}
		var merges []*yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := resolve(n.Content[i]), n.Content[i+1]
			if key.Kind != yaml.ScalarNode {
				d.wrong(key, at, "a name")
				continue
			}
			if key.ShortTag() == "!!merge" {
				merges = append(merges, value)
				continue
			}
			if line, twice := own[key.Value]; twice {
				d.bad[at.String()] = true
				d.fail(key.Line, fmt.Errorf("mapping key %q already defined at line %d", key.Value, line))
				continue
			}
			own[key.Value] = key.Line
			if _, overridden := lines[key.Value]; !overridden {
				lines[key.Value] = key.Line
				all = append(all, pair{key.Value, key.Line, value})
			}
		}
		for _, m := range merges {
			if m = resolve(m); m.Kind == yaml.SequenceNode {
				for _, each := range m.Content {
					add(each)
				}
			} else {
				add(m)
			}
		}
	}
	add(n)
	return all
}

func (d *decoder) wrong(n *yaml.Node, at *field.Path, want string) {
	d.bad[at.String()] = true
	if at == nil {
		d.broken[""] = true
	} else {
		d.broken[at.String()] = true
	}
	what := n.ShortTag()
	if n.Kind == yaml.ScalarNode {
		what += fmt.Sprintf(" `%.10s`", n.Value)
	}
	d.fail(n.Line, fmt.Errorf("cannot unmarshal %s into %s (%s)", what, want, describe(at)))
}

func (d *decoder) invalid(at *field.Path, value any, why string) {
	d.add(field.Invalid(at, value, why))
}

func (d *decoder) all(at *field.Path, value any, reasons []string) {
	for _, why := range reasons {
		d.invalid(at, value, why)
	}
}

// add is for errors about the value of a field; its line is that of the field or, if it is missing, of what it is missing in.
func (d *decoder) add(err *field.Error) {
	d.bad[err.Field] = true
	line := 0
	for path := err.Field; ; path = parent(path) {
		if d.broken[path] {
			return
		}
		if line == 0 {
			line = d.lines[path]
		}
		if path == "" {
			break
		}
	}
	d.fail(max(line, 1), err)
}

func (d *decoder) fail(line int, err error) { d.errs = append(d.errs, lineError{line, err}) }

// err is everything that is wrong, in the order of the lines.
func (d *decoder) err() error {
	slices.SortStableFunc(d.errs, func(a, b lineError) int { return a.line - b.line })
	var all []error
	for _, e := range d.errs {
		all = append(all, fmt.Errorf("line %d: %w", e.line, e.err))
	}
	return errors.Join(all...)
}

// parent is the path of what a field is in.
func parent(path string) string {
	end := strings.LastIndex(path, ".")
	if strings.HasSuffix(path, "]") {
		end = strings.LastIndex(path, "[")
	}
	return path[:max(end, 0)]
}

func describe(at *field.Path) string {
	if at == nil {
		return "the file"
	}
	return at.String()
}

func fresh(of reflect.Type) reflect.Value {
	v := reflect.New(of)
	if part, ok := v.Interface().(defaulter); ok {
		part.setDefaults()
	}
	return v.Elem()
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// orEmpty is a mapping without keys in place of null: a part that must be checked although nothing is in it.
func orEmpty(n *yaml.Node) *yaml.Node {
	if n = resolve(n); isNull(n) {
		return &yaml.Node{Kind: yaml.MappingNode, Line: n.Line}
	}
	return n
}
