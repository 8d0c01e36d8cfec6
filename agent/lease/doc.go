// Package lease keeps one etcd lease alive and knows when it may be gone.
//
// Guaranteed: the deadline counts from the send of the last confirmed renewal and
// with the TTL that etcd granted, on a clock that runs on while the host sleeps
// (DESIGN, safety rule 1); while the lease may be alive, attempts start at most
// RetryCeiling apart; a keep-alive answered "not found" or with TTL 0 is reported
// as a loss at once; of several endpoints, one that is silent delays a renewal by at
// most half a second and the way to another one; a renewal never waits for any other
// call but one of the Registrar, which is bounded by half the time to the fence point.
//
// Not guaranteed: that the registration under the lease is still there, or still
// ours. Only etcd can say that; the Registrar asks it. Nor does this package stop
// anything at the fence point: it says when the fence point is.
package lease
