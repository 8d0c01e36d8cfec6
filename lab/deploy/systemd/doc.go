// Package systemd proves the units of deploy/systemd: that systemd-analyze finds nothing
// wrong with them and little to attack, and that under a real systemd, with all their
// restrictions in force, the sidecar registers its broker, the guard stops it in time, a
// killed sidecar is followed by another that takes over, a clean stop leaves nothing, and a
// rolling restart of three hosts needs nobody.
//
// That systemd is this host's program as the first process of namespaces of its own, on
// an overlay of the host's root directory: nothing of the host is changed, and no service
// of the host is started. It needs root and Debian's package systemd; without, the tests
// are skipped.
package systemd
