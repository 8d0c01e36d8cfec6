package nats

import (
	"math/rand/v2"
	"strings"
	"testing"

	"holdfast/internal/testseed"
)

func TestStreamNamesAreAsWritten(t *testing.T) {
	for _, c := range []struct{ name, topic, stream string }{
		{"plain", "/default/orders", "hf+default+orders"},
		{"letters, digits, underscore, dash", "/Az09_-/x", "hf+Az09_-+x"},
		{"dot", "/default/orders.eu", "hf+default+orders=2Eeu"},
		{"plus and equals", "/a+b/c=d", "hf+a=2Bb+c=3Dd"},
		{"space, star, greater", "/a b/*.>", "hf+a=20b+=2A=2E=3E"},
		{"unicode", "/ns/ü", "hf+ns+=C3=BC"},
		{"not UTF-8", "/ns/\xff", "hf+ns+=FF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := streamName(c.topic)
			if err != nil || got != c.stream {
				t.Errorf("streamName(%q) = %q, %v, want %q", c.topic, got, err, c.stream)
			}
			back, ok := topicOf(c.stream)
			if !ok || back != c.topic {
				t.Errorf("topicOf(%q) = %q, %v, want %q", c.stream, back, ok, c.topic)
			}
		})
	}
}

func TestNamesThatWeDoNotMakeAreNotOurs(t *testing.T) {
	for _, c := range []struct{ name, stream string }{
		{"empty", ""},
		{"another's", "orders"},
		{"prefix only", "hf+"},
		{"no namespace", "hf+orders"},
		{"empty namespace", "hf++orders"},
		{"empty name", "hf+default+"},
		{"a part too many", "hf+a+b+c"},
		{"prefix in upper case", "HF+default+orders"},
		{"lower-case hex", "hf+default+a=2e"},
		{"a letter as hex", "hf+default+=61"},
		{"a slash", "hf+default+a=2Fb"},
		{"hex cut short", "hf+default+a=2"},
		{"equals at the end", "hf+default+a="},
		{"no hex", "hf+default+a=GG"},
		{"a raw dot", "hf+default+a.b"},
		{"a raw non-ASCII byte", "hf+default+ü"},
		{"too long", "hf+default+" + strings.Repeat("x", maxStreamName)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if topic, ok := topicOf(c.stream); ok {
				t.Errorf("topicOf(%q) = %q", c.stream, topic)
			}
		})
	}
}

func TestLengthOfAStreamNameIsBounded(t *testing.T) {
	fits := "/n/" + strings.Repeat("x", maxStreamName-len("hf+n+"))
	if _, err := streamName(fits); err != nil {
		t.Errorf("%d bytes: %v", maxStreamName, err)
	}
	_, err := streamName(fits + "x")
	if err == nil || !strings.Contains(err.Error(), "its stream name would have 256 bytes, NATS allows 255: use a shorter name") {
		t.Errorf("one byte more: %v", err)
	}
}

func TestEveryTopicComesBackFromItsStream(t *testing.T) {
	rnd := testseed.New(t)
	seen := map[string]string{}
	for range 20_000 {
		topic := "/" + randomPart(rnd) + "/" + randomPart(rnd)
		stream := checkRoundTrip(t, topic)
		if other, ok := seen[stream]; ok && other != topic {
			t.Fatalf("%q and %q share the stream %q", other, topic, stream)
		}
		seen[stream] = topic
	}
}

func randomPart(rnd *rand.Rand) string {
	const tricky = "ab+=.2EF _*>\x00ü"
	part := make([]byte, 1+rnd.IntN(8))
	for i := range part {
		part[i] = byte(rnd.IntN(256))
		if rnd.IntN(2) == 0 {
			part[i] = tricky[rnd.IntN(len(tricky))]
		}
		if part[i] == '/' {
			part[i] = '-'
		}
	}
	return string(part)
}

func checkRoundTrip(t *testing.T, topic string) string {
	t.Helper()
	stream, err := streamName(topic)
	if err != nil {
		t.Fatalf("streamName(%q): %v", topic, err)
	}
	if strings.Trim(stream, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=") != "" {
		t.Fatalf("streamName(%q) = %q has a character that NATS may refuse", topic, stream)
	}
	if back, ok := topicOf(stream); !ok || back != topic {
		t.Fatalf("%q became %q and came back as %q, %v", topic, stream, back, ok)
	}
	return stream
}

func FuzzNames(f *testing.F) {
	f.Add("/default/orders", "hf+default+a=2E")
	f.Add("/a+b/=2E", "hf++")
	f.Fuzz(func(t *testing.T, topic, stream string) {
		if _, err := streamName(topic); err == nil {
			checkRoundTrip(t, topic)
		}
		if topic, ok := topicOf(stream); ok {
			if again, err := streamName(topic); err != nil || again != stream {
				t.Fatalf("%q is taken for %q, whose stream is %q, %v", stream, topic, again, err)
			}
		}
	})
}
