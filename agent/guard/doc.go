// Package guard is the dead-man guard: a second, tiny process that knows until when
// the broker may serve and how to stop it, and nothing else. It is this same binary,
// started by the sidecar as 'holdfast guard'. If the sidecar is frozen, killed or
// starved, nobody moves the moment any more, and the guard stops the broker.
//
// The sidecar's word is a page of memory that both have mapped: it is no file on a
// disk, so a store into it makes no system call and waits for nothing, whatever the
// disk does. It ends with the last process that has it, so there is none of another
// boot. A guard serves one state directory, which it holds by a lock that it inherits
// from its start, and one process of the broker at a time, which it holds by a pidfd. It
// outlives that process: the sidecar names the next one in the page and wakes it by a
// signal, and the guard keeps the one that it has until it holds the other. The page says
// for how long it may sleep, about half of a TTL.
//
// Guaranteed: the stop begins at margin/3 before the deadline of the last word, and
// SIGKILL follows at margin/6 before it, also when the host was suspended meanwhile. A
// sidecar that proves that nothing is served puts the stop off until three of its health
// intervals after the proof, and no longer: one that goes on proving keeps the broker's
// process through an outage of etcd, one that freezes does not. The end of the broker is
// proven when the last thread of its process has ended, and the last process of the group if
// the sidecar started it. Before the moment the guard only watches. At the moment it stops the process
// that it holds, whatever the sidecar does, and signals it before it looks for anything
// else. From then on it stands: while the sidecar's loop has not beaten for 2 s, it looks
// every 250 ms by pid file or by name, as probes.Finder does with what the sidecar knew
// then, and at once when a pid file is written. What it finds it stops, if it was started before the moment; what was started
// later it holds by SIGSTOP, so that nobody starts yet another one, until the loop beats
// again. With a stop command and nothing to look at, it runs that every 5 s.
// Beside a sidecar whose loop runs a broker may always be started again. It leaves alone
// what it is told is not the broker.
//
// The guard outlives the sidecar, and the next sidecar of the state directory takes it
// over: the old word stays in force until that one's first confirmed renewal. It ends when
// the sidecar says goodbye, when it is disarmed and its sidecar has ended, or when it stands
// and its state directory was removed, so that nobody can take it over; not when the
// broker ends, and not by SIGTERM, SIGINT, SIGHUP or SIGQUIT, which a service manager or a
// terminal send to everybody. One that stands beside a sidecar that never returns keeps the
// broker down until it is ended by hand: kill -KILL with the pid that guard.lock in the
// state directory has, and then kill -CONT the broker that it holds. It says so in its log
// when it begins, and StandingOf says it to who asks. A pid in guard.lock is a guard's only
// while that process has the lock; a clean end empties the file.
//
// Stands says when a guard keeps the word for a process of the broker; a sidecar lets
// nobody to the broker before, unless none can be started.
//
// Not guaranteed: that a broker is stopped that neither pid file nor name leads to and that
// somebody else starts while the sidecar is silent; that one serves nothing in the 250 ms
// before it is found by name, when its pid file comes after its listener, or when the machine
// is too busy to run the guard between the two; that a stop command stopped anything
// when there is no process to look at; anything if the guard itself is killed, or stopped,
// with the sidecar. So:
//
//   - systemd: KillMode=process. With mixed or control-group the guard is killed with
//     the rest of the unit as soon as the sidecar has ended, however it ended. It
//     ignores SIGTERM, so a clean stop takes no longer: it ends by the sidecar's
//     goodbye.
//   - pods: the guard sees the broker only with shareProcessNamespace. It stands by
//     when the sidecar is frozen, starved or crashed inside of the container; when the
//     container is killed, the guard goes with it, and the broker container's own
//     liveness probe must stop the broker.
//   - What stops a whole cgroup stops both: systemctl freeze, systemctl kill -s STOP, a
//     container that is paused alone. As long as that lasts the broker serves on; the guard
//     acts when it runs again. Whoever watches from another cgroup escapes it: the broker
//     container's liveness probe at /broker/live, which then does not answer, or for a unit
//     WatchdogSec= with WatchdogSignal=SIGKILL, whose next sidecar fences at the deadline of
//     the one before. (SIGABRT, the default, waits until the process is continued.) Where
//     the broker is paused with them, nothing is served meanwhile.
//
// At the start it asks for what helps it to run when nothing else does, and goes on
// without what it is refused: a better priority, its memory locked, and to be the last
// that the kernel kills for want of memory.
package guard
