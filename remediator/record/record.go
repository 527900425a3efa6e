// Package record bounds, clamps and copies the records of annotations and ConfigMaps. They are input: whoever may write the object can
// forge one. A forged record may neither be larger than what is written, nor have a timer that never ends.
//
// The tag `max` of a field says how many bytes a string may have, or how many entries a list or a map. A second number is about the
// strings in these. "text" stands for [Text], and nothing for [Name] and [Entries]:
//
//	Message string   `json:"message" max:"text"`
//	Covered []string `json:"covered" max:"16,text"`
package record

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	// Text is the most bytes of a message, Name of a string without a tag, with room for what a next version keeps.
	Text, Name = 4 * conditions.MaxMessage, 512
	// Entries is the most entries of a list or a map without a tag.
	Entries = 512
)

// Check returns what in a record is larger than its tags allow. r is a pointer to a struct.
func Check(r any) error {
	if e := check(reflect.ValueOf(r), Entries, Name); e != nil {
		return fmt.Errorf("%s has %s", e.path, e.what)
	}
	return nil
}

// excess is the first field that is too large.
type excess struct{ path, what string }

func check(v reflect.Value, entries, bytes int) *excess {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return check(v.Elem(), entries, bytes)
		}
	case reflect.String:
		if v.Len() > bytes {
			return &excess{what: fmt.Sprintf("%d bytes, more than %d", v.Len(), bytes)}
		}
	case reflect.Slice, reflect.Map:
		return checkEntries(v, entries, bytes)
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			if e := check(v.Field(f.index), f.entries, f.bytes); e != nil {
				e.path = strings.Trim(f.key+"."+e.path, ".")
				return e
			}
		}
	}
	return nil
}

func checkEntries(v reflect.Value, entries, bytes int) *excess {
	if v.Len() > entries {
		return &excess{what: fmt.Sprintf("%d entries, more than %d", v.Len(), entries)}
	}
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			if e := check(v.Index(i), Entries, bytes); e != nil {
				return e
			}
		}
		return nil
	}
	for key, value := range v.Seq2() {
		if e := cmp.Or(check(key, Entries, bytes), check(value, Entries, bytes)); e != nil {
			return e
		}
	}
	return nil
}

// field is one that is read from JSON, and how large it may be.
type field struct {
	index          int
	key            string
	entries, bytes int
}

var known sync.Map // of the fields of each type

// fieldsOf are the exported fields of a struct; a time has none.
func fieldsOf(t reflect.Type) []field {
	if fields, ok := known.Load(t); ok {
		return fields.([]field)
	}
	fields := []field{}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		first, second, isPair := strings.Cut(f.Tag.Get("max"), ",")
		entries, bytes := limit(first, Entries), limit(second, Name)
		if !isPair && f.Type.Kind() == reflect.String {
			bytes = limit(first, Name)
		}
		fields = append(fields, field{i, key, entries, bytes})
	}
	known.Store(t, fields)
	return fields
}

// limit reads a part of a tag. One that is no number allows nothing, so that a test finds it.
func limit(tag string, otherwise int) int {
	switch tag {
	case "":
		return otherwise
	case "text":
		return Text
	}
	most, err := strconv.Atoi(tag)
	if err != nil {
		return 0
	}
	return most
}

// Clamp takes each time of a record that is further ahead than clocks differ for now: it is of a clock that was ahead, or forged, and a
// timer that runs from it would never end. r is a pointer to a struct.
func Clamp(r any, now time.Time) {
	clamp(reflect.ValueOf(r), now, now.Add(conditions.MaxClockSkew))
}

func clamp(v reflect.Value, now, latest time.Time) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			clamp(v.Elem(), now, latest)
		}
	case reflect.Slice:
		for i := range v.Len() {
			clamp(v.Index(i), now, latest)
		}
	case reflect.Struct:
		if at, isTime := v.Addr().Interface().(*time.Time); isTime {
			if at.After(latest) {
				*at = now
			}
			return
		}
		for _, f := range fieldsOf(v.Type()) {
			clamp(v.Field(f.index), now, latest)
		}
	}
}

// Clone copies a record with all that it refers to.
func Clone[T any](r *T) *T {
	if r == nil {
		return nil
	}
	c := *r
	detach(reflect.ValueOf(&c).Elem())
	return &c
}

// detach gives a value that was copied its own pointers, lists and maps.
func detach(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			to := reflect.New(v.Type().Elem())
			to.Elem().Set(v.Elem())
			detach(to.Elem())
			v.Set(to)
		}
	case reflect.Slice:
		if !v.IsNil() {
			to := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(to, v)
			for i := range to.Len() {
				detach(to.Index(i))
			}
			v.Set(to)
		}
	case reflect.Map:
		if !v.IsNil() {
			to := reflect.MakeMapWithSize(v.Type(), v.Len())
			for key, value := range v.Seq2() {
				own := reflect.New(v.Type().Elem()).Elem()
				own.Set(value)
				detach(own)
				to.SetMapIndex(key, own)
			}
			v.Set(to)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			detach(v.Field(f.index))
		}
	}
}
