package rest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"holdfast/brokerapi/access"
	"holdfast/internal/fakenet"
)

const fuzzToken = "a-secret-token"

func fuzzClient(t testing.TB, url string) *Client {
	t.Helper()
	c, err := New(Config{URL: url, Files: access.Files{TokenFile: fakenet.File(t, "token", fuzzToken)}, MaxAnswer: 1 << 16, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// checkError holds every error to what the package comment promises.
func checkError(t *testing.T, err error) {
	t.Helper()
	text := err.Error()
	switch {
	case !strings.HasPrefix(text, "--broker-admin http://127.0.0.1:"):
		t.Fatalf("does not name the setting: %q", text)
	case strings.Contains(text, fuzzToken):
		t.Fatalf("shows the token: %q", text)
	case len(text) > 2000:
		t.Fatalf("%d bytes: %q", len(text), text)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		t.Fatalf("not fit for a terminal: %q", text)
	}
}

func FuzzBytesOnTheWireEndTheCall(f *testing.F) {
	for _, seed := range []string{
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n{}",
		"HTTP/1.1 401 x\r\nContent-Length: 0\r\nWWW-Authenticate: " + fuzzToken + "\r\n\r\n",
		"HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:1/" + fuzzToken + "\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
		"HTTP/1.1 103 x\r\n\r\nHTTP/1.1 200 OK\r\n\r\na line\nhalf",
		"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b",
		"SSH-2.0-" + fuzzToken + "\r\n", "HTTP/1.1 200 OK\r\nX: \x00\r\n\r\n", "",
	} {
		f.Add([]byte(seed))
	}
	var bytes atomic.Pointer[[]byte]
	url := "http://" + fakenet.Answer(f, func() []byte { return *bytes.Load() })
	f.Fuzz(func(t *testing.T, says []byte) {
		bytes.Store(&says)
		c := fuzzClient(t, url)
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		defer cancel()
		a, err := c.Do(ctx, Request{Path: "/x"})
		switch {
		case err != nil:
			checkError(t, err)
		case len(a.Body) > 1<<16 || len(a.Body) > len(says):
			t.Fatalf("%d bytes of %d", len(a.Body), len(says))
		default:
			if err := a.Errorf("x"); err != nil {
				checkError(t, err)
			}
		}
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatal("the call lasted longer than the answer")
		}
	})
}
