package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

var errNotUTF8 = errors.New("holds a string that is not UTF-8")

// jsonText is the JSON of v, compact, with <, > and & as they are. What encoding/json
// would store as something else is refused: it makes U+FFFD of what is not UTF-8.
func jsonText(v any) (string, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	text := strings.TrimSuffix(buf.String(), "\n")
	switch {
	case !utf8.ValidString(text):
		return "", errNotUTF8
	case !json.Valid([]byte(text)): // nested deeper than what can be read again
		return "", errors.New("is nested too deep")
	case strings.Contains(text, `\u`) && loneSurrogate(text):
		return "", errors.New("holds half of a surrogate pair")
	case strings.Contains(text, `\ufffd`) && brokenText(reflect.ValueOf(v), 0):
		return "", errNotUTF8
	}
	return text, nil
}

// loneSurrogate looks for an escape such as \ud800 without its other half, which no
// UTF-8 can hold.
func loneSurrogate(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++ // at what is escaped
		if text[i] != 'u' {
			continue
		}
		unit := hexUnit(text[i+1:])
		i += 4
		switch {
		case unit >= 0xDC00 && unit <= 0xDFFF:
			return true
		case unit >= 0xD800 && unit <= 0xDBFF:
			rest := text[i+1:]
			if !strings.HasPrefix(rest, `\u`) {
				return true
			}
			if low := hexUnit(rest[2:]); low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 6
		}
	}
	return false
}

// hexUnit reads the four digits that valid JSON has there.
func hexUnit(text string) uint64 {
	if len(text) < 4 {
		return 0
	}
	unit, _ := strconv.ParseUint(text[:4], 16, 32)
	return unit
}

// brokenText looks for a string in v that is not UTF-8. It is asked only where the text
// has an escape that encoding/json writes for one, and that others may write too.
func brokenText(v reflect.Value, depth int) bool {
	const deepest = 1000 // encoding/json has refused what is circular
	if !v.IsValid() || depth > deepest {
		return false
	}
	switch v.Kind() {
	case reflect.String:
		return !utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return brokenText(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if brokenText(v.Field(i), depth+1) {
				return true
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return false // base64, or JSON that was looked at as text
		}
		for i := range v.Len() {
			if brokenText(v.Index(i), depth+1) {
				return true
			}
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			if brokenText(entries.Key(), depth+1) || brokenText(entries.Value(), depth+1) {
				return true
			}
		}
	}
	return false
}

// headersOf reads headers with their numbers as they are written.
func headersOf(text string) (map[string]any, error) {
	if text == "" {
		return nil, nil
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var headers map[string]any
	err := dec.Decode(&headers)
	return headers, err
}
