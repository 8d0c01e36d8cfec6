package agent

import (
	"net"
	"path/filepath"
)

// pulsar checks the settings that only a Pulsar broker has.
func (r *report) pulsar() {
	c := r.c
	r.required(c.PulsarCluster == "", "pulsar-cluster", " with --driver pulsar: write the clusterName of the broker's broker.conf")
	if host, port, err := net.SplitHostPort(c.PulsarAdvertised); c.PulsarAdvertised != "" && (err != nil || host == "" || port == "") {
		r.add("pulsar-advertised", "not host:port: write it as GET /admin/v2/brokers/CLUSTER lists this broker")
	}
	r.when(c.PulsarStatusFile != "" && !filepath.IsAbs(c.PulsarStatusFile), "pulsar-status-file", "not an absolute path: write the statusFilePath of the broker's broker.conf")
	r.when(c.Registration == "adopt", "registration", "a Pulsar broker's session is the broker's own, and is not renewed from here: write own, or leave it out", "driver")
}
