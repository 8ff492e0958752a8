// Command dibs-kube is a Kubernetes API server for tests. It serves Leases and nothing else, and keeps
// them in an etcd of its own. It is built from Kubernetes' and etcd's packages, so it answers as they do.
//
//	dibs-kube -dir DIR       serve, and print one line of JSON that says where
//	dibs-kube etcd ...       the whole etcd, with etcd's own flags
//	dibs-kube elect ...      take part in an election as client-go does it
//	dibs-kube mutex ...      measure etcd's concurrency.Mutex
//	dibs-kube -version
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	etcd "go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/etcdmain"
	kubernetes "k8s.io/component-base/version"
)

func main() {
	command, arguments := "", os.Args[1:]
	if len(arguments) > 0 && arguments[0] != "" && arguments[0][0] != '-' {
		command, arguments = arguments[0], arguments[1:]
	}
	var err error
	switch command {
	case "":
		err = serve(arguments)
	case "etcd":
		etcdmain.Main(append([]string{"etcd"}, arguments...))
	case "elect":
		err = elect(arguments)
	case "mutex":
		err = mutex(arguments)
	default:
		err = fmt.Errorf("no command %q: etcd, elect or mutex", command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dibs-kube:", err)
		os.Exit(1)
	}
}

// serve runs the servers until a signal, or until standard input closes.
func serve(arguments []string) error {
	flags := flag.NewFlagSet("dibs-kube", flag.ExitOnError)
	dir := flags.String("dir", "", "where data and certificates are kept; required")
	port := flags.Int("port", 0, "port for http; 0 is a free one, here and below")
	httpsPort := flags.Int("https-port", 0, "port for https")
	etcdPort := flags.Int("etcd-port", 0, "port for etcd's clients, by gRPC or JSON")
	fsync := flags.Bool("fsync", false, "make etcd wait for the disk, as in production")
	etcdOnly := flags.Bool("etcd-only", false, "start etcd alone")
	untilStdin := flags.Bool("until-stdin-closes", false, "end when standard input does")
	showVersion := flags.Bool("version", false, "print versions and end")
	_ = flags.Parse(arguments)
	if *showVersion {
		fmt.Printf("dibs-kube: etcd %s, Kubernetes %s\n", etcd.Version, kubernetes.DefaultKubeBinaryVersion)
		return nil
	}
	if *dir == "" || flags.NArg() > 0 {
		return fmt.Errorf("usage: dibs-kube -dir DIR, see -help")
	}
	ctx, cancel := untilTold(*untilStdin)
	defer cancel()
	etcd, err := startEtcd(filepath.Join(*dir, "etcd"), *etcdPort, *fsync)
	if err != nil {
		return err
	}
	defer etcd.Close()
	where := map[string]string{"etcd": "http://" + etcd.Clients[0].Addr().String()}
	if *etcdOnly {
		say(where)
		<-ctx.Done()
		return nil
	}
	kube, err := newKube(*dir, *port, *httpsPort, where["etcd"])
	if err != nil {
		return err
	}
	return kube.run(ctx, func() {
		where["http"], where["https"], where["ca"] = kube.http, kube.https, kube.ca
		say(where)
	})
}

// untilTold returns a context that ends with a signal or, if asked, with standard input.
func untilTold(stdin bool) (context.Context, context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if stdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	return ctx, cancel
}

// say prints one line of JSON.
func say(what any) {
	if err := json.NewEncoder(os.Stdout).Encode(what); err != nil {
		panic(err)
	}
}
