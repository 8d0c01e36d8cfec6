// Package simulation lets several whole sidecars live in virtual time: agent.Live with
// its real loop, keeper, registrar, reconciler, health probing and control handler, each
// beside a broker in memory, all against one etcd in memory, in one testing/synctest
// bubble. A schedule, drawn from a seed, does to them what machines, networks and people
// do; after every step of the store and of every broker the safety rules are checked.
//
//	go test ./agent/simulation -short                          a few seconds
//	go test ./agent/simulation -schedules 10000 -seed 1        make simulate
//	go test ./agent/simulation -schedules 1 -seed 4711 -v      one seed, told in lines
//
// A seed that fails is run again some times, since goroutines are not scheduled the same
// way twice, shrunk, and printed as Go code for named_test.go.
//
// What is simulated:
//   - Brokers, as NATS is one: a process with instances; topics that it serves, or holds
//     quiesced; after a start of the process it serves at once what it holds, before
//     anybody asked. They freeze (what was sent to them meanwhile is done at the thaw, in
//     order), are slow, refuse to quiesce, crash, come back, and may forget what was
//     quiesced. A call whose context ended may have been carried out.
//   - Sidecars that crash (nothing is undone, and the state file goes back to what it was
//     at the crash or before), stop in order, and freeze: then every call to the world,
//     the reading of the clock included, returns at the thaw, and not before.
//   - The way to etcd: cut in one or both directions, slow, or losing answers. The store:
//     errors, elections that refresh leases, leases revoked and keys deleted by others.
//   - The fence step stop, and the dead-man guard, deciding by package guard: one for each
//     process of the broker, started by a sidecar that lives, and outliving it.
//   - People who drain and activate over the control handler, and a placer that moves
//     topics: away from a live broker only once that one has stopped serving them, away
//     from any other as soon as its registration is gone.
//
// What is checked, and so proven for the schedules that were run (checks_test.go):
//   - When a registration runs out in the store, nothing is served by its broker and it is
//     not ready. With the fence step stop and a guard that was armed for this process of
//     the broker this holds whatever froze, died or refused. Without, it is promised only
//     if for some seconds before that the sidecar ran and the broker did as it was told.
//   - A loss that nobody can foresee (a lease revoked, a key deleted by others) and a
//     broker process that starts while unregistered end within a bound of the moment from
//     which sidecar, broker and network were well.
//   - No topic is served by two brokers, by the same rules; never by two that are ready,
//     unforeseeable losses and their bound apart.
//   - Epochs grow, and a sidecar that was detached does not come back while its
//     registration is gone.
//   - A broker that does not run is not registered for longer than its lease lasts.
//   - Registered and active is never to be seen after a loss during which peers lived.
//   - What a person drained, or a recovery did, only a person activates.
//   - A recovery drains only after a loss, and only if somebody was registered at every
//     moment between the loss and the return.
//   - Drained brokers serve nothing, within the same bound.
//   - After a quiet time whatever may serve serves, exactly its assigned topics, and is
//     ready; nothing else is. All goroutines end.
//
// What is not: the drivers and brokers themselves, etcd's own behaviour (lab/clustertest
// holds package memory against a real one), gRPC, the kernel's part of a stop and of the
// guard, suspended hosts, adopted registrations, rendezvous assignment, and processes
// that end in the middle of one write to the disk. Mutations (make mutate) say how much
// of the rules the checks would notice.
package simulation
