package strict

import (
	"errors"
	"fmt"
	"iter"
	"math"
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

// A Decoder fills the types of a policy from the nodes of yaml.v3. Its own decoder, with KnownFields, is not enough, see ADR 33: an
// error has a line, a path and a value, and does not end the decoding, so all errors come at once. The Decoder records which fields
// are set. So a default differs from the same value in the file, without a second type with optional fields for each part.
//
// It reads these struct tags, which the generated page and schema read too:
//
//	yaml      the name of the field in the file
//	required  the field must be set; its text is the error, and is empty where a check of the value reports it
//	min, max  bounds of a number or a duration, inclusive
//	above     bound of a duration, exclusive
//	why       the reason of a bound or of a list of values, for the error
//	never     the text "never" is a value of the duration
//	single    a list of one value may be written as that value
//	values    the values that a text may have; a bool is false for the first and true for the second
//	unit      what a number counts, for the page
//
// The fields of an embedded part with `yaml:",inline"` are in the file as if they were those of the part around it.
type Decoder struct {
	lines    map[string]int  // of the fields that are in the file, by path
	set      map[string]bool // the fields that have a value, by path
	failed   map[string]bool // the fields that have an error already, by path
	mistyped map[string]bool // the fields with a value of the wrong type, by path: they get no further error
	errs     []lineError
	warnings []lineError
	values   int // how many were decoded, so far
}

// Decode fills a struct, whose defaults are set, from the content of a file; nil if the file is empty. What is wrong is in
// [Decoder.Err], together with what later checks add.
func Decode(content *yaml.Node, out any) *Decoder {
	d := &Decoder{lines: map[string]int{}, set: map[string]bool{}, failed: map[string]bool{}, mistyped: map[string]bool{}}
	root := &yaml.Node{Kind: yaml.MappingNode, Line: 1}
	if content != nil { // an empty file lacks the required fields
		root = orEmpty(content)
	}
	d.fields(root, nil, reflect.ValueOf(out).Elem())
	return d
}

// maxValues bounds the values of a file: those that an alias repeats are decoded again, so a small file could have any number.
// The largest policies have some thousands.
const maxValues = 100_000

// Values are the values that a field may have; nil: any of its type.
func Values(f reflect.StructField) (values []string) {
	if f.Type == reflect.TypeFor[[]conditions.Repair]() {
		for r := conditions.Monitor; r <= conditions.Replace; r++ {
			values = append(values, r.String())
		}
		return values
	}
	if tag, ok := f.Tag.Lookup("values"); ok {
		return strings.Fields(tag)
	}
	return nil
}

// Off is a value that YAML 1.1, which Helm reads, takes for false.
const Off = "off"

// Never is the duration "never".
const Never time.Duration = math.MaxInt64

// Defaulter is a part of a policy with defaults other than zero. They are set before the part is decoded.
type Defaulter interface{ SetDefaults() }

// Named is a part of a policy whose name is a key of a mapping in the file.
type Named interface{ SetName(name string) }

// decode fills one value of the field f. A null leaves the value as it is.
func (d *Decoder) decode(n *yaml.Node, at *field.Path, f reflect.StructField, out reflect.Value) {
	if n = resolve(n); isNull(n) {
		return
	}
	switch v := out.Addr().Interface().(type) {
	case *time.Duration:
		_, never := f.Tag.Lookup("never")
		parseText(d, n, at, v, func(text string) (time.Duration, error) { return parseDuration(text, never) })
		return
	case **regexp.Regexp:
		parseText(d, n, at, v, regexp.Compile)
		return
	case *conditions.Repair:
		parseText(d, n, at, v, conditions.ParseRepair)
		return
	case *labels.Selector:
		var want map[string]string
		d.decode(n, at, f, reflect.ValueOf(&want).Elem())
		checkLabels(d, at, want)
		*v = labels.SelectorFromSet(want)
		return
	case *corev1.Taint:
		var t Taint
		d.decode(n, at, f, reflect.ValueOf(&t).Elem())
		*v = corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect}
		return
	}
	switch out.Kind() {
	case reflect.Pointer:
		v := NewPart(out.Type().Elem())
		d.decode(n, at, f, v)
		out.Set(v.Addr())
	case reflect.Struct:
		d.fields(n, at, out)
	case reflect.Slice:
		if reflect.PointerTo(out.Type().Elem()).Implements(reflect.TypeFor[Named]()) {
			d.byName(n, at, f, out)
		} else {
			d.items(n, at, f, out)
		}
	default:
		d.plain(n, at, out)
		if allowed := Values(f); allowed != nil && !d.failed[at.String()] {
			if isFalse(n) && slices.Contains(allowed, Off) {
				out.SetString(Off)
			}
			d.checkEnum(at, f, allowed, out.String())
		}
	}
}

// fields fills a struct from a mapping, and checks the bounds of its fields.
func (d *Decoder) fields(n *yaml.Node, at *field.Path, out reflect.Value) {
	pairs := d.pairs(n, at)
	for f := range Fields(out.Type()) {
		name, v := f.Tag.Get("yaml"), out.FieldByIndex(f.Index)
		here := at.Child(name)
		if i := slices.IndexFunc(pairs, func(p pair) bool { return p.key == name }); i >= 0 {
			d.lines[here.String()] = pairs[i].line
			if value := resolve(pairs[i].value); !isUnset(value, f) {
				d.set[here.String()] = true
				if allowed := Values(f); f.Type.Kind() == reflect.Bool && allowed != nil {
					if text, ok := d.text(value, here); ok {
						d.checkEnum(here, f, allowed, text)
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
			d.fail(p.line, fmt.Errorf("field %s not found in %s%s", p.key, describe(at), hint(out.Type(), p.key)))
		}
	}
}

// isUnset reports whether a field is in the file without a value: an empty text, or a part that is not an optional one and in
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
	_, single := f.Tag.Lookup("single")
	text := single || f.Type.Kind() == reflect.String || f.Type == reflect.TypeFor[time.Duration]() ||
		f.Type == reflect.TypeFor[*regexp.Regexp]()
	return text || f.Type.Kind() == reflect.Bool && Values(f) != nil
}

// Fields are the fields of a part that are in the file.
func Fields(part reflect.Type) iter.Seq[reflect.StructField] {
	return func(yield func(reflect.StructField) bool) {
		for f := range part.Fields() {
			switch f.Tag.Get("yaml") {
			case "-":
			case ",inline":
				for below := range Fields(f.Type) {
					below.Index = slices.Concat(f.Index, below.Index)
					if !yield(below) {
						return
					}
				}
			default:
				if !yield(f) {
					return
				}
			}
		}
	}
}

// fieldOf finds a field of a part by its name in the file.
func fieldOf(part reflect.Type, name string) (reflect.StructField, bool) {
	if part == reflect.TypeFor[corev1.Taint]() {
		part = reflect.TypeFor[Taint]()
	}
	for f := range Fields(part) {
		if f.Tag.Get("yaml") == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func (d *Decoder) byName(n *yaml.Node, at *field.Path, f reflect.StructField, out reflect.Value) {
	pairs := d.pairs(n, at)
	slices.SortFunc(pairs, func(a, b pair) int { return strings.Compare(a.key, b.key) })
	for _, p := range pairs {
		d.lines[at.Key(p.key).String()] = p.line
		v := NewPart(out.Type().Elem())
		v.Addr().Interface().(Named).SetName(p.key)
		d.decode(orEmpty(p.value), at.Key(p.key), f, v)
		out.Set(reflect.Append(out, v))
	}
}

// items fills a list. An empty one leaves the default as it is.
func (d *Decoder) items(n *yaml.Node, at *field.Path, f reflect.StructField, out reflect.Value) {
	list := reflect.New(out.Type()).Elem()
	if _, single := f.Tag.Lookup("single"); single && n.Kind == yaml.ScalarNode {
		v := NewPart(out.Type().Elem())
		d.decode(n, at, f, v)
		out.Set(reflect.Append(list, v))
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.wrong(n, at, "a list")
		return
	}
	for i, item := range n.Content {
		if d.count(item); d.isFull() {
			return
		}
		if isNull(resolve(item)) {
			continue // as in yaml.v3
		}
		d.lines[at.Index(i).String()] = item.Line
		v := NewPart(out.Type().Elem())
		d.decode(item, at.Index(i), f, v)
		list = reflect.Append(list, v)
	}
	if list.Len() > 0 {
		out.Set(list)
	} else if _, single := f.Tag.Lookup("single"); single {
		d.wrong(n, at, "a value or a list of at least one")
	}
}

// count counts one more value. The one after maxValues is the only error then: what is not decoded any more would seem to be missing.
func (d *Decoder) count(n *yaml.Node) {
	if d.values++; d.values == maxValues+1 {
		d.errs = []lineError{{n.Line, fmt.Errorf("more than %d values, those that aliases repeat included", maxValues)}}
	}
}

// isFull reports whether nothing more is decoded.
func (d *Decoder) isFull() bool { return d.values > maxValues }

// plain leaves a scalar or a map of scalars to yaml.v3.
func (d *Decoder) plain(n *yaml.Node, at *field.Path, out reflect.Value) {
	if n.Kind == yaml.MappingNode {
		for _, p := range d.pairs(n, at) {
			d.lines[at.Key(p.key).String()] = p.line
		}
		if d.failed[at.String()] {
			return
		}
	}
	err := n.Decode(out.Addr().Interface())
	if err == nil {
		return
	}
	d.failed[at.String()], d.mistyped[at.String()] = true, true
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

func (d *Decoder) text(n *yaml.Node, at *field.Path) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		d.wrong(n, at, "a string")
		return "", false
	}
	return n.Value, true
}

// parseText fills a value that the file has as text.
func parseText[T any](d *Decoder, n *yaml.Node, at *field.Path, out *T, parse func(string) (T, error)) {
	text, ok := d.text(n, at)
	if !ok {
		return
	}
	value, err := parse(text)
	if err != nil {
		d.Invalid(at, text, err.Error())
		return
	}
	*out = value
}

func parseDuration(text string, never bool) (time.Duration, error) {
	if never && text == "never" {
		return Never, nil
	}
	parsed, err := time.ParseDuration(text)
	if err != nil || parsed < 0 {
		return 0, errors.New("must be a duration like 30s, 10m or 1h")
	}
	return parsed, nil
}

// checkEnum checks a string that has one of a few values.
func (d *Decoder) checkEnum(at *field.Path, f reflect.StructField, allowed []string, text string) {
	if slices.Contains(allowed, text) {
		return
	}
	if why := f.Tag.Get("why"); why != "" {
		d.Invalid(at, text, "must be "+strings.Join(allowed, " or ")+": "+why)
		return
	}
	d.Add(field.NotSupported(at, text, allowed))
}

// bounds checks a field by its tags, whether it is set or has its default.
func (d *Decoder) bounds(at *field.Path, f reflect.StructField, v reflect.Value) {
	if d.failed[at.String()] {
		return
	}
	missing := !d.set[at.String()] || v.Kind() == reflect.Slice && v.Len() == 0
	if what := f.Tag.Get("required"); what != "" && missing {
		d.Add(field.Required(at, what))
		return
	}
	if f.Type != reflect.TypeFor[time.Duration]() && f.Type.Kind() != reflect.Int {
		return
	}
	value := v.Interface()
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
		d.Invalid(at, value, "must be longer than "+f.Tag.Get("above"))
	case isLeast && got < least:
		d.Invalid(at, value, "must be at least "+f.Tag.Get("min"))
	case isMost && got > most:
		d.Invalid(at, value, "must be at most "+f.Tag.Get("max")+because)
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

// NewPart returns a part with its defaults.
func NewPart(of reflect.Type) reflect.Value {
	v := reflect.New(of)
	if part, ok := v.Interface().(Defaulter); ok {
		part.SetDefaults()
	}
	return v.Elem()
}
