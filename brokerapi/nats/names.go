package nats

import (
	"fmt"
	"net/url"
	"strings"

	"holdfast/brokerapi"
)

const (
	streamPrefix = "hf+"
	// maxStreamName is JetStream's own limit, in bytes; it is also a folder's name.
	maxStreamName = 255
	// parked is in front of the subject that a quiesced stream has: a stream
	// without subjects would get its own name as one.
	parked       = "_HOLDFAST.quiesced."
	parkedFilter = parked + ">"
)

// streamName is the stream of a topic: "hf+", the namespace, "+", the name.
// Letters, digits, "_" and "-" stand for themselves, every other byte is "="
// and two upper-case hex digits. No two topics have the same stream.
func streamName(topic string) (string, error) {
	ns, name, err := brokerapi.SplitTopic(topic)
	if err != nil {
		return "", err
	}
	stream := streamPrefix + encode(ns) + "+" + encode(name)
	if len(stream) > maxStreamName {
		return "", fmt.Errorf("topic %q: its stream name would have %d bytes, NATS allows %d: use a shorter name (letters, digits, _ and - take one byte, all others three)", topic, len(stream), maxStreamName)
	}
	return stream, nil
}

// topicOf is the inverse of streamName; ok is false for every name that
// streamName does not make.
func topicOf(stream string) (topic string, ok bool) {
	ns, name, _ := strings.Cut(strings.TrimPrefix(stream, streamPrefix), "+")
	topic = "/" + decode(ns) + "/" + decode(name)
	made, err := streamName(topic)
	return topic, err == nil && made == stream
}

func encode(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}

// decode takes back what encode does; of anything else it makes nothing that encode would write so.
func decode(s string) string {
	decoded, _ := url.PathUnescape(strings.ReplaceAll(s, "=", "%"))
	return decoded
}
