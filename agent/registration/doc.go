// Package registration makes a broker's registration stand. It reads what it needs of etcd in one
// transaction, has package recovery decide, and carries that out in one transaction that is guarded by
// what was read. Values come in (Life, Past), an Outcome goes out.
//
// A registration is our own, or one that the broker wrote itself and that is put under a lease of ours
// (adopt), or only supposed (Shadow), or there is no etcd and it is a time (None).
//
// Guaranteed: an answer that was lost is read again, and never taken for a refusal; a lease is revoked
// only when nothing of ours can stand under it; what rests on a renewal is proven by a read that was sent
// after it; while another incarnation, or a copy of this one, has the registration nothing is written.
//
// Not guaranteed: that a copy of a state directory is told from its original where the machine is a clone,
// too, or while one is cut off from etcd. The newer one has the registration then, and the older one
// fences when its next renewal is proven.
package registration
