// Package local is the store of one sidecar that has no etcd: what a sidecar keeps in etcd,
// kept in a file of its own. To its clients it is an etcd that is always within reach; the
// leases in it tell nobody anything but this sidecar: how long its broker has been away.
//
// Guaranteed: what Save returned nil for survives a power cut. A file that is not whole is
// put aside and told of, never taken for an empty one. Leases age by the time that somebody
// watched, on a clock that nobody can move, and while the host is suspended. Time that
// nobody watched (no sidecar ran, or it was frozen) is missed; it is for Settle to say what
// it counts, when the broker is seen again.
//
// Across a reboot of the host only the wall clock tells how long it was. One that says that
// it was less than the host has been up for has been moved: then how long is not known, and
// a lease that has to go by it ends. One that was moved by less, or forwards, goes unnoticed.
//
// Not guaranteed: that a change is on the disk when the answer to it is there (see Save), nor
// anything about other sidecars: the file is one's own.
package local
