// Package image builds the Dockerfile and runs what comes out, with a Docker daemon of
// its own, which it starts by hand and ends: no service, no network of containers, no
// registry. The base of the builder is made here of the host's Go and of the modules
// that are already there. It needs root and Debian's docker.io (dockerd, containerd,
// runc and docker on PATH), and is skipped without.
package image
