//go:build pulsar

package pulsar

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"

	"holdfast/lab/harness"
)

// Connect makes an ordinary client of a cluster that knows these brokers. The caller closes it.
func Connect(brokers ...*harness.ApacheBroker) (pulsar.Client, error) {
	var hosts []string
	for _, b := range brokers {
		hosts = append(hosts, strings.TrimPrefix(b.ServiceURL(), "pulsar://"))
	}
	c, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: "pulsar://" + strings.Join(hosts, ","), OperationTimeout: 10 * time.Second, ConnectionTimeout: 2 * time.Second,
		Logger: log.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil))),
	})
	if err != nil {
		return nil, fmt.Errorf("make a client of Pulsar: %w", err)
	}
	return c, nil
}
