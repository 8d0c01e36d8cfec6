package cluster

import (
	"cmp"
	"fmt"
	"strings"
)

// Keys is the layout of CONTRACT, "Keys in etcd". Its methods only put strings
// together: a broker id has no slash, and a topic has the form /namespace/name.
// Names that end in a slash are prefixes to scan.
type Keys struct{ prefix string }

// NewKeys is the layout below prefix. Its trailing slashes are dropped.
func NewKeys(prefix string) Keys { return Keys{strings.TrimRight(prefix, "/")} }

// Registrations is the prefix of all registrations.
func (k Keys) Registrations() string { return k.prefix + "/cluster/register/" }

// Registration is the key that says, under a lease, that the broker is alive.
func (k Keys) Registration(id string) string { return k.Registrations() + id }

// Brokers is the prefix of all states and assignments.
func (k Keys) Brokers() string { return k.prefix + "/cluster/brokers/" }

// State is the key of the broker's operational mode.
func (k Keys) State(id string) string { return k.Brokers() + id + "/state" }

// Assignments is the prefix of the broker's assignments. Its state lies below it too:
// tell them apart with ParseAssignment.
func (k Keys) Assignments(id string) string { return k.Brokers() + id + "/" }

// Assignment is the key that says that the topic belongs to the broker.
func (k Keys) Assignment(id, topic string) string { return k.Brokers() + id + topic }

// Era counts the registrations that found nobody registered.
func (k Keys) Era() string { return k.prefix + "/cluster/era" }

// Members is the prefix of all member records.
func (k Keys) Members() string { return k.prefix + "/cluster/members/" }

// Member is the key of what the broker's last registration knew.
func (k Keys) Member(id string) string { return k.Members() + id }

// TopicRecords is the prefix of all topics' records, and of what lies below them.
func (k Keys) TopicRecords() string { return k.prefix + "/topics/" }

// TopicRecord is the key of the topic's own record.
func (k Keys) TopicRecord(topic string) string { return k.prefix + "/topics" + topic }

// Unassigned is the marker of a topic that waits for a broker.
func (k Keys) Unassigned(topic string) string { return k.prefix + "/cluster/unassigned" + topic }

// Owner is the key of the topic's ownership lock.
func (k Keys) Owner(topic string) string { return k.prefix + "/cluster/owners" + topic }

// Load is the key of the broker's load report.
func (k Keys) Load(id string) string { return k.prefix + "/cluster/load/" + id }

// granted is what docs/security.md grants where that right to key is missing: the prefix that key lies
// under, or key itself.
func (k Keys) granted(key string, write bool) string {
	prefixes := []string{k.TopicRecords(), k.Moves().Key, k.Owner("/"), k.Unassigned("/"), k.Load("")}
	id, _, _ := strings.Cut(strings.TrimPrefix(key, k.Brokers()), "/")
	if _, _, assigns := k.ParseAssignment(key); assigns && write {
		prefixes = append(prefixes, k.Brokers())
	} else if !write {
		prefixes = append(prefixes, k.Assignments(id), k.Registrations(), k.Members())
	}
	for _, p := range prefixes {
		if strings.HasPrefix(key, p) {
			return p
		}
	}
	return key
}

// Purposes are what keys are for. The mode is an assignment of the broker's, too.
var Purposes = []string{"registration", "assignments", "ownership", "moves", "topics", "other"}

var purposes = map[string]string{"register": "registration", "members": "registration", "era": "registration", "brokers": "assignments",
	"unassigned": "assignments", "owners": "ownership", "moves": "moves", "drains": "moves", "locks": "moves", "topics": "topics"}

// purpose is what a key is for, or all below it.
func (k Keys) purpose(key string) string {
	section, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(key, k.prefix+"/"), "cluster/"), "/")
	return cmp.Or(purposes[section], "other")
}

// ParseRegistration takes the broker id out of a registration's key.
func (k Keys) ParseRegistration(key string) (id string, ok bool) {
	return below(k.Registrations(), key, checkBroker)
}

// ParseMember takes the broker id out of a member record's key.
func (k Keys) ParseMember(key string) (id string, ok bool) {
	return below(k.Members(), key, checkBroker)
}

// ParseState takes the broker id out of a state's key.
func (k Keys) ParseState(key string) (id string, ok bool) {
	rest, below := strings.CutPrefix(key, k.Brokers())
	id, ok = strings.CutSuffix(rest, "/state")
	return id, below && ok && checkBroker(id) == nil
}

// ParseAssignment takes broker id and topic out of an assignment's key, which has
// exactly two segments below the broker: a topic may be called "state".
func (k Keys) ParseAssignment(key string) (id, topic string, ok bool) {
	rest, ok := strings.CutPrefix(key, k.Brokers())
	slash := strings.IndexByte(rest, '/')
	if !ok || slash <= 0 || checkTopic(rest[slash:]) != nil {
		return "", "", false
	}
	return rest[:slash], rest[slash:], true
}

// ParseOwner takes the topic out of an ownership lock's key.
func (k Keys) ParseOwner(key string) (topic string, ok bool) {
	return below(k.Owner(""), key, checkTopic)
}

// ParseTopicRecord takes the topic out of its record's key. What lies below a record is
// none.
func (k Keys) ParseTopicRecord(key string) (topic string, ok bool) {
	return below(k.TopicRecord(""), key, checkTopic)
}

// below takes off the prefix. What is left must be a name of that kind.
func below(prefix, key string, check func(string) error) (name string, ok bool) {
	name, ok = strings.CutPrefix(key, prefix)
	return name, ok && check(name) == nil
}

func checkBroker(id string) error {
	if id == "" || strings.Contains(id, "/") {
		return fmt.Errorf("broker id %q: want a name without a slash", id)
	}
	return nil
}

func checkTopic(topic string) error {
	if part := strings.Split(topic, "/"); len(part) != 3 || part[0] != "" || part[1] == "" || part[2] == "" {
		return fmt.Errorf("topic %q: want the form /namespace/topic", topic)
	}
	return nil
}
