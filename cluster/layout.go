package cluster

// Layout is where brokers that register themselves keep the keys that are their own: the
// registrations, and the locks by which they own their topics. Holdfast's keys are not
// moved by it. No prefix is put in front of such keys: the broker puts none.
type Layout struct {
	// Registrations is the prefix of all registrations, which ends in a slash.
	Registrations string
	// Locks is the prefix of all locks, which ends in a slash.
	Locks string
	// LockKey is the key of the lock of a topic, and LockTopic the topic of a key. ok is
	// false for what the broker has no lock for.
	LockKey   func(topic string) (key string, ok bool)
	LockTopic func(key string) (topic string, ok bool)
	// LockOwner is the id of the broker that a lock's value names.
	LockOwner func(value []byte) (brokerID string, ok bool)
	// LockValue is what the broker of that registration writes into its own locks.
	LockValue func(registration []byte) ([]byte, error)
}

// NewKeysIn is NewKeys for brokers with a layout of their own; nil: they have none.
func NewKeysIn(prefix, storageRoot string, layout *Layout) Keys {
	k := NewKeys(prefix, storageRoot)
	k.layout = layout
	return k
}

// ownerIn reads a broker's own lock. It knows nothing of incarnations and epochs: who is
// named, and the lease, tell it apart.
func (l *Layout) ownerIn(value []byte) Owner {
	id, ok := l.LockOwner(value)
	if !ok {
		return Owner{Malformed: excerpt(value), ByLease: true}
	}
	return Owner{BrokerID: id, ByLease: true}
}
