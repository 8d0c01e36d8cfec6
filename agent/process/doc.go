// Package process starts, finds and stops the broker's process.
//
// Guaranteed: a Stopper says that the broker is stopped only when a process that it
// knew is proven gone, or when the stop command, where nothing else is known, ended
// with 0. SIGKILL follows SIGTERM when half of the time is over. A process that was
// given the pid of the broker later is never hit: signals go by pidfd, and the start
// time is compared. A broker that Holdfast started is stopped with its process group.
// A Child is recorded before it is started, so that whatever is killed in between,
// the next sidecar adopts it and no second copy runs. Orphans are reaped, and no exit
// status is taken from whoever waits for it.
//
// Not guaranteed: that a process in uninterruptible sleep ends in time (the error
// says so); that a descendant which left the process group of its own will is
// stopped (a broker under `run -- CMD` must stay in the foreground); that a process
// is found which this one may not see (another pid namespace); that a broker which
// something else starts anew right after it was stopped is stopped again: ask Target.
// Linux only.
package process
