package pulsar

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/brokerapi"
	"holdfast/brokerapi/access"
)

func write(t *testing.T, path string, text []byte) string {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEveryCallIsMadeWithTLSAndTheToken also shows that a token which expired is replaced
// by what is in the file by then.
func TestEveryCallIsMadeWithTLSAndTheToken(t *testing.T) {
	plain := answering(t, nil, nil) // for its answers
	var accepted atomic.Value
	accepted.Store("one")
	var refused atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+accepted.Load().(string) {
			refused.Add(1)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		switch {
		case r.Method != http.MethodGet:
			w.WriteHeader(http.StatusNoContent)
		default:
			resp, err := http.Get(plain.rest.URL() + r.URL.RequestURI())
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
			w.WriteHeader(resp.StatusCode)
			_, _ = io.Copy(w, resp.Body)
		}
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	token := write(t, filepath.Join(dir, "token"), []byte("one\n"))
	pair := server.TLS.Certificates[0]
	cert := write(t, filepath.Join(dir, "cert"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	key := write(t, filepath.Join(dir, "key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
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
	write(t, token, []byte("two\n"))
	if err := os.Chtimes(token, time.Now(), time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	everything()

	stranger, err := New(Config{AdminURL: server.URL, Cluster: "cl", Files: access.Files{TokenFile: token}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stranger.Close() })
	before := refused.Load()
	if err := stranger.ready(t.Context()); err == nil || !strings.Contains(err.Error(), "--broker-cacert") || refused.Load() != before {
		t.Errorf("an unknown certificate: %v", err)
	}
}
