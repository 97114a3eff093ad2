package mongostore

import (
	"bytes"
	"encoding/json"
)

// Codec turns a snapshot or an event into bytes and back. It gets what Commit and
// Emit were given; the Header is kept outside the snapshot too, so a codec may
// leave it out. It is used concurrently.
type Codec interface {
	Marshal(v any) ([]byte, error)
	Unmarshal(data []byte, v any) error
}

// jsonCodec writes JSON as harel does: compact, with <, > and & as they are.
type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}), nil
}

func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }
