package mongotest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Opcodes of the wire protocol that a driver and a server of today exchange.
const (
	opReply      = 1    // answers the first hello
	opQuery      = 2004 // the first hello
	opCompressed = 2012
	opMsg        = 2013
)

const (
	headerSize   = 16
	maxFrameSize = 48_000_000
	moreToCome   = 1 << 1 // OP_MSG flag: no reply to this, or another reply follows
)

// frame is one message of the wire protocol.
type frame struct {
	raw        []byte
	requestID  int32
	responseTo int32
	opCode     int32
}

// readFrame reads one whole message.
func readFrame(r io.Reader) (frame, error) {
	header := make([]byte, headerSize)
	if _, err := io.ReadFull(r, header); err != nil {
		return frame{}, err
	}
	size := int32(binary.LittleEndian.Uint32(header))
	if size < headerSize || size > maxFrameSize {
		return frame{}, fmt.Errorf("a message of %d bytes", size)
	}
	raw := append(make([]byte, 0, size), header...)[:size]
	if _, err := io.ReadFull(r, raw[headerSize:]); err != nil {
		return frame{}, err
	}
	return frame{
		raw:        raw,
		requestID:  int32(binary.LittleEndian.Uint32(raw[4:])),
		responseTo: int32(binary.LittleEndian.Uint32(raw[8:])),
		opCode:     int32(binary.LittleEndian.Uint32(raw[12:])),
	}, nil
}

// flags returns the flags of an OP_MSG, 0 for others.
func (f frame) flags() uint32 {
	if f.opCode != opMsg || len(f.raw) < headerSize+4 {
		return 0
	}
	return binary.LittleEndian.Uint32(f.raw[headerSize:])
}

// body returns the command or reply of an OP_MSG as one document: what came as
// a sequence of documents beside it becomes an array in it.
func (f frame) body() (bson.Raw, error) {
	const checksumPresent = 1 << 0
	rest := f.raw[headerSize+4:]
	if f.flags()&checksumPresent != 0 {
		rest = rest[:max(0, len(rest)-4)]
	}
	var main bsoncore.Document
	var sequences []byte // elements
	for len(rest) > 0 {
		kind := rest[0]
		size, _, ok := bsoncore.ReadLength(rest[1:])
		if !ok || size < 5 || int(size) > len(rest)-1 {
			return nil, fmt.Errorf("a section of kind %d that does not fit its message", kind)
		}
		section := rest[1 : 1+size]
		rest = rest[1+size:]
		switch kind {
		case 0:
			main = section
		case 1:
			name, documents, found := bytes.Cut(section[4:], []byte{0})
			if !found {
				return nil, fmt.Errorf("a document sequence without a name")
			}
			array, err := sequenceArray(documents)
			if err != nil {
				return nil, err
			}
			sequences = bsoncore.AppendArrayElement(sequences, string(name), array)
		default:
			return nil, fmt.Errorf("a section of unknown kind %d", kind)
		}
	}
	if len(main) < 5 {
		return nil, fmt.Errorf("a message without a body")
	}
	if sequences == nil {
		return bson.Raw(main), nil
	}
	elements := main[4 : len(main)-1]
	return bson.Raw(bsoncore.BuildDocument(nil, elements, sequences)), nil
}

func sequenceArray(documents []byte) (bsoncore.Array, error) {
	index, array := bsoncore.AppendArrayStart(nil)
	for i := 0; len(documents) > 0; i++ {
		doc, rest, ok := bsoncore.ReadDocument(documents)
		if !ok {
			return nil, fmt.Errorf("a document sequence that ends early")
		}
		array = bsoncore.AppendDocumentElement(array, strconv.Itoa(i), doc)
		documents = rest
	}
	array, err := bsoncore.AppendArrayEnd(array, index)
	return bsoncore.Array(array), err
}

// commandName returns the name of a command: the first key of its body.
func commandName(body bson.Raw) string {
	first, err := body.IndexErr(0)
	if err != nil {
		return ""
	}
	return first.Key()
}
