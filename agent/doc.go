// Package agent is one sidecar's life: wiring, the loop that owns its state, the
// fence ladder and the state file.
//
// Guaranteed: the loop alone decides and does no I/O; readiness compares the fence
// point with the clock in the request itself. A broker that is detached is fenced:
// quiesced, and its process stopped if that cannot be proven and there is a way to;
// each step ends before the deadline, and the whole begins anew for every process that
// comes up, until it succeeded. One whose storage fences it is only not ready then, unless
// --fence asks for more (see fences_itself.go). With a guard no process of the broker serves before the
// guard stands by for it, so neither a frozen nor a killed sidecar lets it serve past
// the deadline. A broker that does harm once its registration is gone is refused where
// nothing can stop its process, or served with a warning that stays. A broker with a mode
// of its own is ready only when it has taken ours, and is told nothing while detached but
// by the fence. The registration is given up only after everything was quiesced, and
// restored only when nobody was declared dead, or by the session policy.
//
// A broker that registers itself under another id at each start is one broker, by the name
// that it was given: within the TTL its topics go from id to id without anybody else being
// asked, and the mode is that of the former id, whatever the new process wrote for its own
// boot. A new process is fenced, if that is due, before it is given anything.
//
// A broker that is ill, because its process lives and its calls fail, loses its registration for
// that, and is fenced as --fence says, only while a living peer is known to be well; one whose
// storage fences it is stopped then where it may be, whatever --fence says. Else it is held (see
// illness.go).
//
// Not guaranteed: that a broker which hangs stops serving where nothing here can stop it
// (/broker/live asks for its restart then), or where it is held or only kept from clients
// (/broker/live does not); that one which somebody else starts without
// asking ('holdfast gate') while the sidecar does not run, or which comes up at another
// address than the one that is asked, is fenced before it answers; that one which is
// ended by its own admin API, and whose process is not seen, serves nothing as soon as
// it refuses connections; that a blind broker (stale_view) gives up what was taken from
// it; that a pause keeps other brokers from giving this one topics, which wait for its
// end; that two sidecars with copies of one state directory know each other apart where the
// machine is a clone, too, or while one is cut off from etcd (the newer one has the
// registration then, and the older one fences when its next renewal is proven); that
// a broker with such ids and a lost state directory gets its topics back within the TTL:
// whose the lease is that lives is not known then, so its end is waited for.
package agent
