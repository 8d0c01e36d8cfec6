package danube

import (
	"encoding/json"
	"strings"
)

// The layout of the metadata. A prefix that is scanned ends in a slash.
const (
	registerPrefix   = "/cluster/register/"
	brokersPrefix    = "/cluster/brokers/"
	unassignedPrefix = "/cluster/unassigned/"
	loadPrefix       = "/cluster/load/"
	leaderKey        = "/cluster/leader"
	nodesPrefix      = "/cluster/nodes/" // with Raft: who ever joined, the voters
	topicsPrefix     = "/topics/"
)

func registerKey(id string) string          { return registerPrefix + id }
func stateKey(id string) string             { return brokersPrefix + id + "/state" }
func assignmentsPrefix(id string) string    { return brokersPrefix + id + "/" }
func assignmentKey(id, topic string) string { return brokersPrefix + id + topic }
func unassignedKey(topic string) string     { return strings.TrimSuffix(unassignedPrefix, "/") + topic }
func loadKey(id string) string              { return loadPrefix + id }
func topicKey(topic, leaf string) string    { return "/topics" + topic + "/" + leaf }
func cursorKey(topic, sub string) string    { return topicKey(topic, "subscriptions/"+sub+"/cursor") }

// splitAssignment takes /cluster/brokers/{id}/{ns}/{topic} apart. The state key, which
// has one segment after the id, is none.
func splitAssignment(key string) (id, topic string, ok bool) {
	rest, ok := strings.CutPrefix(key, brokersPrefix)
	if !ok {
		return "", "", false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return "", "", false
	}
	return parts[0], "/" + parts[1] + "/" + parts[2], true
}

func validTopic(topic string) bool {
	parts := strings.Split(topic, "/")
	return len(parts) == 3 && parts[0] == "" && parts[1] != "" && parts[2] != ""
}

// Marker is the value of an unassigned key: why the topic is there.
type Marker struct {
	Reason     string  `json:"reason"`
	FromBroker *uint64 `json:"from_broker,omitempty"`
	Ready      bool    `json:"ready,omitempty"` // with Raft: it has been unloaded
}

// The reasons of a marker.
const (
	reasonUnload   = "unload"
	reasonRedirect = "drain_redirect"
)

// marker reads what there is; null, or what is no marker, is the zero one.
func marker(value []byte) (m Marker) {
	if json.Unmarshal(value, &m) != nil {
		return Marker{}
	}
	return m
}

type brokerState struct {
	Mode   string `json:"mode"`
	Reason string `json:"reason,omitempty"`
}

const (
	modeActive   = "active"
	modeDraining = "draining"
	modeDrained  = "drained"
)

// mode is what the state key says. Missing or malformed, it is active.
func mode(value []byte) string {
	var s struct {
		Mode *string `json:"mode"`
	}
	if json.Unmarshal(value, &s) != nil || s.Mode == nil {
		return modeActive
	}
	return *s.Mode
}

// registration is what a broker says of itself.
type registration struct {
	BrokerURL    string `json:"broker_url"`
	ConnectURL   string `json:"connect_url"`
	AdminAddr    string `json:"admin_addr"`
	PromExporter string `json:"prom_exporter,omitempty"`
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only values of this package, all of which encode
	}
	return b
}
