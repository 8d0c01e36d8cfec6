package danube

import (
	"context"
	"crypto/subtle"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// newServer is for one of the ports that speak gRPC.
func (b *Broker) newServer(then ...grpc.UnaryServerInterceptor) (*grpc.Server, error) {
	options := []grpc.ServerOption{grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{b.admit, strict}, then...)...)}
	if b.cfg.Cert != "" {
		secure, err := credentials.NewServerTLSFromFile(b.cfg.Cert, b.cfg.Key)
		if err != nil {
			return nil, fmt.Errorf("speak TLS: %w", err)
		}
		options = append(options, grpc.Creds(secure))
	}
	return grpc.NewServer(options...), nil
}

// admit refuses a call without the token.
func (b *Broker) admit(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if b.cfg.Token != "" {
		borne := metadata.ValueFromIncomingContext(ctx, "authorization")
		if len(borne) != 1 || subtle.ConstantTimeCompare([]byte(borne[0]), []byte("Bearer "+b.cfg.Token)) != 1 {
			return nil, status.Error(codes.Unauthenticated, "a valid token is required")
		}
	}
	return handle(ctx, req)
}

// url is how the broker tells others of one of these ports.
func (b *Broker) url(hostPort string) string {
	if b.cfg.Cert != "" {
		return "https://" + hostPort
	}
	return "http://" + hostPort
}
