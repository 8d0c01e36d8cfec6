// Package agent is one sidecar's life: settings, wiring, the loop that owns its
// state, the journal, the state file and the control socket.
//
// Guaranteed: the loop alone decides and does no I/O; readiness compares the fence
// point with the clock in the request itself; a broker that is detached is fenced as
// soon as it can be reached, and again for each of its processes, until it succeeded;
// the registration is given up only after everything was quiesced.
//
// Not guaranteed: that a broker which does not answer its admin API stops serving
// before the deadline, or that anything is fenced while the sidecar itself does not
// run: this package only asks the broker, it does not stop its process. Nor that two
// sidecars with copies of one state directory know each other apart.
package agent
