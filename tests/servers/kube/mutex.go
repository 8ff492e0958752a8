package main

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// mutex locks and unlocks for some seconds, and prints the cycles per second.
func mutex(arguments []string) error {
	flags := flag.NewFlagSet("dibs-kube mutex", flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "URL of etcd")
	name := flags.String("name", "bench", "name of the lock")
	tasks := flags.Int("tasks", 1, "number of concurrent tasks")
	each := flags.Bool("each", false, "give each task a lock of its own: NAME-0, NAME-1, ...")
	seconds := flags.Float64("seconds", 5, "duration of the measurement")
	_ = flags.Parse(arguments)

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{*endpoint}})
	if err != nil {
		return err
	}
	defer client.Close()
	mutexes := make([]*concurrency.Mutex, *tasks)
	for task := range mutexes {
		session, err := concurrency.NewSession(client)
		if err != nil {
			return err
		}
		defer session.Close()
		key := *name
		if *each {
			key = fmt.Sprintf("%s-%d", key, task)
		}
		mutexes[task] = concurrency.NewMutex(session, key)
	}
	var (
		running sync.WaitGroup
		cycles  atomic.Int64
		start   = time.Now()
		end     = start.Add(time.Duration(*seconds * float64(time.Second)))
	)
	for _, mutex := range mutexes {
		running.Go(func() {
			for time.Now().Before(end) {
				if err := cycle(context.Background(), mutex); err != nil {
					panic(err)
				}
				cycles.Add(1)
			}
		})
	}
	running.Wait()
	took := time.Since(start).Seconds()
	printJSON(map[string]any{"cycles": cycles.Load(), "seconds": took, "per_second": float64(cycles.Load()) / took})
	return nil
}

func cycle(ctx context.Context, mutex *concurrency.Mutex) error {
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	return mutex.Unlock(ctx)
}
