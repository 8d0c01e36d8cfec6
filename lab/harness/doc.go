// Package harness runs real processes for the demo, the end-to-end tests and the
// benches: etcd, NATS servers, stand-ins for other brokers, and sidecars, and cuts
// the path between them.
//
// Guaranteed: everything lives under one temporary directory and is gone after
// Lab.Close; every process is killed with its process group, and dies with the
// process that started it even if that one is killed -9; ports, subnets and
// namespaces are not shared between labs on one machine, also not between
// processes; a server comes back on the ports and the data that it had.
//
// Not guaranteed: anything about time on an overloaded machine. Waits are bounded
// polls for a state, never sleeps for it, and their errors hold the last state seen.
//
// The package reads what Holdfast publishes (status JSON, probes, keys in etcd)
// through its own types: it is an outside reader, and breaks when the public
// surface does. It needs Linux.
package harness
