package e2e

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"holdfast/lab/harness"
)

// sharedLab holds the one etcd of the tests that do nothing to theirs but write keys.
// A server for each of them would be as much work as what they test.
var sharedLab *harness.Lab

var sharedEtcd = sync.OnceValues(func() (*harness.Etcd, error) {
	lab, err := harness.New()
	if err != nil {
		return nil, err
	}
	sharedLab = lab
	return lab.StartEtcd(context.Background(), harness.EtcdOptions{})
})

// endShared ends it after the last test.
func endShared(failed bool) error {
	if sharedLab == nil {
		return nil
	}
	if failed {
		fmt.Printf("what tests shared:\n%s", sharedLab.Logs(30))
	}
	return sharedLab.Close()
}

var tenants atomic.Int64

// shareEtcd gives a lab its own part of the shared etcd, and the sidecar's flags for it.
func shareEtcd(l *harness.Lab) (*harness.Etcd, []string, error) {
	e, err := sharedEtcd()
	if err != nil {
		return nil, nil, err
	}
	prefix := fmt.Sprintf("/test-%d", tenants.Add(1))
	mine, err := l.Below(e, prefix)
	return mine, []string{"--prefix", prefix}, err
}
