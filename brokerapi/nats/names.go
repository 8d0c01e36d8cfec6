package nats

import (
	"fmt"
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
	out := make([]byte, 0, len(streamPrefix)+len(topic)+8)
	out = append(out, streamPrefix...)
	out = encode(out, ns)
	out = append(out, '+')
	out = encode(out, name)
	if len(out) > maxStreamName {
		return "", fmt.Errorf("topic %q: its stream name would have %d bytes, NATS allows %d: use a shorter name (letters, digits, _ and - take one byte, all others three)", topic, len(out), maxStreamName)
	}
	return string(out), nil
}

// topicOf is the inverse of streamName; ok is false for every name that
// streamName does not make.
func topicOf(stream string) (topic string, ok bool) {
	rest, ok := strings.CutPrefix(stream, streamPrefix)
	if !ok || len(stream) > maxStreamName {
		return "", false
	}
	ns, name, ok := strings.Cut(rest, "+")
	if !ok {
		return "", false
	}
	out := make([]byte, 0, len(rest)+1)
	for _, part := range []string{ns, name} {
		out = append(out, '/')
		if out, ok = decode(out, part); !ok {
			return "", false
		}
	}
	return string(out), true
}

func plain(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

const hexDigits = "0123456789ABCDEF"

func encode(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; plain(c) {
			dst = append(dst, c)
		} else {
			dst = append(dst, '=', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return dst
}

// decode accepts what encode writes and nothing else: lower-case hex, a plain
// byte written as hex, a slash and the empty string are somebody else's.
func decode(dst []byte, s string) ([]byte, bool) {
	if s == "" {
		return nil, false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if plain(c) {
			dst = append(dst, c)
			continue
		}
		if c != '=' || i+2 >= len(s) {
			return nil, false
		}
		hi, lo := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
		if hi < 0 || lo < 0 {
			return nil, false
		}
		c = byte(hi<<4 | lo)
		if plain(c) || c == '/' {
			return nil, false
		}
		dst = append(dst, c)
		i += 2
	}
	return dst, true
}
