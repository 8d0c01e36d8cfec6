package rest

import (
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// AnswerError says that an answer is not one of those that were wanted.
type AnswerError struct {
	Answer *Answer
	text   string
}

func (e *AnswerError) Error() string { return e.text }

// CredentialsRefused tells a setting that is wrong from a broker that is away: it knows
// nobody by our token, or we have shown one and it is not enough.
func (e *AnswerError) CredentialsRefused() bool {
	return e.Answer.Status == http.StatusUnauthorized || e.Answer.Status == http.StatusForbidden && e.Answer.client.token != nil
}

// Want is nil if the status is one of those, and an *AnswerError otherwise.
func (a *Answer) Want(statuses ...int) error {
	if slices.Contains(statuses, a.Status) {
		return nil
	}
	return a.error("", remedyFor(a, a.client))
}

// Errorf is an *AnswerError that quotes the answer and says what is wrong with it. What is
// wrong may quote it, too, so it is hidden and cut like a quotation: package json's errors
// hold a number at its full length.
func (a *Answer) Errorf(format string, args ...any) error {
	return a.error(a.kind(), ": "+shown(a.client.token.Hide(fmt.Sprintf(format, args...)), 2*maxQuote))
}

// Refusedf is an *AnswerError without a quotation, for an answer whose own words stand
// among args.
func (a *Answer) Refusedf(format string, args ...any) error {
	words := shown(a.client.token.Hide(fmt.Sprintf(format, args...)), 2*maxQuote)
	return &AnswerError{a, fmt.Sprintf("%s %s: %s answered %s: %s", a.client.setting, a.client.base, a.what, statusText(a.Status), words)}
}

// JSON decodes the body into v: it must be announced as JSON and be UTF-8, one value,
// not null, in which no name stands twice. Names that v does not know are skipped. Errors
// are *AnswerError.
func (a *Answer) JSON(v any) error {
	if err := checkType(a.Header.Get("Content-Type")); err != nil {
		return a.Errorf("%v", err)
	}
	if err := decode(a.Body, v); err != nil {
		return a.Errorf("%v", err)
	}
	return nil
}

// Location is where a redirect points, made absolute; empty if it says nothing usable.
func (a *Answer) Location() string {
	asked, err := url.Parse(a.asked)
	if err != nil || a.Header.Get("Location") == "" {
		return ""
	}
	to, err := asked.Parse(a.Header.Get("Location"))
	if err != nil {
		return ""
	}
	return to.String()
}

// kind is how the body was announced, in brackets.
func (a *Answer) kind() string {
	if t := a.Header.Get("Content-Type"); t != "" {
		return " (" + shown(a.client.token.Hide(t), 80) + ")"
	}
	return " (no content type)"
}

func (a *Answer) error(kind, wrong string) error {
	text := fmt.Sprintf("%s %s: %s answered %s%s%s%s", a.client.setting, a.client.base, a.what,
		statusText(a.Status), kind, a.client.quote(a.Body), wrong)
	return &AnswerError{a, text}
}

// saysHTTPS is how servers with TLS tell that they were asked without.
var saysHTTPS = regexp.MustCompile(`(?i)\bHTTP request\b.*\bHTTPS (server|port)\b`)

// remedyFor says what to do about a status, where that is known.
func remedyFor(a *Answer, c *Client) string {
	switch {
	case a.Status == http.StatusUnauthorized && c.token == nil:
		return ": set --broker-token-file to a token that the broker accepts"
	case a.Status == http.StatusUnauthorized, a.Status == http.StatusForbidden && c.token != nil:
		return fmt.Sprintf(": put a token that the broker accepts into %s (--broker-token-file)", c.token.Path())
	case a.Status == http.StatusBadRequest && strings.HasPrefix(c.base, "http:") && saysHTTPS.Match(a.Body):
		return c.speaksTLS()
	case a.Status >= 300 && a.Status < 400:
		to := shown(c.token.Hide(a.Header.Get("Location")), maxQuote)
		return fmt.Sprintf(": it redirects to %q, which is not followed: set %s to the broker's own address", to, c.setting)
	}
	return ""
}

func statusText(status int) string {
	if text := http.StatusText(status); text != "" {
		return fmt.Sprintf("%d %s", status, text)
	}
	return fmt.Sprintf("%d", status)
}

// checkType accepts application/json and application/anything+json, in UTF-8.
func checkType(header string) error {
	if header == "" {
		return fmt.Errorf("has no content type, want application/json")
	}
	kind, params, err := mime.ParseMediaType(header)
	if err != nil || kind != "application/json" && !(strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")) {
		return fmt.Errorf("want content type application/json")
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
		return fmt.Errorf("want charset utf-8")
	}
	return nil
}
