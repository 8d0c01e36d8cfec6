package danube

import (
	"errors"
	"strings"
	"testing"

	"holdfast/brokerapi"
)

func TestAddressesAreComparedAsFarAsTheyCanBe(t *testing.T) {
	for _, c := range []struct {
		name, a, b string
		want       likeness
	}{
		{"equal", "http://10.0.0.1:50051", "http://10.0.0.1:50051", same},
		{"scheme does not count", "10.0.0.1:50051", "https://10.0.0.1:50051/", same},
		{"case does not count", "http://Broker-1:50051", "http://broker-1.:50051", same},
		{"names of this machine", "http://localhost:50051", "http://[::1]:50051", same},
		{"other port", "http://10.0.0.1:50051", "http://10.0.0.1:50052", different},
		{"other number", "http://10.0.0.1:50051", "http://10.0.0.2:50051", different},
		{"other loopback", "http://127.0.0.1:50051", "http://127.0.0.2:50051", different},
		{"wildcard", "http://0.0.0.0:50051", "http://127.0.0.1:50051", possible},
		{"wildcard and other port", "http://0.0.0.0:50051", "http://127.0.0.1:50052", different},
		{"loopback and name", "http://127.0.0.1:50051", "http://broker-1:50051", possible},
		{"name and number", "http://broker-1:50051", "http://10.0.0.1:50051", possible},
		{"no port", "http://broker-1", "http://broker-1", different},
		{"nothing", "", "", different},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
				if got := compareAddresses(pair[0], pair[1]); got != c.want {
					t.Errorf("%q and %q: %v, want %v", pair[0], pair[1], got, c.want)
				}
			}
		})
	}
}

func TestTheBrokerIsFoundByEvidenceAndNeverGuessed(t *testing.T) {
	const here, wild, peer = "http://127.0.0.1:50051", "http://0.0.0.0:50051", "http://127.0.0.1:50052"
	silence := errors.New("metrics are silent")
	at := func(id, admin string, revision int64) candidate {
		return candidate{ID: id, Admin: admin, Lookup: "http://127.0.0.9:6650", CreateRevision: revision}
	}
	for _, c := range []struct {
		name     string
		e        evidence
		id       string
		ask      bool
		stranger bool
		text     []string // of the error
	}{
		{name: "metrics and the broker's list agree",
			e: evidence{Told: "7", Believed: []candidate{at("7", here, 0), at("8", peer, 0)}}, id: "7"},
		{name: "metrics and a list that does not speak against it",
			e: evidence{Told: "7", Believed: []candidate{at("7", wild, 0), at("8", wild, 0)}}, id: "7"},
		{name: "metrics of another broker",
			e:        evidence{Told: "8", Believed: []candidate{at("7", here, 0), at("8", peer, 0)}},
			stranger: true, text: []string{"--danube-metrics M is broker 8", "--broker-admin is " + here, peer}},
		{name: "not listed yet: the registrations are asked",
			e: evidence{Told: "9", Believed: []candidate{at("7", here, 0)}}, ask: true},
		{name: "registered and not listed yet",
			e: evidence{Told: "9", Asked: true, Registered: []candidate{at("7", here, 1), at("9", here, 2)}}, id: "9"},
		{name: "not registered yet, and its predecessor lingers",
			e:    evidence{Told: "9", Asked: true, Believed: []candidate{at("7", here, 0)}, Registered: []candidate{at("7", here, 1)}},
			text: []string{"broker 9", "broker 7", "wait until"}},
		{name: "registration gone, peers registered",
			e: evidence{Told: "7", Asked: true, Registered: []candidate{at("8", peer, 1), at("9", wild, 2)}}, id: "7"},
		{name: "found before on this connection, and all lists are empty",
			e: evidence{Told: "7", Verified: "7"}, id: "7"},
		{name: "listed at an address that may be ours, and another at ours",
			e:    evidence{Told: "8", Believed: []candidate{at("7", here, 0), at("8", wild, 0)}},
			text: []string{"broker 8", "broker 7"}},
		{name: "metrics of another host, whose broker may be at this address",
			e:    evidence{Told: "8", Apart: true, Believed: []candidate{at("7", wild, 0), at("8", wild, 0)}},
			text: []string{"broker 8", "on another host", "write the same host in both"}},
		{name: "metrics of another host, and the broker is at this very address",
			e: evidence{Told: "7", Apart: true, Believed: []candidate{at("7", here, 0), at("8", wild, 0)}}, id: "7"},
		{name: "no metrics: the registrations are asked", e: evidence{}, ask: true},
		{name: "no metrics, known from this connection", e: evidence{Verified: "7"}, id: "7"},
		{name: "no metrics: the youngest at this address that the broker knows",
			e: evidence{Asked: true, Believed: []candidate{at("5", here, 0), at("7", here, 0)},
				Registered: []candidate{at("7", here, 20), at("5", here, 10), at("8", peer, 30)}}, id: "7"},
		{name: "no metrics, and the broker does not know the youngest",
			e: evidence{Asked: true, Believed: []candidate{at("5", here, 0)},
				Registered: []candidate{at("5", here, 10), at("7", here, 20)}},
			text: []string{"broker 7", "silent"}},
		{name: "no metrics, and only registrations that may be ours",
			e:    evidence{Asked: true, Believed: []candidate{at("8", wild, 0)}, Registered: []candidate{at("8", wild, 1)}},
			text: []string{here, "silent", "--danube-metrics"}},
		{name: "no metrics, and the client address decides",
			e: evidence{Asked: true, Lookup: "http://127.0.0.9:6650", Believed: []candidate{at("8", wild, 0)},
				Registered: []candidate{at("8", wild, 1)}}, id: "8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := c.e
			e.Admin, e.Metrics = here, "M"
			if e.Lookup == "" {
				e.Lookup = "http://127.0.0.1:6650"
			}
			if e.Told == "" {
				e.Silence = silence
			}
			id, ask, err := e.judge()
			if id != c.id || ask != c.ask || (err != nil) != (c.text != nil) || errors.Is(err, brokerapi.ErrIdentity) != c.stranger {
				t.Fatalf("got %q, ask %v, %v", id, ask, err)
			}
			for _, part := range c.text {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func FuzzRegistrationsFindNobodyThatIsNotThere(f *testing.F) {
	f.Add(`{"broker_url":"http://127.0.0.1:6650","admin_addr":"http://127.0.0.1:50051"}`, "7", "8", int64(1))
	f.Add(`{"admin_addr":"http://0.0.0.0:50051","prom_exporter":"x"}`, "7", "7", int64(0))
	f.Add(`{"admin_addr":["http://127.0.0.1:50051"]}`, "", "/", int64(-1))
	f.Add("null", "7", "18446744073709551615", int64(1<<62))
	f.Fuzz(func(t *testing.T, value, id, told string, revision int64) {
		c, ok := parseRegistration(Registration{BrokerID: id, Value: []byte(value), CreateRevision: revision})
		if ok && (c.ID != id || c.ID == "") {
			t.Fatalf("%q: registration of %q", value, c.ID)
		}
		e := evidence{Admin: "http://127.0.0.1:50051", Lookup: "http://127.0.0.1:6650", Told: told, Asked: true, Silence: errors.New("silent")}
		if ok {
			e.Registered, e.Believed = []candidate{c}, []candidate{c}
		}
		found, ask, err := e.judge()
		if ask || err == nil && (found == "" || found != told && found != id) {
			t.Fatalf("%q: found %q, ask %v", value, found, ask)
		}
		if told == "" && err == nil && compareAddresses(c.Admin, e.Admin) == different {
			t.Fatalf("%q: found at another address", value)
		}
	})
}

func TestAClientPortIsAnothersOnlyWhenThatIsCertain(t *testing.T) {
	ours, theirs := candidate{ID: "1", Lookup: "http://10.0.0.1:6650"}, candidate{ID: "2", Lookup: "http://10.0.0.2:6650"}
	for _, c := range []struct {
		name, lookup string
		list         []candidate
		other        bool
	}{
		{"ours", "http://10.0.0.1:6650", []candidate{ours, theirs}, false},
		{"theirs", "http://10.0.0.2:6650", []candidate{ours, theirs}, true},
		{"a mapped port", "http://127.0.0.1:30650", []candidate{ours, theirs}, false},
		{"a name for ours, as all have it", "http://localhost:6650", []candidate{ours, theirs}, false},
		{"our last life's", "http://10.0.0.1:6650", []candidate{ours, {ID: "0", Lookup: ours.Lookup}}, false},
		{"we have not registered yet", "http://10.0.0.2:6650", []candidate{theirs}, false},
		{"we advertise none", "http://10.0.0.2:6650", []candidate{{ID: "1"}, theirs}, false},
	} {
		if other, ok := neighbour(c.list, "1", c.lookup); ok != c.other || ok && other.ID != "2" {
			t.Errorf("%s: %v, %v", c.name, other, ok)
		}
	}
}
