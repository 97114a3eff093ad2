package mongotest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func doc(t *testing.T, d bson.D) []byte {
	t.Helper()
	raw, err := bson.Marshal(d)
	require.NoError(t, err)
	return raw
}

// message builds an OP_MSG of the flags and sections.
func message(flags uint32, sections ...[]byte) []byte {
	payload := binary.LittleEndian.AppendUint32(nil, flags)
	payload = append(payload, bytes.Join(sections, nil)...)
	raw := make([]byte, headerSize, headerSize+len(payload))
	binary.LittleEndian.PutUint32(raw, uint32(headerSize+len(payload)))
	binary.LittleEndian.PutUint32(raw[4:], 7)
	binary.LittleEndian.PutUint32(raw[8:], 5)
	binary.LittleEndian.PutUint32(raw[12:], opMsg)
	return append(raw, payload...)
}

// sequence builds a section of kind 1.
func sequence(name string, docs ...[]byte) []byte {
	content := append([]byte(name), 0)
	content = append(content, bytes.Join(docs, nil)...)
	section := binary.LittleEndian.AppendUint32([]byte{1}, uint32(len(content)+4))
	return append(section, content...)
}

func TestFrame(t *testing.T) {
	t.Parallel()
	main := append([]byte{0}, doc(t, bson.D{{Key: "insert", Value: "c"}})...)
	one, two := doc(t, bson.D{{Key: "a", Value: int32(1)}}), doc(t, bson.D{{Key: "a", Value: int32(2)}})
	for name, raw := range map[string][]byte{
		"BodyFirst":    message(0, main, sequence("documents", one, two)),
		"BodyLast":     message(0, sequence("documents", one, two), main),
		"WithChecksum": message(1, main, sequence("documents", one, two), []byte{1, 2, 3, 4}),
	} {
		stream := bytes.NewReader(append(raw, message(0, main)...))
		f, err := readFrame(stream)
		require.NoError(t, err, name)
		require.Equal(t, raw, f.raw)
		require.Equal(t, [3]int32{7, 5, opMsg}, [3]int32{f.requestID, f.responseTo, f.opCode})
		body, err := f.body()
		require.NoError(t, err, name)
		require.NoError(t, body.Validate())
		require.Equal(t, "insert", commandName(body))
		require.EqualValues(t, 2, body.Lookup("documents", "1", "a").AsInt64(), name)
		f, err = readFrame(stream)
		require.NoError(t, err)
		body, err = f.body()
		require.NoError(t, err)
		require.Equal(t, bson.Raw(main[1:]), body)
	}
}

func TestFrameRefusesWhatIsBroken(t *testing.T) {
	t.Parallel()
	main := append([]byte{0}, doc(t, bson.D{{Key: "ping", Value: 1}})...)
	for name, raw := range map[string][]byte{
		"NoBody":       message(0),
		"UnknownKind":  message(0, append([]byte{9}, main[1:]...)),
		"TooLong":      message(0, []byte{0, 200, 0, 0, 0, 1}),
		"NegativeSize": message(0, []byte{0, 255, 255, 255, 255, 1}),
		"NoName":       message(0, []byte{1, 6, 0, 0, 0, 'a', 'b'}),
		"CutSequence":  message(0, main, sequence("documents", []byte{9, 0, 0, 0, 1})),
		"NoChecksum":   message(1),
	} {
		f, err := readFrame(bytes.NewReader(raw))
		require.NoError(t, err, name)
		_, err = f.body()
		require.Error(t, err, name)
	}
	for name, raw := range map[string][]byte{
		"Empty":     nil,
		"CutHeader": message(0, main)[:9],
		"CutBody":   message(0, main)[:30],
		"TooSmall":  {3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"TooLarge":  {0, 0, 0, 127, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	} {
		_, err := readFrame(bytes.NewReader(raw))
		require.Error(t, err, name)
	}
	_, err := readFrame(bytes.NewReader(nil))
	require.ErrorIs(t, err, io.EOF)
}

// complaints takes what a proxy tells its test.
type complaints struct {
	testing.TB
	mu   sync.Mutex
	said []string
}

func (c *complaints) Error(args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, fmt.Sprint(args...))
}

func TestProxySaysThatItReadsNoCompressedMessages(t *testing.T) {
	t.Parallel()
	server := Standalone(t)
	_, db := server.Database(t)
	tb := &complaints{TB: t}
	p := NewProxy(tb, server.Addr(t))
	client := Connect(t, p.URI(), options.Client().SetCompressors([]string{"zlib"}))
	_, err := client.Database(db).Collection("c").InsertOne(t.Context(), bson.D{})
	require.Error(t, err)
	tb.mu.Lock()
	defer tb.mu.Unlock()
	require.NotEmpty(t, tb.said)
	require.Contains(t, tb.said[0], "compressors")
}
