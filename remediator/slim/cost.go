package slim

import (
	"encoding/json"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

const (
	// perPart is what an entry of a list or a map costs in memory beside its text, in bytes, about, while it is decoded.
	perPart = 128
	// perMap is what an empty map takes in memory, in bytes, and leastEntries for how many entries one has room that is not empty.
	perMap, leastEntries = 48, 8
	// maxPodCost is the most that it may cost to decode a pod or metadata, in bytes: room for 2,000 environment variables. Of more costly ones
	// only a part is decoded.
	maxPodCost = 4 << 20
	// maxCost is the most that it may cost to decode another object, which is an error otherwise: all of it decides.
	maxCost = 8 << 20
)

// costOf is what it costs to decode JSON, in bytes of memory, about. The size of the text does not tell: of {"nodeSelectorTerms":[{},{},
// each three bytes are 48 in memory, and 100 while the list grows.
func costOf(text []byte) int {
	parts, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\': // only in a string
			i++
		case '"':
			quoted = !quoted
		case '{', '[', ',', ':':
			if !quoted {
				parts++
			}
		}
	}
	return len(text) + perPart*parts
}

// whole returns what decodes an item of a list, unless that costs too much. slim drops what is not needed of it.
func whole[T any](slim func(*T)) func([]byte) (T, int, error) {
	return func(text []byte) (item T, size int, err error) {
		if err := decodeWhole(text, &item); err != nil {
			return item, 0, err
		}
		slim(&item)
		return item, HeapOf(&item), nil
	}
}

// decodeWhole decodes JSON, unless that costs too much.
func decodeWhole(text []byte, into any) error {
	if costOf(text) > maxCost {
		return ErrTooLarge
	}
	return json.Unmarshal(text, into) //nolint:wrapcheck // read and Get name the object
}

// decodeUnstructured is [decodeWhole] of an object that has no Go type, whose whole numbers stay whole.
func decodeUnstructured(text []byte, u *unstructured.Unstructured) error {
	if costOf(text) > maxCost {
		return ErrTooLarge
	}
	u.Object = nil
	return utiljson.Unmarshal(text, &u.Object) //nolint:wrapcheck // read and Get name the object
}

// HeapOf is the memory that the value holds to which a pointer leads, in bytes, about. What several places in it share counts for each.
func HeapOf(pointer any) int { return heapOf(reflect.ValueOf(pointer)) }

var timeType = reflect.TypeFor[time.Time]()

// heapOf is the memory that a value holds beside itself.
func heapOf(v reflect.Value) (n int) {
	t := v.Type()
	switch t.Kind() {
	case reflect.String:
		return v.Len()
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return 0
		}
		return int(v.Elem().Type().Size()) + heapOf(v.Elem())
	case reflect.Slice:
		n = v.Cap() * int(t.Elem().Size())
		if t.Elem().Kind() == reflect.Uint8 {
			return n
		}
		for i := range v.Len() {
			n += heapOf(v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			n += heapOf(v.Index(i))
		}
	case reflect.Map:
		if n = perMap; v.Len() > 0 {
			n += max(leastEntries, 2*v.Len()) * int(t.Key().Size()+t.Elem().Size())
		}
		for each := v.MapRange(); each.Next(); {
			n += heapOf(each.Key()) + heapOf(each.Value())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if t != timeType {
				n += heapOf(v.Field(i))
			}
		}
	}
	return n
}
