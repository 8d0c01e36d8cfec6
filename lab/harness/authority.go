package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Authority signs certificates for 127.0.0.1, of servers and of clients.
type Authority struct {
	CACert string // PEM file
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// NewAuthority makes an authority that nobody knows yet.
func (l *Lab) NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	a := &Authority{dir: l.Dir, key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	a.CACert, err = a.write(name+"-ca", "CERTIFICATE", der)
	return a, err
}

// Issue signs a certificate, for its PEM file and that of its key.
func (a *Authority) Issue(name string) (certFile, keyFile string, err error) {
	return a.IssueUntil(name, time.Now().Add(time.Hour))
}

// IssueUntil is Issue with an end, which may be over.
func (a *Authority) IssueUntil(name string, end time.Time) (certFile, keyFile string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("issue certificate of %s: %w", name, err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return "", "", fmt.Errorf("issue certificate of %s: %w", name, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", fmt.Errorf("issue certificate of %s: %w", name, err)
	}
	certFile, certErr := a.write(name, "CERTIFICATE", cert)
	keyFile, keyErr := a.write(name+"-key", "PRIVATE KEY", private)
	return certFile, keyFile, errors.Join(certErr, keyErr)
}

func (a *Authority) write(name, kind string, der []byte) (path string, err error) {
	path = filepath.Join(a.dir, name+".pem")
	return path, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
