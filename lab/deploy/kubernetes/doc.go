// Package kubernetes proves the manifests of deploy/kubernetes without a cluster: each
// renders, with the library of kustomize and with kubectl where there is one, to what the
// API's own types take without a field that they do not know; the sidecar takes the
// settings; the pod's rights are the least; and what one manifest says of another (names,
// ports, mounts, times) is so.
//
// Not shown: that a cluster admits and runs it.
package kubernetes
