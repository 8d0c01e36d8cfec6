package harness

import (
	"fmt"

	"go.etcd.io/etcd/client/v3/namespace"
)

// Below is etcd as those see it who keep to the keys below a prefix of their own, such as
// /a, and who share the server with others: Client reads and writes there and nowhere
// else, and knows nothing of the prefix. Sidecars are given it as --prefix. Who shares a
// server may not stop, freeze, compact or restore it, or turn on its users: there is no
// process. It ends with the lab, and leaves its keys.
func (l *Lab) Below(e *Etcd, prefix string) (*Etcd, error) {
	mine := &Etcd{Port: e.Port, lab: l}
	if err := mine.connectSelf(); err != nil {
		return nil, fmt.Errorf("share etcd: %w", err)
	}
	c := mine.client
	c.KV, c.Watcher, c.Lease = namespace.NewKV(c.KV, prefix), namespace.NewWatcher(c.Watcher, prefix), namespace.NewLease(c.Lease, prefix)
	return mine, nil
}
