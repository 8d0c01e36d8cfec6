// Package recovery decides what must happen to a broker and its topics.
//
// It is pure: it takes values and the time, and returns what to do with the reason. Package
// topics carries out what concerns topics, and checks after every wait that the orders it acts
// under still stand.
//
// Guaranteed: a read that failed is never taken for an absence, nor is a record that cannot be
// read: it drains whom it alone could excuse, and nobody else (see Unread). Not guaranteed: that
// the broker still is as it was when it last answered.
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
