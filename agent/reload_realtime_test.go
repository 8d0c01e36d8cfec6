package agent

import (
	"path/filepath"
	"testing"

	"holdfast/internal/fakenet"
)

// What is tried is what would be used: a pair that does not belong together passes as files.
func TestAReloadTriesTheFilesThatSettingsName(t *testing.T) {
	dir := t.TempDir()
	ca := fakenet.NewAuthority(t, dir)
	ca.Server("one")
	ca.Server("two")
	file := func(name string) string { return filepath.Join(dir, name) }
	c := natsDefaults()
	c.EtcdEndpoints, c.EtcdCert, c.EtcdKey = []string{"https://127.0.0.1:1"}, file("one.pem"), file("one-key.pem")
	if _, err := tryAccess(t.Context(), c.Effective(), true); err != nil {
		t.Error(err)
	}
	c.EtcdKey = file("two-key.pem")
	if _, err := tryAccess(t.Context(), c.Effective(), true); err == nil {
		t.Error("took etcd's certificate with another's key")
	}
}
