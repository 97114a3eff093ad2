package mongostore

import (
	"bytes"
	"encoding/json"
	"sync"
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
	w := jsonWriters.Get().(*jsonWriter)
	defer w.free()
	if err := w.enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.Clone(bytes.TrimSuffix(w.buf.Bytes(), []byte{'\n'})), nil
}

func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// jsonWriter is an encoder with its buffer, kept for the next snapshot.
type jsonWriter struct {
	buf bytes.Buffer
	enc *json.Encoder
}

var jsonWriters = sync.Pool{New: func() any {
	w := new(jsonWriter)
	w.enc = json.NewEncoder(&w.buf)
	w.enc.SetEscapeHTML(false)
	return w
}}

// keptBuffer is the largest buffer that waits for the next snapshot, in bytes.
const keptBuffer = 1 << 20

func (w *jsonWriter) free() {
	if w.buf.Cap() > keptBuffer {
		return
	}
	w.buf.Reset()
	jsonWriters.Put(w)
}
