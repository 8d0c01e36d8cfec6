// Package danube is a client of Danube brokers for the lab: it publishes to topics, reads them
// and keeps account of what became of the messages. It looks a topic up, and makes its producer
// and its consumer again after any error, as a user's code must: Danube's own client does not
// recover a producer by itself (0.7.3, 2026-11-22).
//
// It does not ask a broker whether it still knows the consumer: Danube's own client does, and does
// not look at the answer while nothing comes in.
package danube
