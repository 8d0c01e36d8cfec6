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
//   - A client and a Line have one connection each, to one endpoint at a time. With several
//     endpoints it moves on when one fails or is silent, watches included; the others are
//     not asked before. Endpoints are judged by their answers, never by their connections.
//   - With several endpoints a read does not wait for one that is silent: after a second,
//     on a Line after three quarters of one, and after half of the caller's time at the
//     latest, another one is asked too.
//   - While something is watched, etcd is asked each 30 s, over the connection of the
//     watches, what only a member with a leader can answer. One that is silent for 5 s, as
//     a deposed leader that hangs in a disk write, or that does not take up a watch in that
//     time, is left: the watches list and begin anew over another connection, to another
//     endpoint if there are several. Each 5 min the stream of the watches is asked, too: one
//     that tells nothing for 10 s, neither its progress nor that it takes up one more watch, is
//     left likewise.
//   - Registered is one linearizable read, and tells the raft term of its answer. If that
//     is the term of a renewal that was answered before, nobody but the leader who renewed
//     was leader until the read. A renewal alone proves nothing: a deposed leader that
//     hangs in a disk write goes on confirming.
//   - What Snapshot and Register cost etcd does not grow with the registrations of others,
//     once a client knows a peer that is still registered. Without one, etcd counts them, as
//     for the first look of a process; asked for the oldest peer, it sorts them. While the
//     key of the era is absent, or cannot be read, a Snapshot of a broker that has no
//     registration which it stood by reads all member records. One that waits for its broker to
//     register itself does not. The next Register writes an absent key. Brokers that all register
//     themselves never do, so there each costs that once, at its start.
//   - A value that cannot be read, in an era or a member record, is no error and no absence: what
//     stands there is named with its key. See era.go for what the era is then.
//   - What TimeToLive says of a lease's remaining time is never more than was granted. LeaseLeft
//     says what etcd does, with the raft term: within one term only a renewal adds to it.
//   - Every call returns when its context ends. Everything is safe for concurrent
//     use.
//
// Not guaranteed:
//   - That a write which returned an error did not happen. Its answer may have been
//     lost: read before acting on it.
//   - That an answer is still true when it arrives, or that two reads agree.
//   - That a write, or the beginning of a watch, avoids an endpoint that went silent a
//     moment ago: the main client notices by the next read, after three seconds of a black
//     hole, or after 13 seconds of a member that is frozen.
//   - That a watch is told within 5 min what a member knows which answers reads: what stands
//     between may keep back the one and not the other. What answers a request for a watch by
//     itself, as etcd's own proxy may, and keeps back the events, is not noticed at all.
//   - Linearizable reads of members that answer them from the past (etcd before 3.4.42,
//     3.5.28 and 3.6.9, after an election).
//   - Bounds on time other than the caller's context: a call without a deadline may
//     wait as long as a connection looks alive.
package cluster
