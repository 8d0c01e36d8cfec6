// Package recovery decides what must happen to a broker, and does it.
//
// Decisions are pure: they take values and the time, and return what to do with
// the reason. Executors (the Reconciler, the Steerer) carry them out and check after every
// wait that the orders they act under still stand.
//
// Guaranteed: nothing is loaded, and nothing that is already on its way is kept
// on, once the broker is detached; a broker with a mode of its own is given no topic
// before it has taken active; no topic's data is deleted here; a read that
// failed is never taken for an absence, nor is a record that cannot be read: it drains
// whom it alone could excuse, and nobody else (see Unread). Not guaranteed: that the broker still is
// as it was when it last answered.
package recovery

// Mode is the broker's operational state as etcd holds it.
type Mode string

// The modes. A person's word on the mode is final (DESIGN, safety rule 6).
const (
	Active   Mode = "active"   // serves, loads what is missing
	Draining Mode = "draining" // serves what it has, loads nothing
	Drained  Mode = "drained"  // serves nothing; data stays

	// Unreadable is a state of another broker that cannot be read: nothing is known of
	// its mode (safety rule 10).
	Unreadable Mode = "unreadable"
)
