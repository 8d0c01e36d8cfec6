// Package clientpb is the part of Danube's gRPC interface by which the lab publishes and reads.
// What is not declared there is skipped when received and cannot be sent. Made from the .proto
// file here, with the generators of `make proto`:
//
//	protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative danube_client.proto
package clientpb
