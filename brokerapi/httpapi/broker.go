// Package httpapi drives any broker that answers a small JSON contract over HTTP, itself
// or by a shim: openapi.yaml in this folder is that contract, and lab/reference a broker
// that keeps it.
//
// What the broker can do is a setting, because Holdfast must know it before the broker
// answers; a broker that says otherwise of itself is not the one expected.
//
// Guaranteed: New needs no broker; no call outlives its context; an answer that is not
// what the contract says, whatever else it may be, is an error, and the broker is not
// healthy; a stop reaches only the process that was identified; a topic's name is sent as
// it is, in a body, where no proxy takes it for a path.
//
// Not guaranteed: that a call which ended with an error had no effect; that a topic which
// comes or goes while the pages of a listing are read is in it.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// base is the path of version 1 of the contract, below the admin URL.
const base = "/holdfast/v1"

// Config is what New needs.
type Config struct {
	AdminURL     string        // http(s)://host:port[/path], this one broker's
	TokenFile    string        // bearer token; empty: none
	CACert       string        // PEM; empty: the system's authorities
	Cert, Key    string        // PEM; both or none
	Capabilities []string      // by name; empty: DefaultCapabilities
	KeyPrefix    string        // what stands in front of every key in etcd, for error messages
	BrokerID     string        // the name the broker must have if it has one; empty: any
	Timeout      time.Duration // longest wait for one answer, within the caller's context; 0: 10 s
	Logger       *slog.Logger  // nil: silent
}

// Broker is one broker. It is safe for concurrent use.
type Broker struct {
	rest      *rest.Client
	can       brokerapi.Capabilities
	brokerID  string
	keyPrefix string
	maxNames  int // see the constant
	log       *slog.Logger

	mu       sync.Mutex
	verified string // instance that passed the checks of Identify
}

var (
	_ brokerapi.Broker   = (*Broker)(nil)
	_ brokerapi.Quiescer = (*Broker)(nil)
	_ brokerapi.Unloader = (*Broker)(nil)
	_ brokerapi.Steerer  = (*Broker)(nil)
	_ brokerapi.Ender    = (*Broker)(nil)
)

// New checks the settings and connects to nothing. Its errors are settings that cannot
// work, each with its flag.
func New(cfg Config) (*Broker, error) {
	if len(cfg.Capabilities) == 0 {
		cfg.Capabilities = DefaultCapabilities()
	}
	can, err := parseCapabilities(cfg.Capabilities)
	if err != nil {
		return nil, fmt.Errorf("--http-capabilities %q: %w", strings.Join(cfg.Capabilities, ","), err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	client, err := rest.New(rest.Config{
		URL: cfg.AdminURL, TokenFile: cfg.TokenFile, CACert: cfg.CACert, Cert: cfg.Cert, Key: cfg.Key, Timeout: cfg.Timeout,
	})
	if err != nil {
		return nil, err
	}
	return &Broker{
		rest: client, can: can, brokerID: cfg.BrokerID, maxNames: maxNames,
		keyPrefix: strings.TrimSuffix(cfg.KeyPrefix, "/"),
		log:       cfg.Logger.With("broker_admin", client.URL()),
	}, nil
}

// Capabilities implements brokerapi.Broker: what the settings say, see Identify.
func (b *Broker) Capabilities() brokerapi.Capabilities { return b.can }

// Close ends calls in flight and waits for them.
func (b *Broker) Close() error { return b.rest.Close() }

// Codes of refusals that are more to Holdfast than an error.
const codeElsewhere = "elsewhere"

// refusal is an answer in the contract's own words.
type refusal struct {
	code string
	err  error
}

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// Is makes a topic of another broker one that errors.Is finds.
func (e *refusal) Is(target error) bool {
	return target == brokerapi.ErrElsewhere && e.code == codeElsewhere
}

// ask makes a call and decodes its answer, which has one of the statuses.
func (b *Broker) ask(ctx context.Context, r rest.Request, into any, statuses ...int) (*rest.Answer, error) {
	r.Path = base + r.Path
	a, err := b.rest.Do(ctx, r)
	if err != nil {
		return nil, err
	}
	if err := a.Want(statuses...); err != nil {
		return nil, refused(a, err)
	}
	return a, a.JSON(into)
}

// refused is what the answer says of itself, and otherwise what is wrong with it.
func refused(a *rest.Answer, wrong error) error {
	if a.Status < 400 || a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden {
		return wrong // it says what to do
	}
	code, message, ok := readError(a)
	if !ok {
		return wrong
	}
	return &refusal{code, a.Refusedf("%.100s: %.400s", code, message)}
}

// errorBody is the body of every answer that is not a success.
type errorBody struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// readError is not ok for what is not the contract's, and for words that are not fit to be shown.
func readError(a *rest.Answer) (code, message string, ok bool) {
	var body errorBody
	if a.JSON(&body) != nil || body.Error.Code == "" || body.Error.Message == "" ||
		strings.ContainsFunc(body.Error.Code+body.Error.Message, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", "", false
	}
	return body.Error.Code, body.Error.Message, true
}

var errIncomplete = errors.New("a field that the contract asks for is missing")
