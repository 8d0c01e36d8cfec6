// Package danubepb is the part of Danube's gRPC interface that Holdfast uses: messages
// and stubs that protoc makes of the two .proto files beside it. `make proto` makes them
// again, with generators of the versions that the Makefile pins.
//
// Not guaranteed: completeness. What is not declared here is skipped when received and
// cannot be sent.
package danubepb

//go:generate make -C ../../.. proto
