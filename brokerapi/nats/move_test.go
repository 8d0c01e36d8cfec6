package nats

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/recovery/moves"
)

// streamed is a driver of a server whose only stream, that of /default/a, has this configuration more.
func streamed(t *testing.T, config, varz string) *Broker {
	t.Helper()
	monitor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, varz) }))
	t.Cleanup(monitor.Close)
	fake := newFakeServer(t, "", func(subject string, _ []byte) (string, bool) {
		switch subject = strings.TrimPrefix(subject, "$JS.API."); {
		case subject == "INFO":
			return `{"storage":900,"limits":{"max_storage":1000}}`, true
		case strings.HasPrefix(subject, "STREAM.INFO.") && config == "":
			return `{"error":{"code":404,"err_code":10059,"description":"stream not found"}}`, true
		case strings.HasPrefix(subject, "STREAM.INFO."):
			return `{"config":{"name":"hf+default+a","retention":"limits","storage":"file","num_replicas":1,"subjects":["default.a"]` + config + `},"state":{"messages":3,"first_seq":2,"last_seq":4}}`, true
		}
		return `{"total":0,"consumers":[]}`, true
	})
	return opened(t, Config{AdminURL: fake.url, MonitorURL: monitor.URL, Timeout: 5 * time.Second})
}

const varzOfOne = `{"server_id":"NFAKE","version":"2.15.3","jetstream":{"config":{"max_storage":5000},"stats":{"storage":4000}}}`

func TestWhatCannotMoveSaysWhy(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{`,"storage":"memory"`, "it is in memory"},
		{`,"mirror":{"name":"x"}`, "it takes its messages from other streams"},
		{`,"sources":[{"name":"x"}]`, "it takes its messages from other streams"},
		{`,"sealed":true`, "it is sealed, which cannot be undone"},
		{`,"num_replicas":3`, "its server is in a JetStream cluster"},
		{`},"cluster":{"name":"c1","leader":"n1"},"more":{"a":1`, "its server is in a JetStream cluster"},
		{`,"subject_delete_marker_ttl":1000`, "the server itself appends to it"},
		{`,"allow_msg_schedules":true`, "the server itself appends to it"},
		{"", "the topic is not here"},
		{`,"sealed":false,"allow_msg_schedules":false,"sources":[],"mirror":null`, ""},
	} {
		t.Run(c.config, func(t *testing.T) {
			_, err := streamed(t, c.config, varzOfOne).Extent(bound(t), "/default/a")
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, brokerapi.ErrRefused) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestATargetSaysWhyItTakesNothing(t *testing.T) {
	source := newFakeServer(t, `,"server_id":"NOTHER"`, func(string, []byte) (string, bool) { return "{}", true })
	for _, c := range []struct {
		name, config, varz string
		bytes              uint64
		want               string
	}{
		{"room", "", varzOfOne, 100, ""},
		{"an account that is full", "", varzOfOne, 101, "JetStream has room for 100 bytes, /default/a has 101: raise max_file_store"},
		{"a server that is full", "", strings.ReplaceAll(varzOfOne, "5000", "4001"), 2, "JetStream has room for 1 bytes"},
		{"no JetStream", "", `{"server_id":"NFAKE","version":"2.15.3","jetstream":{}}`, 1, "it has no JetStream: start nats-server with -js"},
		{"a cluster", "", strings.Replace(varzOfOne, `"stats"`, `"meta":{"name":"c1"},"stats"`, 1), 1, "it is in a JetStream cluster"},
		{"one that forgets IDs", "", strings.Replace(varzOfOne, "2.15.3", "2.15.1", 1), 1, "upgrade it to 2.15.3"},
		{"a stream of that name", `,"x":1`, varzOfOne, 1, "stream hf+default+a is here already, with 3 messages: see 'nats stream info hf+default+a'"},
		{"one that a move brought", `,"subjects":["default.a","_HOLDFAST.moved.hf+default+a.resumed.m1"]`, varzOfOne, 1, "is here already"},
		{"half a copy", `,"subjects":["_HOLDFAST.quiesced.hf+default+a.copying.m1"]`, varzOfOne, 1, ""},
		{"a copy", `,"subjects":["_HOLDFAST.quiesced.hf+default+a.copied.m1"]`, varzOfOne, 1, ""},
		{"a stream that is quiesced", `,"subjects":["_HOLDFAST.quiesced.hf+default+a"]`, varzOfOne, 1, "is here already"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := streamed(t, c.config, c.varz).Accept(bound(t), "/default/a", nil, moves.Extent{Bytes: c.bytes}, brokerapi.Peer{ID: "n1", URL: source.url})
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, brokerapi.ErrRefused) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestAMoveSaysOnWhatItRests(t *testing.T) {
	for _, c := range []struct{ config, sync, want string }{
		{"", `"sync_interval":120000000000,"sync_always":true`, "each message was on disk before it was acknowledged (sync_interval: always)"},
		{"", `"sync_interval":30000000000`, "acknowledged messages are on disk at the latest 30s later: a power cut"},
		{"", `"max_storage":1`, "at the latest 2m0s later: a power cut of their host until then may lose them; to exclude it, set sync_interval: always, which nats-server has from 2.10"},
		{`,"persist_mode":"async"`, `"sync_always":true`, "acknowledged before they are written"},
	} {
		varz := `{"server_id":"NFAKE","jetstream":{"config":{` + c.sync + `}}}`
		if e, err := streamed(t, c.config+`,"x":1`, varz).Extent(bound(t), "/default/a"); err != nil || !strings.Contains(e.Rests, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.sync, e.Rests, err, c.want)
		}
	}
}

func TestAConfigurationIsTheSameWhateverAServerAddsToIt(t *testing.T) {
	hash := func(config string) string {
		t.Helper()
		e, err := streamed(t, `,"max_msgs":7`+config, varzOfOne).Extent(context.Background(), "/default/a")
		if err != nil {
			t.Fatal(err)
		}
		return e.Config
	}
	one := hash("")
	for _, same := range []string{
		`,"subjects":["_HOLDFAST.quiesced.hf+default+a"]`, `,"placement":{"cluster":"c"}`, `,"metadata":{"_nats.ver":"2.15.3"}`,
		`,"sealed":false,"compression":"none","max_bytes":-1,"first_seq":0,"consumer_limits":{},"of_a_later_version":""`,
	} {
		if hash(same) != one {
			t.Errorf("another hash with %s", same)
		}
	}
	for _, other := range []string{`,"max_bytes":5`, `,"retention":"interest"`, `,"allow_rollup_hdrs":true`, `,"duplicate_window":1`} {
		if hash(other) == one {
			t.Errorf("the same hash with %s", other)
		}
	}
}

func TestASealLastsUntilNothingIsOnItsWay(t *testing.T) {
	const parkedAs = `["_HOLDFAST.quiesced.hf+default+a.sealed.m1"]`
	subjects, last, behind := `["default.a"]`, 4, 0
	b, _ := served(t, func(subject string, body []byte) string {
		switch {
		case strings.HasPrefix(subject, "_HOLDFAST."): // behind what was on its way, which is stored by now
			if behind++; behind < 3 {
				last++
			}
			if !strings.Contains(string(body), "Nats-Expected-Stream: none") {
				t.Errorf("what is sent behind would be stored: %q", body)
			}
			return `{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"}}`
		case strings.Contains(subject, "STREAM.UPDATE"):
			subjects = parkedAs
			if !strings.Contains(string(body), parkedAs) {
				t.Errorf("updated with %s", body)
			}
		case strings.Contains(subject, "STREAM.INFO"):
			return fmt.Sprintf(`{"config":{"retention":"limits","storage":"file","num_replicas":1,"subjects":%s},"state":{"messages":1,"first_seq":1,"last_seq":%d}}`, subjects, last)
		}
		return `{"total":0,"consumers":[]}`
	})
	e, err := b.Seal(bound(t), "/default/a", "m1", false)
	if err != nil || e.Last != 6 || behind != 3 {
		t.Errorf("sealed at %d after %d looks, %v, want 6 after 3", e.Last, behind, err)
	}
}
