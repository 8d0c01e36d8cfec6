// Package danube stands in for a Danube broker, which cannot be run here: real sockets,
// the real admin protocol, the real keys in a real etcd, and every trap of the broker.
// It shares no code with the driver but the generated protocol, and trusts nobody.
//
// [Etcd] is release 0.7: a random id at every start, metadata in an etcd that everybody
// can write. [Raft] is 0.8 and later: an id for life, metadata inside the cluster, which
// [StartMetadata] plays; nobody reaches it but through the admin API.
//
// Traps that are played, as in life: existing assignments are not looked at after a
// start (etcd); an assignment put again replaces the live topic; an assignment deleted
// without a marker destroys what the topic needs to be taken up again; a marker that the
// leader took away before its broker looked is no marker; watches and renewals that an
// interruption ended do not come back (etcd); a lease that has gone is not noticed; a
// broker that is not active bounces what it is given; the leader believes load reports,
// also of the dead; one topic without metadata holds up the others behind it.
//
// What must never happen in life is a [Disaster] here: it is recorded for good in the
// data directory and printed, so that a scenario can show that there was none. What a
// real broker would overlook is refused: an unknown field in a request.
//
// Not imitated: two leaders at once after a race of two elections (one is elected by a
// compared write here), rebalancing on its own, schemas, partitions, client certificates, the
// upload of what is not sealed. A broker takes a message when it is on disk.
package danube
