// Package httpapi drives any broker that answers a small JSON contract over HTTP, itself
// or by a shim: openapi.yaml in this folder is that contract, and lab/reference a broker
// that keeps it.
//
// What the broker is, is a setting, because Holdfast must know it before the broker
// answers. What it cannot do it says when it is asked, with 501.
//
// Guaranteed: New needs no broker; no call outlives its context; an answer that is not
// what the contract says, whatever else it may be, is an error, and the broker is not
// healthy; a topic's name is sent as it is, in a body, where no proxy takes it for a path.
//
// Not guaranteed: that a call which ended with an error had no effect; that a topic which
// comes or goes while the pages of a listing are read is in it.
package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/brokerapi/rest"
)

// base is the path of version 1 of the contract, below the admin URL.
const base = "/holdfast/v1"

// Config is what New needs.
type Config struct {
	AdminURL  string // http(s)://host:port[/path], this one broker's
	Places    bool   // its own cluster is to take its topics: it must have a mode
	KeyPrefix string // what stands in front of every key in etcd, for error messages
	BrokerID  string // the name the broker must have if it has one; empty: any
	access.Files
}

// Words are what --http-capabilities may say: the topics' data is on this broker only; once
// its registration has gone it must be stopped; its own cluster says what it serves.
var Words = []string{"local-data", "must-stop", "places"}

// gone are the words of earlier versions, with what replaces them.
var gone = map[string]string{
	"quiesce": "what it cannot do the broker answers with 501", "unload": "what it cannot do the broker answers with 501",
	"steer": "what it cannot do the broker answers with 501", "stable-name": "a name in /identity is always used",
	"end":        "give --broker-pid-file, --broker-process or --stop-command",
	"held-watch": "nothing need be held", "move": "what it cannot do the broker answers with 501",
}

// CheckCapabilities says what is wrong with a list of words, and what to write.
func CheckCapabilities(words []string) error {
	for _, w := range words {
		switch instead, was := gone[w]; {
		case was:
			return fmt.Errorf("%s is no word of this version: leave it out: %s", w, instead)
		case !slices.Contains(Words, w):
			return fmt.Errorf("no capability is called %q: known are %s", w, strings.Join(Words, ", "))
		}
	}
	return nil
}

// Traits are what the words say.
func Traits(words []string) (t brokerapi.Traits) {
	t.LocalData, t.Places = slices.Contains(words, "local-data"), slices.Contains(words, "places")
	if slices.Contains(words, "must-stop") {
		t.AtDeadline = brokerapi.Stop
	}
	return t
}

// Broker is one broker. It is safe for concurrent use.
type Broker struct {
	rest      *rest.Client
	places    bool
	brokerID  string
	keyPrefix string
	known     atomic.Pointer[brokerapi.Report] // who passed the checks of identify last
}

var (
	_ brokerapi.Broker     = (*Broker)(nil)
	_ brokerapi.ModeSetter = (*Broker)(nil)
)

// New checks the settings; it does not wait for the broker. Its errors are settings that
// cannot work, each with its flag.
func New(cfg Config) (*Broker, error) {
	client, err := rest.New(rest.Config{URL: cfg.AdminURL, Files: cfg.Files})
	if err != nil {
		return nil, err
	}
	b := &Broker{rest: client, places: cfg.Places, brokerID: cfg.BrokerID, keyPrefix: strings.TrimSuffix(cfg.KeyPrefix, "/")}
	b.known.Store(&brokerapi.Report{})
	return b, nil
}

// Close ends calls in flight.
func (b *Broker) Close() error { return b.rest.Close() }

// refusal is an answer in the contract's own words. Its unavailable is the broker's word on
// itself, and no refusal of us.
type refusal struct {
	code, text string
	status     int
}

func (e *refusal) Error() string { return e.text }

// Is makes a topic of another broker, and a call that the broker has not, what errors.Is finds.
func (e *refusal) Is(target error) bool {
	return target == brokerapi.ErrElsewhere && e.code == "elsewhere" ||
		target == errors.ErrUnsupported && e.status == http.StatusNotImplemented
}

// ask makes a call and decodes its answer, which has one of the statuses.
func (b *Broker) ask(ctx context.Context, r rest.Request, into any, statuses ...int) (*rest.Answer, error) {
	r.Path = base + r.Path
	a, err := b.rest.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	if wrong := a.Want(statuses...); wrong != nil {
		return a, refused(a, wrong)
	}
	return a, a.JSON(into)
}

// hidden reports what is not fit to be shown.
func hidden(r rune) bool { return !unicode.IsPrint(r) }

// refused is what the answer says of itself in words that are fit to be shown, and otherwise
// what is wrong with it.
func refused(a *rest.Answer, wrong error) error {
	switch a.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return wrong // it says what to do
	}
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	said := &body.Error
	if a.Status < 400 || a.JSON(&body) != nil || said.Code == "" || said.Message == "" ||
		strings.ContainsFunc(said.Code+said.Message, hidden) {
		return wrong
	}
	return &refusal{said.Code, a.Refusedf("%.100s: %.400s", said.Code, said.Message).Error(), a.Status}
}

// identityBody is the answer of GET /identity.
type identityBody struct {
	Name      string    `json:"name"`
	Instance  string    `json:"instance"`
	StartedAt time.Time `json:"started_at"`
	Version   string    `json:"version"`
	DataDir   string    `json:"data_dir"`
}

// flaw says which field cannot be; empty: none. Of the name brokerapi.NameFlaw does.
func (i identityBody) flaw() string {
	for _, f := range []struct{ name, value string }{{"instance", i.Instance}, {"version", i.Version}, {"data_dir", cmp.Or(i.DataDir, "/")}} {
		if f.value == "" || len(f.value) > 1024 || strings.ContainsFunc(f.value, hidden) {
			return f.name + " is missing, has more than 1024 bytes, or holds what cannot be printed"
		}
	}
	if i.DataDir != "" && !strings.HasPrefix(i.DataDir, "/") {
		return "data_dir does not start with a slash"
	}
	return ""
}

// identify asks who answers. A broker with another name than --broker-id wraps
// brokerapi.ErrIdentity, as does what is no such broker.
func (b *Broker) identify(ctx context.Context) (brokerapi.Report, error) {
	var said identityBody
	a, err := b.ask(ctx, rest.Request{Path: "/identity"}, &said, http.StatusOK)
	var own *refusal
	switch {
	case errors.As(err, &own) && own.status == http.StatusNotFound: // it keeps the contract, elsewhere
		return brokerapi.Report{}, fmt.Errorf("%w: set --broker-admin to the URL below which it answers, without %s", err, base)
	case a == nil, own != nil, errors.Is(err, brokerapi.ErrUnseen), a.Status >= 500, a.Status == http.StatusRequestTimeout:
		return brokerapi.Report{}, err
	case err == nil && said.flaw() != "":
		err = a.Errorf("%s", said.flaw())
	}
	if err != nil {
		return brokerapi.Report{}, fmt.Errorf("%w: no broker that keeps Holdfast's HTTP contract says that (%w): set --broker-admin to where one does, without %s", err, brokerapi.ErrIdentity, base)
	}
	if err := brokerapi.Misnamed(b.rest.URL(), said.Name, b.brokerID); err != nil {
		return brokerapi.Report{}, err
	}
	who := brokerapi.Report{Name: said.Name, Instance: said.Instance, StartedAt: said.StartedAt, Version: said.Version, DataDir: said.DataDir}
	b.known.Store(&who)
	return who, nil
}

// Probe implements brokerapi.Broker: the broker says that it is well, and it is the one
// expected.
func (b *Broker) Probe(ctx context.Context) (brokerapi.Report, error) {
	who := *b.known.Load()
	var said struct {
		Status   string `json:"status"`
		Instance string `json:"instance"`
	}
	a, err := b.ask(ctx, rest.Request{Path: "/health"}, &said, http.StatusOK)
	switch {
	case err != nil && who.Instance == "" && !errors.Is(err, brokerapi.ErrUnseen):
		if _, stranger := b.identify(ctx); stranger != nil && ctx.Err() == nil {
			err = stranger // to wait for a web server to become a broker would be in vain
		}
		return who, err
	case err != nil:
		return who, err
	case said.Status != "ok" || said.Instance == "":
		return who, a.Errorf(`want {"status":"ok","instance":"…"}`)
	case said.Instance == who.Instance:
		return who, nil
	}
	if who, err = b.identify(ctx); err == nil && who.Instance != said.Instance {
		err = a.Errorf("GET %s/identity says instance %q: two brokers answer there, or it was restarted just now", base, who.Instance)
	}
	return who, err
}

// modeBody is sent to PUT /mode and answered by it.
type modeBody struct {
	Mode   brokerapi.Mode `json:"mode"`
	Reason string         `json:"reason,omitempty"`
}

// SetMode implements brokerapi.ModeSetter. A broker that takes its time answers 202, which is an
// error here: ask again. One that has no mode has nothing to take, unless its cluster is to
// take its topics.
func (b *Broker) SetMode(ctx context.Context, mode brokerapi.Mode, reason string) error {
	var now modeBody
	a, err := b.ask(ctx, rest.Request{Method: http.MethodPut, Path: "/mode", Body: modeBody{mode, reason}}, &now, http.StatusOK, http.StatusAccepted)
	switch {
	case errors.Is(err, errors.ErrUnsupported) && !b.places:
		return nil
	case err != nil:
		return fmt.Errorf("steer to %s: %w", mode, err)
	case a.Status == http.StatusAccepted:
		return fmt.Errorf("steer to %s: the broker is still on its way: ask again", mode)
	case now.Mode != mode:
		return fmt.Errorf("steer to %s: %w", mode, a.Errorf("want mode %q", mode))
	}
	return nil
}
