// A member by franz-go: hands records to the journal as they are polled, commits them, and only then lets go.
//
//	franz BROKERS GROUP TOPIC ASSIGNOR
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var mutex sync.Mutex

func write(what string, event map[string]any) {
	mutex.Lock()
	defer mutex.Unlock()
	event["what"] = what
	event["t"] = float64(time.Now().UnixNano()) / 1e9
	line, _ := json.Marshal(event)
	fmt.Println(string(line))
}

func turn(what, topic string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		if len(partitions[topic]) > 0 {
			write(what, map[string]any{"partitions": partitions[topic]})
		}
	}
}

func main() {
	brokers, group, topic, assignor := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	balancers := map[string]kgo.GroupBalancer{
		"range":              kgo.RangeBalancer(),
		"roundrobin":         kgo.RoundRobinBalancer(),
		"sticky":             kgo.StickyBalancer(),
		"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(brokers, ",")...),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.Balancers(balancers[assignor]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(6*time.Second),
		kgo.RebalanceTimeout(60*time.Second),
		kgo.HeartbeatInterval(300*time.Millisecond),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.OnPartitionsAssigned(turn("own", topic)),
		kgo.OnPartitionsRevoked(turn("revoked", topic)),
		kgo.OnPartitionsLost(turn("lost", topic)),
	)
	if err != nil {
		panic(err)
	}
	write("joined", map[string]any{})
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		offsets := map[string]int64{}
		fetches.EachRecord(func(record *kgo.Record) {
			now := float64(time.Now().UnixNano()) / 1e9
			write("did", map[string]any{"partition": record.Partition, "offset": record.Offset, "from": now})
			offsets[fmt.Sprint(record.Partition)] = record.Offset + 1
		})
		if len(offsets) > 0 {
			if err := client.CommitRecords(context.Background(), fetches.Records()...); err != nil {
				write("refused", map[string]any{"offsets": offsets, "why": err.Error()})
			} else {
				write("commit", map[string]any{"offsets": offsets})
			}
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
	write("left", map[string]any{})
}
