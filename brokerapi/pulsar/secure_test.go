package pulsar

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
	"holdfast/internal/fakenet"
)

// A token that expired is replaced by what is in the file by then.
func TestEveryCallIsMadeWithTLSAndTheToken(t *testing.T) {
	_, plain := answeringAt(t, nil, nil) // for its answers
	var accepted atomic.Value
	accepted.Store("one")
	var refused atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer "+accepted.Load().(string):
			refused.Add(1)
			http.Error(w, "no", http.StatusUnauthorized)
		case r.Method != http.MethodGet:
			w.WriteHeader(http.StatusNoContent)
		default:
			plain.Config.Handler.ServeHTTP(w, r)
		}
	}))
	cert, key := fakenet.Certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	token := fakenet.File(t, "token", "one\n")
	b, err := New(Config{AdminURL: server.URL, Cluster: "cl", Files: access.Files{TokenFile: token, CACert: cert, Cert: cert, Key: key}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	everything := func() {
		t.Helper()
		ctx := t.Context()
		if who, err := b.identify(ctx); err != nil || who.Name == "" {
			t.Errorf("%+v, %v", who, err)
		}
		for name, err := range map[string]error{
			"health": b.ready(ctx), "unload": b.Withdraw(ctx, "/public~default/0x00000000_0xffffffff"),
			"drain": b.SetMode(ctx, brokerapi.Drained, ""),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	everything()
	if n := refused.Load(); n != 0 {
		t.Errorf("%d calls without the token", n)
	}
	accepted.Store("two")
	if err := b.ready(t.Context()); err == nil || !strings.Contains(err.Error(), "--broker-token-file") {
		t.Errorf("with an expired token: %v", err)
	}
	if err := os.WriteFile(token, []byte("two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(token, time.Now(), time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	everything()
}
