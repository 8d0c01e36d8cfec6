// Package guard is the dead-man guard: a second, tiny process that knows until when
// the broker may serve and how to stop it, and nothing else. It is this same binary,
// started by the sidecar as 'holdfast guard'. If the sidecar is frozen, killed or
// starved, nobody moves the moment any more, and the guard stops the broker.
//
// The sidecar's word is a page of memory that both have mapped: it is no file on a
// disk, so a store into it makes no system call and waits for nothing, whatever the
// disk does. It ends with the last process that has it, so there is none of another
// boot. One guard serves one process of the broker, which it holds by a pidfd, and
// one state directory, which it holds by a lock that it inherits from its start.
//
// Guaranteed: the stop begins at margin/3 before the deadline of the last word, and
// SIGKILL follows at margin/6 before it, also when the host was suspended meanwhile;
// only the process that was meant is hit; each word is acted upon once, so a broker
// that somebody starts again after it was stopped is not stopped by the old word. The
// guard outlives the sidecar, and the next sidecar of the state directory takes it
// over: the old word stays in force until that one's first confirmed renewal. It ends
// when the broker's process is gone or the sidecar says goodbye, and not by SIGTERM,
// SIGINT or SIGHUP.
//
// Stands says when a guard keeps the word for a process of the broker; a sidecar lets
// nobody to the broker before, unless none can be started.
//
// Not guaranteed: that a broker is stopped which somebody else starts while the
// sidecar does not run (let its unit be BindsTo= the sidecar's); that a stop command
// stopped anything when there is no process to look at (neither pid file, process
// name nor child); anything if the guard itself is killed with the sidecar. So:
//
//   - systemd: KillMode=process. With mixed or control-group the guard is killed with
//     the rest of the unit as soon as the sidecar has ended, however it ended. It
//     ignores SIGTERM, so a clean stop takes no longer: it ends by the sidecar's
//     goodbye.
//   - pods: the guard sees the broker only with shareProcessNamespace. It stands by
//     when the sidecar is frozen, starved or crashed inside of the container; when the
//     container is killed, the guard goes with it, and the broker container's own
//     liveness probe must stop the broker.
//
// At the start it asks for what helps it to run when nothing else does, and goes on
// without what it is refused: a better priority, its memory locked, and to be the last
// that the kernel kills for want of memory.
package guard
