//go:build !linux

package cluster

import "syscall"

// limitUnacked does nothing where TCP_USER_TIMEOUT is not known: a half-open connection
// is then noticed by unanswered renewals alone.
func limitUnacked(string, string, syscall.RawConn) error { return nil }
