package pulsar

import (
	"net/http"
	"sync/atomic"
	"testing"
)

// What it owns is in its metadata store, of which it may know nothing for a while: whether it is
// alive, /admin/v2/brokers/ready decides.
func TestABrokerThatCannotListWhatItOwnsIsTheSame(t *testing.T) {
	var answer atomic.Pointer[http.HandlerFunc]
	say := func(f http.HandlerFunc) { answer.Store(&f) }
	b := answering(t, map[string]http.HandlerFunc{
		"owned": func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) },
	}, nil)
	fails := status(http.StatusInternalServerError, `{"reason":"\n --- An unexpected error occurred in the server ---"}`)
	say(fails)
	b.watch()
	if _, err := b.held.connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	if who, err := b.Identify(t.Context()); err == nil {
		t.Errorf("%+v: it has never proved who it is", who)
	}
	say(status(http.StatusOK, "{}"))
	before, err := b.Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	say(fails)
	if who, err := b.Identify(t.Context()); err != nil || who != before {
		t.Errorf("%+v, %v; was %+v", who, err, before)
	}
	if _, err := b.Topics(t.Context()); err == nil {
		t.Error("nobody knows what it owns")
	}
	for name, f := range map[string]http.HandlerFunc{
		"it is another":         redirect("http://other:8080/"),
		"it is not registered":  status(http.StatusNotFound, `{"reason":"no"}`),
		"it does not know us":   status(http.StatusForbidden, "{}"),
		"it answers half of it": cutShort,
	} {
		say(f)
		if who, err := b.Identify(t.Context()); err == nil {
			t.Errorf("%s: taken for %+v", name, who)
		}
	}
	say(fails)
	b.held.set(true) // the next connection
	if who, err := b.Identify(t.Context()); err == nil {
		t.Errorf("%+v: it may be another process", who)
	}
}
