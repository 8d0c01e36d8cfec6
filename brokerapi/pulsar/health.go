package pulsar

import "context"

func saysOK(text string) bool { return text == "ok" }

// Health implements brokerapi.Broker: it rests on the process alone. 4.0.7 answers it in 3 to
// 7 ms while its bookie hangs (2026-11-23).
func (b *Broker) Health(ctx context.Context) error {
	_, err := b.plain(ctx, "/admin/v2/brokers/ready", "ok", saysOK)
	return err
}

// Works implements brokerapi.Worker. The broker is asked to produce and read a message, for
// which it takes as long as its bookies like: that says nothing of its process.
func (b *Broker) Works(ctx context.Context) error {
	b.noteSession(ctx)
	_, err := b.plain(ctx, "/admin/v2/brokers/health?topicVersion=V2", "ok", saysOK)
	return err
}
