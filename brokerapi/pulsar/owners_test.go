package pulsar

import (
	"maps"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
)

const firstQuarter, asksAbout = "/a~b/0x00000000_0x40000000", "/admin/v2/non-persistent/a/b/0x00000000_0x40000000"

// As 4.0.7 answered on 2026-11-23; see testdata of lab/standin/pulsar.
func TestWhoOwnsABundle(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	leads := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}
	}
	owned := func(list string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(list))
		}
	}
	const self = "n1:8080"
	for _, row := range []struct {
		name        string
		owned, asks http.HandlerFunc
		want        map[string]string
	}{
		{"it has it, and is not asked", owned(`{"a/b/0x00000000_0x40000000":{"is_active":true}}`), status(500), map[string]string{firstQuarter: self}},
		{"it is unloading it", owned(`{"a/b/0x00000000_0x40000000":{"is_active":false}}`), status(200), map[string]string{}},
		{"it has got it meanwhile", owned(`{}`), status(200), map[string]string{firstQuarter: self}},
		{"nobody has it", owned(`{}`), status(204), map[string]string{firstQuarter: ""}},
		{"another has it", owned(`{}`), leads("http://n2:8080" + asksAbout + "?authoritative=true"), map[string]string{firstQuarter: "n2:8080"}},
		{"it leads nowhere", owned(`{}`), leads(""), map[string]string{}},
		{"it leads to no address", owned(`{}`), leads("http:///x"), map[string]string{}},
		{"there is no such bundle", owned(`{}`), status(412), map[string]string{}},
		{"there is no such namespace", owned(`{}`), status(404), map[string]string{}},
		{"it fails", owned(`{}`), status(500), map[string]string{}},
		{"it is busy", owned(`{}`), status(503), map[string]string{}},
		{"it lets nobody in", owned(`{}`), status(403), map[string]string{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := answering(t, map[string]http.HandlerFunc{"owned": row.owned, asksAbout: row.asks}, func(c *Config) { c.Advertised = self })
			got, err := b.Owners(t.Context(), []string{firstQuarter})
			if err != nil || !maps.Equal(got, row.want) {
				t.Errorf("%q, %v; want %q", got, err, row.want)
			}
		})
	}
	b := answering(t, nil, nil)
	if got, err := b.Owners(t.Context(), []string{"/pulsar~system/0x00000000_0xffffffff"}); err != nil || len(got) > 0 {
		t.Errorf("of Pulsar's own: %q, %v", got, err)
	}
	if got, err := b.Owners(t.Context(), []string{"/a~b/topic"}); err == nil {
		t.Errorf("of a topic: %q", got)
	}
}

func TestABrokerThatDoesNotAnswerIsAskedNoMore(t *testing.T) {
	var asked atomic.Int32
	b := answering(t, map[string]http.HandlerFunc{
		asksAbout: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"/admin/v2/non-persistent/a/b/0x40000000_0x80000000": func(_ http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			<-r.Context().Done()
		},
	}, nil)
	topics := []string{firstQuarter}
	for range 60 {
		topics = append(topics, "/a~b/0x40000000_0x80000000")
	}
	got, err := b.Owners(t.Context(), topics)
	if err != nil || len(got) != 1 || asked.Load() != 1 {
		t.Errorf("%q, %v after %d questions", got, err, asked.Load())
	}
	if got, err := b.Owners(t.Context(), topics[1:]); err == nil {
		t.Errorf("%q from who tells nothing at all", got)
	}
}

func TestAnAddressWithTLSIsOfTheBrokerOnItsHost(t *testing.T) {
	ids := []string{"n1:8080", "n2:8080", "n3:8080", "n3:8081", "n4:8443"}
	for at, want := range map[string]string{
		"http://n2:8080": "n2:8080", "http://n9:8080": "n9:8080", "https://n2:8443": "n2:8080", "https://n4:8443": "n4:8443",
		"https://n3:8443": "", "https://n9:8443": "",
	} {
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := idAt(u, ids); id != want || ok != (want != "") {
			t.Errorf("%s is %q, %v; want %q", at, id, ok, want)
		}
	}
}
