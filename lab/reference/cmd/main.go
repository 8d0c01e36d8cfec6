// Command reference runs the reference broker.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"holdfast/lab/reference"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run() error {
	var o reference.Options
	listen := flag.String("listen", "127.0.0.1:8090", "address to listen on")
	flag.StringVar(&o.Name, "name", "reference", "the broker's name")
	flag.StringVar(&o.Dir, "dir", "reference-data", "data directory")
	flag.StringVar(&o.TokenFile, "token-file", "", "file with the bearer token that Holdfast must send")
	can := flag.String("capabilities", strings.Join(reference.Capabilities, ","), "what it can do")
	pidFile := flag.String("pid-file", "", "file for the process id")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flag.Arg(0))
	}
	o.Capabilities = strings.FieldsFunc(*can, func(r rune) bool { return r == ',' })
	if *pidFile != "" {
		if err := os.WriteFile(*pidFile, fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
			return err
		}
	}
	b, err := reference.New(o)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Printf("broker %s listens on %s\n", o.Name, l.Addr())
	return serve(b, l)
}

// serve returns when the broker was asked to end and every answer has been given.
func serve(b *reference.Broker, l net.Listener) error {
	server := &http.Server{Handler: b, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	asked, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	done := make(chan error, 1)
	go func() {
		<-asked.Done()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		done <- server.Shutdown(ctx)
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-done
}
