package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
)

var (
	n2     = brokerapi.Peer{ID: "n2", URL: "http://n2:8090"}
	sealed = moves.Extent{First: 3, Last: 1<<63 + 7, Count: 5, Bytes: 5 << 20, Floors: map[string]uint64{"c": 4}, Config: "aa", Schema: "bb", Shrinks: true, Rests: "why"}
)

// meant calls each step of a move.
var meant = map[string]func(context.Context, *Broker) error{
	"extent": func(ctx context.Context, b *Broker) error { _, err := b.Extent(ctx, "/a/b"); return err },
	"accept": func(ctx context.Context, b *Broker) error { return b.Accept(ctx, "/a/b", nil, sealed, n2) },
	"seal":   func(ctx context.Context, b *Broker) error { _, err := b.Seal(ctx, "/a/b", "m1", false); return err },
	"copy": func(ctx context.Context, b *Broker) error {
		_, err := b.Copy(ctx, "/a/b", "m1", n2, sealed, nil)
		return err
	},
	"resume": func(ctx context.Context, b *Broker) error {
		_, err := b.Resume(ctx, "/a/b", "m1", nil, &sealed)
		return err
	},
	"compare": func(ctx context.Context, b *Broker) error {
		_, err := b.Compare(ctx, "/a/b", n2, sealed, nil)
		return err
	},
	"remove": func(ctx context.Context, b *Broker) error { return b.Remove(ctx, "/a/b", "m1") },
}

// says is a broker that gives every step the same answer.
func says(t *testing.T, body string) *Broker {
	t.Helper()
	all := map[string]string{}
	for verb := range meant {
		all["POST /topics/"+verb] = body
	}
	return opened(t, Config{AdminURL: answers(t, all), KeyPrefix: "/p"})
}

func TestWhatABrokerSaysOfATopicIsReadWhole(t *testing.T) {
	b := says(t, `{"first":3,"last":9223372036854775815,"count":5,"bytes":5242880,"floors":{"c":4},
		"config":"aa","schema":"bb","shrinks":true,"rests":"why","active":2,"served":true,"compared":5,"gone":1,"hash":"h","later":{}}`)
	got, err := b.Extent(bound(t), "/a/b")
	want := sealed
	want.Active, want.Served = 2, true
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	content, err := b.Compare(bound(t), "/a/b", n2, sealed, nil)
	if want := (moves.Content{Compared: 5, Gone: 1, Hash: "h"}); err != nil || content != want {
		t.Errorf("%+v, %v", content, err)
	}
	b = says(t, `{"empty":true,"compared":0,"observed":"one store"}`)
	got, err = b.Seal(bound(t), "/a/b", "m1", false)
	if err != nil || !got.Empty || got.Last != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if content, err = b.Compare(bound(t), "/a/b", n2, sealed, nil); err != nil || content.Observed != "one store" {
		t.Errorf("%+v, %v", content, err)
	}
}

func TestOddAnswersInAMoveAreErrors(t *testing.T) {
	stands, all := []string{"extent", "seal", "copy", "resume"}, []string{"extent", "seal", "copy", "resume", "compare", "accept", "remove"}
	long := strings.Repeat("x", 1025)
	for _, c := range []struct {
		name, body, want string
		verbs            []string
	}{
		{"nothing", `{}`, "last is missing, and it is not empty", stands},
		{"nothing", `{}`, "compared is missing", []string{"compare"}},
		{"nothing", `{}`, `the state is "", want "absent"`, []string{"accept", "remove"}},
		{"null", `null`, "is null", all},
		{"a list", `[]`, "cannot unmarshal array", all},
		{"HTML", `200 text/html <html>`, "answered 200 OK", all},
		{"no content", `204 application/json {}`, "answered 204 No Content", all},
		{"still here", `{"state":"quiesced"}`, `the state is "quiesced", want "absent"`, []string{"accept", "remove"}},
		{"empty is null", `{"empty":null}`, "last is missing", stands},
		{"empty is text", `{"empty":"false"}`, "cannot unmarshal string", stands},
		{"no offset", `{"empty":false,"count":3}`, "last is missing, and it is not empty", stands},
		{"offset null", `{"empty":false,"last":null}`, "last is missing, and it is not empty", stands},
		{"offset in the old words", `{"empty":false,"last_offset":"41"}`, "last is missing, and it is not empty", stands},
		{"empty with an offset", `{"empty":true,"last":1}`, "it is empty, and it has offsets, messages or bytes", stands},
		{"empty with a message", `{"empty":true,"count":1}`, "it is empty, and it has offsets, messages or bytes", stands},
		{"a number as text", `{"last":"41"}`, "cannot unmarshal string", stands},
		{"a position as text", `{"last":1,"floors":{"c":"1"}}`, "cannot unmarshal string", stands},
		{"a count as text", `{"compared":"41"}`, "cannot unmarshal string", []string{"compare"}},
		{"a negative number", `{"last":-1}`, "cannot unmarshal number -1", stands},
		{"negative consumers", `{"last":1,"active":-1}`, "cannot unmarshal number -1", stands},
		{"leading zeros", `{"last":007}`, "invalid character", stands},
		{"a fraction", `{"last":1.5}`, "cannot unmarshal number 1.5", stands},
		{"an exponent", `{"last":1e3}`, "cannot unmarshal number 1e3", stands},
		{"lines", "{\"last\":[\n1]}", "cannot unmarshal array", stands},
		{"2^64", `{"last":18446744073709551616}`, "cannot unmarshal number 18446744073709551616", stands},
		{"what stands for nothing", `{"last":18446744073709551615}`, "last is missing", stands},
		{"positions are a list", `{"empty":true,"floors":["c"]}`, "cannot unmarshal array", stands},
		{"a consumer that cannot be shown", `{"empty":true,"floors":{"a\u001b":0}}`, `"a\x1b" has more than 1024 bytes, or holds what cannot be printed`, stands},
		{"a consumer with a long name", `{"empty":true,"floors":{"` + long + `":0}}`, "has more than 1024 bytes", stands},
		{"a long hash", `{"empty":true,"config":"` + long + `"}`, "has more than 1024 bytes", stands},
		{"lines in a sentence", `{"empty":true,"rests":"a\nb"}`, "holds what cannot be printed", stands},
		{"lines in a difference", `{"compared":1,"differs":"a\nb"}`, "holds what cannot be printed", []string{"compare"}},
		{"more than the journal holds", `{"empty":true,"compared":1,"state":"absent","x":"` + strings.Repeat("x", maxSaid) + `"}`, "has more than 262144 bytes", all},
		{"a number without end", `{"last":1` + strings.Repeat("0", maxSaid) + `}`, "cannot unmarshal number 10", stands},
		{"on its way, too far", `202 application/json {"bytes":18446744073709551615}`, "bytes cannot be", all},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := says(t, c.body)
			for _, verb := range c.verbs {
				err := meant[verb](bound(t), b)
				if err == nil || !strings.HasPrefix(err.Error(), verb+" /a/b: --broker-admin ") || !strings.Contains(err.Error(), c.want) || strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 1000 {
					t.Errorf("%s: got  %v\nwant %s", verb, err, c.want)
				}
				if errors.Is(err, brokerapi.ErrRefused) {
					t.Errorf("%s: %v: is no refusal", verb, err)
				}
			}
		})
	}
}

func TestARefusalThatRepeatingCannotMendIsFinal(t *testing.T) {
	const own = ` application/json {"error":{"code":"%s","message":"no"}}`
	for _, c := range []struct {
		answer, want string
		final        bool
	}{
		{"409" + fmt.Sprintf(own, "does_not_fit"), "/a/b: --broker-admin ", true},
		{"404" + fmt.Sprintf(own, "not_found"), "404 Not Found: not_found: no", true},
		{"400" + fmt.Sprintf(own, "bad_request"), "bad_request: no", true},
		{"404" + fmt.Sprintf(own, "unknown_path"), "/a/b: the broker does not move topics: --broker-admin ", true},
		{"404 text/html <html>", "/a/b: the broker does not move topics: --broker-admin ", true},
		{"405 text/html <html>", "/a/b: the broker does not move topics: --broker-admin ", true},
		{"501" + fmt.Sprintf(own, "not_implemented"), "/a/b: the broker does not move topics: --broker-admin ", true},
		{"401" + fmt.Sprintf(own, "unauthorized"), "set --broker-token-file", false},
		{"403" + fmt.Sprintf(own, "forbidden"), "403 Forbidden", false},
		{"408" + fmt.Sprintf(own, "slow"), "slow: no", false},
		{"425" + fmt.Sprintf(own, "early"), "early: no", false},
		{"429" + fmt.Sprintf(own, "busy"), "429 Too Many Requests", false},
		{"500" + fmt.Sprintf(own, "internal"), "internal: no", false},
		{"502 text/html <html>", "502 Bad Gateway", false},
		{"503" + fmt.Sprintf(own, "unavailable"), "unavailable: no", false},
		{"507" + fmt.Sprintf(own, "full"), "full: no", false},
		{"302 text/html <html>", "302 Found", false},
	} {
		t.Run(c.answer[:3], func(t *testing.T) {
			b := says(t, c.answer)
			for verb, call := range meant {
				err := call(bound(t), b)
				if err == nil || errors.Is(err, brokerapi.ErrRefused) != c.final || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v; is final: want %v, and %q", verb, err, c.final, c.want)
				}
			}
		})
	}
	gone := opened(t, Config{AdminURL: "http://127.0.0.1:1"})
	for verb, call := range meant {
		if err := call(bound(t), gone); err == nil || errors.Is(err, brokerapi.ErrRefused) {
			t.Errorf("%s of a broker that is not there: %v", verb, err)
		}
	}
}

func TestWhatOfAMoveCannotBeSentIsRefusedHere(t *testing.T) {
	b := opened(t, Config{AdminURL: "http://127.0.0.1:1", KeyPrefix: "/p"})
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"not a topic", b.Remove(bound(t), "orders", "m1"), `remove: topic "orders": want the form /namespace/topic`},
		{"not UTF-8", b.Accept(bound(t), "/a/\xff", nil, sealed, n2), `accept: topic "/a/\xff": is not UTF-8, which JSON cannot carry`},
		{"record not JSON", func() error { _, err := b.Resume(bound(t), "/a/b", "m1", []byte("{"), nil); return err }(),
			`resume /a/b: topic record /p/topics/a/b: want JSON of at most 1048576 bytes: mend it or remove it`},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("%s: got  %v\nwant %s", c.name, c.err, c.want)
		}
	}
}

// copier copies as far as it is let, and step bytes a call, and keeps what it was asked.
type copier struct {
	mu    sync.Mutex
	bytes uint64
	step  uint64
	whole uint64
	asked []string
}

func (c *copier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	var in moveRequest
	_ = json.Unmarshal(body, &in)
	c.asked = append(c.asked, string(body))
	if in.UpTo != nil {
		c.bytes = min(max(c.bytes, *in.UpTo), c.bytes+c.step, c.whole)
	}
	w.Header().Set("Content-Type", "application/json")
	if c.bytes < c.whole {
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, `{"bytes":%d}`, c.bytes)
		return
	}
	fmt.Fprintf(w, `{"last":7,"compared":8}`)
}

func TestABrokerGoesOnAsFarAsTheMeterWasTold(t *testing.T) {
	const whole = 5<<19 + 7 // two windows and a half
	for _, c := range []struct {
		name          string
		begun, step   uint64
		known, broken bool
		want          []int
	}{
		{"as fast as it is let", 0, whole, true, false, []int{1 << 20, 1 << 20, 1<<19 + 7}},
		{"gone on with", 1 << 20, whole, true, false, []int{1 << 20, 1<<19 + 7}},
		{"of a length that is not known", 0, whole, false, false, []int{1 << 20, 1 << 20, 1 << 20}},
		{"slower than it is let", 0, 1 << 19, true, false, []int{1 << 20, 1 << 19, 1 << 19, 1 << 19, 7}},
		{"the meter ends it", 0, whole, true, true, []int{1 << 20}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			broker := &copier{bytes: c.begun, step: c.step, whole: whole}
			web := httptest.NewServer(broker)
			t.Cleanup(web.Close)
			enough, told := errors.New("enough"), []int(nil)
			like := moves.Extent{Last: 7, Count: 8}
			if c.known {
				like.Bytes = whole
			}
			_, err := opened(t, Config{AdminURL: web.URL}).Copy(bound(t), "/a/b", "m1", n2, like, func(_ context.Context, n int) error {
				told = append(told, n)
				if c.broken {
					return enough
				}
				return nil
			})
			if c.broken != errors.Is(err, enough) || !c.broken && err != nil || !slices.Equal(told, c.want) {
				t.Errorf("the meter was told of %d, want %d; %v", told, c.want, err)
			}
			first := fmt.Sprintf(`{"topic":"/a/b","move":"m1","from":{"id":"n2","url":"http://n2:8090"},"sealed":{"first":0,"last":7,"count":8,"bytes":%d},"up_to":0}`, like.Bytes)
			if broker.asked[0] != first {
				t.Errorf("asked %s\nwant  %s", broker.asked[0], first)
			}
		})
	}
}

func TestABrokerThatIsAtItForEverIsAskedUntilTheContextEnds(t *testing.T) {
	b := says(t, `202 application/json {"bytes":7}`)
	for verb, call := range meant {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := call(ctx, b)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, brokerapi.ErrRefused) {
			t.Errorf("%s: %v", verb, err)
		}
	}
}
