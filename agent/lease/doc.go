// Package lease keeps one etcd lease alive and knows when it may be gone.
//
// Guaranteed:
//   - The deadline counts from the send of the last confirmed renewal and with the TTL
//     that etcd granted, on a clock that runs on while the host sleeps (DESIGN, safety
//     rule 1).
//   - A renewal is confirmed by a proof, never by its answer (safety rule 11): a
//     linearizable read of the registration, sent after the answer, shows that it is
//     there and ours, under the raft term of the renewal's own answer. So a leader that
//     was deposed, hangs in a disk write and goes on confirming renewals moves no
//     deadline, whichever endpoint answers the read.
//   - A keep-alive answered "not found" or with TTL 0 is reported as a loss at once when
//     such a read confirms it, and is a failed renewal when it does not.
//   - Once the deadline has passed, such a read goes with each renewal: where it shows that the
//     registration is gone the lease is lost, also on a way that carries no renewal.
//   - While the lease may be alive, attempts start at most RetryCeiling apart. Of several
//     endpoints, one that is silent delays a renewal by at most RetryCeiling and the way
//     to another one.
//   - No failure, whatever it is and however fast it comes, is answered without a pause that
//     grows: neither renewals nor questions to the Registrar are repeated more than some twenty
//     times in five seconds. A leader change, and a connection that comes back, have the next
//     attempt made at once; what they themselves bring about is paced.
//   - Renewals are sent no further apart than RenewInterval while they succeed, and a fleet
//     that began, or came back, at once is spread over the interval with its next renewals.
//   - A renewal never waits for any other call but one of the Registrar, which is bounded
//     by half the time to the fence point.
//
// Not guaranteed:
//   - That the registration is still there, or still ours, a moment after its proof:
//     anybody may delete a key or revoke a lease. The Registrar finds out.
//   - Anything on members whose linearizable reads are stale: etcd before 3.4.42, 3.5.28
//     and 3.6.9 can answer from the past after an election. Nor that an etcd which renews
//     a lease that it is revoking at that moment (before 3.5.23 and 3.6.5) is caught by
//     this proof, if the read comes before the revocation: the next one does.
//   - That members stamp answers with the term of the last entry that they applied, as
//     every etcd to date does. A proxy that answers for etcd may not.
//
// Nor does this package stop anything at the fence point: it says when the fence point is.
package lease
