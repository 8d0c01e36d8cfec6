package nats

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

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

// recordFields are the fields of a topic's record that this driver reads, with the bounds of those that
// are numbers: -1 is NATS' own word for no limit. Other systems keep their own fields there, so unknown ones are borne.
var recordFields = []struct {
	name, want  string
	least, most int64
}{
	{"subjects", `a list of NATS subjects (no spaces, no empty parts, ">" at the end only), such as ["orders.>"]`, 0, 0},
	{"storage", `"file" (the default) or "memory"`, 0, 0},
	{"replicas", "a whole number from 1 (the default) to 5", 0, 5},
	{"max_bytes", "a whole number of bytes, such as 1073741824 for 1 GiB; 0: no limit", -1, math.MaxInt64},
	{"max_msgs", "a whole number of messages; 0: no limit", -1, math.MaxInt64},
	{"max_age_seconds", "a whole number of seconds, such as 86400 for a day, at most 9223372036; 0: no limit", 0, math.MaxInt64 / int64(time.Second)},
}

// Misspelt implements brokerapi.RecordReader.
func (*Broker) Misspelt(raw []byte) (said []string) {
	var known []string
	for _, f := range recordFields {
		known = append(known, f.name)
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(raw, &fields) // what cannot be read is refused
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if near := brokerapi.Nearest(strings.ToLower(name), known); near != "" && !strings.EqualFold(near, name) {
			said = append(said, fmt.Sprintf("%q does nothing: did you mean %s?", name, near))
		}
	}
	return said
}

// streamConfig is what a new stream is created with; what is left out is the
// server's default. Zero means no limit.
type streamConfig struct {
	Name      string        `json:"name"`
	Subjects  []string      `json:"subjects"`
	Retention string        `json:"retention"`
	Storage   string        `json:"storage"`
	Discard   string        `json:"discard"`
	Replicas  int           `json:"num_replicas"`
	MaxBytes  int64         `json:"max_bytes,omitempty"`
	MaxMsgs   int64         `json:"max_msgs,omitempty"`
	MaxAge    time.Duration `json:"max_age,omitempty"`
}

// configOf is the stream that a topic and its record ask for. Errors name the
// record's key and what to write there.
func configOf(key, topic string, raw []byte) (cfg streamConfig, err error) {
	name, err := streamName(topic)
	if err != nil {
		return cfg, err
	}
	var fields map[string]json.RawMessage
	if raw = bytes.TrimSpace(raw); len(raw) > 0 {
		if err := json.Unmarshal(raw, &fields); err != nil {
			return cfg, fmt.Errorf(`topic record %s: cannot be read: %w: write null, or JSON like {"subjects":["orders.>"]}`, key, err)
		}
	}
	var subjects []string
	var storage string
	numbers := map[string]int64{}
	for _, f := range recordFields {
		for name, value := range fields {
			fits, n := true, int64(0)
			switch {
			case !strings.EqualFold(name, f.name):
			case f.name == "subjects":
				fits = json.Unmarshal(value, &subjects) == nil && !slices.ContainsFunc(subjects, impossible)
			case f.name == "storage":
				fits = json.Unmarshal(value, &storage) == nil && slices.Contains([]string{"", "file", "memory"}, storage)
			default:
				fits = json.Unmarshal(value, &n) == nil && n >= f.least && n <= f.most
				numbers[f.name] = n
			}
			if !fits {
				return cfg, fmt.Errorf("topic record %s: %q is %.200s: want %s", key, name, value, f.want)
			}
		}
	}
	// None may take what would make a serving stream look quiesced.
	for _, s := range subjects {
		if meets(strings.Split(s, "."), strings.Split(parkedFilter, ".")) {
			return cfg, fmt.Errorf("topic record %s: subject %q: takes %s, where Holdfast keeps quiesced streams", key, s, parkedFilter)
		}
	}
	if len(subjects) == 0 { // the topic with dots
		subject := strings.ReplaceAll(topic[1:], "/", ".")
		if strings.ContainsAny(subject, "*>") || impossible(subject) || !utf8.ValidString(subject) {
			return cfg, fmt.Errorf(`topic %q: cannot be the NATS subject %q: name its subjects in the topic's record, %s = {"subjects":["…"]}`, topic, subject, key)
		}
		subjects = []string{subject}
	}
	return streamConfig{Name: name, Subjects: subjects, Retention: "limits", Storage: cmp.Or(storage, "file"), Discard: "old", Replicas: max(int(numbers["replicas"]), 1),
		MaxBytes: numbers["max_bytes"], MaxMsgs: numbers["max_msgs"], MaxAge: time.Duration(numbers["max_age_seconds"]) * time.Second}, nil
}

// impossible reports whether no server takes such a subject.
func impossible(subject string) bool {
	tokens := strings.Split(subject, ".")
	return strings.ContainsAny(subject, " \t\r\n\f") || slices.Contains(tokens, "") || slices.Contains(tokens[:len(tokens)-1], ">")
}

// meets is true if some subject matches both patterns.
func meets(a, b []string) bool {
	for i := range min(len(a), len(b)) {
		if a[i] == ">" || b[i] == ">" {
			return true
		}
		if a[i] != b[i] && a[i] != "*" && b[i] != "*" {
			return false
		}
	}
	return len(a) == len(b)
}
