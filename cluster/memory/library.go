package memory

import _ "unsafe" // for go:linkname

// never is the channel on which the etcd client's watcher waits for the end of what never ends.
// It is made outside of any testing/synctest bubble, so whoever waits on it there keeps the
// bubble's time from moving. Without the channel nobody waits, and nothing else changes.
//
//go:linkname never go.etcd.io/etcd/client/v3.valCtxCh
var never chan struct{}

func init() { never = nil }
