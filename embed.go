package mongostore

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"sync"
)

// What a type must be to be an Execution is checked once per type: Go and JSON
// both let an outer field hide an embedded one without a word, and then listings
// miss the row, or the snapshot loses the rest of the struct.

var (
	headerType   = reflect.TypeFor[Header]()
	checkedTypes sync.Map // reflect.Type -> error or nil
)

// headerOf gives the header of exe, if exe can be committed and loaded.
// Returns ErrInvalid if not.
func headerOf(exe Execution) (*Header, error) {
	if exe == nil {
		return nil, invalid("Execution", "is nil")
	}
	v := reflect.ValueOf(exe)
	t := v.Type()
	result, known := checkedTypes.Load(t)
	if !known {
		result, _ = checkedTypes.LoadOrStore(t, typeProblem(t))
	}
	if problem := result.(string); problem != "" {
		return nil, invalid("Execution", problem)
	}
	if v.IsNil() {
		return nil, invalid("Execution", "is a nil "+t.String())
	}
	h := exe.ExecutionHeader()
	if h == nil {
		return nil, invalid("Execution", t.String()+" has an ExecutionHeader of its own that returns nil")
	}
	return h, nil
}

// typeProblem says what is wrong with t; empty: nothing.
func typeProblem(t reflect.Type) string {
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return t.String() + " is not a pointer to a struct"
	}
	st := t.Elem()
	if st == headerType {
		return "is a bare *Header, which would drop the rest of the snapshot"
	}
	paths := headerPaths(st, nil, map[reflect.Type]bool{})
	switch {
	case len(paths) == 0:
		return st.String() + " does not embed mongostore.Header by value"
	case len(paths) > 1:
		return st.String() + " embeds more than one mongostore.Header"
	}
	if problem := hiddenField(st, paths[0]); problem != "" {
		return problem
	}
	if name := foreignMarshaler(st); name != "" {
		return fmt.Sprintf("%s gets its %s from an embedded type, which would swallow the Header and all other fields", st, name)
	}
	return ""
}

// headerPaths finds the Headers embedded by value in st, by index path.
func headerPaths(st reflect.Type, at []int, seen map[reflect.Type]bool) [][]int {
	if seen[st] {
		return nil
	}
	seen[st] = true
	defer delete(seen, st)
	var found [][]int
	for i := range st.NumField() {
		f := st.Field(i)
		if !f.Anonymous || f.Type.Kind() != reflect.Struct {
			continue
		}
		path := append(append([]int{}, at...), i)
		if f.Type == headerType {
			found = append(found, path)
			continue
		}
		found = append(found, headerPaths(f.Type, path, seen)...)
	}
	return found
}

// hiddenField names the field of st that hides one of the Header's, in Go or in JSON.
func hiddenField(st reflect.Type, header []int) string {
	keys := jsonKeys(st)
	for i := range headerType.NumField() {
		hf := headerType.Field(i)
		if !hf.IsExported() {
			continue
		}
		f, ok := st.FieldByName(hf.Name)
		if !ok || !samePath(f.Index, append(append([]int{}, header...), i)) {
			return fmt.Sprintf("%s.%s hides Header.%s", st, hf.Name, hf.Name)
		}
		key := jsonKey(hf)
		for _, k := range keys {
			if k.key == key && k.depth <= len(header) && !samePath(k.index, append(append([]int{}, header...), i)) {
				return fmt.Sprintf("%s.%s hides Header.%s in JSON, both are %q", st, k.name, hf.Name, key)
			}
		}
	}
	return ""
}

type keyed struct {
	key, name string
	depth     int
	index     []int
}

// jsonKeys gives every field that encoding/json would consider, with its depth.
func jsonKeys(st reflect.Type) []keyed {
	var out []keyed
	for _, f := range reflect.VisibleFields(st) {
		key := jsonKey(f)
		untaggedStruct := f.Anonymous && f.Tag.Get("json") == ""
		if f.Tag.Get("json") == "-" || untaggedStruct || !f.IsExported() {
			continue
		}
		out = append(out, keyed{key: key, name: f.Name, depth: len(f.Index) - 1, index: f.Index})
	}
	return out
}

func jsonKey(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return orElse(name, f.Name)
}

func samePath(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// foreignMarshaler names the method that would encode or decode st on behalf of
// one embedded type alone.
func foreignMarshaler(st reflect.Type) string {
	for _, m := range []struct {
		name string
		impl reflect.Type
	}{
		{"MarshalJSON", reflect.TypeFor[json.Marshaler]()},
		{"UnmarshalJSON", reflect.TypeFor[json.Unmarshaler]()},
		{"MarshalText", reflect.TypeFor[encoding.TextMarshaler]()},
		{"UnmarshalText", reflect.TypeFor[encoding.TextUnmarshaler]()},
	} {
		if reflect.PointerTo(st).Implements(m.impl) && !declares(st, m.name) {
			return m.name
		}
	}
	return ""
}

// declares reports whether st or *st has the method in its own source: the
// compiler's wrappers for promoted methods have no file.
func declares(st reflect.Type, method string) bool {
	for _, t := range []reflect.Type{st, reflect.PointerTo(st)} {
		m, ok := t.MethodByName(method)
		if !ok {
			continue
		}
		fn := runtime.FuncForPC(m.Func.Pointer())
		if fn == nil {
			return true
		}
		if file, _ := fn.FileLine(fn.Entry()); file != "<autogenerated>" {
			return true
		}
	}
	return false
}
