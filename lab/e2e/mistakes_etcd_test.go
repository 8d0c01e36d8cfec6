package e2e

// etcdMistakes are those with etcd's address, TLS, users and rights.
var etcdMistakes = []mistake{}
