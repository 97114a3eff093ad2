package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Spawn inputs and trace steps are BSON documents, and harel's are plain Python
// values. Between the two is JSON in which 1 is an integer and 1.0 is not; no key
// means anything, unlike in extended JSON.

// DocumentFromJSON reads a JSON object as pymongo would store the Python dict that
// json.loads makes of it. Keys keep their order.
func DocumentFromJSON(text []byte) (bson.D, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	v, err := decodeValue(dec)
	if err != nil {
		return nil, err
	}
	doc, ok := v.(bson.D)
	if !ok {
		return nil, fmt.Errorf("is a %T, not a JSON object", v)
	}
	return doc, nil
}

func decodeValue(dec *json.Decoder) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			return decodeArray(dec)
		}
		return decodeObject(dec)
	case json.Number:
		return decodeNumber(token.String())
	}
	return token, nil
}

func decodeObject(dec *json.Decoder) (any, error) {
	doc := bson.D{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		v, err := decodeValue(dec)
		if err != nil {
			return nil, err
		}
		doc = append(doc, bson.E{Key: key.(string), Value: v})
	}
	_, err := dec.Token()
	return doc, err
}

func decodeArray(dec *json.Decoder) (any, error) {
	values := bson.A{}
	for dec.More() {
		v, err := decodeValue(dec)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	_, err := dec.Token()
	return values, err
}

// decodeNumber gives a double only for what Python would write as a float.
func decodeNumber(text string) (any, error) {
	if strings.ContainsAny(text, ".eE") {
		return strconv.ParseFloat(text, 64)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && n >= math.MinInt32 && n <= math.MaxInt32 {
		return int32(n), nil
	}
	return n, err
}

// JSONFromDocument is the reverse of DocumentFromJSON.
func JSONFromDocument(doc bson.Raw) (json.RawMessage, error) {
	var out bytes.Buffer
	if err := encodeFields(&out, doc, "{}", true); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func encodeFields(out *bytes.Buffer, doc bson.Raw, brackets string, keys bool) error {
	elements, err := doc.Elements()
	if err != nil {
		return err
	}
	out.WriteByte(brackets[0])
	for i, e := range elements {
		if i > 0 {
			out.WriteByte(',')
		}
		if keys {
			writeString(out, e.Key())
			out.WriteByte(':')
		}
		if err := encodeValue(out, e.Value()); err != nil {
			return fmt.Errorf("%s: %w", e.Key(), err)
		}
	}
	out.WriteByte(brackets[1])
	return nil
}

func encodeValue(out *bytes.Buffer, v bson.RawValue) error {
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		return encodeFields(out, v.Document(), "{}", true)
	case bson.TypeArray:
		return encodeFields(out, bson.Raw(v.Array()), "[]", false)
	case bson.TypeString:
		writeString(out, v.StringValue())
	case bson.TypeInt32, bson.TypeInt64:
		fmt.Fprint(out, v.AsInt64())
	case bson.TypeDouble:
		io.WriteString(out, floatText(v.Double()))
	case bson.TypeBoolean:
		fmt.Fprint(out, v.Boolean())
	case bson.TypeNull:
		out.WriteString("null")
	default:
		return fmt.Errorf("is a BSON %s, which JSON lines do not carry", v.Type)
	}
	return nil
}

func writeString(out *bytes.Buffer, s string) {
	text, _ := json.Marshal(s) // a string always encodes
	out.Write(text)
}

// floatText always tells a float from an integer.
func floatText(f float64) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return "null"
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}
