package main

import (
	"context"
	"flag"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// event is what happened and when: by the system's monotonic clock, which all processes share, and by
// the wall clock, both in nanoseconds.
type event struct {
	Event     string `json:"event"`
	Identity  string `json:"identity"`
	Monotonic int64  `json:"monotonic_ns"`
	Wall      int64  `json:"wall_ns"`
}

// elect runs one candidate until a signal or the end of standard input. It stops leading before it gives
// the Lease up, and stands again after it has lost it.
func elect(arguments []string) error {
	flags := flag.NewFlagSet("dibs-kube elect", flag.ExitOnError)
	url := flags.String("url", "", "of the API server")
	token := flags.String("token", "admin", "to authenticate with")
	ca := flags.String("ca", "", "file with the authority to trust, for https")
	namespace := flags.String("namespace", "default", "of the Lease")
	name := flags.String("lease", "", "name of the Lease")
	identity := flags.String("identity", "", "of this candidate")
	duration := flags.Duration("lease-duration", 15*time.Second, "how long others wait for a renewal")
	deadline := flags.Duration("renew-deadline", 10*time.Second, "how long the leader tries to renew")
	retry := flags.Duration("retry-period", 2*time.Second, "between two tries")
	release := flags.Bool("release-on-cancel", false, "give the Lease up at the end")
	_ = flags.Parse(arguments)

	config := &rest.Config{Host: *url, BearerToken: *token, QPS: -1}
	config.CAFile = *ca
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return err
	}
	told, cancel := untilTold(true)
	defer cancel()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var leading sync.Mutex
	go func() {
		<-told.Done()
		leading.Lock() // no earlier than the work has stopped
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
				if told.Err() != nil || term.Err() != nil {
					return
				}
				tell("started", *identity)
				select {
				case <-told.Done():
				case <-term.Done():
				}
				tell("stopped", *identity)
			},
			OnStoppedLeading: func() {},
			OnNewLeader:      func(leader string) { tell("leader", leader) },
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

var telling sync.Mutex

func tell(what, identity string) {
	telling.Lock()
	defer telling.Unlock()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		os.Exit(1)
	}
	say(event{what, identity, now.Nano(), time.Now().UnixNano()})
}
