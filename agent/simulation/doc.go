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
// A seed decides the schedule and all that the simulation draws. It does not decide which of
// the goroutines that wake at one moment runs first, which ready case a select takes, and the
// jitter of the sidecars' pauses: that is Go's. So a seed that fails is run again some times,
// shrunk, and printed as Go code for named_test.go.
//
// What is simulated:
//   - Brokers, as NATS is one: a process with instances; topics that it serves, or holds
//     quiesced; after a start of the process it serves what it holds, before anybody asked:
//     at once, or after a boot of up to a TTL in which it answers nobody. They freeze (what was
//     sent to them meanwhile is done at the thaw, in order), are slow, refuse to quiesce, crash,
//     come back, and may forget what was quiesced. A call whose context ended may have been
//     carried out.
//   - Sidecars that crash (nothing is undone, and the state file goes back to what it was
//     at the crash or before), stop in order, and freeze: then every call to the world,
//     the reading of the clock included, returns at the thaw, and not before.
//   - The way to etcd: cut in one or both directions, slow, or losing answers. The store:
//     errors, elections that refresh leases, leases revoked and keys deleted by others; more
//     TTL granted than was asked for; a backup restored; watches that hear late, one by one.
//     It has three members, of which a
//     sidecar knows one or all: one may be a deposed leader that goes on confirming renewals
//     and answers no read while the others expire the lease, or have no quorum.
//   - The fence step stop, and the dead-man guard, deciding by package guard: started by a
//     sidecar that lives, outliving it and the processes of the broker; or killed, or frozen,
//     with its sidecar. Brokers that are slow to stop, that cannot be stopped, that somebody
//     starts again at once.
//   - Something that all brokers depend on hangs, and they with it, when nothing else is wrong.
//   - Power cuts of all hosts, which come back one after the other.
//   - Rolling restarts: one broker after the other leaves, in each way that there is, while
//     anything else happens, or when nothing does any more.
//   - Hosts that sleep (the boot clock runs on), virtual machines that stand (none does, and
//     the wall clock jumps), and wall clocks that are set.
//   - Hands other than ours that make served what was quiesced.
//   - Outside of schedules: a copy of a state directory, and one that was moved
//     (copies_test.go); an empty disk in place of the broker's (wiped_test.go); sidecars that
//     are restarted after a backup was restored (restored_test.go).
//   - People who drain and activate over the control handler, and a placer that moves
//     topics: away from a live broker only once that one has stopped serving them, away
//     from any other as soon as its registration is gone.
//   - In a quarter of the schedules the sidecars place the topics themselves (rendezvous,
//     move or hold): people only create and delete topics, and brokers join and leave.
//   - People who pause recovery for a time, and resume it.
//   - Session policies that end a sidecar and stop its broker; both stay away until
//     somebody starts them.
//
// What is checked, and so proven for the schedules that were run (checks_test.go):
//   - When a registration runs out in the store, nothing is served by its broker and it is
//     not ready, whoever was restarted, and whoever did it, but for the excuses in README.md,
//     each of which has its length in seconds.
//   - A loss that nobody can foresee (a lease revoked, a key deleted by others), a broker
//     process that starts while unregistered, and what hands bring back end within a bound.
//   - No topic is served by two brokers, by the same rules; never by two that are ready,
//     unforeseeable losses and their bound apart.
//   - Epochs grow, and a sidecar that was detached does not come back while its
//     registration is gone.
//   - A broker that does not run is not registered for longer than its lease lasts.
//   - Registered and active is never to be seen after a loss during which peers lived.
//   - What a person drained, or a recovery did, only a person activates.
//   - A recovery drains only after a loss, and only if a peer was alive in the meantime and
//     somebody registered at every moment between the loss and the return, or until all of
//     them were lost, too.
//   - After a rolling restart during which nothing else was done to them all are active.
//   - Brokers that hang together keep their registrations, and nobody is stopped.
//   - A process that has just come up is not stopped while etcd answers.
//   - Drained brokers serve nothing, within the same bound.
//   - With ownership locks nothing is loaded, nor served for longer than that bound,
//     without its lock under the lease of the broker's own registration; and no lock is
//     released while its topic is served.
//   - Places change only by the rules: nothing is taken from a broker that is registered or
//     is to hold it, nothing given while it is served or locked, nothing placed that was
//     deleted, and no topic moves more than a few times while the same brokers are active.
//   - During a pause nothing is loaded, registered, drained, taken or shut down; the rules
//     above hold all the while.
//   - No sidecar sends more requests to etcd, of any kind, than README.md says.
//   - A sidecar ends by itself only by its session policy, with its exit code, after the
//     broker was stopped, and uses retries up only when etcd was silent.
//   - After a quiet time whatever may serve serves, exactly its assigned topics, and is
//     ready; nothing else is. In rendezvous mode every topic has one place, with move at an
//     active broker, and none moves any more. All goroutines end.
//
// README.md lists what is excused, for how long and why, and what is approximated. Not
// simulated are the drivers and brokers themselves, etcd's own behaviour (lab/clustertest
// holds package memory against a real one), gRPC, the kernel's part of a stop and of the
// guard, adopted registrations, hands that place topics beside the sidecars (rendezvous),
// and processes that end in the middle of one write to the disk. Mutations (make mutate-simulation) say
// how much of the rules the checks would notice.
package simulation
