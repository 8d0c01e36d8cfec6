package danube

import (
	"context"
	"time"
)

// reportForever writes what is loaded, at once and then every period, until the broker
// ends: nothing stops it in a broker that nobody takes for alive.
func (b *Broker) reportForever(ctx context.Context) {
	for {
		if err := b.store.put(ctx, loadKey(b.id), b.report()); err != nil && ctx.Err() == nil {
			b.log.Warn("load not reported", "err", err)
		}
		if !pause(ctx, b.cfg.Times.Report) {
			return
		}
	}
}

func (b *Broker) report() []byte {
	now, id := uint64(time.Now().Unix()), number(b.id)
	r := loadReport{
		Resources: []resourceUsage{{"CPU", 12.5}, {"Memory", 40}},
		Topics:    []topicLoad{}, Timestamp: &now, BrokerID: &id,
	}
	for _, name := range b.topics.names() {
		r.Topics = append(r.Topics, topicLoad{Name: name})
	}
	return encode(r)
}
