// Package danube stands in for a Danube broker, which cannot be run here: real sockets,
// the real admin protocol, the real keys in a real etcd, and every trap of the broker that
// Holdfast has to know. It shares no code with the driver but the generated protocol.
//
// Release 0.7 has a random id at every start, and metadata in an etcd that everybody can
// write. Later ones have an id for life and their metadata among themselves: here in an etcd
// of which nobody else is told.
//
// Traps that are played, as in life: existing assignments are not looked at after a
// start (0.7); an assignment put again replaces the live topic; an assignment deleted
// without a marker destroys what the topic needs to be taken up again; a marker that the
// leader took away before its broker looked is no marker; watches and renewals that an
// interruption ended do not come back (0.7); a lease that has gone is not noticed; a
// broker that is not active bounces what it is given; the leader believes load reports,
// also of the dead.
//
// What must never happen in life is a [Disaster] here: it is recorded for good in the
// data directory and printed, so that a scenario can show that there was none.
//
// Not imitated: two leaders at once after a race of two elections (one is elected by a
// compared write here), rebalancing on its own, schemas, partitions, policies, topics that are
// not reliable, TLS. A broker takes a message when it is in its file.
package danube
