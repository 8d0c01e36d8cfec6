// Package pulsar stands in for a Pulsar broker whose metadata store is etcd, as far as
// Holdfast touches one: the REST table of BROKERS on a real socket, and its ephemeral
// keys in a real etcd.
//
// It is strict. A path, a method or a parameter that is not in the table is an error,
// and so is what would be one in life: unloading a bundle that is not owned here, or
// asking for the bundles of another broker without following the redirect.
//
// It answers as 4.0.7 with etcd 3.4.23 did on 2026-11-23, as far as it was asked then: plain
// text is called JSON, and who does not take that gets a 406; /ready is a page with 500 while
// it boots; a broker that is not registered still answers about itself, and others answer 404
// about it, whatever the cluster in the path; a bundle that nobody owns is unloaded (204), and
// one of another broker's is a 307 to it. A policy without unload_scope is stored and answered
// with 500. A broker whose host is primary of a namespace isolation
// policy gets no free bundle, and when all are, a lookup is a 503. testdata has what was recorded,
// and a test of lab/conformance compares.
//
// Traps of its session: a broker never makes another one: a lease that has ended is
// renewed in vain, and goes on when somebody grants it again under its ID. What an earlier life has
// locked is busy until its session has ended.
//
// What is sent to a named broker goes as 4.0.7's modular load manager did it on 2026-11-27, except that
// a free bundle that is sent to nobody is taken by whoever is asked, and not by whom the leader likes.
//
// Not modelled, since Holdfast writes no key of a broker: what becomes of a lock that somebody else wrote;
// what a broker does when it has had no answer of etcd for long;
// that Pulsar's modular load manager chooses a broker once more for a bundle that
// it chose it for since that broker last reported its load, whatever the policies say;
// that the watches of 4.0.7 die with a restart of etcd (2026-11-23). And messages over Pulsar's binary
// protocol. What the lab publishes goes through an HTTP path of its own, below /lab/, into files that all
// brokers share, as bookies would be shared.
package pulsar
