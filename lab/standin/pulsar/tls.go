package pulsar

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
)

// httpURL is how others reach the web service: the one port that is open.
func (b *Broker) httpURL() string {
	if b.cfg.TLSCert != "" {
		return "https://" + b.cfg.Advertised
	}
	return "http://" + b.cfg.Advertised
}

// secured is added to the names of fields that hold httpURL.
func (b *Broker) secured() string {
	if b.cfg.TLSCert != "" {
		return "Tls"
	}
	return ""
}

// secure puts TLS over the listener if it is asked for.
func (b *Broker) secure(l net.Listener) (net.Listener, error) {
	if b.cfg.TLSCert == "" {
		return l, nil
	}
	pair, err := tls.LoadX509KeyPair(b.cfg.TLSCert, b.cfg.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if b.cfg.TLSClientCA != "" {
		pem, err := os.ReadFile(b.cfg.TLSClientCA)
		if err != nil {
			return nil, fmt.Errorf("read authorities of clients: %w", err)
		}
		cfg.ClientCAs, cfg.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: no certificate in PEM form", b.cfg.TLSClientCA)
		}
	}
	return tls.NewListener(l, cfg), nil
}
