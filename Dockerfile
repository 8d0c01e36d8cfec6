# The image of Holdfast: one static program, a numeric user, its state, nothing else.
#
#   docker build -t holdfast .
#   docker buildx build --platform linux/amd64,linux/arm64 \
#     --build-arg VERSION=v1.2.3 --build-arg REVISION="$(git rev-parse HEAD)" -t holdfast:v1.2.3 .
#
# The program is built on the builder's own platform for the one that is asked for, so
# nothing is emulated. Both bases can be replaced: BUILDER needs Go, make and bash, and
# what is in BASE stays in the image.
ARG BUILDER=golang:1.26
ARG BASE=scratch

FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS TARGETARCH VERSION
# The flags are the Makefile's. The directory of the state must exist with its owner in
# the image: a new volume gets both from it.
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH make build VERSION=$VERSION \
 && install -d /image/etc/ssl/certs \
 && install -d -m 0700 -o 65532 -g 65532 /image/var/lib/holdfast \
 && install -m 0555 bin/holdfast /image/holdfast \
 && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/

FROM ${BASE}
ARG VERSION REVISION
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="Keeps an unmodified message broker attached to its cluster, and clients away from it when it is not" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# Public authorities, for an etcd behind a public certificate; --etcd-cacert takes their
# place. No shell, no /tmp, no /etc/passwd: nothing of them is needed.
COPY --from=build /image/ /
# Without it the runtime's own, which has no /: 'kubectl exec POD -c holdfast -- holdfast status'.
ENV PATH=/
USER 65532:65532
# All that is written. Everything else may be read-only (--read-only).
VOLUME /var/lib/holdfast
EXPOSE 9808 9809
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 CMD ["/holdfast", "healthcheck"]
ENTRYPOINT ["/holdfast"]
CMD ["run"]
