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
//   - With several endpoints a read does not wait for one that is silent: after a second,
//     on a Line after a quarter of one, another one is asked too. Endpoints are judged by
//     their answers, never by their connections.
//   - Every call returns when its context ends. Everything is safe for concurrent
//     use.
//
// Not guaranteed:
//   - That a write which returned an error did not happen. Its answer may have been
//     lost: read before acting on it.
//   - That an answer is still true when it arrives, or that two reads agree.
//   - That a write, or the beginning of a watch, avoids an endpoint that went silent a
//     moment ago: the main client notices after three seconds of a black hole, and after
//     13 seconds of a member that is frozen.
//   - Bounds on time other than the caller's context: a call without a deadline may
//     wait as long as a connection looks alive.
package cluster
