package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"holdfast/brokerapi"
)

// Answer is what came back, whatever its status.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte

	client *Client
	asked  *url.URL
	what   string // method and path
}

// AnswerError says that an answer is not one of those that were wanted.
type AnswerError struct {
	Answer *Answer
	text   string
}

func (e *AnswerError) Error() string { return e.text }

// Is makes a refusal brokerapi.ErrUnseen: a login that is not taken, a server that has no room
// for one more question. It is answered, and so it is no silence.
func (e *AnswerError) Is(target error) bool {
	switch e.Answer.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return target == brokerapi.ErrUnseen
	}
	return false
}

// CredentialsRefused tells a setting that is wrong from a broker that is away: it knows
// nobody by our token, or we have shown one and it is not enough.
func (e *AnswerError) CredentialsRefused() bool {
	return e.Answer.Status == http.StatusUnauthorized || e.Answer.Status == http.StatusForbidden && e.Answer.client.token != nil
}

// Want is nil if the status is one of those, and an *AnswerError otherwise.
func (a *Answer) Want(statuses ...int) error {
	switch {
	case slices.Contains(statuses, a.Status):
		return nil
	case a.Status == http.StatusUnauthorized && a.client.token == nil:
		return a.Errorf("set --broker-token-file to a token that the broker accepts")
	case a.Status == http.StatusUnauthorized, a.Status == http.StatusForbidden && a.client.token != nil:
		return a.Errorf("put a token that the broker accepts into %s (--broker-token-file)", a.client.token.Path())
	case a.Status == http.StatusBadRequest && bytes.Contains(a.Body, []byte("HTTP request to an HTTPS server")):
		return a.Errorf("write https:// in %s", a.client.cfg.Setting)
	case a.Location() != "":
		return a.Errorf("it redirects to %q, which is not followed: set %s to the broker's own address", a.Location(), a.client.cfg.Setting)
	}
	return a.Errorf("")
}

// Errorf is an *AnswerError that quotes the answer and says what is wrong with it.
func (a *Answer) Errorf(format string, args ...any) error {
	said := " with nothing"
	if len(a.Body) > 0 {
		said = fmt.Sprintf(": %.200q", a.client.token.Hide(string(a.Body)))
	}
	if format != "" {
		said += ": " + fmt.Sprintf(format, args...)
	}
	return a.refused(said)
}

// Refusedf is an *AnswerError without a quotation, for an answer whose own words stand
// among args.
func (a *Answer) Refusedf(format string, args ...any) error {
	return a.refused(": " + fmt.Sprintf(format, args...))
}

func (a *Answer) refused(words string) error {
	return &AnswerError{a, a.client.token.Hide(fmt.Sprintf("%s %s: %s answered %d %s%s",
		a.client.cfg.Setting, a.client.base, a.what, a.Status, http.StatusText(a.Status), words))}
}

// JSON decodes the body into v. Names that v does not know are skipped. Null is nothing, and so
// it is no empty list. Errors are *AnswerError.
func (a *Answer) JSON(v any) error {
	if string(bytes.TrimSpace(a.Body)) == "null" {
		return a.Errorf("is null")
	}
	if err := json.Unmarshal(a.Body, v); err != nil {
		return a.Errorf("%v", err)
	}
	return nil
}

// Location is where a redirect points, made absolute; empty if it says nothing usable.
func (a *Answer) Location() string {
	if to := a.Header.Get("Location"); to != "" && a.Status >= 300 && a.Status < 400 {
		if at, err := a.asked.Parse(to); err == nil {
			return at.String()
		}
	}
	return ""
}

// Path is a path below the base URL: prefix as it is, then the segments, each escaped.
// It refuses what servers and proxies between would take for another path.
func Path(prefix string, segments ...string) (string, error) {
	for _, s := range segments {
		if s == "" || s == "." || s == ".." {
			return "", fmt.Errorf("%q cannot be a part of a path", s)
		}
		prefix += "/" + url.PathEscape(s)
	}
	return prefix, nil
}
