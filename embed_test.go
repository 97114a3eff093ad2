package mongostore

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type (
	plainRun   struct{ Header }
	base       struct{ Header }
	throughRun struct {
		base
		N int
	}
	genericRun[M any] struct {
		Header
		Memory M `json:"memory"`
	}
	ownJSON struct {
		Header
		N int
	}
	hidesField struct {
		Header
		Status int
	}
	hidesJSON struct {
		Header
		State string `json:"status"`
	}
	hidesNothing struct {
		Header
		Status2 string `json:"-"`
		State   string `json:"Status"`
	}
	sameDepth struct {
		Header
		Other
	}
	Other   struct{ Status string }
	pointer struct{ *Header }
	swallow struct {
		Header
		time.Time
	}
	swallowRaw struct {
		Header
		json.RawMessage
	}
	named struct {
		Header
		At time.Time
	}
	hiddenMethod struct {
		Header
		X int
	}
)

func (o *ownJSON) MarshalJSON() ([]byte, error) { return json.Marshal(o.N) }

type valueJSON struct {
	Header
	N int
}

func (o valueJSON) MarshalJSON() ([]byte, error) { return json.Marshal(o.N) }

type fake struct{ h Header }

func (f *fake) ExecutionHeader() *Header { return &f.h }

type byValue struct{ fake *Header }

func (b byValue) ExecutionHeader() *Header { return b.fake }

func TestTypesThatCanBeExecutions(t *testing.T) {
	t.Parallel()
	for _, exe := range []Execution{
		&plainRun{}, &throughRun{}, &genericRun[map[string]int]{}, &genericRun[*time.Time]{}, &ownJSON{}, &valueJSON{}, &hidesNothing{}, &named{}, &hiddenMethod{},
	} {
		h, err := headerOf(exe)
		require.NoError(t, err, "%T", exe)
		require.Same(t, exe.ExecutionHeader(), h)
	}
}

func TestTypesThatCannot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		exe  Execution
		says string
	}{
		"nil":                             {nil, "is nil"},
		"a nil pointer":                   {(*plainRun)(nil), "is a nil"},
		"a bare header":                   {&Header{}, "bare *Header"},
		"a field that hides":              {&hidesField{}, "hidesField.Status hides Header.Status"},
		"a JSON key that hides":           {&hidesJSON{}, `hidesJSON.State hides Header.Status in JSON`},
		"an ambiguous field":              {&sameDepth{}, "hides Header.Status"},
		"an embedded pointer to a header": {pointer{&Header{}}, "is not a pointer to a struct"},
		"an embedded time":                {&swallow{}, "gets its MarshalJSON from an embedded type"},
		"an embedded raw message":         {&swallowRaw{}, "gets its MarshalJSON from an embedded type"},
		"a header in a named field":       {&fake{}, "does not embed mongostore.Header by value"},
		"a value":                         {byValue{&Header{}}, "is not a pointer to a struct"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 2 { // the second answer comes from the cache
				_, err := headerOf(c.exe)
				require.ErrorIs(t, err, ErrInvalid)
				require.ErrorContains(t, err, c.says)
			}
		})
	}
	require.Contains(t, typeProblem(reflect.TypeFor[*pointer]()), "by value")
}
