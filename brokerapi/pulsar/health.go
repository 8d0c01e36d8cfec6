package pulsar

import "context"

func saysOK(text string) bool { return text == "ok" }

// ready rests on the process alone. 4.0.7 answers it in 3 to
// 7 ms while its bookie hangs (2026-11-23).
func (b *Broker) ready(ctx context.Context) error {
	_, err := b.plain(ctx, "/admin/v2/brokers/ready", "ok", saysOK)
	return err
}

// works is nil when the broker did its work once. It is asked to produce and read a message, for
// which it takes as long as its bookies like: that says nothing of its process.
func (b *Broker) works(ctx context.Context) error {
	b.noteSession(ctx)
	_, err := b.plain(ctx, "/admin/v2/brokers/health?topicVersion=V2", "ok", saysOK)
	return err
}
