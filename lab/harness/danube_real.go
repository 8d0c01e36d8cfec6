package harness

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
)

// realConfig is that of a broker of release 0.7.3. The flush and the uploads are as often as in
// its own examples for tests. What is put for others is shared, as an object store would be.
const realConfig = `cluster_name: lab
broker:
  host: %[1]s
  ports: {client: %[2]d, admin: %[3]d, prometheus: %[4]d}
meta_store: {host: %[5]s, port: %[6]s}
bootstrap_namespaces: [default]
auto_create_topics: true
policies: {}
auth: {mode: none}
load_manager: {assignment_strategy: fair, load_report_interval_seconds: 5}
wal_cloud:
  wal: {dir: %[7]q, file_name: wal.log, file_sync: {interval_ms: 200, max_batch_bytes: 1048576}}
  uploader: {interval_seconds: 5, root_prefix: "/danube-data"}
  cloud: {backend: fs, root: %[8]q}
  metadata: {etcd_endpoint: "%[5]s:%[6]s", in_memory: false}
`

// realProcess writes the configuration of a real broker and prepares its process.
func (d *Danube) realProcess(l *Lab, o DanubeOptions) (*Process, error) {
	etcd, err := url.Parse(o.Etcd)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf(realConfig, d.host, d.ClientPort, d.AdminPort, d.MetricsPort, etcd.Hostname(), etcd.Port(), filepath.Join(d.DataDir, "wal"), o.Objects)
	config := filepath.Join(l.Dir, o.Name+".yml")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	p := l.newProcess(o.Name, o.Place, filepath.Join(o.Real, "danube-broker"),
		[]string{"--config-file", config, "--broker-addr", d.ClientAddr(), "--admin-addr", d.AdminAddr(), "--prom-exporter", d.MetricsAddr()})
	p.env = []string{"RUST_LOG=warn,danube_broker=info"} // by itself it logs errors only
	return p, nil
}
