package nats

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestRecordsBecomeStreams(t *testing.T) {
	plainStream := streamConfig{Name: "hf+default+orders", Subjects: []string{"default.orders"}, Retention: "limits", Storage: "file", Discard: "old", Replicas: 1}
	with := func(change func(*streamConfig)) streamConfig {
		c := plainStream
		change(&c)
		return c
	}
	for _, c := range []struct {
		name, record string
		want         streamConfig
	}{
		{"none", "", plainStream},
		{"spaces", " \n", plainStream},
		{"null", "null", plainStream},
		{"empty object", "{}", plainStream},
		{"unknown fields are another system's", `{"schema":{"id":7},"delivery":"Reliable","partitions":[1]}`, plainStream},
		{"empty subjects", `{"subjects":[]}`, plainStream},
		{"null subjects", `{"subjects":null}`, plainStream},
		{"subjects", `{"subjects":["a.*","b.>"]}`, with(func(c *streamConfig) { c.Subjects = []string{"a.*", "b.>"} })},
		{"limits", `{"storage":"memory","replicas":3,"max_bytes":10,"max_msgs":20,"max_age_seconds":30}`, with(func(c *streamConfig) {
			c.Storage, c.Replicas, c.MaxBytes, c.MaxMsgs, c.MaxAge = "memory", 3, 10, 20, 30*time.Second
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := configOf("/topics/default/orders", "/default/orders", []byte(c.record))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestBadRecordsNameKeyValueAndRemedy(t *testing.T) {
	const (
		key      = "topic record /topics/default/orders: "
		subjects = `want a list of NATS subjects (no spaces, no empty parts, ">" at the end only), such as ["orders.>"]`
		seconds  = "want a whole number of seconds, such as 86400 for a day, at most 9223372036; 0: no limit"
	)
	for _, c := range []struct{ name, topic, record, want string }{
		{"not JSON", "/default/orders", "subjects: a", key + `cannot be read: invalid character 's' looking for beginning of value: write null, or JSON like {"subjects":["orders.>"]}`},
		{"cut short", "/default/orders", `{"subjects":`, key + `cannot be read: unexpected end of JSON input: write null, or JSON like {"subjects":["orders.>"]}`},
		{"a list", "/default/orders", `["a"]`, key + `cannot be read: json: cannot unmarshal array into Go value of type map[string]json.RawMessage: write null, or JSON like {"subjects":["orders.>"]}`},
		{"a word for seconds", "/default/orders", `{"max_age_seconds":"1d"}`, key + `"max_age_seconds" is "1d": ` + seconds},
		{"a word for bytes", "/default/orders", `{"Max_Bytes":"10GB"}`, key + `"Max_Bytes" is "10GB": want a whole number of bytes, such as 1073741824 for 1 GiB; 0: no limit`},
		{"a word for a number", "/default/orders", `{"max_msgs":"many"}`, key + `"max_msgs" is "many": want a whole number of messages; 0: no limit`},
		{"a fraction", "/default/orders", `{"replicas":1.5}`, key + `"replicas" is 1.5: want a whole number from 1 (the default) to 5`},
		{"more replicas than there can be", "/default/orders", `{"replicas":6}`, key + `"replicas" is 6: want a whole number from 1 (the default) to 5`},
		{"fewer replicas than none", "/default/orders", `{"replicas":-1}`, key + `"replicas" is -1: want a whole number from 1 (the default) to 5`},
		{"another storage", "/default/orders", `{"storage":"ssd"}`, key + `"storage" is "ssd": want "file" (the default) or "memory"`},
		{"storage in capitals", "/default/orders", `{"storage":"FILE"}`, key + `"storage" is "FILE": want "file" (the default) or "memory"`},
		{"storage that is no word", "/default/orders", `{"storage":1}`, key + `"storage" is 1: want "file" (the default) or "memory"`},
		{"one subject for many", "/default/orders", `{"subjects":"a"}`, key + `"subjects" is "a": ` + subjects},
		{"a number among subjects", "/default/orders", `{"subjects":["a",1]}`, key + `"subjects" is ["a",1]: ` + subjects},
		{"an empty part of a subject", "/default/orders", `{"subjects":["a..b"]}`, key + `"subjects" is ["a..b"]: ` + subjects},
		{"a space in a subject", "/default/orders", `{"subjects":["a b"]}`, key + `"subjects" is ["a b"]: ` + subjects},
		{"more after the end of a subject", "/default/orders", `{"subjects":["a.>.b"]}`, key + `"subjects" is ["a.>.b"]: ` + subjects},
		{"no subject", "/default/orders", `{"subjects":[""]}`, key + `"subjects" is [""]: ` + subjects},
		{"fewer bytes than none", "/default/orders", `{"max_bytes":-2}`, key + `"max_bytes" is -2: want a whole number of bytes, such as 1073741824 for 1 GiB; 0: no limit`},
		{"fewer messages than none", "/default/orders", `{"max_msgs":-2}`, key + `"max_msgs" is -2: want a whole number of messages; 0: no limit`},
		{"age below zero", "/default/orders", `{"max_age_seconds":-1}`, key + `"max_age_seconds" is -1: ` + seconds},
		{"age too large", "/default/orders", `{"max_age_seconds":9223372037}`, key + `"max_age_seconds" is 9223372037: ` + seconds},
		{"everything", "/default/orders", `{"subjects":[">"]}`, key + `subject ">": takes _HOLDFAST.quiesced.>, where Holdfast keeps quiesced streams`},
		{"the parked subjects", "/default/orders", `{"subjects":["*.quiesced.x"]}`, key + `subject "*.quiesced.x": takes _HOLDFAST.quiesced.>, where Holdfast keeps quiesced streams`},
		{"default with a space", "/default/my orders", "", `topic "/default/my orders": cannot be the NATS subject "default.my orders": name its subjects in the topic's record, /topics/default/my orders = {"subjects":["…"]}`},
		{"default with a wildcard", "/default/*", "", `topic "/default/*": cannot be the NATS subject "default.*": name its subjects in the topic's record, /topics/default/* = {"subjects":["…"]}`},
		{"default with a dot at the end", "/default/a.", "null", `topic "/default/a.": cannot be the NATS subject "default.a.": name its subjects in the topic's record, /topics/default/a. = {"subjects":["…"]}`},
		{"default not UTF-8", "/default/\xff", "", "topic \"/default/\\xff\": cannot be the NATS subject \"default.\\xff\": name its subjects in the topic's record, /topics/default/\xff = {\"subjects\":[\"…\"]}"},
		{"not a topic", "orders", "", `topic "orders": want the form /namespace/topic`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := configOf("/topics"+c.topic, c.topic, []byte(c.record))
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestAFieldThatIsNearlyOneIsNamed(t *testing.T) {
	for _, c := range []struct{ name, record, want string }{
		{"all right", `{"subjects":["a"],"storage":"file","replicas":1,"max_bytes":1,"max_msgs":1,"max_age_seconds":1}`, ""},
		{"letters of another case are read", `{"Max_Age_Seconds":1}`, ""},
		{"other systems' own", `{"schema":{"id":7},"delivery":"Reliable","partitions":[1],"retention":"limits","owner":"shop","maximum":1,"max_consumers":3,"discard":"new"}`, ""},
		{"no record", ``, ""},
		{"null", `null`, ""},
		{"the unit is missing", `{"max_age":86400}`, `"max_age" does nothing: did you mean max_age_seconds?`},
		{"one instead of many", `{"subject":["a"],"replica":3}`, `"replica" does nothing: did you mean replicas?; "subject" does nothing: did you mean subjects?`},
		{"a slip", `{"max_byte":1,"max_messages":2,"storge":"memory"}`, `"max_byte" does nothing: did you mean max_bytes?; "max_messages" does nothing: did you mean max_msgs?; "storge" does nothing: did you mean storage?`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := strings.Join(new(Broker).Misspelt([]byte(c.record)), "; "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestSubjectsMeetWhenOneMessageCanMatchBoth(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.*", "a.c", true},
		{"a.*", "a.c.d", false},
		{"a.>", "a.c.d", true},
		{"a.>", "a", false},
		{"*.b.>", "a.*.c", true},
		{"a", "a.b", false},
	} {
		t.Run(c.a+" and "+c.b, func(t *testing.T) {
			a, b := strings.Split(c.a, "."), strings.Split(c.b, ".")
			if meets(a, b) != c.want || meets(b, a) != c.want {
				t.Errorf("got %v and %v, want %v", meets(a, b), meets(b, a), c.want)
			}
		})
	}
}

func FuzzRecordsNeverPanic(f *testing.F) {
	f.Add("/default/orders", []byte(`{"subjects":["a"],"replicas":2}`))
	f.Fuzz(func(t *testing.T, topic string, raw []byte) {
		cfg, err := configOf("/topics"+topic, topic, raw)
		if err == nil && (cfg.Name == "" || len(cfg.Subjects) == 0) {
			t.Fatalf("accepted without a name or a subject: %+v", cfg)
		}
	})
}

func TestTheRecordsKeyIsNamedWithItsPrefix(t *testing.T) {
	if key := (&Broker{cfg: Config{KeyPrefix: "/rv/"}}).recordKey("/shop/k"); key != "/rv/topics/shop/k" {
		t.Error(key)
	}
}
