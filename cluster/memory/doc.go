// Package memory is an etcd in memory: the server side of etcd's v3 API as package cluster
// uses it, without raft, disk, sockets or a goroutine of its own. It lives in a
// testing/synctest bubble, if it and its links are made there, and answers in microseconds.
// Simulations and tests play with it; the binary has nothing of it.
//
//	store := memory.New(memory.Config{})
//	go store.Run(ctx)                       // lets leases run out on time
//	link := memory.NewLink()                // or nil: a perfect network
//	client := cluster.Over(cfg, store.Conn(link), log)
//	link.Cut(memory.BothWays); link.Heal()
//	store.Observe(func(v memory.View, c memory.Change) { … }) // after every revision
//	store.Inspect(func(v memory.View) { … })                  // any time
//	store.SetFault(func(method string) error { return memory.ErrNoSpace })
//	store.LoseLeader(); store.ChangeLeader(0) // the latter refreshes every lease
//	store.EndWatches(memory.ErrNoLeader)
//	store.Revoke(id)                        // as a stale leader does
//	m := store.Member(); client = cluster.Over(cfg, m.Conn(link), log) // one endpoint of several
//	m.Depose(0)                             // confirms renewals on, and nobody hears of them
//	m.Isolate(); m.Rejoin()                 // without a quorum
//	c := store.Content(); store.Rewind(c)   // a backup is restored
//
// Guaranteed, and held against a real etcd by lab/clustertest:
//   - Revisions: one for each transaction that changes something; create and mod
//     revision, version, and the headers' revision. Reads of past revisions until they
//     are compacted.
//   - Transactions with guards on keys and ranges, nested ones included. Guards are
//     decided before anything is written. Limits and refusals are etcd's errors.
//   - Leases: rounding, the raised minimum, binding, rebinding, revocation. A renewal of
//     a lease that is overdue and not yet deleted waits for the end of that, as in etcd.
//   - Watches from any revision that is not compacted; no event is lost or twice. A progress
//     request is answered once the store has reached the revision at which each watch begins.
//   - No message is shared: requests and answers may be changed by their owners.
//   - The same calls in the same order at the same times give the same answers, lease ids
//     included.
//
// Not guaranteed: authentication, members, maintenance, alarms, progress reports that nobody asked
// for, fragments, limits on size, and the batches that events of a watch come in. A fault is
// what stands for the first ones. Every answer is linearizable, but for what a member that was
// deposed says of leases.
// The past is kept until it is compacted. What happens at the same instant happens in any
// order, so a simulation repeats itself only if its instants differ.
//
// Time is Config.Now. An overdue lease is deleted when the first call after that needs the
// store, whatever else runs; Run only adds that watchers hear of it without such a call.
// With Config.ExpiryDelay zero, a lease ends at its deadline to the nanosecond, which is
// the strictest for its holder: etcd looks every 500 ms.
package memory
