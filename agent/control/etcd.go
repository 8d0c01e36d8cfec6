package control

import (
	"fmt"
	"strings"

	"holdfast/agent/config"
	"holdfast/cluster"
)

// EtcdError puts a failed call into one line with the settings to look at. Wrong
// credentials are wrong settings.
func EtcdError(c config.Config, err error) error {
	where := whereEtcd(c)
	if cluster.Unresolved(err) {
		return fmt.Errorf("%s: %w: check the name, and the nameservers in /etc/resolv.conf", where, &shortError{err})
	}
	switch class := cluster.Classify(err); class {
	case cluster.ClassAuth:
		return UsageError(ExplainAuth(c, err))
	case cluster.ClassNoLeader:
		return fmt.Errorf("%s: etcd has no leader: %w: check the quorum of etcd", where, err)
	case cluster.ClassOverloaded:
		return fmt.Errorf("%s: etcd cannot keep up: %w: look at its disk and its load", where, err)
	case cluster.ClassNoSpace:
		return fmt.Errorf("%s: etcd takes no writes: %w: compact and defragment it, then 'etcdctl alarm disarm'", where, err)
	case cluster.ClassUnreachable, cluster.ClassTimeout:
		return fmt.Errorf("%s: etcd is out of reach: %w: is it running there, and is the way open?", where, &shortError{err})
	default:
		return fmt.Errorf("%s: %w: see the log of etcd", where, err)
	}
}

func whereEtcd(c config.Config) string {
	return fmt.Sprintf("--etcd-endpoints %q", strings.Join(c.EtcdEndpoints, ","))
}

// ExplainAuth says who or what etcd does not take, and what to do. It goes by the words of the error.
func ExplainAuth(c config.Config, refused error) error {
	why := &shortError{refused}
	switch denied := strings.HasPrefix(why.Error(), "permission denied"); {
	case strings.Contains(refused.Error(), cluster.RefusedConnection):
		return fmt.Errorf("%s: no connection: %w", whereEtcd(c), why)
	case denied && c.EtcdUser == "":
		return fmt.Errorf("%s: etcd refuses the user of --etcd-cert %s (its CN): %w: see docs/security.md", whereEtcd(c), c.EtcdCert, why)
	case denied:
		return fmt.Errorf("--etcd-user %q: etcd refuses it: %w: see docs/security.md", c.EtcdUser, why)
	case c.EtcdUser == "":
		return fmt.Errorf("%s: etcd refuses us: %w: set --etcd-user and --etcd-password-file, or --etcd-cert and --etcd-key", whereEtcd(c), why)
	}
	return fmt.Errorf("--etcd-user %q: etcd refuses us: %w: check --etcd-password-file %q", c.EtcdUser, why, c.EtcdPasswordFile)
}

// misdirected is what gRPC says of a connection to what is not etcd, and what that means. The first that
// fits counts.
var misdirected = [][2]string{
	{"HTTP/1.1 header", "what answers speaks HTTP/1.1: that is not etcd's client port (2379)"},
	{"handshake failed: EOF", "it ends the connection in the TLS handshake"},
	{"error reading server preface", "it takes connections and does not greet as etcd's client port (2379) does"},
}

// shortError leaves out what stands around the cause: what gRPC says of a failed
// dial or call, and which of our calls it was that etcd refused.
type shortError struct{ err error }

func (e *shortError) Error() string {
	text := e.err.Error()
	for _, known := range misdirected {
		if strings.Contains(text, known[0]) {
			return known[1]
		}
	}
	for _, noise := range []string{cluster.RefusedConnection, "Error while dialing: ", "etcdserver: ", "desc = "} {
		if i := strings.LastIndex(text, noise); i >= 0 {
			return strings.Trim(text[i+len(noise):], `"`)
		}
	}
	return text
}

// Unwrap returns the whole.
func (e *shortError) Unwrap() error { return e.err }

// Short leaves out of an error what stands around its cause: what gRPC says of a failed dial or call,
// and which of our calls it was that etcd refused.
func Short(err error) error { return &shortError{err} }

// IsUsage reports whether other settings are needed.
func IsUsage(err error) bool { return Code(err) == ExitUsage }
