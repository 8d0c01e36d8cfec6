package access

import (
	"errors"
	"testing"
)

// Who has troubles of its own has not judged our certificate.
func TestOnlyAnAlertAboutCertificatesAsksForAnother(t *testing.T) {
	for alert, asks := range map[string]bool{
		"certificate required": true, "bad certificate": true, "expired certificate": true, "unknown certificate authority": true,
		"handshake failure": true, "access denied": true, "internal error": false, "user canceled": false, "close notify": false,
	} {
		if remedy := (Files{}).Remedy(errors.New("read: remote error: tls: " + alert)); (remedy != "") != asks {
			t.Errorf("%s: %q", alert, remedy)
		}
	}
}
