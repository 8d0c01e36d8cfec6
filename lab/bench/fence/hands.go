package fence

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"holdfast/lab/harness"
	"holdfast/standstill"
)

const (
	// call is what one round of the ladder's calls may take.
	call = time.Second
	// silent is for how long a sidecar's loop must not have beaten before its guard acts.
	silent = 2 * time.Second
	// look is the guard's pause between two looks.
	look = 250 * time.Millisecond
)

// hands cuts a broker off from etcd until it is quiesced, and has others bring its topic
// back. If freeze, the sidecar cannot see that, and its guard must.
func hands(bring func(context.Context, *nats.Conn, string) error, freeze bool) func(context.Context, *run, *outcome) error {
	return func(ctx context.Context, r *run, o *outcome) error {
		o.limit = healthInterval + call
		if freeze {
			o.limit = max(3*healthInterval, silent) + look + call
		}
		if err := r.link.Cut(); err != nil {
			return err
		}
		if _, err := r.Sidecar.Await(ctx, 2*r.ttl, "the detachment", func(s harness.Status) bool { return s.Attachment == "detached" }); err != nil {
			return err
		}
		detached := time.Now()
		if err := harness.Await(ctx, r.ttl, "publishers to be refused", func(context.Context) (bool, string) {
			at := r.refused.Load()
			return at != nil && at.After(detached), fmt.Sprint(at)
		}); err != nil {
			return err
		}
		_ = harness.Wait(ctx, time.Duration(r.rng.Int64N(int64(r.ttl)))) // before and after the key is gone
		if freeze {
			if err := r.Sidecar.Freeze(); err != nil {
				return err
			}
		}
		from, err := r.broughtBack(ctx, bring)
		if err != nil {
			return err
		}
		if from.IsZero() {
			o.served = known(0)
			return nil
		}
		_ = harness.Wait(ctx, o.limit+2*time.Second)
		last, _, err := r.last(from, time.Now())
		if err != nil {
			return err
		}
		o.served = known(max(0, last.stored.Sub(from)))
		o.claim(standstill.Judge("served", from, from.Add(o.limit), o.served.Duration, o.limit))
		return nil
	}
}

// broughtBack has others bring the topic back, and is when they did. They try again where the
// broker refuses: it may be giving the topic up at that moment. Zero: it was stopped for want of
// a proof in time, so there is nothing to bring back.
func (r *run) broughtBack(ctx context.Context, bring func(context.Context, *nats.Conn, string) error) (from time.Time, err error) {
	err = harness.Await(ctx, r.ttl, "the topic to be brought back", func(ctx context.Context) (bool, string) {
		from = time.Now()
		c, err := r.Broker.Connect()
		if err == nil {
			defer c.Close()
			err = bring(ctx, c, topic)
		}
		if err != nil && !r.Broker.Running() {
			from = time.Time{}
			return true, ""
		}
		return err == nil, fmt.Sprint(err)
	})
	return from, err
}
