// Package cluster is the cluster as etcd shows it: the key layout, typed reads,
// the transactions of DESIGN, watches, and the connection that renewals use. It
// is the only importer of the etcd client.
//
// Guaranteed:
//   - An error is never an absence. Every read returns what etcd said at one
//     revision or an error that wraps the cause; nil and empty results mean "read,
//     and not there".
//   - What belongs together is one transaction, guarded by what the caller saw.
//     A guard that does not hold is ErrChanged: read again, decide again.
//   - A broker that registers itself under another id at each start keeps one member
//     record, under its stable name: it says which id was registered last. What the
//     process before it had is handed over with each assignment at exactly one of the two
//     at every revision.
//   - Every request requires a leader, so a member that is cut off from its quorum
//     fails instead of answering from memory.
//   - A client and a Line are one etcd client to one endpoint at a time. With several endpoints
//     each moves on when one fails or is silent; the others are not asked before. Endpoints are
//     judged by their answers, never by their connections.
//   - With several endpoints a read, and a renewal, does not wait for one that is silent: after a
//     second, on a Line after three quarters of one, and after half of the caller's time at the
//     latest, another one is asked too.
//   - What is followed is listed again each 30 s, what may be very many keys each 5 min. So a
//     watch that tells nothing any more costs that time, whatever it died of.
//   - A name that stands for several addresses is tried at all of them. A lookup has its own
//     time, and its last good answer is remembered.
//   - Registered is one linearizable read, and tells the raft term of its answer. If that
//     is the term of a renewal that was answered before, nobody but the leader who renewed
//     was leader until the read. A renewal alone proves nothing: a deposed leader that
//     hangs in a disk write goes on confirming.
//   - What Snapshot and Register cost etcd does not grow with the registrations of others,
//     once a client knows a peer that is still registered. Without one, etcd counts them, as
//     for the first look of a process; asked for the oldest peer, it sorts them. While the
//     key of the era is absent, or cannot be read, a Snapshot of a broker that has no
//     registration which it stood by reads all member records. The next Register writes an absent
//     key. Brokers that all register themselves never do, so there each look of one that has yet to
//     register itself costs that.
//   - A value that cannot be read, in an era or a member record, is no error and no absence: what
//     stands there is named with its key. See era.go for what the era is then.
//   - LeaseLeft says what etcd does of a lease's remaining time, with the raft term: within one term
//     only a renewal adds to it.
//   - Every call returns when its context ends. Everything is safe for concurrent
//     use.
//
// Not guaranteed:
//   - That a write which returned an error did not happen. Its answer may have been
//     lost: read before acting on it.
//   - That an answer is still true when it arrives, or that two reads agree.
//   - That a write avoids an endpoint that went silent a moment ago: the main client notices by
//     the next read, after three seconds of a black hole, or after 13 seconds of a member that is
//     frozen.
//   - Linearizable reads of members that answer them from the past (etcd before 3.4.42,
//     3.5.28 and 3.6.9, after an election).
//   - Bounds on time other than the caller's context, but for what is read in a transaction: a
//     call without a deadline may wait as long as a connection looks alive.
package cluster
