package main

import (
	"context"
	"flag"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// event is something that happened, with its time in nanoseconds: by CLOCK_MONOTONIC, which all processes
// of a machine share, and by the wall clock.
type event struct {
	Event     string `json:"event"`
	Identity  string `json:"identity"`
	Monotonic int64  `json:"monotonic_ns"`
	Wall      int64  `json:"wall_ns"`
}

// elect runs one candidate until SIGINT or SIGTERM arrives or standard input ends. It reports "stopped"
// before it releases the Lease. After it has lost the Lease it becomes a candidate again.
func elect(arguments []string) error {
	flags := flag.NewFlagSet("dibs-kube elect", flag.ExitOnError)
	url := flags.String("url", "", "URL of the API server")
	token := flags.String("token", "admin", "token of the user")
	ca := flags.String("ca", "", "file with the CA to trust, for https")
	namespace := flags.String("namespace", "default", "namespace of the Lease")
	name := flags.String("lease", "", "name of the Lease")
	identity := flags.String("identity", "", "identity of this candidate")
	duration := flags.Duration("lease-duration", 15*time.Second, "time that others wait for a renewal")
	deadline := flags.Duration("renew-deadline", 10*time.Second, "time that the leader tries to renew")
	retry := flags.Duration("retry-period", 2*time.Second, "time between two attempts")
	release := flags.Bool("release-on-cancel", false, "release the Lease at the end")
	_ = flags.Parse(arguments)

	config := &rest.Config{Host: *url, BearerToken: *token, QPS: -1} // no rate limit
	config.CAFile = *ca
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return err
	}
	stopping, cancel := untilStopped(true)
	defer cancel()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var leading sync.Mutex
	go func() {
		<-stopping.Done()
		leading.Lock() // OnStartedLeading has returned
		defer leading.Unlock()
		end()
	}()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
		},
		LeaseDuration:   *duration,
		RenewDeadline:   *deadline,
		RetryPeriod:     *retry,
		ReleaseOnCancel: *release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(term context.Context) {
				leading.Lock()
				defer leading.Unlock()
				if stopping.Err() != nil || term.Err() != nil {
					return
				}
				report("started", *identity)
				select {
				case <-stopping.Done():
				case <-term.Done():
				}
				report("stopped", *identity)
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(leader string) { report("leader", leader) },
		},
	})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		elector.Run(ctx)
	}
	return nil
}

var reporting sync.Mutex

func report(what, identity string) {
	reporting.Lock()
	defer reporting.Unlock()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	printJSON(event{what, identity, now.Nano(), time.Now().UnixNano()})
}
