// Package pulsar stands in for a Pulsar broker whose metadata store is etcd, as far as
// Holdfast touches one: the REST table of BROKERS on a real socket, and the ephemeral
// keys in a real etcd, with Pulsar's own rules for its locks.
//
// It is strict. A path, a method or a parameter that is not in the table is an error,
// and so is what would be one in life: unloading a bundle that is not owned here, or
// asking for the bundles of another broker without following the redirect.
//
// It answers as 4.0.7 with etcd 3.4.23 did on 2026-11-23, as far as it was asked then: plain
// text is called JSON, and who does not take that gets a 406; /ready is a page with 500 while
// it boots; a broker that is not registered still answers about itself, and others answer 404
// about it, whatever the cluster in the path; a bundle that nobody owns is unloaded (204), and
// one of another broker's is a 307 to it, one whose lock was written by others a 409. A policy
// without unload_scope is stored and answered with 500. A broker whose host is primary of a namespace isolation
// policy gets no free bundle, and when all are, a lookup is a 503. testdata has what was recorded,
// and a test of lab/conformance compares. Stopped by SIGTERM it deletes its registration first,
// gives its bundles up within 0.3 s, closes its ports, and ends after 3 s at the earliest.
//
// The traps that are modelled, each as in Pulsar's own source:
//   - A lock is put and deleted only at the version that the broker itself wrote or read
//     last. Whoever writes the key in between, and be it with the same bytes, makes the
//     release fail: the bundle stays in the cache, inactive, for good.
//   - A lock that was deleted is revalidated: absent: created; the same value under the
//     own session: kept; the same value under another: deleted and created again, with a
//     gap; another value under another session: busy, and the bundle is unloaded; any
//     other error: the broker goes on assuming that it owns it.
//   - A broker that has etcd's answers never makes another session: one whose lease has ended is
//     renewed in vain, and goes on when somebody grants the lease again under its ID. Without an
//     answer for five sixths of the session's time the broker gives it up, and makes the next when
//     etcd answers again.
//   - A lock that could not be put again, because its session had ended, is expected to be absent
//     from then on: whoever puts it, its release fails with 409, and another broker's lock stays.
//   - The health check has no deadline.
//
// What is sent to a named broker goes as 4.0.7's modular load manager did it on 2026-11-27, except that
// a free bundle that is sent to nobody is taken by whoever is asked, and not by whom the leader likes.
//
// Not modelled: that Pulsar's modular load manager chooses a broker once more for a bundle that
// it chose it for since that broker last reported its load, whatever the policies say;
// that the watches of 4.0.7 die with a restart of etcd (2026-11-23);
// how long Pulsar's own etcd client needs to find etcd again after a cut;
// ours needs about 3 s. And messages over Pulsar's binary protocol. What the lab publishes goes
// through an HTTP path of its own, below /lab/, into files that all brokers share, as
// bookies would be shared.
package pulsar
