// Cycles of Go's lock libraries on Redis, each as its manual shows it, and of the bare commands beneath.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

const ttl = 30 * time.Second

// A cycle acquires and releases the lock of this name.
type cycle func(ctx context.Context, name string) error

func main() {
	address := flag.String("address", "", "host and port of Redis")
	contestant := flag.String("contestant", "", "redislock, redsync or bare")
	tasks := flag.Int("tasks", 1, "number of goroutines")
	seconds := flag.Float64("seconds", 1, "duration of the measurement")
	flag.Parse()

	once, err := open(*contestant, *address, *tasks)
	if err == nil {
		err = once(context.Background(), key(*tasks))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var (
		running sync.WaitGroup
		cycles  atomic.Int64
		start   = time.Now()
		end     = start.Add(time.Duration(*seconds * float64(time.Second)))
	)
	for task := range *tasks {
		name := key(task)
		running.Go(func() {
			for time.Now().Before(end) {
				if err := once(context.Background(), name); err != nil {
					panic(err)
				}
				cycles.Add(1)
			}
		})
	}
	running.Wait()
	found := map[string]any{"cycles": cycles.Load(), "seconds": time.Since(start).Seconds()}
	_ = json.NewEncoder(os.Stdout).Encode(found)
}

// key names a lock that no other process uses.
func key(task int) string {
	return fmt.Sprintf("go-%d-%d", os.Getpid(), task)
}

func open(contestant, address string, tasks int) (cycle, error) {
	if contestant == "bare" {
		return bare(address)
	}
	client := redis.NewClient(&redis.Options{Addr: address, PoolSize: tasks})
	switch contestant {
	case "redislock":
		locks := redislock.New(client)
		return func(ctx context.Context, name string) error {
			lock, err := locks.Obtain(ctx, name, ttl, nil)
			if err != nil {
				return err
			}
			return lock.Release(ctx)
		}, nil
	case "redsync":
		locks := redsync.New(goredis.NewPool(client))
		return func(ctx context.Context, name string) error {
			mutex := locks.NewMutex(name, redsync.WithExpiry(ttl))
			if err := mutex.LockContext(ctx); err != nil {
				return err
			}
			_, err := mutex.UnlockContext(ctx)
			return err
		}, nil
	}
	return nil, fmt.Errorf("unknown contestant %q", contestant)
}

// bare sends SET NX PX, then a script that deletes what is ours. The client puts the commands of all
// goroutines into one pipeline.
func bare(address string) (cycle, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{address}, DisableCache: true, PipelineMultiplex: 0, AlwaysPipelining: true,
	})
	if err != nil {
		return nil, err
	}
	release := rueidis.NewLuaScript(
		"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0")
	return func(ctx context.Context, name string) error {
		take := client.B().Set().Key(name).Value("mine").Nx().Px(ttl).Build()
		if err := client.Do(ctx, take).Error(); err != nil {
			return err
		}
		return release.Exec(ctx, client, []string{name}, []string{"mine"}).Error()
	}, nil
}
