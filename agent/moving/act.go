package moving

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/brokerapi"
	"holdfast/cluster"
	"holdfast/recovery/moves"
)

// act does one step at the broker. It ends when phase or orders are others, and when nothing was heard
// of it for a while. One that is heard of is alive, also where it moves no byte.
func (w *Worker) act(ctx context.Context, u under, o Orders, step moves.Step) (out moves.Outcome) {
	if step.Act == moves.GiveUp {
		return out
	}
	act, end := context.WithCancelCause(ctx)
	defer end(nil)
	w.tasks.Go(func() { // until it ends
		select {
		case <-act.Done():
		case <-u.changed:
			end(nil)
		}
	})
	silence := time.AfterFunc(quiet, func() { end(errQuiet) })
	defer silence.Stop()
	moved, told := int64(0), time.Now()
	out, err := w.step(act, u.Move, o, step.Act, func(ctx context.Context, n int) error {
		for { // waiting for the rate is no silence
			part := min(n, w.limit.Burst())
			if err := w.limit.WaitN(ctx, part); err != nil {
				return err
			}
			silence.Reset(quiet)
			moved += int64(part)
			w.metrics.bytes.Add(float64(part))
			if time.Since(told) >= lookAgain {
				w.progress(act, u, o, moved)
				told = time.Now()
			}
			if n -= part; n == 0 {
				return ctx.Err()
			}
		}
	})
	if err != nil && errors.Is(context.Cause(act), errQuiet) {
		err = fmt.Errorf("%w: %w", errQuiet, err)
	}
	out.Err, out.Final = err, errors.Is(err, brokerapi.ErrRefused)
	return out
}

// progress writes down how far an act is: the source of a topic that is not served waits for it. The
// act waits meanwhile, and not for long: a server gives up what it restores when no more comes.
func (w *Worker) progress(ctx context.Context, u under, o Orders, moved int64) {
	ctx, cancel := context.WithTimeout(ctx, lookAgain)
	defer cancel()
	if now, _ := w.look(u.Topic, u.ID); now.changed == u.changed {
		_ = w.write(ctx, &o.Who, now.Progress(moved, time.Now()), now.revision, 0) // the next one tells more
	}
}

func (w *Worker) step(ctx context.Context, m moves.Move, o Orders, act moves.Act, meter brokerapi.Meter) (out moves.Outcome, err error) {
	b, sealed := w.set.Mover, moves.Extent{}
	if m.Sealed != nil {
		sealed = *m.Sealed
	}
	extent := func(e moves.Extent, err error) (moves.Outcome, error) {
		out.Extent = &e
		return out, err
	}
	if m.Sent && w.set.Sender == nil || !m.Sent && b == nil {
		return out, brokerapi.Errorf(brokerapi.ErrRefused, "topics of broker %s do not move so", w.set.Me())
	}
	calm, ours := w.topics.Calm(m.Topic)
	if !calm && act != moves.Compare { // which changes nothing, and begins as the topic is served
		return out, fmt.Errorf("the broker is still asked for something else about the topic")
	}
	if !ours && (act == moves.Seal || act == moves.HandOver) {
		return out, fmt.Errorf("broker %s does not have its ownership lock: another may serve it", w.set.Me())
	}
	var from brokerapi.Peer
	var records map[string][]byte
	if act == moves.Accept || act == moves.Copy || act == moves.Compare {
		from, err = w.peer(ctx, m.From)
	}
	if err == nil && (act == moves.Accept || act == moves.Resume || act == moves.Restore) {
		records, err = w.store.Records(ctx, []string{m.Topic})
	}
	if err != nil {
		return out, err
	}
	switch act {
	case moves.Accept:
		return out, b.Accept(ctx, m.Topic, records[m.Topic], *m.Planned, from)
	case moves.Seal:
		return extent(b.Seal(ctx, m.Topic, m.ID, m.Force))
	case moves.Copy:
		return extent(b.Copy(ctx, m.Topic, m.ID, from, sealed, meter))
	case moves.Compare:
		content, err := b.Compare(ctx, m.Topic, from, sealed, meter)
		if err == nil && content.Differs == "" {
			content.Synced, err = w.sync(ctx)
		}
		if out.Content = &content; err != nil {
			return out, err
		}
		return extent(b.Extent(ctx, m.Topic)) // it may have been lost since it was resumed
	case moves.HandOver:
		if out.Assigned, err = w.assigned(ctx, w.set.Me(), m.Topic); err != nil || out.Assigned == 0 {
			return out, cmp.Or(err, brokerapi.Errorf(brokerapi.ErrRefused, "it is not assigned to %s any more", m.From))
		}
		return extent(b.Extent(ctx, m.Topic))
	case moves.Resume, moves.Restore:
		switch {
		case o.Mode != cluster.ModeActive && o.Mode != cluster.ModeDraining:
			return out, fmt.Errorf("broker %s is %s: 'holdfast activate' there", w.set.Me(), o.Mode)
		case !ours:
			return out, fmt.Errorf("broker %s does not have its ownership lock yet", w.set.Me())
		}
		return extent(b.Resume(ctx, m.Topic, m.ID, records[m.Topic], m.Sealed))
	case moves.Remove, moves.Discard:
		// Whoever has it assigned serves it, whatever became of this move.
		if assigned, err := w.assigned(ctx, w.set.Me(), m.Topic); err != nil || assigned != 0 {
			return out, cmp.Or(err, fmt.Errorf("it is assigned to %s: its data is kept", w.set.Me()))
		}
		return out, b.Remove(ctx, m.Topic, m.ID)
	case moves.Send:
		to := brokerapi.Peer{}
		if m.To != "" {
			if to, err = w.peer(ctx, m.To); err != nil {
				return out, err
			}
		}
		out.Seen, err = w.set.Sender.Send(ctx, m.Topic, to)
		return out, err
	}
	return out, fmt.Errorf("act %q: unknown", act)
}

// sync has the copy on disk before the source's goes: a broker that has just restored it may leave that
// to the kernel for minutes. Nobody waits for a disk that does not answer, so there is one call at a time.
func (w *Worker) sync(ctx context.Context) (dir string, err error) {
	done := make(chan func() (string, error), 1)
	select {
	case w.syncing <- struct{}{}:
		go func() {
			defer func() { <-w.syncing }()
			dir, err := w.set.Sync()
			done <- func() (string, error) { return dir, err }
		}()
	case <-ctx.Done():
	}
	select {
	case took := <-done:
		return took()
	case <-ctx.Done():
		return "", fmt.Errorf("sync the data directory: %w", ctx.Err())
	}
}

func (w *Worker) assigned(ctx context.Context, broker, topic string) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	return w.store.Assigned(ctx, broker, topic)
}

// peer is where another broker is, as it advertises itself.
func (w *Worker) peer(ctx context.Context, id string) (brokerapi.Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	reg, _, err := w.store.Party(ctx, id)
	if err != nil || reg == nil {
		return brokerapi.Peer{}, cmp.Or(err, fmt.Errorf("broker %s is not registered", id))
	}
	v, err := reg.Parse()
	p := brokerapi.Peer{ID: id, URL: cmp.Or(v.ConnectURL, v.BrokerURL, v.AdminAddr)}
	if err == nil && p.URL == "" {
		err = fmt.Errorf("broker %s does not say where it is: set --broker-url there", id)
	}
	return p, err
}
