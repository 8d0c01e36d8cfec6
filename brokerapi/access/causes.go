package access

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// causes are why no connection comes about, by words of the error, as gRPC keeps nothing else of a
// handshake's; the first that fits counts. WHO is etcd or the broker, and FLAG begins its settings.
var causes = []struct{ sign, remedy string }{
	{"connection refused", "is WHO running there?"},
	{"certificate signed by unknown authority", "set FLAG-cacert to the authority that signed WHO's certificateINSTEAD"},
	{"certificate has expired or is not yet valid", "renew WHO's certificate, or set the clock of this host"},
	{"cannot validate certificate for", otherName},
	{"valid for ", otherName},
	{"does not match public key", "set FLAG-key to the key that belongs to the certificate"},
	{"does not look like a TLS handshake", writeHTTP},
	{"server gave HTTP response to HTTPS client", writeHTTP},
	{"secure connection not available", "no TLS is spoken there: write nats://"},
	{`malformed HTTP response "\x15\x03`, writeHTTPS},
	{"malformed HTTP ", "no HTTP is spoken there"},
	{"selected ALPN", withoutH2},
	{"no application protocol", withoutH2},
	{"failed to verify certificate", "have WHO's certificate issued anew"},
}

const (
	alert      = "remote error: tls: "
	otherName  = "write a name that WHO's certificate has, or have it issued for this one"
	writeHTTP  = "no TLS is spoken there: write http://"
	writeHTTPS = "it speaks TLS: write https://"
	withoutH2  = "what ends TLS there offers no HTTP/2: have it offer h2 (ALPN), or pass TLS through to WHO"
)

// Remedy says what to do about a connection that failed so, after a colon; empty: nobody knows.
func (f Files) Remedy(err error) string {
	if err == nil {
		return ""
	}
	text, instead := err.Error(), ""
	if f.CACert != "" {
		instead = ", in place of " + f.CACert
	}
	words := strings.NewReplacer("WHO", cmp.Or(f.Of, "the broker"), "FLAG", f.flag(), "INSTEAD", instead)
	for _, c := range causes {
		if strings.Contains(text, c.sign) {
			return ": " + words.Replace(c.remedy)
		}
	}
	_, said, refused := strings.Cut(text, alert)
	if !refused || !strings.Contains(said, "certificate") && !strings.HasPrefix(said, "handshake failure") && !strings.HasPrefix(said, "access denied") {
		return "" // it has troubles of its own, such as a certificate that is being written
	}
	issued := words.Replace("set FLAG-cert and FLAG-key to a pair that an authority of WHO has issued")
	switch end, over := f.Until(); {
	case f.Cert == "":
		return ": it wants a client's certificate: " + issued
	case over:
		return fmt.Sprintf(": %s-cert %s ran out on %s: renew it", f.flag(), f.Cert, end)
	}
	return ": " + issued + ", in place of " + f.Cert
}

// Until is when our certificate runs out, in words, and whether it has; empty: none can be read.
func (f Files) Until() (end string, over bool) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return "", false
	}
	return pair.Leaf.NotAfter.UTC().Format("2006-01-02 15:04 MST"), time.Now().After(pair.Leaf.NotAfter)
}

// OtherScheme says what to write if the peer hung up before a word because it speaks
// TLS and we did not, or is an etcd that does not and we did: it is asked. Empty: neither is known.
func OtherScheme(peer net.Addr, secure bool, err error) string {
	switch {
	case !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE):
	case secure:
		ask := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		answer, err := ask.Get("http://" + peer.String() + "/version")
		if err != nil {
			return ""
		}
		defer answer.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		if strings.Contains(string(said), "etcdserver") { // not what stands before an etcd that is away
			return writeHTTP
		}
	default:
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, peer.Network(), peer.String(), &tls.Config{InsecureSkipVerify: true}) // it is told nothing
		if err == nil && conn.Close() == nil || err != nil && strings.Contains(err.Error(), alert) {
			return writeHTTPS
		}
	}
	return ""
}
