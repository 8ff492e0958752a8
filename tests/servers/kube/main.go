// Command dibs-kube is a Kubernetes API server for tests. It serves only Leases and stores them in its own
// etcd. It is built from the packages of Kubernetes and etcd, so it behaves as they do.
//
//	dibs-kube -dir DIR       serve, and print the URLs as one line of JSON
//	dibs-kube etcd ...       run the whole etcd, with etcd's own flags
//	dibs-kube elect ...      run a candidate of client-go's leader election
//	dibs-kube mutex ...      measure etcd's concurrency.Mutex
//	dibs-kube check          validate manifests from standard input as an API server does
//	dibs-kube kustomize DIR  print the manifests that the kustomization.yaml of a folder makes
//	dibs-kube -version       print the versions of etcd and Kubernetes
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
	case "check":
		err = check(os.Stdin, os.Stdout)
	case "kustomize":
		err = kustomize(arguments, os.Stdout)
	default:
		err = fmt.Errorf("unknown command %q: use etcd, elect, mutex, check or kustomize", command)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "dibs-kube:", err)
		os.Exit(1)
	}
}

// serve runs the servers until SIGINT or SIGTERM arrives or, with -until-stdin-closes, standard input ends.
func serve(arguments []string) error {
	flags := flag.NewFlagSet("dibs-kube", flag.ExitOnError)
	dir := flags.String("dir", "", "folder for data and certificates (required)")
	port := flags.Int("port", 0, "port for http; 0, here and below, is a free port")
	httpsPort := flags.Int("https-port", 0, "port for https")
	etcdPort := flags.Int("etcd-port", 0, "port for clients of etcd, by gRPC or JSON")
	fsync := flags.Bool("fsync", false, "make etcd wait for the disk, as in production")
	etcdOnly := flags.Bool("etcd-only", false, "start etcd alone")
	untilStdin := flags.Bool("until-stdin-closes", false, "stop when standard input ends")
	showVersion := flags.Bool("version", false, "print versions and exit")
	_ = flags.Parse(arguments)
	if *showVersion {
		fmt.Printf("dibs-kube: etcd %s, Kubernetes %s\n", etcd.Version, kubernetes.DefaultKubeBinaryVersion)
		return nil
	}
	if *dir == "" || flags.NArg() > 0 {
		return fmt.Errorf("usage: dibs-kube -dir DIR, see -help")
	}
	ctx, cancel := untilStopped(*untilStdin)
	defer cancel()
	etcd, err := startEtcd(filepath.Join(*dir, "etcd"), *etcdPort, *fsync)
	if err != nil {
		return err
	}
	defer etcd.Close()
	urls := map[string]string{"etcd": "http://" + etcd.Clients[0].Addr().String()}
	if *etcdOnly {
		printJSON(urls)
		<-ctx.Done()
		return nil
	}
	kube, err := newKube(*dir, *port, *httpsPort, urls["etcd"])
	if err != nil {
		return err
	}
	return kube.run(ctx, func() {
		urls["http"], urls["https"], urls["ca"] = kube.http, kube.https, kube.ca
		printJSON(urls)
	})
}

// untilStopped returns a context that ends with SIGINT or SIGTERM and, with stdin, when standard input ends.
func untilStopped(stdin bool) (context.Context, context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if stdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	return ctx, cancel
}

// printJSON prints one line.
func printJSON(value any) {
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		panic(err)
	}
}
