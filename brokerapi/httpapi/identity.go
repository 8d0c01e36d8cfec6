package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"

	"holdfast/brokerapi"
	"holdfast/brokerapi/rest"
)

// identityError is a message of its own that wraps brokerapi.ErrIdentity.
type identityError struct{ message string }

func (e *identityError) Error() string { return e.message }
func (e *identityError) Unwrap() error { return brokerapi.ErrIdentity }

// identityBody is the answer of GET /identity.
type identityBody struct {
	Name         string    `json:"name"`
	Instance     string    `json:"instance"`
	StartedAt    time.Time `json:"started_at"`
	Version      string    `json:"version"`
	DataDir      string    `json:"data_dir"`
	Capabilities *[]string `json:"capabilities"`
}

// check says which field cannot be. Of the name brokerapi.NameFlaw does.
func (i identityBody) check() error {
	for _, f := range []struct {
		name, value string
		required    bool
	}{{"name", i.Name, false}, {"instance", i.Instance, true}, {"version", i.Version, true}, {"data_dir", i.DataDir, false}} {
		switch {
		case f.value == "" && f.required:
			return fmt.Errorf("%s is missing", f.name)
		case len(f.value) > 1024:
			return fmt.Errorf("%s has %d bytes, at most 1024 are allowed", f.name, len(f.value))
		case f.name != "name" && strings.ContainsFunc(f.value, func(r rune) bool { return !unicode.IsPrint(r) }):
			return fmt.Errorf("%s holds what cannot be printed", f.name)
		}
	}
	switch {
	case i.Capabilities == nil:
		return errors.New("capabilities is missing")
	case len(*i.Capabilities) > 100:
		return fmt.Errorf("%d capabilities, at most 100 are allowed", len(*i.Capabilities))
	case i.DataDir != "" && !strings.HasPrefix(i.DataDir, "/"):
		return errors.New("data_dir does not start with a slash")
	}
	return nil
}

// Identify implements brokerapi.Broker. Name is the broker's name if stable-name is a
// capability. A broker with another name than --broker-id, or with other capabilities
// than --http-capabilities, wraps brokerapi.ErrIdentity, as does what is no such broker.
func (b *Broker) Identify(ctx context.Context) (brokerapi.Identity, error) {
	a, err := b.rest.Do(ctx, rest.Request{Path: base + "/identity"})
	if err != nil {
		return brokerapi.Identity{}, err
	}
	said, err := b.readIdentity(a)
	if err != nil {
		return brokerapi.Identity{}, err
	}
	id := brokerapi.Identity{Instance: said.Instance, StartedAt: said.StartedAt, Version: said.Version, DataDir: said.DataDir}
	if b.can.StableName {
		id.Name = said.Name
	}
	b.mu.Lock()
	b.verified = id.Instance
	b.mu.Unlock()
	return id, nil
}

func (b *Broker) readIdentity(a *rest.Answer) (said identityBody, err error) {
	if err := a.Want(http.StatusOK); err != nil {
		_, _, known := readError(a)
		switch {
		case known && a.Status == http.StatusNotFound: // it keeps the contract, elsewhere
			return said, fmt.Errorf("%w: set --broker-admin to the URL below which it answers, without %s", refused(a, err), base)
		case known || a.Status >= 500 || passing(a.Status):
			return said, refused(a, err)
		}
		return said, notOurs(err)
	}
	if err := a.JSON(&said); err != nil {
		return said, notOurs(err)
	}
	if err := said.check(); err != nil {
		return said, notOurs(a.Errorf("%v", err))
	}
	if err := disagreement(b.can, *said.Capabilities); err != nil {
		return said, &identityError{fmt.Sprintf("--broker-admin %s: %v", b.rest.URL(), err)}
	}
	if b.can.StableName && said.Name == "" {
		return said, &identityError{fmt.Sprintf("--broker-admin %s: the broker says stable-name and gives no name: give it one, or leave stable-name out of --http-capabilities", b.rest.URL())}
	}
	// One whose name no broker can go by has --broker-id instead.
	if b.can.StableName && b.brokerID != "" && said.Name != b.brokerID && brokerapi.NameFlaw(said.Name) == "" {
		return said, &identityError{fmt.Sprintf("--broker-admin %s: the broker there calls itself %q, --broker-id says %q: point --broker-admin at %s's own address, or set --broker-id to %s",
			b.rest.URL(), said.Name, b.brokerID, b.brokerID, said.Name)}
	}
	return said, nil
}

// passing are statuses that say nothing about who answers.
func passing(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return false
}

// notOurs is an answer that no broker with this contract gives.
func notOurs(err error) error {
	return &identityError{err.Error() + ": no broker that keeps Holdfast's HTTP contract says that: set --broker-admin to where one does, without " + base}
}

// healthBody is the answer of GET /health.
type healthBody struct {
	Status   string `json:"status"`
	Instance string `json:"instance"`
}

// Health implements brokerapi.Broker: the broker says that it is well, and it is the one
// expected.
func (b *Broker) Health(ctx context.Context) error {
	var said healthBody
	a, err := b.ask(ctx, rest.Request{Path: "/health"}, &said, http.StatusOK)
	if err != nil {
		return err
	}
	if said.Status != "ok" || said.Instance == "" {
		return a.Errorf(`want {"status":"ok","instance":"…"}`)
	}
	b.mu.Lock()
	known := said.Instance == b.verified
	b.mu.Unlock()
	if !known {
		id, err := b.Identify(ctx)
		if err != nil {
			return err
		}
		if id.Instance != said.Instance {
			return a.Errorf("GET %s/identity says instance %q: two brokers answer there, or it was restarted just now", base, id.Instance)
		}
	}
	return nil
}
