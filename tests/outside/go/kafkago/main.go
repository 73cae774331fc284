// A member by kafka-go, on its ConsumerGroup: a generation's readers stop and commit before the next one is joined.
//
//	kafkago BROKERS GROUP TOPIC ASSIGNOR
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
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

// read delivers one partition until ctx ends.
func read(ctx context.Context, generation *kafka.Generation, brokers []string, topic string, from kafka.PartitionAssignment) {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:   brokers,
		Topic:     topic,
		Partition: from.ID,
		MinBytes:  1,
		MaxBytes:  1 << 20,
		MaxWait:   100 * time.Millisecond,
	})
	defer reader.Close()
	if err := reader.SetOffset(from.Offset); err != nil {
		panic(err)
	}
	next, committed := from.Offset, from.Offset
	commit := func() {
		if next == committed {
			return
		}
		offsets := map[string]int64{fmt.Sprint(from.ID): next}
		if err := generation.CommitOffsets(map[string]map[int]int64{topic: {from.ID: next}}); err != nil {
			write("refused", map[string]any{"offsets": offsets, "why": err.Error()})
			return
		}
		committed = next
		write("commit", map[string]any{"offsets": offsets})
	}
	defer commit()
	last := time.Now()
	for {
		wait, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		message, err := reader.ReadMessage(wait)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			now := float64(time.Now().UnixNano()) / 1e9
			write("did", map[string]any{"partition": message.Partition, "offset": message.Offset, "from": now})
			next = message.Offset + 1
		} else if !errors.Is(err, context.DeadlineExceeded) {
			log.Println("reading:", err)
		}
		if time.Since(last) > 200*time.Millisecond {
			commit()
			last = time.Now()
		}
	}
}

func main() {
	brokers, group, topic, assignor := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3], os.Args[4]
	balancers := map[string]kafka.GroupBalancer{
		"range":      kafka.RangeGroupBalancer{},
		"roundrobin": kafka.RoundRobinGroupBalancer{},
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	members, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                group,
		Brokers:           brokers,
		Topics:            []string{topic},
		GroupBalancers:    []kafka.GroupBalancer{balancers[assignor]},
		HeartbeatInterval: 300 * time.Millisecond,
		SessionTimeout:    6 * time.Second,
		RebalanceTimeout:  60 * time.Second,
		JoinGroupBackoff:  200 * time.Millisecond,
		StartOffset:       kafka.FirstOffset,
		Logger:            kafka.LoggerFunc(log.Printf),
		ErrorLogger:       kafka.LoggerFunc(log.Printf),
	})
	if err != nil {
		panic(err)
	}
	write("joined", map[string]any{})
	// Close ends a generation and waits for its functions
	var work sync.WaitGroup
	for {
		generation, err := members.Next(ctx)
		if ctx.Err() != nil || errors.Is(err, kafka.ErrGroupClosed) {
			break
		}
		if err != nil {
			log.Println("joining:", err)
			continue
		}
		assigned := generation.Assignments[topic]
		partitions := []int{}
		for _, each := range assigned {
			partitions = append(partitions, each.ID)
		}
		if len(partitions) == 0 {
			continue
		}
		write("own", map[string]any{"partitions": partitions})
		work.Add(1)
		// one function for all of them: when it returns, the generation may end
		generation.Start(func(ended context.Context) {
			defer work.Done()
			var readers sync.WaitGroup
			for _, each := range assigned {
				readers.Add(1)
				go func(each kafka.PartitionAssignment) {
					defer readers.Done()
					read(ended, generation, brokers, topic, each)
				}(each)
			}
			readers.Wait()
			write("revoked", map[string]any{"partitions": partitions})
		})
	}
	if err := members.Close(); err != nil {
		log.Println("closing:", err)
	}
	work.Wait()
	write("left", map[string]any{})
}
