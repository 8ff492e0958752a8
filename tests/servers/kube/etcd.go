package main

import (
	"fmt"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// startEtcd starts a cluster of one member and waits until it serves.
func startEtcd(dir string, port int, fsync bool) (*embed.Etcd, error) {
	config := embed.NewConfig()
	config.Name = "only"
	config.Dir = dir
	config.LogLevel = "warn"
	config.UnsafeNoFsync = !fsync
	config.ListenClientUrls = loopback(port)
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = loopback(0)
	config.AdvertisePeerUrls = config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		return nil, err
	case <-time.After(30 * time.Second):
		etcd.Close()
		return nil, fmt.Errorf("etcd did not start in 30 s")
	}
}

func loopback(port int) []url.URL {
	return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}}
}
