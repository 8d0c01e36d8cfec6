package nats

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
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

// record is the part of a topic's record that this driver reads. Other systems
// keep their own fields there, so unknown ones are borne.
type record struct {
	Subjects      []string `json:"subjects"`
	Storage       string   `json:"storage"`  // "file" (default) or "memory"
	Replicas      int      `json:"replicas"` // 1 (default) to 5
	MaxBytes      int64    `json:"max_bytes"`
	MaxMsgs       int64    `json:"max_msgs"`
	MaxAgeSeconds int64    `json:"max_age_seconds"`
}

// misspelt says of each field of a record that is none here, and is nearly one, which that is.
func misspelt(raw []byte) (said []string) {
	var known []string
	for i := range reflect.TypeFor[record]().NumField() {
		known = append(known, reflect.TypeFor[record]().Field(i).Tag.Get("json"))
	}
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(raw, &fields) // what cannot be read has been refused
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
// record's key, with the prefix that all keys have, and what to write there.
func configOf(prefix, topic string, raw []byte) (cfg streamConfig, err error) {
	name, err := streamName(topic)
	if err != nil {
		return cfg, err
	}
	key := prefix + "/topics" + topic
	var rec record
	if raw = bytes.TrimSpace(raw); len(raw) > 0 {
		err := json.Unmarshal(raw, &rec)
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			want := map[reflect.Kind]string{reflect.String: "string", reflect.Slice: "list of strings"}[wrong.Type.Kind()]
			return cfg, fmt.Errorf("topic record %s: %q: want a %s, got a JSON %s", key, wrong.Field, cmp.Or(want, "whole number"), wrong.Value)
		}
		if err != nil {
			return cfg, fmt.Errorf(`topic record %s: cannot be read: %w: write null, or JSON like {"subjects":["orders.>"]}`, key, err)
		}
	}
	// What else cannot be the server refuses. An age that overflows it would take.
	const maxSeconds = int64(1<<63-1) / int64(time.Second)
	if rec.MaxAgeSeconds < 0 || rec.MaxAgeSeconds > maxSeconds {
		return cfg, fmt.Errorf("topic record %s: max_age_seconds %d: want 0 to %d", key, rec.MaxAgeSeconds, maxSeconds)
	}
	// None may take what would make a serving stream look quiesced.
	for _, s := range rec.Subjects {
		if meets(strings.Split(s, "."), strings.Split(parkedFilter, ".")) {
			return cfg, fmt.Errorf("topic record %s: subject %q: takes %s, where Holdfast keeps quiesced streams", key, s, parkedFilter)
		}
	}
	if len(rec.Subjects) == 0 { // the topic with dots
		subject := strings.ReplaceAll(topic[1:], "/", ".")
		if strings.ContainsAny(subject, "*> ") || strings.Contains(subject, "..") || strings.HasSuffix(subject, ".") || !utf8.ValidString(subject) {
			return cfg, fmt.Errorf(`topic %q: cannot be the NATS subject %q: name its subjects in the topic's record, %s = {"subjects":["…"]}`, topic, subject, key)
		}
		rec.Subjects = []string{subject}
	}
	return streamConfig{Name: name, Subjects: rec.Subjects, Retention: "limits", Storage: cmp.Or(rec.Storage, "file"), Discard: "old", Replicas: max(rec.Replicas, 1),
		MaxBytes: rec.MaxBytes, MaxMsgs: rec.MaxMsgs, MaxAge: time.Duration(rec.MaxAgeSeconds) * time.Second}, nil
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
