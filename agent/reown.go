package agent

import (
	"context"
	"time"

	"holdfast/recovery"
)

// reownSlack is what taking the registration up again may last beyond the recover window.
const reownSlack = time.Second

// reownPatience is how long quiescing waits for the registration to be written again after
// it was lost, before its deadline. To quiesce a broker that owns its topics by locks in its
// own cluster is to give all of them away, which the policy reconnect is there to avoid: each
// lock is looked at as soon as we are attached again, and what another broker has by then is
// unloaded. At the fence point nothing is waited for.
func (a *agent) reownPatience() time.Duration {
	if a.cfg.layout() == nil || recovery.Policy(a.cfg.SessionExpiredPolicy) != recovery.PolicyReconnect || a.detachedBy != recovery.WhyLeaseLost {
		return 0
	}
	return a.settings().DetachmentRecoverWindow + reownSlack
}

// sleep returns when d is over or ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
